// store.js - conversations in the browser's IndexedDB. Their heads (title, time) lie in a store of their own, so
// that the list needs no texts. Without IndexedDB (private windows of some browsers) they last as long as the page.

const HEADS = "heads", BODIES = "conversations";
const memory = new Map(); // id → conversation, where there is no database
const others = "BroadcastChannel" in self ? new BroadcastChannel("oato") : null;
let database = null;

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Runs `work` on both stores; resolves once it is on disk, rejects when there is no room. */
function transaction(mode, work) {
  return new Promise((resolve, reject) => {
    const t = database.transaction([HEADS, BODIES], mode);
    let result;
    t.oncomplete = () => resolve(result);
    t.onabort = () => reject(t.error ?? new Error("the browser gave up"));
    Promise.resolve(work(t.objectStore(HEADS), t.objectStore(BODIES))).then(r => { result = r; }, reject);
  });
}

/** False: nothing is kept. onChange(id): another tab has changed that conversation. */
export async function open(onChange) {
  others?.addEventListener("message", e => onChange(e.data));
  try {
    const request = indexedDB.open("oato", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(HEADS, {keyPath: "id"});
      request.result.createObjectStore(BODIES, {keyPath: "id"});
    };
    database = await promised(request);
    return true;
  } catch {
    return false;
  }
}

function head({id, title, changed}) {
  return {id, title, changed};
}

/** {id, title, changed} of all, the latest first. */
export async function list() {
  const all = database ? await transaction("readonly", heads => promised(heads.getAll())) : [...memory.values()].map(head);
  return all.sort((a, b) => b.changed - a.changed);
}

/** undefined: there is none. */
export async function load(id) {
  return database ? transaction("readonly", (_, bodies) => promised(bodies.get(id))) : memory.get(id);
}

/** Rejects when the browser has no room for it. */
export async function save(conversation) {
  if (!database) return void memory.set(conversation.id, structuredClone(conversation));
  await transaction("readwrite", (heads, bodies) => {
    heads.put(head(conversation));
    bodies.put(conversation);
  });
  others?.postMessage(conversation.id);
}

export async function remove(id) {
  if (!database) return void memory.delete(id);
  await transaction("readwrite", (heads, bodies) => {
    heads.delete(id);
    bodies.delete(id);
  });
  others?.postMessage(id);
}
