// plan.js - what is where, and what that was predicted to do beside what the last answer did (/plan, and the timings
// of answers).
import {$, make, size} from "./dom.js";
import {parse} from "./activity.js";
import {get, model, ofModel} from "./api.js";

const PARTS = [["weight_bytes", "weights"], ["kv_bytes", "KV cache"], ["other_bytes", "work"]];
let plan = null, last = null, metrics = null;

const number = (value, digits = 1) =>
  value > 0 ? value.toLocaleString(undefined, {maximumFractionDigits: value < 1000 ? digits : 0}) : "–";

function milliseconds(value) {
  if (!(value > 0)) return "–";
  if (value < 0.001) return "< 1 µs";
  if (value < 0.1) return `${number(value * 1000, 0)} µs`;
  if (value < 1000) return `${number(value, value < 10 ? 1 : 0)} ms`;
  return `${number(value / 1000, 2)} s`;
}

/** Of the kinds of requests that the plan is for, the one that is most like the last answer. */
function nearest() {
  const points = plan.predicted ?? [];
  const all = n => Math.log(1 + n.prompt_n + n.cache_n);
  const off = n => last ? Math.abs(all(n) - all(last)) : 0;
  return points.reduce((best, n) => off(n) < off(best) ? n : best, points[0]);
}

function explained(p) {
  const tokens = n => `${n.prompt_n} tokens of prompt${n.cache_n ? ` behind ${n.cache_n} that are there` : ""}`;
  return [
    p ? `Predicted: ${tokens(p)} and ${p.predicted_n} of answer` +
        (p.at_once > 1 ? `, ${p.at_once} requests at once, tokens of all together. ` : ". ") : "",
    last ? `Last answer: ${tokens(last)}, ${last.predicted_n} of answer. ` : "Nothing is measured yet: ask something. ",
    metrics?.answer > 0 ? "Server: all answers since its start, steps that compute for several at once included." : ""].join("");
}

function against() {
  const p = nearest();
  const rows = [
    ["Prompt, tokens/s", number(p?.prompt_per_second), number(last?.prompt_per_second), number(metrics?.prompt)],
    ["Answer, tokens/s", number(p?.predicted_per_second), number(last?.predicted_per_second), number(metrics?.answer)],
    ["First token", milliseconds(p?.first_token_ms), milliseconds(last?.first_ms), ""],
  ];
  return [
    make("table", {class: "against"},
      make("thead", {}, make("tr", {}, make("th"), ...["Predicted", "Last answer", "Server"].map(text => make("th", {text})))),
      make("tbody", {}, ...rows.map(([name, ...cells]) =>
        make("tr", {}, make("th", {scope: "row", text: name}), ...cells.map(text => make("td", {text})))))),
    make("p", {class: "soft", text: explained(p)})];
}

function memory(d) {
  const rest = Math.max(0, d.memory_bytes - d.weight_bytes - d.kv_bytes);
  const bytes = {...d, other_bytes: rest};
  const bar = make("div", {class: "bytes", role: "img",
    "aria-label": PARTS.map(([member, name]) => `${name} ${size(bytes[member])}`).join(", ")});
  for (const [member, name] of PARTS) {
    const part = make("i", {class: member.split("_")[0], title: `${name}: ${size(bytes[member])}`});
    part.style.width = `${bytes[member] / d.memory_bytes * 100}%`;
    bar.append(part);
  }
  return [bar, make("ul", {class: "legend"}, ...PARTS.filter(([member]) => bytes[member]).map(([member, name]) =>
    make("li", {}, make("i", {class: member.split("_")[0]}), `${name} ${size(bytes[member])}`))),
    d.budget_bytes ? make("p", {class: "soft", text: `${size(d.memory_bytes)} of the ${size(d.budget_bytes)} that the plan may use`}) : null];
}

function layers(d) {
  const parts = [];
  if (d.last_layer >= 0) parts.push(d.first_layer === d.last_layer ? `layer ${d.first_layer}` : `layers ${d.first_layer} to ${d.last_layer}`);
  if (d.kv_layers) parts.push(`KV of ${d.kv_layers} layers`);
  if (d.streamed) parts.push(`${d.streamed} operators streamed`);
  return parts.join(", ");
}

function device(d) {
  const operators = [...d.operators ?? []].sort((a, b) => b.decode_ns - a.decode_ns || b.n - a.n), most = Math.max(...operators.map(o => o.decode_ns), 1);
  const rows = operators.map(o => {
    const share = make("i");
    share.style.width = `${o.decode_ns / most * 100}%`;
    return make("tr", {}, make("th", {scope: "row", text: o.kind.replaceAll("_", " ")}), make("td", {text: o.n}),
                make("td", {text: plan.planned ? milliseconds(o.decode_ns * 1e-6) : ""}),
                make("td", {class: "share"}, plan.planned ? share : ""));
  });
  return make("article", {class: "device", "data-device": d.id},
    make("h3", {}, d.id, d.model ? make("span", {class: "soft", text: d.model}) : null), ...memory(d),
    layers(d) ? make("p", {class: "soft", text: layers(d)}) : null,
    rows.length ? make("details", {open: true}, make("summary", {text: plan.planned ? "Operators, and their predicted time of a step" : "Operators"}),
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

async function readMetrics() {
  try {
    const all = parse(await (await get(ofModel("metrics"))).text());
    metrics = {prompt: all["llamacpp:prompt_tokens_seconds"], answer: all["llamacpp:predicted_tokens_seconds"]};
  } catch {
    metrics = null; // a server started with --no-metrics
  }
}

/** The timings of an answer that has ended. */
export async function measured(timings) {
  last = timings;
  await readMetrics();
  draw();
}

export async function refresh() {
  try {
    plan = await (await get(ofModel("plan"))).json();
    await readMetrics();
    draw();
  } catch (error) {
    plan = null;
    $("plan").replaceChildren(make("p", {class: "soft", text:
      model.name !== undefined && error.status === 400 ? "This model is not loaded yet: its first answer loads it." : error.message}));
  }
}
