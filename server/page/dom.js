// dom.js - making elements. Text only ever becomes a text node here: markup is made in markdown.js alone.

export const $ = id => document.getElementById(id);

/** An element. Attributes named on* are listeners, "text" is its text, and those that are false are left out. */
export function make(tag, attributes = {}, ...children) {
  const at = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) at.addEventListener(name.slice(2), value);
    else if (name === "text") at.textContent = value;
    else at.setAttribute(name, value === true ? "" : value);
  }
  at.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return at;
}

/** A name that no other has, also where pages may not use crypto.randomUUID (plain http from other machines). */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), n => n.toString(36)).join("-");
}

export function button(text, title, onclick, more = {}) {
  return make("button", {type: "button", text, title, onclick, ...more});
}

/** Shows a line for some seconds, with something to do about it: {label, run}. It covers nothing: it stands above the
 * message box, or below an open drawer's contents. */
export function toast(text, action) {
  const at = $("toast"), drawer = document.querySelector("main").inert;
  at.classList.toggle("over", drawer);
  if (drawer) document.body.append(at);
  else $("ask").before(at);
  at.replaceChildren(text);
  if (action) at.append(button(action.label, null, () => { at.hidden = true; action.run(); }));
  at.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { at.hidden = true; }, action ? 8000 : 3000);
}

/** A line above the conversation that stays; an empty text takes it away. */
export function banner(text) {
  $("banner").textContent = text;
  $("banner").hidden = !text;
}

/** Puts a text on the clipboard; pages of plain http from other machines may only do it the old way. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const at = make("textarea", {class: "hidden", "aria-hidden": "true"});
    at.value = text;
    document.body.append(at);
    at.select();
    document.execCommand("copy");
    at.remove();
  }
  toast("Copied");
}

export function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; bytes >= 1024 && i < units.length - 1; i++) bytes /= 1024;
  return `${i && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${units[i]}`;
}

/** What browsers keep for this page; one that keeps nothing is no reason to fail. */
export const kept = {
  get(name, otherwise, where = localStorage) {
    try {
      return JSON.parse(where.getItem("oato." + name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value, where = localStorage) {
    try {
      where.setItem("oato." + name, JSON.stringify(value));
    } catch {
      banner("This browser has no room for settings: they last until the page is closed.");
    }
  },
};
