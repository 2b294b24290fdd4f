// What a request would cost, asked while it is written: debounced, and only the last question counts.

import { Refusal, call } from "./api.js";
import { node } from "./dom.js";
import { bytes, count, many, money } from "./figures.js";
import { refusalNode } from "./refusal.js";

const WAIT_MS = 250;

export class CostLine {
  /**
   * `asked()` gives what would be sent, or null for nothing. `shown(cost)` hears of every answer, `note(refusal)` adds
   * to a refusal, `grow(refusal)` says whether there is more of the picture that it names to be sent.
   */
  constructor(place, facts, asked, { shown = () => {}, note = () => null, grow = () => false } = {}) {
    Object.assign(this, { place, facts, asked, shown, note, grow });
    this.refusal = null; // of what stands there now
  }

  changed() {
    this.stop();
    this.refusal = null;
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  stop() {
    clearTimeout(this.timer);
    this.asking?.abort();
  }

  async ask() {
    this.asking = new AbortController();
    const { signal } = this.asking;
    try {
      const cost = await this.answer(signal);
      if (signal.aborted) return;
      this.shown(cost);
      this.show(cost && chips(this.facts(cost)));
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      this.refusal = error;
      this.shown(null);
      if (error.status === 401) this.show(null);
      else this.show(refusalNode(error, { note: this.note(error) }));
    }
  }

  /** By the beginnings of the files; where a header does not lie there, by more of that file. */
  async answer(signal) {
    const asked = await this.asked();
    if (asked === null) return null;
    try {
      return await call("v1/cost", asked, signal);
    } catch (error) {
      if (signal.aborted || error.code !== "invalid_picture" || !this.grow(error)) throw error;
      return this.answer(signal);
    }
  }

  show(content) {
    this.place.replaceChildren(...(content ? [content] : []));
  }
}

function chips(rows) {
  const items = rows.filter(Boolean).map(([value, word, title]) => {
    return node("li", { title }, node("b", {}, value), ` ${word}`);
  });
  return node("ul", { class: "chips" }, ...items);
}

/** Rows of a question: tokens, memory, the most it can cost. */
export function questionFacts(cost) {
  const room = cost.context_tokens ? ` of ${count(cost.context_tokens)}` : "";
  const prompt = cost.text_tokens + cost.visual_tokens;
  const parts = cost.visual_tokens
    ? `${many(cost.visual_tokens, "visual token")} and ${count(cost.text_tokens)} of text`
    : "text only";
  return [
    [count(prompt), `prompt tokens${room}`, parts],
    cost.visual_tokens > 0 && [count(cost.visual_tokens), "of them visual", "positions that pictures take"],
    [bytes(cost.kv_bytes), "of KV", "memory of the language model while it answers"],
    cost.price && [money(cost.price), "at most", "with the longest answer, nothing cached"],
    cost.auto && [[cost.auto.model, cost.auto.tier].filter(Boolean).join(", "), "by auto", cost.auto.because],
  ];
}

/** Rows of a drawing. */
export function drawingFacts(cost) {
  const { images, evaluations } = cost.resources;
  return [
    images && [count(images), images === 1 ? "picture" : "pictures"],
    evaluations && [count(evaluations), "evaluations", "calls of the denoiser: steps, twice with guidance"],
    cost.price && [money(cost.price), "at most"],
  ];
}
