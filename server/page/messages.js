// messages.js - one message of a conversation as an element, drawn anew while it grows. What may be done with it is
// told by `does`: {edit, regenerate, remove, retry, result}, functions of the message (chat.js); edit(message, text) is
// false where that cannot be now.
import {button, copy, make, size} from "./dom.js";
import {drawer} from "./markdown.js";

const NAMES = {user: "You", assistant: "Model", tool: "Result"};

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // still growing, or not JSON at all
  }
}

function fileView(file) {
  return make("details", {class: "file"}, make("summary", {text: `${file.name}, ${size(file.text.length)}`}),
              make("pre", {text: file.text, tabindex: "0"}));
}

/** A call of a tool; `answer` is there while nobody has given its result. */
function callView(call, answer) {
  const at = make("section", {class: "call", "aria-label": `Call of ${call.name}`},
    make("h3", {}, "Calls ", make("code", {text: call.name || "…"})),
    make("pre", {text: pretty(call.arguments), tabindex: "0"}));
  if (!answer) return at;
  const text = make("textarea", {rows: 2, placeholder: "Its result", "aria-label": `Result of ${call.name}`});
  at.append(make("form", {onsubmit: e => { e.preventDefault(); answer(call, text.value); }},
                 text, make("button", {type: "submit", text: "Send the result"})));
  return at;
}

/** "212 tokens, first after 80 ms, then 61.2 tokens/s" and why it ended, unless by itself. */
function noteOf(m) {
  const parts = [];
  if (m.end === "length") parts.push("cut at the limit of tokens");
  if (m.end === "stopped") parts.push("stopped");
  if (m.end === "arrives") parts.push("arriving in another tab");
  if (m.end === "interrupted") parts.push("interrupted when the page was closed");
  if (m.tokens) parts.push(m.tokens === 1 ? "1 token" : `${m.tokens} tokens`);
  if (m.firstMs) parts.push(`first after ${m.firstMs < 10000 ? `${Math.round(m.firstMs)} ms` : `${(m.firstMs / 1000).toFixed(1)} s`}`);
  if (m.perSecond) parts.push(`then ${m.perSecond.toFixed(1)} tokens/s`);
  return parts.join(", ");
}

/** {at, draw(message, state)}; state: {live, last, results}: it grows, nothing follows, ids of calls with results. */
export function messageView(does) {
  const thought = make("div", {class: "plain", dir: "auto"}), text = make("div", {class: "text", dir: "auto"});
  const details = make("details", {class: "thought"}, make("summary", {text: "Reasoning"}), thought);
  const files = make("div", {class: "attached"}), calls = make("div"), error = make("p", {class: "error", role: "alert"});
  const note = make("span", {class: "soft note"}), actions = make("span", {class: "actions"});
  const at = make("article", {class: "message"}, details, files, text, calls, error, make("footer", {}, note, actions));
  const markdown = drawer(text);
  const shown = new Map(); // element → what its children were made of: they keep focus and state while that stays
  let drawn = "", opened = false, latest = null;
  details.addEventListener("toggle", () => { if (!details.dataset.ours) opened = true; });

  function fill(into, of, children) {
    if (shown.get(into) === of) return;
    shown.set(into, of);
    into.replaceChildren(...children());
  }

  function drawThought(m, live) {
    details.hidden = !m.thought;
    if (!m.thought) return;
    thought.textContent = m.thought;
    details.firstChild.textContent = live && !m.text ? "Reasoning …" : "Reasoning";
    if (!opened) { // open while there is nothing else, unless a person has said what they want
      details.dataset.ours = "yes";
      details.open = live && !m.text;
      setTimeout(() => delete details.dataset.ours);
    }
  }

  function drawActions(m, {live, last}) {
    const row = [];
    if (m.failed || (m.role !== "assistant" && last)) row.push(button("Try again", "Ask for the answer", () => does.retry(latest)));
    if (m.text) row.push(button("Copy", "Copy this message", () => copy(latest.text)));
    row.push(button("Edit", m.role === "user" ? "Change this message and ask again" : "Change this message", () => edit()));
    if (m.role === "assistant")
      row.push(button("Regenerate", last ? "Answer again" : "Answer again, and drop what follows", () => does.regenerate(latest)));
    row.push(button("Delete", "Delete this message", () => does.remove(latest)));
    fill(actions, live ? "" : row.map(b => b.title).join(), () => live ? [] : row);
  }

  function edit(begun = latest.text) {
    const input = make("textarea", {"aria-label": "Edit the message", dir: "auto", rows: Math.min(12, begun.split("\n").length + 1)});
    const close = () => { form.replaceWith(text); actions.querySelector("button")?.focus(); };
    const form = make("form", {class: "edit", onsubmit: e => { e.preventDefault(); if (does.edit(latest, input.value.trim())) close(); }},
      input, make("button", {type: "submit", text: latest.role === "user" ? "Send" : "Save"}), button("Cancel", null, close));
    input.value = begun;
    input.addEventListener("keydown", e => {
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) form.requestSubmit();
      if (e.key === "Escape") { e.stopPropagation(); close(); }
    });
    text.replaceWith(form);
    input.focus();
  }

  function draw(m, state) {
    latest = m; // of one that was read again: buttons that stay are about that one
    at.className = `message ${m.role}${m.failed ? " failed" : ""}${state.live ? " live" : ""}`;
    at.dataset.id = m.id;
    at.setAttribute("aria-label", NAMES[m.role]);
    at.setAttribute("aria-busy", String(state.live));
    drawThought(m, state.live);
    fill(files, m.files?.length, () => (m.files ?? []).map(fileView));
    const now = `${m.text}\0${state.live}`;
    if (m.role === "assistant" && now !== drawn) markdown(m.text, !state.live);
    else if (m.role !== "assistant" && text.textContent !== m.text) text.textContent = m.text;
    drawn = now;
    if (m.role === "tool") text.classList.add("plain");
    const answer = call => !state.live && state.last && !state.results.has(call.id) && ((c, value) => does.result(latest, c, value));
    fill(calls, JSON.stringify(m.calls?.map(call => [call, Boolean(answer(call))])), () =>
      (m.calls ?? []).map(call => callView(call, answer(call))));
    error.textContent = m.failed ?? m.error ?? "";
    error.hidden = !error.textContent;
    note.textContent = state.live ? "" : noteOf(m);
    drawActions(m, state);
  }
  return {at, draw, edit};
}
