// Why something was not done: what, the limit it met, and what to do.

import { node, terms } from "./dom.js";

const TITLES = {
  "-1": "A fault of this page",
  0: "It did not work",
  401: "A key is needed",
  403: "Not allowed",
  404: "Not there",
  408: "Too slow",
  413: "Too large",
  429: "Too much for now",
  503: "Not ready",
  504: "Took too long",
};

/** A sentence; the name of a field, as in "n = 9", stays as it is. */
function capital(text) {
  return /^\w+ = /.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1);
}

/** The gateway's message says limit and fix too, for clients that show nothing else. */
function what({ message, limit, fix }) {
  return message.replace(`; limit: ${limit}`, "").replace(`; fix: ${fix}`, "");
}

/** `error` is a Refusal; anything else is a fault of the page and says so. */
export function refusalNode(error, { note = null } = {}) {
  const title = TITLES[error.status ?? -1] ?? (error.status >= 500 ? "It failed" : "Refused");
  const when = error.retryAfterS ? `in ${error.retryAfterS} s` : null;
  const origin = [error.code, error.request && `request ${error.request}`].filter(Boolean).join(" · ");
  return node(
    "div",
    { class: "refusal", tabindex: "-1" },
    node("strong", {}, title),
    node("p", {}, capital(what(error))),
    terms([
      ["Limit", error.limit],
      ["What to do", error.fix],
      ["Try again", when],
    ]),
    note && node("p", {}, note),
    origin && node("p", { class: "origin" }, origin),
  );
}
