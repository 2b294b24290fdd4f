// After an answer: where its time went, what the caches saved, what was used, what it came to.

import { node, terms } from "./dom.js";
import { count, many, milliseconds, money } from "./figures.js";
import { stagesOf } from "./stages.js";

const CACHES = { processor: "processor cache", encoder: "encoder cache", prefix: "prefix cache" };

/** `answer` is {proteus, usage, seenMs, firstMs, drawn}; times are of the browser's own clock. */
export function reportNode(answer) {
  const { proteus = {}, seenMs, drawn } = answer;
  const stages = stagesOf(proteus.stages_ms, seenMs, drawn);
  const saved = savedOf(proteus.caches);
  return node(
    "details",
    { class: "report", open: true },
    node("summary", {}, ...headline(answer)),
    timeBar(stages, saved.ms),
    drawn ? null : node("p", { class: "saved-note" }, saved.words),
    terms(rowsOf(answer), { class: "rows" }),
  );
}

function headline({ proteus = {}, usage = {}, seenMs, firstMs }) {
  const parts = [node("b", {}, milliseconds(seenMs))];
  if (firstMs !== null) parts.push(`first after ${milliseconds(firstMs)}`);
  if (usage.prompt_tokens !== undefined) {
    parts.push(`${count(usage.prompt_tokens)} → ${many(usage.completion_tokens, "token")}`);
  }
  if (proteus.price) parts.push(money(proteus.price));
  return parts.flatMap((part, index) => (index ? [" · ", part] : [part]));
}

function savedOf(caches = {}) {
  let ms = 0;
  const words = [];
  for (const [name, label] of Object.entries(CACHES)) {
    const cache = caches[name];
    if (!cache?.hits) continue;
    ms += cache.saved_ms;
    const what = name === "prefix" ? many(cache.tokens, "token") : `${cache.hits} of ${many(cache.lookups, "picture")}`;
    words.push(`${label} ${milliseconds(cache.saved_ms)} (${what})`);
  }
  if (!words.length) return { ms: 0, words: "The caches had nothing of this yet." };
  return { ms, words: `The caches saved about ${milliseconds(ms)}: ${words.join(", ")}.` };
}

/** That a picture is not what it was: of a question before the model saw it, or one that was drawn. */
export function blurNote({ proteus }) {
  const check = Object.values(proteus?.moderation ?? {}).find(({ verdict }) => verdict === "blur");
  if (!check) return null;
  return `The check of contents had pictures blurred${check.category ? `: ${check.category}` : ""}.`;
}

/** One bar for all stages, a list that names them, and beside the bar what the caches saved. */
function timeBar(stages, savedMs) {
  const total = stages.reduce((sum, [, ms]) => sum + ms, 0);
  const share = (ms) => `${((100 * ms) / total).toFixed(ms / total < 0.1 ? 1 : 0)} %`;
  const said = node("p", { class: "said" }, "Point at a stage, or walk along the bar with the arrow keys.");
  const segments = stages.map(([name, ms], index) => {
    const label = `${name}, ${milliseconds(ms)}, ${share(ms)}`;
    const segment = node("button", { type: "button", class: "segment", "data-stage": name, "aria-label": label });
    segment.tabIndex = index ? -1 : 0;
    segment.style.flexGrow = ms / total;
    return segment;
  });
  const rows = stages.map(([name, ms]) =>
    node(
      "li",
      { "data-stage": name },
      node("i", {}),
      node("span", {}, name.replaceAll("_", " ")),
      node("b", { "data-ms": ms }, milliseconds(ms)),
    ),
  );
  const point = (index) => {
    [...segments, ...rows].forEach((one) => one.classList.remove("pointed"));
    if (index < 0) return;
    const [name, ms, what] = stages[index];
    segments[index].classList.add("pointed");
    rows[index].classList.add("pointed");
    said.replaceChildren(node("b", {}, name.replaceAll("_", " ")), ` ${milliseconds(ms)}, ${share(ms)}: ${what}.`);
  };
  for (const [index, one] of [...segments.entries(), ...rows.entries()]) {
    one.addEventListener("pointerenter", () => point(index));
    one.addEventListener("focus", () => point(index));
    one.addEventListener("click", () => point(index));
  }
  const label = `Where ${milliseconds(total)} went`;
  const bar = node("div", { class: "bar", role: "group", "aria-label": label }, ...segments);
  bar.addEventListener("keydown", (event) => walk(event, segments));
  if (savedMs > 0) {
    const gone = node("span", { class: "gone", title: `${milliseconds(savedMs)} saved by the caches` });
    gone.style.flexGrow = savedMs / total;
    bar.append(gone);
  }
  return node("div", { class: "times" }, bar, said, node("ol", { class: "legend" }, ...rows));
}

function walk(event, segments) {
  const at = segments.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: segments.length - 1 }[event.key];
  if (at < 0 || to === undefined || !segments[to]) return;
  event.preventDefault();
  segments[at].tabIndex = -1;
  segments[to].tabIndex = 0;
  segments[to].focus();
}

function rowsOf({ proteus = {}, usage = {}, firstMs, drawn }) {
  const { auto, price, ttft_ms: ttftMs, media = [], moderation } = proteus;
  const details = usage.prompt_tokens_details ?? {};
  const used = drawn
    ? drawnUse(proteus)
    : [
        ["Prompt", usage.prompt_tokens && promptWords(usage.prompt_tokens, details)],
        ["Answer", usage.completion_tokens !== undefined && many(usage.completion_tokens, "token")],
      ];
  return [
    ["Model", proteus.model && modelWords(proteus)],
    ["Because", auto?.because],
    ["First token", ttftMs && firstMs !== null && `${milliseconds(ttftMs)} at the server, ${milliseconds(firstMs)} here`],
    ...used,
    ["Pictures", grouped(media.map(mediaWords)).join("; ")],
    ["Checked", moderation && Object.entries(moderation).map(checkWords).join("; ")],
    ["Price", price && priceWords(price)],
    ["Request", proteus.request_id],
  ].map(([term, value]) => [term, value || null]);
}

function modelWords({ model, auto, pool }) {
  const tier = auto?.tier ? `, tier ${auto.tier}` : "";
  return `${model}${auto ? `, chosen by auto${tier}` : ""}${pool ? ` · pool ${pool}` : ""}`;
}

function promptWords(tokens, { cached_tokens: cached, text_tokens: text, image_tokens: visual }) {
  const parts = [];
  if (visual) parts.push(`${count(visual)} visual and ${count(text)} of text`);
  if (cached) parts.push(`${count(cached)} from the prefix cache`);
  return `${many(tokens, "token")}${parts.length ? `: ${parts.join(", ")}` : ""}`;
}

function mediaWords({ bucket, tier, downscaled, visual_tokens: tokens }) {
  return `${many(tokens, "token")}, bucket ${bucket}, tier ${tier}${downscaled ? ", made smaller" : ""}`;
}

function checkWords([when, { verdict, category }]) {
  return `${when}: ${verdict}${category ? ` (${category})` : ""}`;
}

/** Equal ones once, with how many there are. */
function grouped(words) {
  const kinds = [...new Set(words)];
  return kinds.map((kind) => {
    const times = words.filter((word) => word === kind).length;
    return times > 1 ? `${times} × ${kind}` : kind;
  });
}

function drawnUse({ usage = {} }) {
  return [
    ["Prompt", usage.text_tokens && many(usage.text_tokens, "token")],
    ["Evaluations", usage.evaluations && `${count(usage.evaluations)} of the denoiser`],
    ["Work", usage.token_passes && `${count(usage.token_passes)} latent tokens through it`],
  ];
}

function priceWords(price) {
  const more = [];
  if (Number(price.per_picture) > 0) more.push(`${money({ ...price, amount: price.per_picture })} a picture`);
  if (Number(price.per_thousand_tokens) > 0) {
    more.push(`${money({ ...price, amount: price.per_thousand_tokens })} a thousand tokens`);
  }
  return `${money(price)}${more.length ? `, that is ${more.join(", ")}` : ""}`;
}
