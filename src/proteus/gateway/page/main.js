// The page as a whole: the tab, the model, the key, the theme, what is dropped and pasted.

import { Refusal, call, hasKey, setKey } from "./api.js";
import { Ask } from "./ask.js";
import { by, node } from "./dom.js";
import { Draw } from "./draw.js";
import { showLimits } from "./limits.js";
import { refusalNode } from "./refusal.js";

const TABS = ["ask", "draw"];
const AUTO = { id: "auto", kind: "chat" };
let models = [];
let tab = "ask";
const chosen = { ask: "", draw: "" };

const ask = new Ask(() => chosen.ask);
const draw = new Draw(() => chosen.draw);

const draws = (model) => model.kind === "draw" || model.id.endsWith("-draw");

function show(next) {
  tab = next;
  for (const name of TABS) {
    const isOn = name === tab;
    by(`tab-${name}`).setAttribute("aria-selected", isOn);
    by(`tab-${name}`).tabIndex = isOn ? 0 : -1;
    by(`panel-${name}`).hidden = !isOn;
  }
  const offered = models.filter((model) => draws(model) === (tab === "draw"));
  by("model").replaceChildren(
    ...offered.map(({ id }) => node("option", { value: id, selected: id === chosen[tab] }, id)),
  );
  by("model").parentElement.hidden = offered.length < 2;
}

function listenToTabs() {
  for (const name of TABS) by(`tab-${name}`).addEventListener("click", () => show(name));
  by("tabs").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tab === "ask" ? "draw" : "ask";
    if (!by(`tab-${other}`).disabled) show(other);
    by(`tab-${tab}`).focus();
  });
  by("model").addEventListener("change", (event) => {
    chosen[tab] = event.target.value;
    (tab === "ask" ? ask : draw).cost.changed();
  });
}

function listenToTheme() {
  const order = ["auto", "light", "dark"];
  const root = document.documentElement;
  const label = () => {
    const theme = root.dataset.theme ?? "auto";
    by("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}`);
    by("theme").title = by("theme").getAttribute("aria-label");
  };
  by("theme").addEventListener("click", () => {
    const next = order[(order.indexOf(root.dataset.theme ?? "auto") + 1) % order.length];
    if (next === "auto") {
      delete root.dataset.theme;
      localStorage.removeItem("proteus-theme");
    } else {
      root.dataset.theme = next;
      localStorage.setItem("proteus-theme", next);
    }
    label();
  });
  label();
}

function addPictures(files) {
  by("notice").replaceChildren();
  if (by("tab-ask").disabled || !files.length) return;
  show("ask");
  ask.pictures.add(files);
}

function addDropped(items) {
  const isFolder = (item) => item.webkitGetAsEntry()?.isDirectory;
  const dropped = [...items].filter((item) => item.kind === "file");
  const hasFolder = dropped.some(isFolder);
  addPictures(dropped.filter((item) => !isFolder(item)).map((item) => item.getAsFile()));
  if (hasFolder) by("notice").replaceChildren(node("p", {}, "A folder is no picture: drop those that are in it."));
}

function listenToPictures() {
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const over = (is) => document.body.classList.toggle("dropping", is);
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || over(false));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(false);
    addDropped(event.dataTransfer.items);
  });
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    addPictures(event.clipboardData.files);
  });
}

function listenToExamples() {
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", async () => {
      const { example, question } = button.dataset;
      const picture = await (await fetch(`page/${example}`)).blob();
      ask.pictures.put([]);
      ask.pictures.add([new File([picture], example, { type: picture.type })]);
      ask.box.value = question;
      ask.box.dispatchEvent(new Event("input"));
      ask.box.focus();
    });
  }
}

/** Closes the options where they are open, stops what runs where they are not. */
function escape() {
  const options = document.querySelector(".options");
  if (tab !== "ask" || !options.open) return (tab === "ask" ? ask : draw).cancel();
  options.open = false;
  options.querySelector("summary").focus();
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    if (event.key === "Escape") escape();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    if (event.target.closest?.("#key-form")) return;
    event.preventDefault();
    (tab === "ask" ? ask : draw).send();
  });
  document.addEventListener("keyneeded", () => {
    const wasShown = !by("key-panel").hidden;
    by("key-said").textContent = hasKey() ? "The gateway does not know this key." : "The gateway asks for a key.";
    by("key-panel").hidden = false;
    if (!wasShown) by("key").focus();
  });
  by("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(by("key").value.trim());
    by("key").value = "";
    load();
  });
}

/** Models and limits, with the key that there is. */
async function load() {
  by("notice").replaceChildren();
  try {
    const [list, contract] = await Promise.all([call("v1/models"), call("v1/contract")]);
    by("key-panel").hidden = true;
    models = list.data;
    if (models.some((model) => !draws(model)) && !models.some(({ id }) => id === AUTO.id)) models.push(AUTO);
    chosen.ask = models.find((model) => !draws(model))?.id ?? "";
    chosen.draw = models.find(draws)?.id ?? "";
    by("tab-ask").disabled = !chosen.ask;
    by("tab-draw").disabled = !chosen.draw;
    showLimits(by("limits-said"), contract);
    if (contract.draw) draw.limits(contract.draw);
    show(chosen.ask ? tab : "draw");
    ask.cost.changed();
    draw.cost.changed();
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.status !== 401) by("notice").replaceChildren(refusalNode(error));
  }
}

listenToTabs();
listenToTheme();
listenToPictures();
listenToExamples();
listenToKeys();
show("ask");
load();
