// markdown.js - the only place where text becomes markup. marked makes HTML of it, DOMPurify makes nodes of that and
// lets through a short list of elements; tags in the text itself stay text but for a few bare ones. Images are not
// loaded, whatever their address: they become links. Code is coloured by a worker, which may be given up.
/* global marked, DOMPurify */
import {button, copy, make} from "./dom.js";

const BARE = "b|br|del|details|em|i|ins|kbd|mark|s|strong|sub|summary|sup|u"; // what texts may say without attributes
const TAGS = [...BARE.split("|"), "a", "blockquote", "code", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
              "pre", "table", "tbody", "td", "th", "thead", "tr", "ul"];
const CLEAN = {ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
               ADD_URI_SAFE_ATTR: ["align", "start"], ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
               ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true};
const SPANS = {ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true};
const LONGEST = 200000, MARKS_MOST = 2000; // characters; marks of emphasis in a paragraph, whose time grows as their square
const SLOW_MS = 500; // of drawing once

const escaped = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"};
const escape = text => text.replace(/[&<>"']/g, c => escaped[c]);
const bare = new RegExp(`^</?(?:${BARE})\\s*/?>$`, "i");

marked.use({
  headerIds: false, mangle: false,
  renderer: {
    html: text => text.split(/(<[^<>]*>)/).map(part => bare.test(part) ? part : escape(part)).join(""),
    image(href, title, text) { return this.link(href, title, `image: ${text || escape(href)}`); },
    checkbox: checked => checked ? "☑ " : "☐ ",
  },
});

function nodes(html) {
  const fragment = DOMPurify.sanitize(html, CLEAN);
  for (const a of fragment.querySelectorAll("a"))
    if (a.hasAttribute("href")) {
      a.target = "_blank";
      a.rel = "noopener noreferrer nofollow";
    } else {
      a.replaceWith(...a.childNodes);
    }
  for (const code of fragment.querySelectorAll("pre > code")) frame(code);
  for (const table of fragment.querySelectorAll("table")) {
    const at = make("div", {class: "wide", tabindex: "0", role: "group", "aria-label": "Table"});
    table.replaceWith(at);
    at.append(table);
  }
  return fragment;
}

/** A block of code gets a line with its language and a button that copies it. */
function frame(code) {
  const language = /^language-(.+)$/.exec(code.className)?.[1] ?? "", pre = code.parentNode;
  const at = make("figure", {class: "code"},
    make("figcaption", {}, make("span", {text: language || "text"}),
         button("Copy", "Copy this code", () => copy(code.textContent.replace(/\n$/, "")), {class: "copy"})));
  pre.replaceWith(at);
  pre.tabIndex = 0;
  pre.dir = "ltr";
  at.append(pre);
  code.className = "";
  code.dataset.language = language;
}

// ------------------------------------------------------------------------------------------------ colours of code

const WORKER_MS = 3000, CODE_MOST = 100000;
const waiting = new Map(); // number → what takes the answer
let worker = null, asked = 0;

/** Browsers that know Trusted Types want the worker's address by a policy: it is this one alone. */
function workerAddress() {
  const address = new URL("highlighter.js", import.meta.url).href;
  return self.trustedTypes?.createPolicy("oato-worker", {createScriptURL: () => address}).createScriptURL("") ?? address;
}

let address = null;

function startWorker() {
  address ??= workerAddress();
  worker = new Worker(address, {type: "module"});
  worker.onmessage = ({data}) => waiting.get(data.number)?.(data.html);
}

/** Gives a worker up that is still busy with an expression that does not end. */
function endWorker() {
  worker?.terminate();
  worker = null;
  for (const take of [...waiting.values()]) take(null);
}

function colour(code) {
  const number = asked++, language = code.dataset.language, text = code.textContent;
  if (!language || text.length > CODE_MOST) return;
  if (!worker) startWorker();
  const timer = setTimeout(endWorker, WORKER_MS);
  waiting.set(number, html => {
    clearTimeout(timer);
    waiting.delete(number);
    if (html !== null && code.textContent === text) code.replaceChildren(DOMPurify.sanitize(html, SPANS));
  });
  worker.postMessage({number, language, text});
}

// ------------------------------------------------------------------------------------------------ texts that grow

function isTooMuch(text) {
  return text.length > LONGEST ||
    text.split(/\n[ \t]*\n/).some(paragraph => (paragraph.match(/[*_]/g)?.length ?? 0) > MARKS_MOST);
}

/** Draws a text into an element, again and again while it grows: blocks that are as before stay. */
export function drawer(into) {
  let blocks = []; // {raw, at, coloured}

  function drawBlocks(text, ended) {
    const tokens = marked.lexer(text);
    let same = 0;
    while (same < blocks.length && blocks[same].raw === tokens[same]?.raw) same++;
    if (ended && tokens.some(token => token.type === "def")) same = 0; // links that an address came later for
    for (const block of blocks.splice(same)) block.at.remove();
    if (!blocks.length) into.replaceChildren();
    for (const token of tokens.slice(same)) {
      const at = make("div", {class: "block", dir: "auto"});
      at.append(nodes(marked.parser([token])));
      into.append(at);
      blocks.push({raw: token.raw, at, coloured: false});
    }
    blocks.forEach((block, i) => { // code that may still grow stays plain
      if (block.coloured || (!ended && i === blocks.length - 1)) return;
      block.coloured = true;
      block.at.querySelectorAll("pre > code").forEach(colour);
    });
  }

  function drawPlain(text) {
    blocks = [];
    into.replaceChildren(make("div", {class: "block plain", dir: "auto", text}));
  }

  let slow = false; // while it grows: a text that takes long is drawn once more when it has ended
  return function draw(text, ended) {
    const begin = performance.now();
    if (isTooMuch(text) || (slow && !ended)) return drawPlain(text);
    try {
      drawBlocks(text, ended);
    } catch { // nested too deep for the parser
      drawPlain(text);
    }
    slow ||= performance.now() - begin > SLOW_MS;
  };
}
