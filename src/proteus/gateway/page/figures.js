// Numbers as people read them.

const whole = new Intl.NumberFormat("en-GB");

export const count = (value) => whole.format(value);

/** `many(2, "picture")` is "2 pictures". */
export const many = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

export function milliseconds(ms) {
  if (ms >= 9_950) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1_000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms >= 9.95) return `${Math.round(ms)} ms`;
  return `${ms >= 0.995 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${Number.isInteger(value) || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export const pixels = (value) => (value >= 1e6 ? `${Number((value / 1e6).toPrecision(3))} MP` : `${count(value)} px`);

/** Prices here are far below a cent: three digits that say something, whatever stands before them. */
export function money({ amount, currency }) {
  const value = Number(amount);
  const digits = value > 0 && value < 1 ? Math.min(12, 2 - Math.floor(Math.log10(value))) : 2;
  const form = { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: Math.max(2, digits) };
  return new Intl.NumberFormat("en-GB", form).format(value);
}
