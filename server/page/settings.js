// settings.js - what requests ask for. A field that is empty asks for nothing, so that the server's own value holds:
// /props tells that value, and the field shows it as its placeholder.
import {$, banner, button, kept, make} from "./dom.js";
import {get, key, model, ofModel} from "./api.js";

// member of a request, label, attributes of the input, the name that /props has for it
const NUMBERS = [
  ["temperature", "Temperature", {min: 0, max: 100, step: 0.1}],
  ["top_p", "Top P", {min: 0, max: 1, step: 0.05}],
  ["top_k", "Top K", {min: 0, step: 1}],
  ["min_p", "Min P", {min: 0, max: 1, step: 0.01}],
  ["repeat_penalty", "Repeat penalty", {min: 0.01, max: 100, step: 0.05}],
  ["presence_penalty", "Presence penalty", {min: -100, max: 100, step: 0.1}],
  ["frequency_penalty", "Frequency penalty", {min: -100, max: 100, step: 0.1}],
  ["max_tokens", "Max. tokens", {min: 1, step: 1}, "n_predict"],
  ["seed", "Seed", {step: 1}],
];
const EFFORTS = ["", "none", "low", "medium", "high"];
const THEMES = ["", "light", "dark"];

const values = kept.get("settings", {});
const inputs = new Map();

function set(name, value) {
  if (value === "" || value === undefined) delete values[name];
  else values[name] = value;
  kept.set("settings", values);
}

export function theme() {
  document.documentElement.dataset.theme = values.theme ?? "";
}

function field(name, label, input, help) {
  inputs.set(name, input);
  input.value = values[name] ?? "";
  input.id = "set-" + name;
  input.addEventListener("change", () => { set(name, input.value.trim()); check(input, name); theme(); });
  return make("label", {title: help}, make("span", {text: label}), input);
}

function choice(name, label, options, first, help) {
  const input = make("select", {}, ...options.map(o => make("option", {value: o, text: o || first})));
  return field(name, label, input, help);
}

/** Text that must be JSON: says what is wrong with it. */
function check(input, name) {
  if (name !== "tools" && name !== "more") return;
  try {
    parsed(name);
    input.setCustomValidity("");
  } catch (error) {
    input.setCustomValidity(error.message);
    input.reportValidity();
  }
}

const FORMS = {tools: ["Tools", "a list", '[{"type": "function", …}]', Array.isArray],
               more: ["Other members", "an object", '{"stop": ["END"]}', value => !Array.isArray(value) && typeof value === "object"]};

function parsed(name) {
  const [label, form, example, is] = FORMS[name];
  let value = null;
  try {
    value = values[name] ? JSON.parse(values[name]) : null;
  } catch (error) {
    throw new Error(`${label}, in the settings, are no JSON: ${error.message}`);
  }
  if (value && !is(value)) throw new Error(`${label}, in the settings, are ${form}: ${example}`);
  return value;
}

function clear() {
  for (const [name, input] of inputs) {
    set(name, "");
    input.value = "";
  }
  theme();
}

export function build() {
  const secret = make("input", {type: "password", autocomplete: "off", id: "key"});
  secret.value = key.get();
  secret.addEventListener("change", () => { key.set(secret.value.trim()); dispatchEvent(new Event("oato-key")); });
  $("settings").append(
    make("p", {class: "soft", text: "A field that is empty leaves the server's own value, which it shows."}),
    field("system", "System message", make("textarea", {rows: 3})),
    ...NUMBERS.map(([name, label, more]) =>
      field(name, label, make("input", {type: "number", inputmode: "decimal", placeholder: "…", ...more}))),
    choice("reasoning_effort", "Reasoning", EFFORTS, "model's default"),
    choice("theme", "Colours", THEMES, "as the system"),
    make("details", {}, make("summary", {text: "Tools and other members"}),
      field("tools", "Tools, as JSON", make("textarea", {rows: 4, spellcheck: "false",
        placeholder: '[{"type": "function", "function": {"name": …}}]'}),
        "Functions that the model may call. The page shows the calls, and you give their results."),
      field("more", "Other members", make("textarea", {rows: 2, spellcheck: "false", placeholder: '{"stop": ["END"]}'}),
        "Any members of a request, as a JSON object")),
    make("label", {title: "Forgotten when this tab is closed"}, make("span", {text: "API key"}), secret),
    button("Use the server's settings", "Empties all fields", clear, {id: "clear"}));
}

/** Reads the server's own values; those of a model that is not loaded are not known. */
export async function refresh() {
  try {
    const props = await (await get(ofModel("props"))).json();
    const own = props.default_generation_settings?.params ?? {};
    for (const [name, , , there] of NUMBERS) {
      const value = own[there ?? name];
      const none = (name === "max_tokens" && value < 0 && "no limit") || (name === "seed" && (value < 0 || value > 2 ** 63) && "random");
      inputs.get(name).placeholder = none || String(value === undefined ? "server's default" : Number(value.toPrecision(6)));
    }
  } catch (error) {
    if (error.status === 401) banner(error.message);
    else if (model.name === undefined) throw error;
    for (const [name] of NUMBERS) inputs.get(name).placeholder = "server's default";
  }
}

/** Members of a request: those that are set, and no others. Throws where JSON is none. */
export function members() {
  const out = {};
  for (const [name] of NUMBERS)
    if (values[name] !== undefined && Number.isFinite(Number(values[name]))) out[name] = Number(values[name]);
  if (values.reasoning_effort) out.reasoning_effort = values.reasoning_effort;
  const tools = parsed("tools");
  return {...out, ...(tools?.length && {tools}), ...parsed("more")};
}

export const system = () => values.system ?? "";
