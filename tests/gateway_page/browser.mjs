// A real Chromium without a screen, and what the tests of the page do to it and want to know of it.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { after, before, test } from "node:test";

import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

// Not those of @sparticuz/chromium: its one process ends with its first context, and has no web security.
const ARGUMENTS = [
  "--headless=shell",
  "--no-sandbox",
  "--disable-gpu",
  "--font-render-hinting=none",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export const { GATEWAY_URL, KEYED_URL, KEYED_KEY, METRICS_URL, PICTURES, SCREENSHOTS } = process.env;
export const picture = (name) => join(PICTURES, name);

async function launch() {
  const executablePath = await chromium.executablePath();
  return playwright.launch({ executablePath, args: ARGUMENTS, headless: true });
}

let browser;

before(async () => {
  browser = await launch();
});
after(() => browser.close());

/**
 * A page of its own, and what it must not have done: said in the console, broken the policy, gone elsewhere. `isOpen` is
 * false where its key is not given.
 */
async function open(browser, url, { key = null, isOpen = true, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1000, height: 800 }, ...options });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: url });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // A refusal is a status of 400 or more, which the browser itself reports.
    if (["error", "warning"].includes(message.type()) && !/Failed to load resource/.test(message.text())) {
      faults.push(`console: ${message.text()}`);
    }
  });
  page.on("request", (request) => {
    const { protocol, origin } = new URL(request.url());
    if (!["blob:", "data:"].includes(protocol) && origin !== url) faults.push(`elsewhere: ${request.url()}`);
  });
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await page.goto(url);
  if (key !== null) {
    await page.locator("#key-panel").waitFor();
    await page.fill("#key", key);
    await page.press("#key", "Enter");
  }
  if (isOpen) await page.waitForFunction(() => document.getElementById("limits-said").childElementCount > 0);
  return { page, context, faults };
}

/** A test on a page of its own, which must not have said anything, broken its policy or gone elsewhere. */
export function onPage(name, body, { url = GATEWAY_URL, ...options } = {}) {
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

export async function screenshot(page, name) {
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, `page_${name}.png`) });
}

export async function post(path, document, url = GATEWAY_URL) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(document) });
  assert.equal(response.status, 200, await response.clone().text());
  return response.json();
}

export async function gauge(name) {
  const text = await (await fetch(METRICS_URL)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(name));
  assert.notEqual(lines.length, 0, name);
  return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
}

export async function eventually(what, read, wanted) {
  for (let tries = 0; tries < 50; tries++) {
    if ((await read()) === wanted) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.equal(await read(), wanted, what);
}

/** Files as a drag or the clipboard carries them, of the given paths. */
async function transfer(page, paths) {
  const files = [];
  for (const path of paths) files.push({ name: basename(path), data: (await readFile(path)).toString("base64") });
  return page.evaluateHandle((given) => {
    const made = new DataTransfer();
    for (const { name, data } of given) {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      made.items.add(new File([bytes], name, { type: `image/${name.split(".").pop()}` }));
    }
    return made;
  }, files);
}

export async function drop(page, paths) {
  const dataTransfer = await transfer(page, paths);
  for (const kind of ["dragover", "drop"]) await page.dispatchEvent("body", kind, { dataTransfer });
}

export async function paste(page, paths) {
  const clipboardData = await transfer(page, paths);
  await page.evaluate((data) => {
    const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
    document.getElementById("ask-text").dispatchEvent(event);
  }, clipboardData);
}

/** Types and sends a question; gives what was answered, when its report is there. */
export async function ask(page, question) {
  await page.fill("#ask-text", question);
  await page.press("#ask-text", "Enter");
  await answered(page);
  return (await page.locator(".turn").last().locator(".answer > p").first().textContent()).trim();
}

export async function answered(page) {
  const last = page.locator(".turn").last();
  await last.locator('.answer[aria-busy="false"]').waitFor();
  return last;
}

/** The last cost line, when it has come to rest. */
export async function cost(page, place = "#ask-cost") {
  await page.locator(`${place} .chips`).waitFor();
  await page.waitForTimeout(400); // longer than the page waits before it asks
  await page.locator(`${place} .chips`).waitFor();
  return page.locator(`${place} .chips`).innerText();
}

export async function fitsWidth(page) {
  const { width } = page.viewportSize(); // not innerWidth: on a phone that grows with what does not fit
  const inner = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(inner <= width, `the page is ${inner} px wide in a window of ${width} px`);
}

/** Texts whose contrast with what lies behind them is too low, by WCAG 2; large text needs less. */
export async function faintTexts(page) {
  return page.evaluate(() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([red, green, blue]) => {
      const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
    };
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = rgba(getComputedStyle(at).backgroundColor);
        if (colour[3] === 255) return colour;
      }
      return rgba(getComputedStyle(document.documentElement).backgroundColor);
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const element = text.parentElement;
      if (!text.data.trim() || !element.checkVisibility() || element.closest("noscript, option, .drop")) continue;
      if (element.closest(":disabled")) continue;
      const style = getComputedStyle(element);
      const [one, other] = [light(rgba(style.color)), light(behind(element))].sort((a, b) => b - a);
      const ratio = (one + 0.05) / (other + 0.05);
      const isLarge = parseFloat(style.fontSize) >= 24;
      if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${text.data.trim().slice(0, 40)}`);
    }
    return faint;
  });
}
