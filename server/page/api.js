// api.js - asking the server: keys, errors, and streams of server-sent events.
import {kept} from "./dom.js";

/** An answer of the server that is an error: its message, status and type. */
export class ServerError extends Error {
  constructor(message, status, type) {
    super(message);
    Object.assign(this, {status, type});
  }
}

/** The key is forgotten when the tab is closed. */
export const key = {
  get: () => kept.get("key", "", sessionStorage),
  set: value => kept.set("key", value, sessionStorage),
};

/** Where the server has several models, the one that is asked and shown; else undefined. */
export const model = {name: undefined};

/** An address that tells of one model. */
export function ofModel(path) {
  return model.name === undefined ? path : `${path}?model=${encodeURIComponent(model.name)}`;
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = response.status !== 401 ? body?.error?.message ?? `${response.status} ${response.statusText}`
    : key.get() ? "The server does not accept this API key: enter another one in the settings."
    : "The server wants an API key: enter it in the settings.";
  throw new ServerError(message, response.status, body?.error?.type);
}

function headers(more) {
  if (/[^ -~]/.test(key.get())) throw new Error("The API key, in the settings, has characters that no key has.");
  return key.get() ? {...more, Authorization: "Bearer " + key.get()} : more;
}

export async function get(path) {
  return checked(await fetch(path, {headers: headers({})}));
}

export async function post(path, body, signal) {
  return checked(await fetch(path, {
    method: "POST", signal, headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(body)}));
}

/** The events of a stream, parsed. One that is an error is thrown, and so is an end without [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = "", whole = false;;) {
    const {value, done} = await reader.read();
    if (done && !whole) throw new TypeError("the stream ends in the middle");
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      whole ||= line.startsWith("data: [DONE]");
      if (whole || !line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ServerError(event.error.message, event.error.code, event.error.type);
      yield event;
    }
  }
}
