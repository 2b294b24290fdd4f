// The pictures of a question: chosen, dropped or pasted, in their order, each with its tier.

import { Refusal } from "./api.js";
import { node } from "./dom.js";
import { bytes, count, many } from "./figures.js";

const HEAD_BYTES = 32_768; // enough for the header of most files; /v1/cost says where it is not
const LONG_HEAD_BYTES = 131_072; // with the metadata of a camera before it
const TIERS = [
  ["", "auto", "the tier for pictures that ask for none"],
  ["low", "low", "made smaller first: fast and cheap"],
  ["high", "high", "nothing is made smaller"],
];

function dataUri(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.replace(/^data:[^,]*,/, "data:application/octet-stream;base64,"));
    reader.onerror = () => reject(new Refusal({ message: "a file cannot be read any more", fix: "choose it again" }));
    reader.readAsDataURL(blob);
  });
}

/** One picture; its name is shown, never sent. */
class Picture {
  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted picture";
    this.detail = "";
    this.headBytes = HEAD_BYTES;
    this.frame = node("span", { class: "frame" }, this.image());
  }

  /** A part of a message; not `whole`: the first bytes, with how many there are in all. */
  async part(whole) {
    const isWhole = whole || this.file.size <= this.headBytes;
    const url = { url: await (isWhole ? this.wholeUri() : this.headUri()) };
    if (!isWhole) url.total_bytes = this.file.size;
    if (this.detail) url.detail = this.detail;
    return { type: "image_url", image_url: url };
  }

  wholeUri() {
    return (this.readWhole ??= dataUri(this.file));
  }

  headUri() {
    return (this.readHead ??= dataUri(this.file.slice(0, this.headBytes)));
  }

  /** Has more of it sent from now on, to learn what it costs; false where all of it was. */
  grow() {
    if (this.file.size <= this.headBytes) return false;
    this.headBytes = this.headBytes < LONG_HEAD_BYTES ? LONG_HEAD_BYTES : Infinity;
    this.readHead = null;
    return true;
  }

  /** What the browser can show of it: a format that it does not know has its name instead. */
  image() {
    const url = URL.createObjectURL(this.file);
    const image = node("img", { src: url, alt: this.name, decoding: "async" });
    image.addEventListener("load", () => URL.revokeObjectURL(url));
    image.addEventListener("error", () => {
      URL.revokeObjectURL(url);
      const kind = (this.name.split(".").pop() || "?").slice(0, 5).toUpperCase();
      image.replaceWith(node("span", { class: "unseen", title: this.name }, kind));
    });
    return image;
  }
}

/** Those of the question that is being written, as a list that can be ordered. */
export class Pictures {
  constructor(list, changed) {
    this.list = list;
    this.changed = changed;
    this.items = [];
  }

  add(files) {
    this.put([...this.items, ...[...files].map((file) => new Picture(file))]);
  }

  /** All of them, and none is left. */
  take() {
    const taken = this.items;
    this.put([]);
    return taken;
  }

  put(items) {
    this.items = items;
    this.list.replaceChildren(...items.map((picture, index) => this.row(picture, index)));
    this.list.hidden = items.length === 0;
    this.changed();
  }

  remove(index) {
    this.put(this.items.filter((_, place) => place !== index));
    const next = this.list.children[Math.min(index, this.items.length - 1)];
    (next?.querySelector(".remove") ?? document.getElementById("ask-text")).focus();
  }

  move(index, by) {
    const items = [...this.items];
    const [moved] = items.splice(index, 1);
    items.splice(index + by, 0, moved);
    this.put(items);
    const buttons = [...this.list.children[index + by].querySelectorAll(".move")];
    buttons.sort((one, other) => (by < 0) === one.classList.contains("right") ? 1 : -1);
    buttons.find((button) => !button.disabled)?.focus();
  }

  row(picture, index) {
    const last = this.items.length - 1;
    const tool = (name, sign, label, disabled, act) =>
      node("button", { type: "button", class: name, "aria-label": label, title: label, disabled, onclick: act }, sign);
    return node(
      "li",
      {},
      picture.frame,
      tool("remove", "×", `Remove ${picture.name}`, false, () => this.remove(index)),
      node("span", { class: "facts" }, bytes(picture.file.size)),
      node(
        "span",
        { class: "tools" },
        tool("move left", "‹", `Move ${picture.name} forward`, index === 0, () => this.move(index, -1)),
        this.tiers(picture),
        tool("move right", "›", `Move ${picture.name} back`, index === last, () => this.move(index, 1)),
      ),
    );
  }

  tiers(picture) {
    const options = TIERS.map(([value, word, title]) =>
      node("option", { value, title, selected: value === picture.detail }, word),
    );
    const chosen = (event) => {
      picture.detail = event.target.value;
      this.changed();
    };
    return node("select", { "aria-label": `Detail of ${picture.name}`, onchange: chosen }, ...options);
  }

  /** Under each picture, what /v1/cost knows of it; `told` is about all pictures of the conversation. */
  tell(told) {
    const own = told ? told.slice(-this.items.length) : [];
    [...this.list.children].forEach((row, index) => {
      const facts = row.querySelector(".facts");
      const one = own[index];
      facts.textContent = one
        ? `${count(one.width_px)} × ${count(one.height_px)}${one.downscaled ? " ↓" : ""}`
        : bytes(this.items[index].file.size);
      facts.title = one
        ? `${many(one.visual_tokens, "token")}, tier ${one.tier}${one.downscaled ? ", made smaller first" : ""}`
        : "";
    });
  }
}
