// Calls of the gateway: documents, server-sent events, and refusals in its own words.

const KEY = "proteus-key"; // of this tab only, gone when it is closed

/** What the gateway, or the line to it, did not do. */
export class Refusal extends Error {
  constructor({ message, limit, fix, code, status, request, retryAfterS }) {
    super(message || "no reason was given");
    Object.assign(this, { limit, fix, code, status: status ?? 0, request, retryAfterS });
  }

  /** True where asking the same again cannot help. */
  get isFinal() {
    return this.status >= 400 && this.status < 500 && ![401, 408, 429].includes(this.status);
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

async function refusalOf(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    told = { message: `the answer is no error that is known here (HTTP ${response.status})` };
  }
  const request = response.headers.get("x-request-id");
  const retryAfterS = response.headers.get("retry-after");
  return new Refusal({ ...told, status: response.status, request, retryAfterS });
}

async function send(path, asked, signal) {
  const headers = {};
  if (hasKey()) headers.authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  const options = { headers, signal, credentials: "omit", redirect: "error" };
  if (asked) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(asked) });
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal({ message: "the gateway does not answer", fix: "see whether it runs, then try again" });
  }
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event("keyneeded"));
  throw await refusalOf(response);
}

/** A document; `asked` makes it a POST. Throws Refusal, or AbortError by `signal`. */
export async function call(path, asked, signal) {
  const response = await send(path, asked, signal);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal({ message: "the answer is no document, or broke off", fix: "try again" });
  }
}

async function* pieces(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Refusal({ message: "the line broke before the end", fix: "ask again" });
    }
    if (piece.done) return;
    yield piece.value;
  }
}

/** Documents of a stream until its end or `[DONE]`. Throws as `call` does, in the middle of it too. */
export async function* events(path, asked, signal) {
  const response = await send(path, asked, signal);
  let held = "";
  for await (const piece of pieces(response, signal)) {
    held += piece.replaceAll("\r", "");
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal({ ...event.error, request: response.headers.get("x-request-id") });
      yield event;
    }
  }
}
