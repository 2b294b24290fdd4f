// Asking on the page: pictures, cost, answers, refusals.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { answered, ask, cost, drop, eventually, gauge, onPage, paste, picture, post, screenshot } from "./browser.mjs";

const QUESTION = "What colour is the circle?";

async function question(text, ...names) {
  const parts = [];
  for (const name of names) {
    const data = (await readFile(picture(name))).toString("base64");
    parts.push({ type: "image_url", image_url: { url: `data:image/png;base64,${data}` } });
  }
  return { model: "demo", messages: [{ role: "user", content: [...parts, { type: "text", text }] }] };
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

onPage("pictures are sent in their order, whole, with their detail, before the text", async (page) => {
  await page.setInputFiles("#files", ["large.jpg", "shapes.png"].map(picture));
  await page.click('[aria-label="Move shapes.png forward"]');
  await page.selectOption('[aria-label="Detail of large.jpg"]', "low");
  const sent = page.waitForRequest("**/v1/chat/completions");
  await ask(page, QUESTION);
  const [{ content }] = (await sent).postDataJSON().messages;
  const bytes = ({ image_url: { url } }) => Buffer.from(url.split(",")[1], "base64");
  assert.ok(bytes(content[0]).equals(await readFile(picture("shapes.png"))));
  assert.ok(bytes(content[1]).equals(await readFile(picture("large.jpg"))));
  assert.deepEqual(content.slice(0, 2).map(({ image_url: { detail } }) => detail), [undefined, "low"]);
  assert.deepEqual(content[2], { type: "text", text: QUESTION });
});

onPage("a conversation that is begun anew has nothing of the one before", async (page) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  await ask(page, QUESTION);
  let answer;
  await page.route("**/v1/chat/completions", (route) => { answer = route; }, { times: 1 });
  await page.fill("#ask-text", "And where is it?");
  await page.press("#ask-text", "Enter");
  await page.locator("#ask-stop").waitFor();
  await page.click("#again"); // while an answer is waited for
  assert.ok(answer);
  await page.locator("#ask-send").waitFor();
  assert.ok(await page.locator("#welcome").isVisible());
  const sent = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "Hello");
  assert.deepEqual((await sent).postDataJSON().messages, [{ role: "user", content: "Hello" }]);
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
  assert.equal(await page.locator("#pictures .facts").textContent(), "1,280 × 960");
});

onPage("an answer is streamed, and is what the API answers", async (page) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  const answer = await ask(page, QUESTION);
  const said = await post("/v1/chat/completions", await question(QUESTION, "shapes.png"));
  assert.equal(answer, said.choices[0].message.content.trim());
  assert.equal(await page.locator(".turn .shown img").count(), 1);
  assert.match(await page.locator(".report summary").innerText(), new RegExp(`${said.usage.prompt_tokens} → `));
});

onPage("a long answer grows while it is written, and is read out when it is whole", async (page) => {
  await page.evaluate(() => {
    window.lengths = [];
    new MutationObserver(() => {
      const said = document.querySelector(".answer > p");
      if (said && said.textContent.length !== window.lengths.at(-1)) window.lengths.push(said.textContent.length);
    }).observe(document.getElementById("thread"), { childList: true, subtree: true, characterData: true });
  });
  await page.setInputFiles("#files", [picture("shapes.png")]);
  const answer = await ask(page, "Describe the picture.");
  const lengths = await page.evaluate(() => window.lengths);
  assert.ok(lengths.length > 3 && answer.length > 20, `${answer}: ${lengths}`);
  assert.deepEqual(lengths, lengths.toSorted((one, other) => one - other));
  assert.equal(await page.locator('.answer[aria-live="polite"]').getAttribute("aria-busy"), "false");
});

onPage("what looks like HTML is text", async (page) => {
  const hostile = '<img src="x" onerror="document.title = 1"><b>bold</b>';
  const name = `${hostile}.png`.replaceAll("/", "");
  await page.setInputFiles("#files", [{ name, mimeType: "image/png", buffer: await readFile(picture("shapes.png")) }]);
  await page.route("**/v1/chat/completions", (route) => {
    const chunk = { choices: [{ index: 0, delta: { content: hostile }, finish_reason: "stop" }] };
    const told = { choices: [], proteus: { model: hostile, stages_ms: { [hostile]: 5 }, auto: { because: hostile } } };
    const body = [chunk, told].map((one) => `data: ${JSON.stringify(one)}\n\n`).join("");
    return route.fulfill({ contentType: "text/event-stream", body: `${body}data: [DONE]\n\n` });
  });
  assert.equal(await ask(page, hostile), hostile);
  assert.match(await page.locator("#thread .rows").innerText(), /<b>bold<\/b>/);
  assert.equal(await page.locator("#thread b", { hasText: /^bold$/ }).count(), 0);
  assert.equal(await page.title(), "Proteus");
});

const FULL = { error: { message: "full; limit: 8; fix: wait", limit: "8", fix: "wait", code: "queue_full" } };
const WORDS_OF_FULL = /Too much for now\s+Full\s+Limit\s+8\s+What to do\s+wait\s+Try again\s+in 3 s/;
const STREAM = { contentType: "text/event-stream" };
for (const [name, answer, wanted] of [
  ["at once", { status: 429, headers: { "retry-after": "3" }, json: FULL }, WORDS_OF_FULL],
  ["within a stream", { ...STREAM, body: `data: ${JSON.stringify(FULL)}\n\n` }, /Full\s+Limit\s+8/],
  ["by no gateway", { status: 502, body: "<h1>Bad</h1>" }, /It failed\s+.*HTTP 502/],
  ["by a stream that ends early", { ...STREAM, body: "" }, /The answer ended early/],
]) {
  onPage(`a refusal is told in words: ${name}`, async (page) => {
    await page.route("**/v1/chat/completions", (route) => route.fulfill(answer));
    await page.fill("#ask-text", "Hello");
    await page.press("#ask-text", "Enter");
    assert.match(await (await answered(page)).locator(".refusal").innerText(), wanted);
    assert.equal(await page.inputValue("#ask-text"), "Hello");
  });
}

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
  await page.waitForTimeout(500); // it scrolls until the report is seen
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
  assert.equal(await page.locator("#pictures .unseen").innerText(), "PNG");
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
