// What the stages are called and what happens in them; in the order of a request.

const GATEWAY = {
  receive: "the gateway reads the request",
  plan: "what it costs is worked out from the headers",
  moderation: "the check of what is asked",
  moderation_after: "the check of what is answered",
  queue: "waits at the gateway for its share of a server",
  gateway: "what is left of the gateway's time: sending, reading, writing",
};

const READ = {
  ...GATEWAY,
  ingress: "the server reads and plans it",
  admission: "waits for room on the server",
  preprocess: "pictures are decoded, turned, made smaller",
  encoder_queue: "waits for the encoder's next batch",
  encode: "the vision encoder looks at the pictures",
  connector: "features become visual tokens",
  transfer: "hops between models",
  lm_queue: "waits for a place in the language model",
  prefill: "the language model reads the prompt, until the first token",
  decode: "the answer, token by token",
};

const DRAWN = {
  ...GATEWAY,
  plan: "what it costs is worked out",
  parse: "the server reads it",
  admission: "waits for room on the server",
  condition: "the prompt becomes text states",
  queue: "waits for a place",
  denoise: "noise becomes a picture, step by step",
  decode: "the latent becomes pixels",
  encode: "the file is written",
  transfer: "hops between models",
};

/** `[name, ms, what]` of every stage that took time, in order; they add up to `seenMs`, as the browser saw it. */
export function stagesOf(told, seenMs, drawn) {
  const meaning = drawn ? DRAWN : READ;
  const rows = Object.entries(told ?? {})
    .filter(([name, ms]) => name !== "total" && ms > 0)
    .map(([name, ms]) => [name, ms, meaning[name] ?? "a stage that this page has no words for"]);
  const rest = seenMs - rows.reduce((sum, [, ms]) => sum + ms, 0);
  if (rest > 0) rows.push(["on the way", rest, "the line and the browser"]);
  return rows;
}
