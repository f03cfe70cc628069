// activity.js - what the server does now: /metrics and /slots, looked at each second while that is shown.
import {$, make} from "./dom.js";
import {get, ofModel} from "./api.js";

const LOOKS = 120; // in the curve
const colours = ["#4c8dff", "#f0883e", "#3fb950", "#a371f7", "#db61a2", "#d4a72c", "#39c5cf", "#f85149"];
const rates = []; // decoded tokens per second, one a look
let last = null;

/** The numbers of /metrics by their names. */
export function parse(text) {
  const m = {};
  for (const line of text.split("\n")) {
    const at = line.lastIndexOf(" ");
    if (at > 0 && line[0] !== "#") m[line.slice(0, at)] = Number(line.slice(at + 1));
  }
  return m;
}

function drawRate() {
  const most = Math.max(1, ...rates);
  const points = rates.map((r, i) => `${(i + LOOKS - rates.length) / (LOOKS - 1) * 100},${30 - r / most * 28}`);
  $("rate").firstChild.setAttribute("points", points.join(" "));
}

function drawMap(slots, m) {
  const total = m["oato:kv_pages"], cached = m["oato:kv_pages_cached"] ?? 0;
  if (!total) return;
  const parts = slots.filter(s => s.pages).map(s => [colours[s.id_task % colours.length], s.pages, `request ${s.id_task}`]);
  $("map").replaceChildren(...[...parts, [null, cached, "kept for prompts that begin alike"]].map(([colour, pages, title]) => {
    const at = make("i", {class: colour ? null : "cached", title: `${title}: ${pages} pages`});
    at.style.width = `${pages / total * 100}%`;
    if (colour) at.style.background = colour;
    return at;
  }));
  $("pages").textContent = `${m["oato:kv_pages_used"]} of ${total} pages of 64 tokens are used` +
    (cached ? `, ${cached} are kept for prompts that begin alike` : "");
}

function drawSlots(slots) {
  $("slots").replaceChildren(...slots.map(s => {
    const dot = make("span", {class: "dot"});
    dot.style.background = colours[s.id_task % colours.length];
    return make("tr", {}, make("td", {}, dot, String(s.id_task)), make("td", {text: s.state}),
                make("td", {text: s.n_prompt_tokens}), make("td", {text: s.n_decoded}));
  }));
}

async function look() {
  const [a, b] = await Promise.all([get(ofModel("metrics")), get(ofModel("slots")).catch(() => null)]);
  const m = parse(await a.text()), now = performance.now() / 1000;
  if (last) {
    const rate = name => Math.max(0, (m[name] - last.m[name]) / (now - last.now)) || 0;
    rates.push(rate("llamacpp:tokens_predicted_total"));
    if (rates.length > LOOKS) rates.shift();
    $("decode").textContent = rates.at(-1).toFixed(1);
    $("prefill").textContent = rate("llamacpp:prompt_tokens_total").toFixed(1);
  }
  last = {m, now};
  $("running").textContent = m["llamacpp:requests_processing"] ?? "–";
  $("waiting").textContent = m["llamacpp:requests_deferred"] ?? "–";
  const slots = b ? (await b.json()).filter(s => s.is_processing) : [];
  drawRate();
  drawMap(slots, m);
  drawSlots(slots);
}

/** Looks for ever, but only while somebody can see it. */
export async function watch() {
  for (;;) {
    if (!document.hidden && $("activity").checkVisibility()) {
      try {
        await look();
      } catch (error) {
        $("running").textContent = error.status ? error.message : "The server cannot be reached.";
      }
    }
    await new Promise(resolve => setTimeout(resolve, 1000));
  }
}
