// plan.js - what is where, and what that was predicted to do beside what the last answer did (/plan, and the timings
// of answers).
import {$, make, size} from "./dom.js";
import {get} from "./api.js";

const PARTS = [["weight_bytes", "weights"], ["kv_bytes", "KV cache"], ["other_bytes", "work"]];
let plan = null, last = null;

const number = (value, digits = 1) => value ? value.toLocaleString(undefined, {maximumFractionDigits: digits}) : "–";
const milliseconds = value => !value ? "–" : value < 1000 ? `${number(value, value < 10 ? 1 : 0)} ms` : `${number(value / 1000, 2)} s`;

function against() {
  const predicted = plan.predicted ?? {};
  const rows = [
    ["Prompt, tokens/s", number(predicted.prompt_per_second), number(last?.prompt_per_second)],
    ["Answer, tokens/s", number(predicted.predicted_per_second), number(last?.predicted_per_second)],
    ["First token", milliseconds(predicted.first_token_ms), milliseconds(last?.first_ms)],
  ];
  const q = plan.request;
  return [
    make("table", {class: "against"},
      make("thead", {}, make("tr", {}, make("th"), make("th", {text: "Predicted"}), make("th", {text: "Measured"}))),
      make("tbody", {}, ...rows.map(([name, a, b]) =>
        make("tr", {}, make("th", {scope: "row", text: name}), make("td", {text: a}), make("td", {text: b}))))),
    make("p", {class: "soft", text:
      (q ? `Predicted for ${q.prompt} tokens of prompt and ${q.generate} of answer${q.batch > 1 ? `, ${q.batch} at a time` : ""}. ` : "") +
      (last ? `Measured in the last answer: ${last.prompt_n} tokens of prompt computed` +
              (last.cache_n ? `, ${last.cache_n} found in the cache` : "") + `, ${last.predicted_n} of answer.`
            : "Nothing is measured yet: ask something.")})];
}

function memory(d) {
  const rest = Math.max(0, d.memory_bytes - d.weight_bytes - d.kv_bytes);
  const most = Math.max(d.budget_bytes ?? 0, d.memory_bytes), bytes = {...d, other_bytes: rest};
  const bar = make("div", {class: "bytes", role: "img",
    "aria-label": PARTS.map(([member, name]) => `${name} ${size(bytes[member])}`).join(", ")});
  for (const [member, name] of PARTS) {
    const part = make("i", {class: member.split("_")[0], title: `${name}: ${size(bytes[member])}`});
    part.style.width = `${bytes[member] / most * 100}%`;
    bar.append(part);
  }
  return [bar, make("ul", {class: "legend"}, ...PARTS.filter(([member]) => bytes[member]).map(([member, name]) =>
    make("li", {}, make("i", {class: member.split("_")[0]}), `${name} ${size(bytes[member])}`))),
    d.budget_bytes ? make("p", {class: "soft", text: `${size(d.memory_bytes)} of ${size(d.budget_bytes)}`}) : null];
}

function layers(d) {
  const parts = [];
  if (d.last_layer >= 0) parts.push(d.first_layer === d.last_layer ? `layer ${d.first_layer}` : `layers ${d.first_layer} to ${d.last_layer}`);
  if (d.kv_layers) parts.push(`KV of ${d.kv_layers} layers`);
  if (d.streamed) parts.push(`${d.streamed} operators streamed`);
  return parts.join(", ");
}

function device(d) {
  const operators = d.operators ?? [], most = Math.max(...operators.map(o => o.decode_ns), 1);
  const rows = operators.map(o => {
    const share = make("i");
    share.style.width = `${o.decode_ns / most * 100}%`;
    return make("tr", {}, make("th", {scope: "row", text: o.kind.replaceAll("_", " ")}), make("td", {text: o.n}),
                make("td", {text: milliseconds(o.decode_ns * 1e-6)}), make("td", {class: "share"}, share));
  });
  return make("article", {class: "device", "data-device": d.id},
    make("h3", {}, d.id, d.model ? make("span", {class: "soft", text: d.model}) : null), ...memory(d),
    layers(d) ? make("p", {class: "soft", text: layers(d)}) : null,
    rows.length ? make("details", {open: true}, make("summary", {text: "Operators, and their time of one token"}),
                       make("table", {}, make("tbody", {}, ...rows))) : null);
}

function draw() {
  if (!plan) return;
  $("plan").replaceChildren(
    make("h2", {text: "Predicted and measured"}), ...against(),
    make("h2", {text: "What is where"}),
    plan.planned ? "" : make("p", {class: "soft", id: "no-plan", text: "There is no plan: everything runs on the host's processors, and nothing is predicted."}),
    ...plan.devices.map(device));
}

/** The timings of an answer that has ended. */
export function measured(timings) {
  last = timings;
  draw();
}

export async function refresh(model) {
  try {
    plan = await (await get("plan" + (model ? "?model=" + encodeURIComponent(model) : ""))).json();
    draw();
  } catch (error) {
    $("plan").replaceChildren(make("p", {class: "soft", text: error.message}));
  }
}
