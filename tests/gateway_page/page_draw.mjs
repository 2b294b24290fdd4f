// Drawing on the page.

import assert from "node:assert/strict";

import { cost, eventually, gauge, onPage, post, screenshot } from "./browser.mjs";

const PROMPT = "a red circle at the top left on a white background";

onPage("drawing shows previews and progress, then pictures to keep", async (page) => {
  await page.click("#tab-draw");
  await page.fill("#draw-prompt", PROMPT);
  await page.fill("#draw-seed", "7");
  await page.fill("#draw-n", "2");
  await page.fill("#draw-steps", "30");
  const said = await post("/v1/cost", { model: "demo-draw", prompt: PROMPT, n: 2, steps: 30, seed: 7 });
  assert.match(await cost(page, "#draw-cost"), new RegExp(`^2 pictures\\s+${said.resources.evaluations} evaluations`));
  await page.press("#draw-prompt", "Enter");
  for (const index of [0, 1]) await page.locator(".canvas.previewed").nth(index).waitFor();
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
