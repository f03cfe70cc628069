// app.js - where the page begins: its parts, what keys and buttons do, and which model is asked.
import {$, banner, kept, make} from "./dom.js";
import {get, model} from "./api.js";
import * as activity from "./activity.js";
import * as chat from "./chat.js";
import * as files from "./files.js";
import * as list from "./list.js";
import * as plan from "./plan.js";
import * as settings from "./settings.js";
import * as store from "./store.js";

const narrow = matchMedia("(max-width: 900px)");
const SIDES = ["left", "right"];

// ------------------------------------------------------------------------------------------------ panels

function isOpen(side) {
  return document.body.classList.contains("show-" + side);
}

/** On a narrow screen a side lies over the chat, which nothing reaches meanwhile. */
function open(side, on) {
  const inside = $(side).contains(document.activeElement);
  document.body.classList.toggle("show-" + side, on);
  if (!narrow.matches) kept.set("show-" + side, on);
  $(side).inert = !on;
  $("show-" + side).setAttribute("aria-expanded", String(on));
  const over = narrow.matches && SIDES.some(isOpen);
  $("shade").hidden = !over;
  document.querySelector("main").inert = over;
  if (narrow.matches && on) $(side).querySelector("button").focus();
  if (!on && inside) $("show-" + side).focus();
}

function closeDrawers() {
  if (narrow.matches) SIDES.filter(isOpen).forEach(side => open(side, false));
}

function arrange() {
  for (const side of SIDES) open(side, !narrow.matches && kept.get("show-" + side, true));
}

function choose(tab) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const on = other === tab;
    other.setAttribute("aria-selected", String(on));
    other.tabIndex = on ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !on;
  }
  kept.set("tab", tab.id);
}

function panels() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", e => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  }
  choose($(kept.get("tab", "tab-plan")) ?? tabs[0]);
  for (const side of SIDES) $("show-" + side).addEventListener("click", () => open(side, !isOpen(side)));
  for (const close of document.querySelectorAll("[data-close]"))
    close.addEventListener("click", () => open(close.dataset.close, false));
  $("shade").addEventListener("click", closeDrawers);
  narrow.addEventListener("change", arrange);
  arrange();
}

// ------------------------------------------------------------------------------------------------ the message box

function grow() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * 0.4)}px`;
}

function submit() {
  if (chat.isBusy()) return chat.stop();
  const text = $("text").value.trim();
  if ((!text && !files.count()) || !chat.isFree()) return;
  $("text").value = "";
  grow();
  chat.send(text, files.take());
}

function keys() {
  $("ask").addEventListener("submit", e => { e.preventDefault(); submit(); });
  $("text").addEventListener("input", grow);
  $("text").addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      if (!chat.isBusy()) submit(); // Enter never stops an answer
    }
    if (e.key === "ArrowUp" && !$("text").value) {
      e.preventDefault();
      chat.editLast();
    }
  });
  addEventListener("keydown", e => {
    if (e.key === "Escape") {
      if (narrow.matches && SIDES.some(isOpen)) closeDrawers();
      else chat.stop();
    }
    if (e.key.toLowerCase() === "o" && e.shiftKey && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      chat.begin();
    }
  });
  $("new").addEventListener("click", () => { chat.begin(); closeDrawers(); $("text").focus(); });
}

// ------------------------------------------------------------------------------------------------ models

async function describe() {
  await Promise.all([settings.refresh(), plan.refresh()]);
}

function chooseModel() {
  kept.set("model", $("model").value);
  model.name = $("model").value;
  return describe();
}

/** The answer may have loaded its model, so that there is more to tell of it. */
async function ended(timings) {
  plan.measured(timings);
  if (model.name !== undefined) await Promise.all([models(), describe()]).catch(() => {});
}

/** Where the server has several models, one is chosen; what it does with each is told by its state. */
async function models() {
  const {data} = await (await get("v1/models")).json(), several = data.length > 1;
  const select = $("model"), before = kept.get("model", "");
  $("model-name").textContent = data[0]?.id ?? "no model";
  $("model-name").hidden = several;
  select.hidden = !several;
  select.replaceChildren(...data.map(({id, status}) =>
    make("option", {value: id, text: status?.value && status.value !== "loaded" ? `${id} (${status.value})` : id})));
  if (data.some(m => m.id === before)) select.value = before;
  model.name = several ? select.value : undefined;
}

async function ready() {
  for (;;) { // a server that is loading its model says so with 503
    try {
      await models();
      await describe();
      return;
    } catch (error) {
      banner(error.status === 503 ? "The server is loading its model …" : error.status ? error.message : "The server cannot be reached.");
      if (error.status === 401) return;
    }
    await new Promise(resolve => setTimeout(resolve, 1000));
    banner("");
  }
}

async function start() {
  settings.theme();
  settings.build();
  panels();
  keys();
  files.listen();
  list.listen(closeDrawers);
  chat.configure({list: list.draw, ended});
  if (!await store.open(chat.changedElsewhere))
    banner("This browser keeps nothing for this page: conversations are gone when it is closed.");
  await chat.resume();
  $("model").addEventListener("change", chooseModel);
  addEventListener("oato-key", () => { banner(""); ready(); });
  activity.watch();
  await ready();
  const question = new URLSearchParams(location.search).get("q"); // /?q=TEXT asks at once
  if (question) {
    history.replaceState(null, "", location.pathname); // not again when the page is read again
    chat.send(question);
  }
  document.body.dataset.ready = "yes";
}

start();
