// Nodes of the page. What comes from outside is only ever text: nothing here reads it as HTML.

/** An element with attributes, `on…` listeners, and children that are nodes or text. */
export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const by = (id) => document.getElementById(id);

/** Makes a field for text as high as what is in it, up to eight lines. */
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 200)}px`;
}

/** A list of terms; rows without a value are left out. */
export function terms(rows, attributes = {}) {
  const told = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const pairs = told.map(([term, value]) => node("div", {}, node("dt", {}, term), node("dd", {}, value)));
  return node("dl", attributes, ...pairs);
}
