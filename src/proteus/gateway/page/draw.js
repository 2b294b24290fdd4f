// Drawing: the form, pictures as they come out of the noise, and what they took.

import { Refusal, events } from "./api.js";
import { CostLine, drawingFacts } from "./cost.js";
import { by, fit, node } from "./dom.js";
import { milliseconds } from "./figures.js";
import { refusalNode } from "./refusal.js";
import { blurNote, reportNode } from "./report.js";

const PREVIEWS = 3; // the most that OpenAI's API gives
const TICK_MS = 100;
const MAX_SIZES = 64; // that are listed; of more only the squares
const NUMBERS = ["steps", "guidance", "seed", "first_index", "n"];
const WORDS = ["size", "sampler", "negative_prompt"];

export class Draw {
  /** `model()` names the model that is chosen. */
  constructor(model) {
    this.model = model;
    this.msPerStep = null; // of the last drawing: until the first preview, progress is told by it
    this.form = by("draw-form");
    this.cost = new CostLine(by("draw-cost"), drawingFacts, async () => this.document());
    this.form.addEventListener("input", (event) => {
      if (event.target === by("draw-prompt")) fit(event.target);
      if (event.target.id === "draw-seed") by("draw-first").value = "";
      this.cost.changed();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    by("draw-prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    // Not by the second click of a double one, which is on Draw.
    by("draw-stop").addEventListener("click", (event) => event.detail < 2 && this.cancel());
  }

  /** What the deployment allows, from its contract. */
  limits(draw) {
    const { min_side_px: least, max_side_px: most, side_multiple_px: step, max_pixels: area } = draw;
    let sizes = [];
    for (let height = least; height <= most; height += step) {
      for (let width = least; width <= most; width += step) {
        if (width * height <= area) sizes.push(`${width}x${height}`);
      }
    }
    const isSquare = (size) => size.split("x")[0] === size.split("x")[1];
    if (sizes.length > MAX_SIZES) sizes = sizes.filter((size) => isSquare(size) || size === draw.default_size);
    by("draw-size").replaceChildren(
      ...sizes.map((size) =>
        node("option", { value: size, selected: size === draw.default_size }, size.replace("x", " × ")),
      ),
    );
    Object.assign(by("draw-steps"), { max: draw.max_steps, value: draw.default_steps });
    Object.assign(by("draw-guidance"), { max: draw.max_guidance, value: draw.default_guidance });
    by("draw-n").max = draw.max_images;
    by("draw-sampler").value = draw.default_sampler;
  }

  cancel() {
    this.running?.abort();
  }

  document() {
    const data = new FormData(this.form);
    const prompt = data.get("prompt").trim();
    if (!prompt) return null;
    const asked = { model: this.model(), prompt };
    for (const name of WORDS) if (data.get(name)?.trim()) asked[name] = data.get(name).trim();
    for (const name of NUMBERS) if (data.get(name)) asked[name] = Number(data.get(name));
    return asked;
  }

  async send() {
    const asked = this.document();
    if (!asked || this.running) return by("draw-prompt").focus();
    if (this.cost.refusal?.isFinal) return by("draw-cost").firstElementChild?.focus(); // it stands there already
    this.running = new AbortController();
    const hadFocus = document.activeElement === by("draw-send");
    by("draw-send").hidden = true;
    by("draw-stop").hidden = false;
    if (hadFocus) by("draw-stop").focus();
    for (const older of document.querySelectorAll("#drawn .report")) older.open = false;
    const most = Math.max(1, Number(by("draw-n").max)); // more than that is refused, and needs no places
    const drawing = new Drawing(asked, Math.min(asked.n ?? 1, most), this.msPerStep);
    by("drawn").prepend(drawing.node);
    try {
      await drawing.run(this.running.signal);
      this.msPerStep = drawing.msPerStep ?? this.msPerStep;
    } finally {
      this.running = null;
      const isElsewhere = ![document.body, by("draw-stop")].includes(document.activeElement);
      by("draw-stop").hidden = true;
      by("draw-send").hidden = false;
      if (!isElsewhere) by("draw-send").focus({ preventScroll: true });
    }
  }
}

/** One request: a tile for each picture, then the report. */
class Drawing {
  constructor(asked, places, msPerStep) {
    this.asked = asked;
    this.steps = asked.steps ?? 1;
    this.msPerStep = msPerStep;
    this.tiles = Array.from({ length: places }, (_, index) => new Tile(index, asked));
    // Busy: every step is seen, and only the end is read out.
    this.status = node("p", { class: "status", role: "status", "aria-busy": "true" }, "Waiting for a place …");
    this.node = node(
      "article",
      { class: "drawing" },
      node("p", { class: "prompt" }, asked.prompt),
      node("div", { class: "tiles" }, ...this.tiles.map((tile) => tile.node)),
      this.status,
    );
  }

  async run(signal) {
    this.begun = performance.now();
    const ticking = setInterval(() => this.tick(), TICK_MS);
    const told = { drawn: true, firstMs: null };
    let failure = null;
    try {
      await this.read(told, signal);
    } catch (error) {
      failure = error;
    } finally {
      clearInterval(ticking);
    }
    told.seenMs = performance.now() - this.begun;
    for (const tile of this.tiles) tile.end();
    this.status.setAttribute("aria-busy", "false");
    if (signal.aborted) this.status.textContent = `Cancelled after ${milliseconds(told.seenMs)}; so did the server.`;
    else if (failure) this.refused(failure);
    else this.status.textContent = [`Done in ${milliseconds(told.seenMs)}.`, blurNote(told)].filter(Boolean).join(" ");
    if (told.proteus || told.usage) this.node.append(reportNode(told));
  }

  async read(told, signal) {
    const streamed = { ...this.asked, stream: true, partial_images: PREVIEWS };
    for await (const event of events("v1/images/generations", streamed, signal)) {
      const tile = this.tiles[event.index ?? 0];
      if (event.type === "image_generation.partial_image") {
        told.firstMs ??= performance.now() - this.begun;
        const step = event.step ?? Math.round((this.steps * (event.partial_image_index + 1)) / (PREVIEWS + 1));
        this.msPerStep = (performance.now() - this.begun) / Math.max(1, step);
        tile?.preview(event, step);
      } else if (event.type === "image_generation.completed") {
        tile?.picture(event);
        this.msPerStep = (performance.now() - this.begun) / this.steps;
        told.usage = event.usage ?? told.usage;
        told.proteus = event.proteus ?? told.proteus;
      }
    }
    if (this.tiles.every((tile) => tile.done)) return;
    throw new Refusal({ message: "the drawing ended early", fix: "draw again" });
  }

  /** Steps are known from previews; between them, from the time that those before took. */
  tick() {
    const ms = performance.now() - this.begun;
    const guess = this.msPerStep ? ms / this.msPerStep : null;
    for (const tile of this.tiles) tile.reach(guess);
    const done = this.tiles.filter((tile) => tile.done).length;
    const far = Math.floor(Math.min(this.steps, ...this.tiles.filter((tile) => !tile.done).map((tile) => tile.step)));
    const of = this.tiles.length > 1 ? `${done} of ${this.tiles.length} pictures, ` : "";
    const words = far > 0 ? `${of}about step ${far} of ${this.steps}` : "Waiting for the first step …";
    if (this.status.textContent !== words) this.status.textContent = words;
  }

  refused(error) {
    if (!(error instanceof Refusal)) console.error(error);
    this.status.replaceWith(node("div", { role: "status" }, refusalNode(error)));
  }
}

class Tile {
  constructor(index, asked) {
    this.index = index;
    this.asked = asked;
    this.step = 0;
    this.done = false;
    [this.width, this.height] = (asked.size ?? "1x1").split("x").map(Number);
    this.image = node("img", { alt: "", hidden: true });
    this.frame = node("div", { class: "canvas" }, this.image);
    this.frame.style.aspectRatio = `${this.width} / ${this.height}`;
    this.bar = node("progress", { max: asked.steps ?? 1, "aria-label": `Picture ${index + 1}` });
    this.caption = node("figcaption", {}, this.bar);
    this.node = node("figure", { class: "tile" }, this.frame, this.caption);
  }

  show({ b64_json: data, output_format: format }, words) {
    this.image.src = `data:image/${format ?? "png"};base64,${data}`;
    this.image.alt = words;
    this.image.hidden = false;
  }

  preview(event, step) {
    this.show(event, `Preview of picture ${this.index + 1}`);
    this.frame.classList.add("previewed");
    this.reach(step);
  }

  /** Never back, and not to the end before it is there. */
  reach(step) {
    if (this.done || step === null) return;
    this.step = Math.max(this.step, Math.min(step, this.bar.max - 0.5));
    this.bar.value = this.step;
  }

  picture(event) {
    this.done = true;
    this.show(event, this.asked.prompt);
    this.frame.classList.remove("previewed");
    const name = `proteus-${event.seed ?? "drawn"}-${this.index}.${event.output_format ?? "png"}`;
    this.caption.replaceChildren(
      node("a", { href: this.image.src, download: name, class: "button" }, "Download"),
      ...(event.seed === undefined ? [] : this.noise(event.seed, event.image_index ?? this.index)),
    );
  }

  /** Seed and index make this one of several again. */
  noise(seed, index) {
    const keep = () => {
      by("draw-seed").value = seed;
      by("draw-first").value = index || "";
      by("draw-n").value = 1;
      by("draw-form").dispatchEvent(new Event("input"));
    };
    const words = `seed ${seed}${index ? `, picture ${index + 1}` : ""}`;
    const title = `Draw from ${words} again`;
    const again = node("button", { type: "button", class: "quiet", title, onclick: keep }, "Reuse seed");
    return [again, node("span", { class: "facts" }, words)];
  }

  end() {
    if (!this.done) this.bar.remove();
    if (!this.done && this.image.hidden) this.node.remove();
  }
}
