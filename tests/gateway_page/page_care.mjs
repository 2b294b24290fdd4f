// What is easily done to the page, and must not confuse it: haste, odd files, odd texts, much of everything.

import assert from "node:assert/strict";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { answered, ask, cost, KEYED_URL, onPage, picture } from "./browser.mjs";

const QUESTION = "What colour is the circle?";
const PROMPT = "a red circle at the top left on a white background";

/** A streamed answer of these documents. */
const stream = (...documents) => ({
  contentType: "text/event-stream",
  body: [...documents.map((one) => JSON.stringify(one)), "[DONE]"].map((data) => `data: ${data}\n\n`).join(""),
});
const spoken = (content, finish_reason = "stop") => ({ choices: [{ index: 0, delta: { content }, finish_reason }] });

onPage("a double click asks and draws, and stops nothing", async (page) => {
  await page.fill("#ask-text", "Hello");
  await page.dblclick("#ask-send");
  assert.doesNotMatch(await (await answered(page)).innerText(), /Stopped/);
  assert.equal(await page.locator(".turn").count(), 1);
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.dblclick("#draw-send");
  assert.match(await page.locator(".drawing .status", { hasText: /Done|Cancelled/ }).innerText(), /Done/);
});

onPage("who writes on while it draws keeps the focus", async (page) => {
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.press("#draw-prompt", "Enter");
  await page.locator("#draw-stop").waitFor();
  await page.keyboard.type(", large");
  await page.locator(".drawing .report").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "draw-prompt");
  assert.equal(await page.inputValue("#draw-prompt"), `${PROMPT}, large`);
});

onPage("Esc closes the options before it stops anything", async (page) => {
  await page.route("**/v1/chat/completions", async () => {}, { times: 1 }); // no answer comes
  await page.fill("#ask-text", "Hello");
  await page.press("#ask-text", "Enter");
  await page.locator("#ask-stop").waitFor();
  await page.click(".options summary");
  await page.focus("#ask-max");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".options[open]").count(), 0);
  assert.ok(await page.locator("#ask-stop").isVisible());
  await page.keyboard.press("Escape");
  assert.match(await (await answered(page)).innerText(), /Stopped here/);
});

onPage("a cost that comes late is not shown over a newer one", async (page) => {
  let isFirst = true;
  await page.route("**/v1/cost", async (route) => {
    const isLate = isFirst;
    isFirst = false;
    const answer = await route.fetch();
    if (isLate) await new Promise((resolve) => setTimeout(resolve, 1_500));
    await route.fulfill({ response: answer }).catch(() => {}); // the page does not wait for it any more
  });
  const asked = page.waitForRequest("**/v1/cost");
  await page.fill("#ask-text", "word ".repeat(100));
  await asked;
  await page.fill("#ask-text", "Hello");
  const shown = await cost(page);
  await page.waitForTimeout(1_500);
  assert.equal(await page.locator("#ask-cost .chips").innerText(), shown);
  assert.ok(parseInt(shown) < 50, shown);
});

for (const [name, refused, most] of [["long_header.jpg", 1, 200_000], ["noise.gif", 2, Infinity]]) {
  onPage(`of a long header as much is sent as tells the cost, and that is kept in mind: ${name}`, async (page) => {
    const asked = [];
    page.on("response", async (response) => {
      if (response.url().endsWith("/v1/cost")) asked.push([response.status(), response.request().postData().length]);
    });
    await page.setInputFiles("#files", [picture("shapes.png"), picture(name)]);
    await cost(page);
    assert.deepEqual(asked.map(([status]) => status), [...Array(refused).fill(400), 200]);
    await page.fill("#ask-text", QUESTION);
    await cost(page);
    assert.deepEqual(asked.slice(refused + 1).map(([status]) => status), [200]);
    assert.ok(Math.max(...asked.map(([, length]) => length)) < most, `${asked}`);
  });
}

onPage("no file is held on to that was only shown", async (page) => {
  await page.evaluate(() => {
    window.held = new Set();
    const { createObjectURL, revokeObjectURL } = URL;
    URL.createObjectURL = (file) => {
      const url = createObjectURL.call(URL, file);
      window.held.add(url);
      return url;
    };
    URL.revokeObjectURL = (url) => {
      window.held.delete(url);
      revokeObjectURL.call(URL, url);
    };
  });
  await page.setInputFiles("#files", ["shapes.png", "shapes.png", "broken.png"].map(picture));
  assert.equal(await page.locator("#pictures li").count(), 3); // the same one twice is two
  await page.locator("#pictures .unseen").waitFor();
  await page.click('[aria-label="Remove broken.png"]');
  await page.click('[aria-label="Move shapes.png back"]:enabled');
  await cost(page);
  await page.route("**/v1/chat/completions", async () => {}, { times: 1 });
  await page.press("#ask-text", "Enter");
  await page.click("#ask-stop");
  await answered(page);
  await page.waitForFunction(() => [...document.images].every((image) => image.complete && image.naturalWidth));
  assert.equal(await page.locator(".shown img").count(), 2);
  assert.equal(await page.evaluate(() => window.held.size), 0);
});

onPage("of what is dropped the pictures are taken, and a folder is told of", async (page, context) => {
  const devtools = await context.newCDPSession(page);
  const folder = await mkdtemp(join(tmpdir(), "dropped_"));
  const data = { items: [], files: [folder, picture("shapes.png")], dragOperationsMask: 1 };
  for (const type of ["dragEnter", "dragOver", "drop"]) {
    await devtools.send("Input.dispatchDragEvent", { type, x: 300, y: 300, data });
  }
  await page.locator("#notice", { hasText: "A folder is no picture" }).waitFor();
  assert.deepEqual(await page.locator("#pictures img").evaluateAll((all) => all.map(({ alt }) => alt)), ["shapes.png"]);
  assert.equal(await page.locator(".dropping").count(), 0);
  await page.setInputFiles("#files", [picture("chart.png")]);
  await cost(page);
});

onPage("a key that no header can carry is told of in the field", async (page) => {
  await page.locator("#key-panel").waitFor();
  await page.fill("#key", "pk-ключ");
  await page.press("#key", "Enter");
  assert.ok(await page.locator("#key:invalid").isVisible());
  assert.equal(await page.locator("#notice .refusal").count(), 0);
}, { url: KEYED_URL, isOpen: false });

onPage("texts run in the direction of their script", async (page) => {
  const words = "ما لون الدائرة؟";
  await page.route("**/v1/chat/completions", (route) => route.fulfill(stream(spoken(`${words}\nred`))));
  await page.fill("#ask-text", words);
  await ask(page, words);
  for (const place of [".question p", ".answer > p"]) {
    const [left, right] = await page.locator(place).first().evaluate((one) => {
      const range = document.createRange();
      range.setStart(one.firstChild, 0);
      range.setEnd(one.firstChild, 5);
      const [box, letters] = [one.getBoundingClientRect(), range.getBoundingClientRect()];
      return [letters.left - box.left, box.right - letters.right];
    });
    assert.ok(right < 2 && left > 2, `${place}: ${left} px from the left, ${right} px from the right`);
  }
});

onPage("far too many pictures are refused, and the page goes on", async (page) => {
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.fill("#draw-n", "30000000000");
  await page.press("#draw-n", "Enter"); // before the cost is known
  await page.locator(".drawing .refusal").waitFor();
  assert.ok(await page.locator("#draw-send").isVisible());
  assert.match(await page.locator(".drawing .refusal p").first().innerText(), /^n = /);
});

onPage("where there are very many sizes, the squares are offered and the default", async (page) => {
  await page.route("**/v1/contract", async (route) => {
    const contract = await (await route.fetch()).json();
    const sizes = { max_side_px: 640, max_pixels: 640 * 640, default_size: "96x64" };
    await route.fulfill({ json: { ...contract, draw: { ...contract.draw, ...sizes } } });
  });
  await page.reload();
  await page.locator("#draw-size option").first().waitFor({ state: "attached" });
  const offered = await page.locator("#draw-size option").evaluateAll((all) => all.map(({ value }) => value));
  assert.deepEqual(offered.slice(0, 3), ["64x64", "96x64", "96x96"]);
  assert.equal(offered.length, 20);
  assert.equal(await page.locator("#draw-size").inputValue(), "96x64");
});

onPage("what a new conversation would mend is told", async (page) => {
  await page.setInputFiles("#files", Array(4).fill(picture("shapes.png")));
  await page.fill("#ask-text", QUESTION);
  await cost(page);
  await ask(page, QUESTION);
  await page.setInputFiles("#files", [picture("chart.png")]);
  await page.locator("#ask-cost .refusal").waitFor();
  assert.match(await page.locator("#ask-cost .refusal").innerText(), /5 pictures[\s\S]*New conversation begins without/);
  await page.click("#again");
  await cost(page);
});

onPage("that pictures were blurred is told beside the answer", async (page) => {
  const moderation = { before: { verdict: "blur", category: "faces" }, after: { verdict: "allow", category: null } };
  await page.route("**/v1/chat/completions", (route) =>
    route.fulfill(stream(spoken("red"), { choices: [], proteus: { moderation } })));
  await ask(page, QUESTION);
  const turn = await answered(page);
  assert.match(await turn.locator(".answer").innerText(), /had pictures blurred: faces/);
  assert.match(await turn.locator(".rows").innerText(), /before: blur \(faces\); after: allow/);
});

onPage("an answer without a word has no time of its first one", async (page) => {
  const told = { choices: [], proteus: { ttft_ms: 5, stages_ms: { prefill: 5 } }, usage: { completion_tokens: 1 } };
  await page.route("**/v1/chat/completions", (route) => route.fulfill(stream(spoken(""), told)));
  await page.fill("#ask-text", "Hello");
  await page.press("#ask-text", "Enter");
  const turn = await answered(page);
  assert.match(await turn.innerText(), /ended without a word/);
  assert.doesNotMatch(await turn.locator(".report").innerText(), /First token|first after|0\.00/);
});

onPage("what is no answer of the gateway's is told, not swallowed", async (page) => {
  await page.route("**/v1/models", (route) => route.fulfill({ contentType: "text/html", body: "<p>Log in</p>" }));
  await page.reload();
  assert.match(await page.locator("#notice .refusal").innerText(), /no document, or broke off/);
});

onPage("on a low screen the form does not cover what it is about", async (page) => {
  await ask(page, "Hello");
  await page.setInputFiles("#files", Array(5).fill(picture("shapes.png")));
  await page.fill("#ask-text", "word\n".repeat(200));
  await page.locator("#ask-cost .refusal").waitFor();
  await page.evaluate(() => scrollTo({ top: 0, behavior: "instant" }));
  const edge = (place, side) => page.locator(place).evaluate((one, of) => one.getBoundingClientRect()[of], side);
  assert.ok((await edge("#ask-form", "top")) >= (await edge("#thread", "bottom")));
}, { viewport: { width: 740, height: 360 } });
