// files.js - text files that go with a message: dropped, pasted or picked. They are read here and sent as text.
import {$, button, make, size, toast} from "./dom.js";

const LARGEST = 1 << 20; // bytes of a file

let files = []; // {name, text}

function show() {
  $("files").replaceChildren(...files.map((file, i) => make("li", {class: "chip"},
    `${file.name}, ${size(file.text.length)}`,
    button("✕", `Remove ${file.name}`, () => { files.splice(i, 1); show(); },
           {class: "icon", "aria-label": `Remove ${file.name}`}))));
}

async function read(file) {
  if (file.size > LARGEST) return toast(`${file.name} is larger than ${size(LARGEST)}`);
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("binary");
    files.push({name: file.name.replace(/[\p{Cc}`]/gu, " ").slice(0, 200), text: text.replace(/\r\n?/g, "\n")});
  } catch {
    toast(`${file.name} is no text file in UTF-8`);
  }
}

export async function add(list) {
  await Promise.all([...list].map(read));
  show();
}

/** What is there, which is then the caller's. */
export function take() {
  const taken = files;
  files = [];
  show();
  return taken;
}

export function put(back) {
  files = [...back];
  show();
}

export const count = () => files.length;

/** A message as the model reads it: its files in front, each in a fence longer than any in it. */
export function withFiles(text, attached = []) {
  const parts = attached.map(file => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map(m => m[0].length));
    const fence = "`".repeat(longest + 1);
    return `File ${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}\n`;
  });
  return [...parts, text].filter(Boolean).join("\n");
}

/** Dropping, pasting and picking files. */
export function listen() {
  let depth = 0; // dragenter and dragleave come for every element on the way
  const brings = e => [...e.dataTransfer?.types ?? []].includes("Files");
  const shade = on => document.body.classList.toggle("dropping", on);
  addEventListener("dragenter", e => { if (brings(e)) shade(++depth > 0); });
  addEventListener("dragleave", e => { if (brings(e)) shade(--depth > 0); });
  addEventListener("dragover", e => { if (brings(e)) e.preventDefault(); });
  addEventListener("drop", e => {
    if (!brings(e)) return;
    e.preventDefault();
    shade((depth = 0) > 0);
    add(e.dataTransfer.files);
  });
  $("text").addEventListener("paste", e => {
    if (!e.clipboardData.files.length) return;
    e.preventDefault();
    add(e.clipboardData.files);
  });
  $("attach").addEventListener("click", () => $("pick").click());
  $("pick").addEventListener("change", async () => {
    await add($("pick").files);
    $("pick").value = "";
    $("text").focus();
  });
}
