// What is accepted and what is charged, from /v1/contract, in words.

import { node, terms } from "./dom.js";
import { bytes, count, many, money, pixels } from "./figures.js";

function reading({ image, text, llm, tiers = {} }) {
  if (!image) return [];
  const levels = Object.entries(tiers).map(([name, tier]) => {
    const over = tier.over === "refuse" ? "larger ones are refused" : "larger ones are made smaller";
    return [`Detail ${name}`, `up to ${pixels(tier.max_pixels)}; ${over}`];
  });
  return [
    ["Pictures", `up to ${image.max_pictures} in one request, ${bytes(image.max_bytes)} each`],
    ["Size", `${count(image.min_side_px)} to ${count(image.max_side_px)} px a side, up to ${pixels(image.max_pixels)}`],
    ["Formats", image.formats.join(", ")],
    ...levels,
    ["Text", text && `up to ${bytes(text.max_text_bytes)} in ${many(text.max_messages, "message")}`],
    ["Context", llm && `${many(llm.context_tokens, "token")}: pictures, text and answer`],
  ];
}

function drawing({ draw }) {
  if (!draw) return [];
  const sides = `${draw.min_side_px} to ${draw.max_side_px} px a side, in steps of ${draw.side_multiple_px}`;
  return [
    ["Drawn size", `${sides}, up to ${pixels(draw.max_pixels)}`],
    ["Drawn at once", `up to ${many(draw.max_images, "picture")}, ${many(draw.max_steps, "step")} each`],
  ];
}

function charged({ prices }) {
  if (!prices) return [];
  return Object.entries(prices)
    .filter(([name, amount]) => name !== "currency" && Number(amount) > 0)
    .map(([name, amount]) => {
      const word = name.replaceAll("_", " ").replace("thousand", "1,000").replace("million", "1,000,000");
      return [word.charAt(0).toUpperCase() + word.slice(1), money({ amount, currency: prices.currency })];
    });
}

/** Fills the places of the page. */
export function showLimits(place, contract) {
  const prices = charged(contract);
  place.replaceChildren(
    node("h3", {}, "What is accepted"),
    terms([...reading(contract), ...drawing(contract)], { class: "rows" }),
    ...(prices.length ? [node("h3", {}, "What is charged"), terms(prices, { class: "rows" })] : []),
    node("p", {}, "A picture's kind is told from its content, never from its name. All of it is decided from the ",
      "header, before a pixel is decoded."),
  );
}
