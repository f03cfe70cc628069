// list.js - the list of conversations: the latest first, found by words of their titles.
import {$, button, make} from "./dom.js";
import * as chat from "./chat.js";
import * as store from "./store.js";

const day = new Intl.DateTimeFormat(undefined, {dateStyle: "medium"});
let onShow = () => {};

function when(time) {
  const today = new Date().toDateString(), at = new Date(time);
  if (at.toDateString() === today) return "Today";
  return new Date(Date.now() - 86400000).toDateString() === at.toDateString() ? "Yesterday" : day.format(at);
}

function item({id, title}) {
  const ours = id === chat.currentId();
  const open = button(title, title, () => { chat.show(id); onShow(); }, {class: "title", dir: "auto", "aria-current": ours ? "page" : null});
  if (chat.isBusy(id)) open.prepend(make("span", {class: "dot", title: "An answer is arriving"}));
  return make("li", {class: ours ? "ours" : null, "data-id": id}, open,
    button("✎", `Rename ${title}`, () => chat.rename(id, prompt("Title of the conversation", title) ?? ""),
           {class: "icon", "aria-label": `Rename ${title}`}),
    button("✕", `Delete ${title}`, () => chat.drop(id), {class: "icon delete", "aria-label": `Delete ${title}`}));
}

let drawing = 0, drawn = "";

/** Draws the list where something in it has changed: what is pressed or has the focus stays while an answer grows. Of
 * calls that overtake each other the last one counts. */
export async function draw() {
  const mine = ++drawing, words = $("find").value.toLowerCase();
  const all = (await store.list()).filter(head => head.title.toLowerCase().includes(words));
  const now = JSON.stringify([words, chat.currentId(), ...all.map(h => [h.id, h.title, when(h.changed), chat.isBusy(h.id)])]);
  if (mine !== drawing || now === drawn) return;
  drawn = now;
  const at = document.activeElement, focused = at?.closest("#conversations li")?.dataset.id;
  const rows = [];
  let last = "";
  for (const head of all) {
    const title = when(head.changed);
    if (title !== last) rows.push(make("li", {class: "day soft", text: last = title}));
    rows.push(item(head));
  }
  if (!rows.length) rows.push(make("li", {class: "soft none", text: words ? "Nothing found" : "No conversations yet"}));
  $("conversations").replaceChildren(...rows);
  if (focused) document.querySelector(`li[data-id="${focused}"] [class="${at.className}"]`)?.focus();
}

export function listen(shown) {
  onShow = shown;
  $("find").addEventListener("input", draw);
}
