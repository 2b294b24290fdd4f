// The conversation: questions with pictures, answers as they are written, and what each of them took.

import { Refusal, events } from "./api.js";
import { CostLine, questionFacts } from "./cost.js";
import { by, fit, node } from "./dom.js";
import { Pictures } from "./pictures.js";
import { refusalNode } from "./refusal.js";
import { blurNote, reportNode } from "./report.js";

const ENDINGS = {
  length: "Cut off at the most tokens that were asked for.",
  stopped: "Stopped here; so did the server.",
  wordless: "The model ended without a word.",
};

/** Scrolls so far that the report is not behind the form, and no further than the answer. */
function uncover(turn, answer) {
  const covered = turn.getBoundingClientRect().bottom - by("ask-form").getBoundingClientRect().top;
  const room = answer.getBoundingClientRect().top - document.querySelector("header").offsetHeight - 16;
  scrollBy(0, Math.max(0, Math.min(covered, room)));
}

export class Ask {
  /** `model()` names the model that is chosen. */
  constructor(model) {
    this.model = model;
    this.turns = []; // {role, text, pictures}, as far as they were answered
    this.box = by("ask-text");
    this.cost = new CostLine(
      by("ask-cost"),
      questionFacts,
      async () => this.costDocument(),
      {
        shown: (cost) => this.pictures.tell(cost?.pictures),
        note: (refusal) => this.note(refusal),
        grow: (refusal) => this.grow(refusal),
      },
    );
    this.pictures = new Pictures(by("pictures"), () => this.cost.changed());
    this.listen();
  }

  listen() {
    by("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.box.addEventListener("input", () => {
      fit(this.box);
      this.cost.changed();
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    // Not by the second click of a double one, which is on Ask.
    by("ask-stop").addEventListener("click", (event) => event.detail < 2 && this.cancel());
    by("again").addEventListener("click", () => this.restart());
    by("choose").addEventListener("click", () => by("files").click());
    by("files").addEventListener("change", (event) => {
      this.pictures.add(event.target.files);
      event.target.value = "";
      this.box.focus();
    });
    for (const field of ["ask-max", "ask-heat"]) by(field).addEventListener("input", () => this.cost.changed());
  }

  cancel() {
    this.running?.abort();
  }

  restart() {
    this.cancel();
    this.turns = [];
    by("thread").replaceChildren();
    by("welcome").hidden = false;
    by("again").hidden = true;
    this.cost.changed();
    this.box.focus();
  }

  costDocument() {
    const question = this.question();
    return question && this.document([...this.turns, question], false);
  }

  /** Whether there is more to send of the picture that a refusal of the cost names, counted through the conversation. */
  grow({ message }) {
    const [, number] = /^picture (\d+)/.exec(message) ?? [];
    const pictures = [...this.turns.flatMap((turn) => turn.pictures), ...this.pictures.items];
    return pictures[number - 1]?.grow() ?? false;
  }

  /** What a new conversation would mend. */
  note({ code, limit }) {
    const isTooMuch = code === "prompt_too_long" || /max_pictures|max_messages/.test(limit);
    return this.turns.length && isTooMuch ? "What was asked before counts too: New conversation begins without it." : null;
  }

  /** What is being written, or null. */
  question() {
    const text = this.box.value.trim();
    const pictures = this.pictures.items;
    return text || pictures.length ? { role: "user", text, pictures } : null;
  }

  async document(turns, whole) {
    const messages = [];
    for (const { role, text, pictures } of turns) {
      const parts = await Promise.all(pictures.map((picture) => picture.part(whole)));
      if (text) parts.push({ type: "text", text });
      messages.push({ role, content: pictures.length ? parts : text });
    }
    const asked = { model: this.model(), messages };
    if (by("ask-max").value) asked.max_tokens = Number(by("ask-max").value);
    if (by("ask-heat").value) asked.temperature = Number(by("ask-heat").value);
    return asked;
  }

  async send() {
    const question = this.question();
    if (!question || this.running) return this.box.focus();
    if (this.cost.refusal?.isFinal) return by("ask-cost").firstElementChild?.focus(); // it stands there already
    this.cost.stop();
    this.cost.show(null);
    this.running = new AbortController();
    this.busy(true);
    const turn = this.open(question);
    this.box.value = "";
    fit(this.box);
    this.pictures.take();
    this.cost.stop();
    try {
      await this.answer(question, turn);
    } finally {
      this.running = null;
      this.busy(false);
    }
  }

  busy(is) {
    const isElsewhere = ![document.body, by("ask-stop")].includes(document.activeElement);
    by("ask-send").hidden = is;
    by("ask-stop").hidden = !is;
    if (is || isElsewhere || !matchMedia("(pointer: fine)").matches) return; // no keyboard comes up on a phone
    this.box.focus({ preventScroll: true });
  }

  /** The question as it was asked, and the place for its answer. */
  open({ text, pictures }) {
    by("welcome").hidden = true;
    by("again").hidden = false;
    for (const older of document.querySelectorAll("#thread .report")) older.open = false;
    const answer = node("div", { class: "answer waiting", "aria-live": "polite", "aria-busy": "true" });
    const shown = pictures.map((picture) => picture.image());
    const asked = node(
      "div",
      { class: "question" },
      shown.length ? node("div", { class: "shown" }, ...shown) : null,
      text ? node("p", {}, text) : null,
    );
    const turn = node("article", { class: "turn" }, asked, answer);
    by("thread").append(turn);
    turn.scrollIntoView({ block: "start", behavior: "instant" });
    return { turn, answer };
  }

  async answer(question, { turn, answer }) {
    const begun = performance.now();
    const { turns } = this; // another conversation may have begun when this ends
    const told = { text: "", ending: null, firstMs: null };
    const said = node("p", {});
    answer.append(said);
    let failure = null;
    try {
      await this.read(question, told, begun, said);
    } catch (error) {
      failure = error;
      if (this.running.signal.aborted) told.ending = "stopped";
    }
    told.seenMs = performance.now() - begun;
    answer.classList.remove("waiting");
    answer.setAttribute("aria-busy", "false");
    if (told.text) turns.push(question, { role: "assistant", text: told.text, pictures: [] });
    else said.remove();
    if (told.ending === "stop" && !told.text) told.ending = "wordless";
    if (ENDINGS[told.ending]) answer.append(node("p", { class: "ending" }, ENDINGS[told.ending]));
    const blurred = blurNote(told);
    if (blurred) answer.append(node("p", { class: "ending" }, blurred));
    if (told.proteus || told.usage) turn.append(reportNode(told));
    uncover(turn, answer);
    if (failure && told.ending !== "stopped") this.refused(failure, question, answer, told);
    else if (this.box.value || this.pictures.items.length) this.cost.changed();
  }

  async read(question, told, begun, said) {
    const { signal } = this.running;
    const asked = await this.document([...this.turns, question], true);
    const streamed = { ...asked, stream: true, stream_options: { include_usage: true } };
    for await (const chunk of events("v1/chat/completions", streamed, signal)) {
      const [choice] = chunk.choices ?? [];
      const piece = choice?.delta?.content;
      if (piece) {
        told.firstMs ??= performance.now() - begun;
        told.text += piece;
        said.textContent = told.text;
      }
      told.ending = choice?.finish_reason ?? told.ending;
      if (chunk.usage) told.usage = chunk.usage;
      if (chunk.proteus) told.proteus = chunk.proteus;
    }
    if (!told.ending) throw new Refusal({ message: "the answer ended early", fix: "ask again" });
  }

  /** Nothing was answered: the question goes back to where it can be changed, unless another is being written there. */
  refused(error, question, answer, told) {
    if (!(error instanceof Refusal)) console.error(error);
    const isFree = !told.text && this.question() === null;
    const kept = told.text ? "What was said so far is kept." : isFree ? "Your question is back below." : null;
    answer.append(refusalNode(error, { note: [this.note(error), kept].filter(Boolean).join(" ") }));
    if (!isFree) return this.cost.changed();
    this.box.value = question.text;
    fit(this.box);
    this.pictures.put(question.pictures);
    this.cost.stop(); // the reason stands above
  }
}
