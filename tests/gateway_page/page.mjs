// The page in a real Chromium, against a real gateway and server: tests/gateway_page/run gives their addresses.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { answered, ask, cost, drop, faintTexts, fitsWidth, launch, open, paste } from "./browser.mjs";

const { GATEWAY_URL, KEYED_URL, KEYED_KEY, METRICS_URL, PICTURES, SCREENSHOTS } = process.env;
const picture = (name) => join(PICTURES, name);
const QUESTION = "What colour is the circle?";
const PROMPT = "a red circle at the top left on a white background";
const PHONE = { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true };
let browser;

before(async () => {
  browser = await launch();
});
after(() => browser.close());

/** A test on a page of its own, which must not have said anything, broken its policy or gone elsewhere. */
function onPage(name, body, { url = GATEWAY_URL, ...options } = {}) {
  test(name, { timeout: 60_000 }, async () => {
    const { page, context, faults } = await open(browser, url, options);
    try {
      await body(page, context);
      assert.deepEqual(faults, []);
    } finally {
      await context.close();
    }
  });
}

async function screenshot(page, name) {
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `page_${name}.png`) });
}

async function post(path, document, url = GATEWAY_URL) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(document) });
  assert.equal(response.status, 200, await response.clone().text());
  return response.json();
}

async function question(text, ...names) {
  const parts = [];
  for (const name of names) {
    const data = (await readFile(picture(name))).toString("base64");
    parts.push({ type: "image_url", image_url: { url: `data:image/png;base64,${data}` } });
  }
  return { model: "demo", messages: [{ role: "user", content: [...parts, { type: "text", text }] }] };
}

async function gauge(name) {
  const text = await (await fetch(METRICS_URL)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(name));
  assert.notEqual(lines.length, 0, name);
  return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

async function eventually(what, read, wanted) {
  for (let tries = 0; tries < 50; tries++) {
    if ((await read()) === wanted) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.equal(await read(), wanted, what);
}

onPage("pictures are chosen, dropped and pasted, put in order and removed", async (page) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  await drop(page, [picture("chart.png")]);
  await paste(page, [picture("number.png")]);
  const names = () => page.locator("#pictures img").evaluateAll((all) => all.map((image) => image.alt));
  assert.deepEqual(await names(), ["shapes.png", "chart.png", "number.png"]);
  await page.click('[aria-label="Move number.png forward"]');
  assert.deepEqual(await names(), ["shapes.png", "number.png", "chart.png"]);
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), "Move number.png forward");
  await page.click('[aria-label="Remove shapes.png"]');
  assert.deepEqual(await names(), ["number.png", "chart.png"]);
  await page.waitForFunction(() => document.querySelector("#pictures .facts").textContent.includes("×"));
  assert.equal(await page.locator("#pictures .facts").first().textContent(), "201 × 201");
});

onPage("what a question takes is what the gateway says, before it is sent and while it is typed", async (page) => {
  const asked = [];
  page.on("request", (request) => request.url().endsWith("/v1/cost") && asked.push(request.postData().length));
  await page.setInputFiles("#files", [picture("large.jpg")]);
  await page.locator("#ask-text").pressSequentially(QUESTION, { delay: 15 });
  const shown = await cost(page);
  const said = await post("/v1/cost", await question(QUESTION, "large.jpg"));
  assert.match(shown, new RegExp(`^${said.text_tokens + said.visual_tokens} prompt tokens of 1,024`));
  assert.match(shown, new RegExp(`${said.visual_tokens} of them visual`));
  assert.match(shown, new RegExp(`${(said.kv_bytes / 1024).toFixed(0)} KiB of KV`));
  assert.match(shown, new RegExp(`€${said.price.amount.toString().slice(0, 7)}`));
  assert.ok(asked.length < QUESTION.length / 2, `${asked.length} questions for ${QUESTION.length} letters`);
  assert.ok(Math.max(...asked) < 60_000, "the beginning of the file was enough");
});

onPage("a header that lies behind the first bytes is read from the whole file", async (page) => {
  await page.setInputFiles("#files", [picture("long_header.jpg")]);
  await cost(page);
  assert.equal(await page.locator("#pictures .facts").textContent(), "320 × 240");
});

onPage("an answer is streamed, and is what the API answers", async (page) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  const answer = await ask(page, QUESTION);
  const said = await post("/v1/chat/completions", await question(QUESTION, "shapes.png"));
  assert.equal(answer, said.choices[0].message.content.trim());
  assert.equal(await page.locator(".turn .shown img").count(), 1);
  assert.match(await page.locator(".report summary").innerText(), new RegExp(`${said.usage.prompt_tokens} → `));
});

onPage("the bar of stage times adds up, and can be walked along", async (page) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  await ask(page, QUESTION);
  const turn = await answered(page);
  const stages = await turn.locator(".legend b").evaluateAll((all) => all.map((one) => Number(one.dataset.ms)));
  const grown = await turn.locator(".segment").evaluateAll((all) => all.map((one) => Number(one.style.flexGrow)));
  const sum = stages.reduce((one, other) => one + other, 0);
  const seen = await turn.locator("summary b").innerText();
  assert.ok(Math.abs(parseFloat(seen) * (/ ms/.test(seen) ? 1 : 1000) - sum) <= 0.01 * sum + 1, `${seen}: ${sum}`);
  assert.ok(Math.abs(grown.reduce((one, other) => one + other, 0) - 1) < 1e-3);
  await turn.locator(".segment").first().focus();
  for (let moves = 1; moves < 3; moves++) await page.keyboard.press("ArrowRight");
  const third = await turn.locator(".legend li").nth(2).locator("span").innerText();
  assert.ok((await turn.locator(".said").innerText()).startsWith(third));
});

onPage("a second question keeps pictures and answer, and tells what the caches saved", async (page) => {
  await page.setInputFiles("#files", [picture("chart.png")]);
  await ask(page, "Which bar is the tallest?");
  await page.fill("#ask-text", "How high is the green bar?");
  const shown = await cost(page);
  const before = await page.locator(".report summary").first().innerText();
  assert.ok(parseInt(shown) > parseInt(before.split(" · ")[2]), "the first question counts too");
  await page.press("#ask-text", "Enter");
  const turn = await answered(page);
  assert.match(await turn.locator(".saved-note").innerText(), /encoder cache .* \(1 of 1 picture\)/);
  assert.equal(await turn.locator(".gone").count(), 1);
  assert.equal(await page.locator(".report[open]").count(), 1);
  await screenshot(page, "ask");
});

onPage("auto says what it chose and why, before and after", async (page) => {
  await page.selectOption("#model", "auto");
  await page.setInputFiles("#files", [picture("shapes.png")]);
  await page.fill("#ask-text", QUESTION);
  assert.match(await cost(page), /by auto/);
  await page.press("#ask-text", "Enter");
  const turn = await answered(page);
  assert.match(await turn.locator(".rows").innerText(), /chosen by auto/);
  assert.match(await turn.locator(".rows").innerText(), /Because\n.+/);
});

onPage("a broken file is refused in words before anything is sent", async (page) => {
  const sent = [];
  page.on("request", (request) => request.url().endsWith("completions") && sent.push(request));
  await page.setInputFiles("#files", [picture("broken.png")]);
  await page.fill("#ask-text", QUESTION);
  const refusal = page.locator("#ask-cost .refusal");
  await refusal.waitFor();
  assert.match(await refusal.innerText(), /Refused[\s\S]*What to do/);
  assert.doesNotMatch(await refusal.locator("p").first().innerText(), /; fix:/);
  await page.press("#ask-text", "Enter");
  assert.ok(await refusal.evaluate((one) => one === document.activeElement));
  assert.equal(sent.length, 0);
  await screenshot(page, "refused");
  await page.click('[aria-label="Remove broken.png"]');
  await cost(page);
});

onPage("a file whose damage only its pixels show is refused in words, by the server", async (page) => {
  await page.setInputFiles("#files", [picture("truncated.png")]);
  await page.fill("#ask-text", QUESTION);
  await cost(page);
  await page.press("#ask-text", "Enter");
  const turn = await answered(page);
  assert.match(await turn.locator(".refusal").innerText(), /Refused[\s\S]*invalid_picture/);
  assert.equal(await page.locator("#pictures li").count(), 1);
});

onPage("what the gateway refuses gives the question back", async (page) => {
  await page.route("**/v1/cost", (route) => route.abort()); // the page cannot know beforehand
  await page.setInputFiles("#files", Array(5).fill(picture("shapes.png")));
  await page.fill("#ask-text", QUESTION);
  await page.press("#ask-text", "Enter");
  const turn = await answered(page);
  assert.match(await turn.locator(".refusal").innerText(), /Too large[\s\S]*max_pictures = 4/);
  assert.equal(await page.inputValue("#ask-text"), QUESTION);
  assert.equal(await page.locator("#pictures li").count(), 5);
});

onPage("drawing shows previews and progress, then pictures to keep", async (page) => {
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.fill("#draw-seed", "7");
  await page.fill("#draw-n", "2");
  await page.fill("#draw-steps", "30");
  const said = await post("/v1/cost", { model: "demo-draw", prompt: PROMPT, n: 2, steps: 30, seed: 7 });
  assert.match(await cost(page, "#draw-cost"), new RegExp(`^2 pictures\\s+${said.resources.evaluations} evaluations`));
  await page.press("#draw-prompt", "Enter");
  await page.locator(".canvas.previewed").first().waitFor();
  assert.match(await page.locator(".drawing .status").innerText(), /step \d+ of 30/);
  await screenshot(page, "preview");
  await page.locator(".drawing .report").waitFor();
  const whole = await post("/v1/images/generations", { model: "demo-draw", prompt: PROMPT, n: 2, steps: 30, seed: 7 });
  const shown = await page.locator(".tile img").evaluateAll((all) => all.map((image) => image.src.split(",")[1]));
  assert.deepEqual(shown, whole.data.map((one) => one.b64_json));
  const download = page.waitForEvent("download");
  await page.locator(".tile a").first().click();
  assert.match((await download).suggestedFilename(), /^proteus-7-0\.png$/);
  await page.locator(".tile button").last().click();
  assert.equal(await page.inputValue("#draw-first"), "1");
  await screenshot(page, "draw");
});

onPage("cancel stops a drawing at the server too", async (page) => {
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.fill("#draw-steps", "100");
  await page.fill("#draw-n", "8");
  await page.press("#draw-prompt", "Enter");
  await page.locator(".canvas.previewed").first().waitFor();
  assert.ok((await gauge("proteus_draw_reserved{")) > 0);
  await page.keyboard.press("Escape");
  await page.locator(".status", { hasText: "Cancelled" }).waitFor();
  await eventually("reserved", () => gauge("proteus_draw_reserved{"), 0);
  await eventually("open", () => gauge("proteus_draw_open_requests"), 0);
});

onPage("stop ends an answer here and at the server, and the conversation goes on", async (page) => {
  await page.fill("#ask-text", "Hello");
  await page.route("**/v1/chat/completions", async () => {}, { times: 1 }); // no answer comes
  await page.press("#ask-text", "Enter");
  await page.locator("#ask-stop").waitFor();
  await page.keyboard.press("Escape");
  const turn = await answered(page);
  assert.match(await turn.innerText(), /Stopped here/);
  assert.equal(typeof (await ask(page, "Hello")), "string");
  await eventually("open", () => gauge("proteus_open_requests"), 0);
});

onPage("everything can be done by keyboard, and what has the focus is seen", async (page) => {
  const seen = [];
  for (let presses = 0; presses < 20; presses++) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const { id, textContent, tagName } = document.activeElement;
      const style = getComputedStyle(document.activeElement);
      const around = getComputedStyle(document.activeElement.closest(".composer") ?? document.body);
      const isSeen = [style, around].some((one) => one.outlineStyle !== "none" && parseFloat(one.outlineWidth) >= 2);
      return { name: tagName === "BODY" ? tagName : id || textContent.trim(), isSeen };
    });
    if (focused.name === "BODY" || seen.includes(focused.name)) break;
    assert.ok(focused.isSeen, `${focused.name} has the focus and does not look like it`);
    seen.push(focused.name);
  }
  const wanted = ["tab-ask", "model", "theme", QUESTION, "ask-text", "choose", "Options", "ask-send", "Limits and prices"];
  assert.deepEqual(seen.filter((name) => wanted.includes(name)), wanted);
  await page.locator("[data-example]").first().focus();
  await page.keyboard.press("Enter");
  await cost(page);
  assert.equal(await page.evaluate(() => document.activeElement.id), "ask-text");
  await page.keyboard.press("Control+Enter");
  assert.match(await (await answered(page)).locator(".answer > p").innerText(), /red/);
  await page.focus("#tab-ask");
  await page.keyboard.press("ArrowRight");
  assert.ok(await page.locator("#panel-draw").isVisible());
});

onPage("a key is asked for when the gateway wants one, and stays in the tab", async (page, context) => {
  assert.equal(await page.locator("#key-panel").isVisible(), false);
  await ask(page, "Hello");
  const urls = [];
  page.on("request", (request) => urls.push(request.url()));
  await page.evaluate(() => sessionStorage.setItem("proteus-key", "pk-wrong"));
  await page.reload();
  await page.locator("#key-said", { hasText: "does not know" }).waitFor();
  await page.fill("#key", KEYED_KEY);
  await page.press("#key", "Enter");
  await page.locator("#key-panel").waitFor({ state: "hidden" });
  await ask(page, "Hello");
  assert.ok(urls.every((url) => !url.includes("pk-")));
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, document.cookie]));
  assert.doesNotMatch(kept, /pk-/);
  assert.equal((await context.cookies()).length, 0);
}, { url: KEYED_URL, key: KEYED_KEY });

for (const [name, options] of [["light", {}], ["dark", { colorScheme: "dark" }], ["phone", PHONE]]) {
  onPage(`every text can be read: ${name}`, async (page) => {
    await page.locator("#limits summary").click();
    assert.deepEqual(await faintTexts(page), []);
    await page.locator("#limits summary").click();
    await page.setInputFiles("#files", ["shapes.png", "number.png", "large.jpg"].map(picture));
    await page.fill("#ask-text", QUESTION);
    await cost(page);
    await fitsWidth(page);
    await screenshot(page, `${name}_before`);
    await page.press("#ask-text", "Enter");
    const turn = await answered(page);
    await turn.locator(".segment").nth(5).hover();
    await page.waitForTimeout(300);
    assert.deepEqual(await faintTexts(page), []);
    await fitsWidth(page);
    await screenshot(page, name);
    await page.click("#tab-draw");
    await page.fill("#draw-prompt", PROMPT);
    await cost(page, "#draw-cost");
    await page.click("#draw-send");
    await page.locator(".drawing .report").waitFor();
    assert.deepEqual(await faintTexts(page), []);
    await fitsWidth(page);
    await screenshot(page, `${name}_draw`);
  }, options);
}

onPage("the theme can be chosen, and is kept", async (page) => {
  const paper = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await paper();
  await page.click("#theme");
  await page.click("#theme");
  assert.notEqual(await paper(), light);
  const dark = await paper();
  await page.reload();
  assert.equal(await paper(), dark);
  assert.equal(await page.getAttribute("#theme", "aria-label"), "Theme: dark");
});

onPage("nothing moves for those who asked for that", async (page) => {
  await page.fill("#ask-text", "Hello");
  await page.route("**/v1/chat/completions", async () => {}, { times: 1 });
  await page.press("#ask-text", "Enter");
  await page.locator(".waiting").waitFor();
  const moving = await page.evaluate(() => document.getAnimations().length);
  assert.equal(moving, 0);
}, { reducedMotion: "reduce" });

onPage("the page is small: what a browser loads of it", async (page, context) => {
  const fresh = await context.newPage();
  const sizes = [];
  const devtools = await context.newCDPSession(fresh);
  await devtools.send("Network.enable");
  devtools.on("Network.loadingFinished", ({ encodedDataLength }) => sizes.push(encodedDataLength));
  await fresh.goto(GATEWAY_URL, { waitUntil: "networkidle" });
  const total = sizes.reduce((sum, size) => sum + size, 0);
  assert.ok(total > 10_000 && total < 61_440, `${total} bytes`);
});
