// How the page looks and is used: keyboard, keys, contrast, width, themes, size.

import assert from "node:assert/strict";

import {
  answered,
  ask,
  cost,
  faintTexts,
  fitsWidth,
  GATEWAY_URL,
  KEYED_KEY,
  KEYED_URL,
  onPage,
  picture,
  screenshot,
} from "./browser.mjs";

const QUESTION = "What colour is the circle?";
const PROMPT = "a red circle at the top left on a white background";
const PHONE = { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true };

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
  const above = ["tab-ask", "model", "theme", QUESTION];
  const wanted = [...above, "ask-text", "choose", "Options", "ask-send", "Limits and prices"];
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

onPage("everything that can be used has a name", async (page, context) => {
  await page.setInputFiles("#files", [picture("shapes.png")]);
  await ask(page, QUESTION);
  await page.setInputFiles("#files", [picture("chart.png")]);
  await cost(page);
  const devtools = await context.newCDPSession(page);
  const nameless = [];
  for (const tab of ["ask", "draw"]) {
    await page.click(`#tab-${tab}`);
    const { nodes } = await devtools.send("Accessibility.getFullAXTree");
    for (const { role, name, ignored } of nodes) {
      const isUsed = /^(button|textbox|combobox|spinbutton|tab|link|image|DisclosureTriangle)$/.test(role?.value);
      if (!ignored && isUsed && !name?.value) nameless.push(role.value);
    }
  }
  assert.deepEqual(nameless, []);
});

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
    await page.waitForTimeout(500); // it scrolls until the report is seen
    await turn.locator(".segment").nth(5).hover();
    await page.waitForTimeout(300);
    assert.deepEqual(await faintTexts(page), []);
    await fitsWidth(page);
    await screenshot(page, name);
    await page.click("#tab-draw");
    await page.fill("#draw-prompt", "word ".repeat(1_000));
    await page.locator("#draw-cost .refusal").waitFor();
    await fitsWidth(page);
    await page.fill("#draw-prompt", PROMPT);
    await page.fill("#draw-n", "2");
    await cost(page, "#draw-cost");
    await page.click("#draw-send");
    await page.locator(".drawing .report").waitFor();
    assert.deepEqual(await faintTexts(page), []);
    await fitsWidth(page);
    await screenshot(page, `${name}_draw`);
  }, options);
}

for (const [kind, open, shut] of [["chat", "ask", "draw"], ["draw", "draw", "ask"]]) {
  onPage(`where only ${kind} is offered, the other tab cannot be opened`, async (page) => {
    await page.route("**/v1/models", async (route) => {
      const list = await (await route.fetch()).json();
      await route.fulfill({ json: { ...list, data: list.data.filter((model) => model.kind === kind) } });
    });
    await page.reload();
    await page.locator(`#tab-${shut}:disabled`).waitFor({ state: "attached" });
    assert.ok(await page.locator(`#panel-${open}`).isVisible());
    await page.focus(`#tab-${open}`);
    await page.keyboard.press("ArrowRight");
    assert.ok(await page.locator(`#panel-${open}`).isVisible());
  });
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
