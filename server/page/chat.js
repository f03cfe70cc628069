// chat.js - conversations: what is asked, how the answer arrives, and what may be done with messages. An answer
// belongs to the conversation that it was asked in, whichever is shown: it goes on when another one is looked at.
import {$, banner, kept, newId, toast} from "./dom.js";
import {events, model, post} from "./api.js";
import {withFiles} from "./files.js";
import {messageView} from "./messages.js";
import * as settings from "./settings.js";
import * as store from "./store.js";

const SAVE_MS = 1000; // between two times that a growing answer is kept
const SILENCE_MS = 30000; // without a change by the tab where an answer arrives: that tab is gone
const alive = new Map(); // id → {conversation, controller}: answers that arrive
const views = new Map(); // id of a message → its view
let current = empty(), silence, listed = () => {}, answered = () => {};

function empty() {
  return {id: newId(), title: "", changed: Date.now(), messages: []};
}

/** list(): the list of conversations has changed. ended(timings): an answer has ended. */
export function configure({list, ended}) {
  [listed, answered] = [list, ended];
}

/** Says so where what is shown may not be changed: an answer is arriving, here or in another tab, which would write
 * over the change. */
export function isFree() {
  if (isBusy()) toast("An answer is arriving: stop it first");
  else if (current.messages.at(-1)?.end === "arrives") toast("An answer to this conversation is arriving in another tab");
  else return true;
  return false;
}

export const currentId = () => current.id;
export const isBusy = (id = current.id) => alive.has(id);
export const stop = () => alive.get(current.id)?.controller.abort();

// ------------------------------------------------------------------------------------------------ what is shown

const does = {edit, regenerate, remove, retry, result};

function stateOf(m, conversation) {
  const at = conversation.messages.indexOf(m);
  const behind = conversation.messages.slice(at + 1);
  return {live: alive.get(conversation.id)?.message === m, last: behind.every(next => next.role === "tool"),
          results: new Set(behind.filter(next => next.role === "tool").map(next => next.callId))};
}

function isAtEnd() {
  const talk = $("talk");
  return talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;
}

function scrollToEnd() {
  $("talk").scrollTop = $("talk").scrollHeight;
}

/** Draws the messages of the conversation that is shown; views of those that stay are kept. */
export function draw() {
  const there = new Set(current.messages.map(m => m.id)), inside = $("talk").contains(document.activeElement);
  for (const [id, view] of views)
    if (!there.has(id)) {
      view.at.remove();
      views.delete(id);
    }
  let next = $("talk").firstChild;
  for (const m of current.messages) {
    if (!views.has(m.id)) views.set(m.id, messageView(does));
    const view = views.get(m.id);
    view.draw(m, stateOf(m, current));
    if (view.at === next) next = next.nextSibling; // one that is moved loses its focus and what is selected in it
    else $("talk").insertBefore(view.at, next);
  }
  if (inside && !$("talk").contains(document.activeElement)) $("talk").focus({preventScroll: true});
  document.body.classList.toggle("blank", !current.messages.length);
  document.title = current.title ? `${current.title} – OATO` : "OATO";
  kept.set("current", current.messages.length ? current.id : "", sessionStorage);
  const busy = isBusy();
  $("send").textContent = busy ? "Stop" : "Send";
  $("send").classList.toggle("stop", busy);
  listed();
}

// ------------------------------------------------------------------------------------------------ conversations

async function keep(conversation) {
  if (!conversation.messages.length) {
    await store.remove(conversation.id);
    return listed();
  }
  conversation.changed = Date.now();
  const first = conversation.messages.find(m => m.role === "user");
  conversation.title ||= (first?.text || first?.files?.[0]?.name || "Chat").trim().split("\n")[0].slice(0, 80);
  try {
    await store.save(conversation);
    if (keep.full) banner("");
    keep.full = false;
  } catch {
    keep.full = true;
    banner("The browser has no room left: what is new is not kept. Delete conversations that you do not need.");
  }
  listed();
}

/** Answers that arrived in a page that was closed. */
function interrupt(conversation) {
  for (const m of conversation.messages) if (m.end === "arrives") m.end = "interrupted";
}

export async function show(id) {
  const there = alive.get(id)?.conversation ?? await store.load(id);
  if (!there) return;
  if (!alive.has(id)) interrupt(there);
  current = there;
  draw();
  scrollToEnd();
}

/** The conversation that was shown when the page was left. */
export async function resume() {
  const id = kept.get("current", "", sessionStorage);
  begin();
  if (id) await show(id);
}

export function begin() {
  current = empty();
  draw();
  $("text").focus();
}

export async function rename(id, title) {
  const conversation = id === current.id ? current : alive.get(id)?.conversation ?? await store.load(id);
  if (!conversation || !title.trim()) return;
  conversation.title = title.trim().slice(0, 80);
  await keep(conversation);
  draw();
}

export async function drop(id) {
  const conversation = alive.get(id)?.conversation ?? await store.load(id) ?? current;
  alive.get(id)?.controller.abort();
  conversation.dropped = true;
  await store.remove(id);
  if (id === current.id) begin();
  listed();
  toast("Conversation deleted", {label: "Undo", run: async () => {
    delete conversation.dropped;
    await keep(conversation);
    await show(id);
  }});
}

/** Another tab has changed it: what is shown is read again, unless an answer arrives here. */
export async function changedElsewhere(id) {
  const there = await store.load(id);
  if (there && id === current.id && !alive.has(id)) {
    current = there;
    draw();
    clearTimeout(silence);
    silence = setTimeout(() => { if (current === there) { interrupt(there); draw(); } }, SILENCE_MS);
  }
  listed();
}

// ------------------------------------------------------------------------------------------------ requests

/** Messages as the interface has them. Those that the server has refused are left out. */
function toSend(conversation) {
  const system = settings.system().trim();
  const out = system ? [{role: "system", content: system}] : [];
  for (const m of conversation.messages) {
    if (m.failed) continue;
    if (m.role === "user") out.push({role: "user", content: withFiles(m.text, m.files)});
    else if (m.role === "tool") out.push({role: "tool", tool_call_id: m.callId, content: m.text});
    else if (m.calls?.length)
      out.push({role: "assistant", content: m.text || null, tool_calls: m.calls.map(call => (
        {id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}))});
    else if (m.text) out.push({role: "assistant", content: m.text});
  }
  return out;
}

/** Adds what an event of the stream brings. */
function take(m, event) {
  const choice = event.choices?.[0], delta = choice?.delta ?? {};
  m.text += delta.content ?? "";
  m.thought += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = m.calls[piece.index ?? 0] ??= {id: "", name: "", arguments: ""};
    call.id = piece.id ?? call.id;
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  m.tokens = event.usage?.completion_tokens ?? m.tokens;
  m.end = choice?.finish_reason ?? m.end;
  return event.timings;
}

/** Asks for the answer to a conversation and lets it grow at its end. Returns the error of one that never began. */
async function answer(conversation) {
  const m = {id: newId(), role: "assistant", text: "", thought: "", calls: [],
             end: "arrives", model: model.name};
  const controller = new AbortController(), asked = performance.now();
  let saved = asked, next = 0, timings = null, refused;
  conversation.messages.push(m);
  alive.set(conversation.id, {conversation, controller, message: m});
  keep(conversation); // other tabs see that it arrives
  if (conversation === current) {
    draw();
    scrollToEnd();
  }
  try {
    const response = await post("v1/chat/completions", {
      ...settings.members(), ...(m.model && {model: m.model}), messages: toSend(conversation), stream: true,
      stream_options: {include_usage: true}}, controller.signal);
    for await (const event of events(response)) {
      timings = take(m, event) ?? timings;
      const now = performance.now();
      if (!m.firstMs && (m.text || m.thought || m.calls.length)) m.firstMs = now - asked;
      if (conversation === current && now > next) {
        const follow = isAtEnd();
        views.get(m.id)?.draw(m, stateOf(m, conversation));
        if (follow) scrollToEnd();
        next = performance.now() + Math.max(50, 3 * (performance.now() - now)); // drawing takes a quarter at most
      }
      if (now - saved > SAVE_MS) {
        saved = now;
        keep(conversation);
      }
    }
  } catch (error) {
    refused = failed(conversation, m, error);
  }
  alive.delete(conversation.id);
  m.perSecond = timings?.predicted_n > 1 ? timings.predicted_per_second : 0;
  if (!conversation.dropped) await keep(conversation);
  if (conversation === current) {
    const follow = isAtEnd();
    draw();
    if (follow) scrollToEnd();
  } else {
    listed();
  }
  if (timings) answered({...timings, first_ms: m.firstMs});
  return refused;
}

/** An answer that is cut keeps what it has. One that never began marks the message as not sent, so that the next
 * request does not have it, and its error is returned. */
function failed(conversation, m, error) {
  const nothing = !m.text && !m.thought && !m.calls.length, stopped = error.name === "AbortError";
  m.end = stopped ? "stopped" : "error";
  if (!stopped) m.error = explain(error);
  if (!nothing) return;
  conversation.messages.splice(conversation.messages.indexOf(m), 1);
  const last = conversation.messages.at(-1);
  if (!last || stopped) return undefined;
  last.failed = explain(error);
  return last.failed;
}

function explain(error) {
  if (error.type === "exceed_context_size_error")
    return `Too long for the model: ${error.message}. Shorten this message, delete older ones, or begin a new chat.`;
  if (error instanceof TypeError) return "The server cannot be reached, or the connection to it was lost.";
  return error.message;
}

// ------------------------------------------------------------------------------------------------ what people do

export function send(text, files = []) {
  if (!isFree() || (!text && !files.length)) return;
  if (!keep.full) banner("");
  current.messages.push({id: newId(), role: "user", text, files});
  answer(current);
}

/** Answers anew from a message on. Where the server refuses that, everything is as before. */
async function again(at, whenRefused = () => {}) {
  const conversation = current, before = [...conversation.messages];
  if (!at) return toast("There is no message in front of it to answer");
  conversation.messages.splice(at);
  const last = conversation.messages.at(-1), was = last.failed;
  delete last.failed;
  const refused = await answer(conversation);
  if (!refused) return;
  if (before.length > at) {
    conversation.messages = before;
    last.failed = was;
    banner(refused);
  }
  await keep(conversation);
  if (conversation === current) draw();
  whenRefused();
}

function edit(m, text) {
  if (!isFree() || (!text && !m.files?.length)) return false;
  const was = m.text, at = current.messages.indexOf(m) + 1, ends = at === current.messages.length;
  m.text = text;
  if (m.role === "user") {
    again(at, () => {
      if (ends) return; // the message itself tells what is wrong with it
      m.text = was;
      keep(current);
      views.get(m.id)?.edit(text);
    });
  } else {
    keep(current);
    draw();
  }
  return true;
}

function retry(m) {
  if (isFree()) again(current.messages.indexOf(m) + 1);
}

function regenerate(m) {
  if (isFree()) again(current.messages.indexOf(m));
}

function remove(m) {
  const conversation = current, at = conversation.messages.indexOf(m);
  if (!isFree()) return;
  conversation.messages.splice(at, 1);
  keep(conversation);
  draw();
  toast("Message deleted", {label: "Undo", run: () => {
    conversation.messages.splice(at, 0, m);
    keep(conversation);
    if (conversation === current) draw();
  }});
}

/** The result of a tool; when all calls have theirs the model goes on. */
function result(m, call, text) {
  if (!isFree()) return;
  current.messages.push({id: newId(), role: "tool", text, callId: call.id});
  keep(current);
  if (m.calls.every(c => stateOf(m, current).results.has(c.id))) answer(current);
  else draw();
}

/** The last message of the person, to edit it. */
export function editLast() {
  const last = current.messages.findLast(m => m.role === "user");
  if (last) views.get(last.id)?.edit();
}
