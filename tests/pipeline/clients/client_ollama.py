"""ollama: chats, texts, models, embeddings."""
import asyncio
import json

import ollama

import machines
from rows import ANSWER, ASK, CAPITAL, MODEL, PLACE, is_answer, is_place, refused

TOOL = {"type": "function", "function": {"name": "visit", "description": "plans a visit", "parameters": PLACE}}
ZERO = {"temperature": 0, "num_predict": 40}


def client(c, url=None):
    return ollama.Client(host=url or c.url, timeout=120)


def chat(c, url=None, **more):
    return client(c, url).chat(**{"model": MODEL, "messages": ASK, "options": ZERO, **more})


def generate(c, url=None, **more):
    return client(c, url).generate(**{"model": MODEL, "prompt": CAPITAL, "options": ZERO, **more})


def streamed(how, c, **more):
    chat_like = how is chat
    parts = [p.model_dump(exclude_none=True) for p in how(c, stream=True, **more)]
    return {**machines.ollama(parts, (lambda e: e["message"].get("content") or "") if chat_like else lambda e: e["response"]), "parts": len(parts),
            "last": parts[-1]["message"].get("content", "") if chat_like else parts[-1]["response"]}


def one(how, c, **more):
    """An answer without a stream, by the same machine."""
    part = how(c, **more).model_dump(exclude_none=True)
    return machines.ollama([part], (lambda e: e["message"].get("content") or "") if how is chat else lambda e: e["response"])


def again(c):
    """context of an answer in the next request."""
    first = generate(c)
    if first.context is None:
        return {"text": "without context"}
    return one(generate, c, prompt="And of Italy?", context=first.context)


def raw(c, method, path, **body):
    return client(c)._client.request(method, path, json=body or None).json()


async def together(c):
    a = ollama.AsyncClient(host=c.url)
    return [r.message.content for r in await asyncio.gather(*(a.chat(model=MODEL, messages=ASK, options=ZERO) for _ in range(6)))]


def described(c):
    (m,) = client(c).list().models
    shown = client(c).show(m.model)
    return m, shown


def right_or(word, how, must):
    def asked(c):
        try:
            return must(how(c))
        except ollama.ResponseError as e:
            return word in str(e) and e.status_code == 400 or f"the refusal does not name {word}: {e}"
    return asked


ROWS = [
    ("ollama: a chat", lambda c: one(chat, c), lambda a: "Paris" in a["text"] and a["done_reason"] == "stop"),
    ("ollama: a chat as a stream", lambda c: streamed(chat, c), lambda a: "Paris" in a["text"] and a["parts"] > 2 and a["last"] == ""),
    ("ollama: a chat without options", lambda c: chat(c, options=None, messages=[{"role": "user", "content": "Say yes."}]), lambda a: a.message.role == "assistant" and a.done),
    ("ollama: system and history", lambda c: one(chat, c, messages=[{"role": "system", "content": "Be brief."}, *ASK, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]),
     lambda a: "Rome" in a["text"]),
    ("ollama: six at once", lambda c: asyncio.run(together(c)), lambda a: len(set(a)) == 1 and "Paris" in a[0]),
    ("ollama: num_predict", lambda c: one(chat, c, options={"num_predict": 3}), lambda a: a["done_reason"] == "length" and a["eval_count"] == 3),
    ("ollama: stop, seed, top_k and others of options", lambda c: one(chat, c, options={"stop": [" Paris"], "seed": 1, "top_k": 1, "top_p": 0.9, "min_p": 0, "repeat_penalty": 1, "num_ctx": 2048, "num_thread": 2, "num_gpu": 0, "temperature": 1}),
     lambda a: a["text"] == "The capital of France is" and a["done_reason"] == "stop"),
    ("ollama: format as a schema", lambda c: one(chat, c, format=ANSWER), lambda a: is_answer(json.loads(a["text"]))),
    ("ollama: format as a schema, a stream", lambda c: streamed(chat, c, format=ANSWER), lambda a: is_answer(json.loads(a["text"]))),
    ("ollama: format json", lambda c: one(generate, c, prompt="Colours as JSON", format="json", options={"temperature": 0, "num_predict": 400}), lambda a: a["done_reason"] == "length" or isinstance(json.loads(a["text"]), dict)),
    ("ollama: tools, a call or a text", lambda c: one(chat, c, tools=[TOOL]), lambda a: all(is_place(k["arguments"]) for k in a["calls"]) and (a["calls"] or a["text"] != "") != []),
    ("ollama: tools as a stream", lambda c: streamed(chat, c, tools=[TOOL]), lambda a: all(is_place(k["arguments"]) for k in a["calls"])),
    ("ollama: a call and its result", lambda c: one(chat, c, tools=[TOOL], messages=[*ASK, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "visit", "arguments": {"city": "Paris", "days": 2}}}]},
                                                                                    {"role": "tool", "tool_name": "visit", "content": "go by train"}]), lambda a: a["text"] != ""),
    ("ollama: think", lambda c: one(chat, c, url=c.thinking_url, think=True, options={"temperature": 0, "num_predict": 80}), lambda a: "Paris" in a["text"] and "capital" in a["thinking"]),
    ("ollama: think as a stream", lambda c: streamed(chat, c, url=c.thinking_url, think=True, options={"temperature": 0, "num_predict": 80}), lambda a: "Paris" in a["text"] and "capital" in a["thinking"]),
    ("ollama: keep_alive", lambda c: one(chat, c, keep_alive="5m"), lambda a: "Paris" in a["text"]),
    ("ollama: log probabilities are right or refused", right_or("logprobs", lambda c: chat(c, logprobs=True, top_logprobs=2), lambda a: len(a.logprobs) >= a.eval_count - 1 and len(a.logprobs[0].top_logprobs) == 2), lambda a: a is True or a),
    ("ollama: an image is refused", lambda c: chat(c, messages=[{"role": "user", "content": "What is it?", "images": ["aGVsbG8="]}]), refused(ollama.ResponseError, "image")),
    ("ollama: generate", lambda c: one(generate, c), lambda a: "Paris" in a["text"] and a["done_reason"] == "stop"),
    ("ollama: generate as a stream", lambda c: streamed(generate, c), lambda a: "Paris" in a["text"] and a["parts"] > 2 and a["last"] == ""),
    ("ollama: generate with system", lambda c: one(generate, c, system="Be brief."), lambda a: "Paris" in a["text"]),
    ("ollama: generate raw", lambda c: one(generate, c, raw=True, prompt="One, two,", options={"temperature": 0, "num_predict": 4}), lambda a: a["text"] != "" and a["prompt_eval_count"] <= 5),
    ("ollama: context goes on, or is left out", again, lambda a: a["text"] != ""),
    ("ollama: suffix, where the model has no fill-in tokens", lambda c: generate(c, suffix="end"), refused(ollama.ResponseError, "suffix")),
    ("ollama: an empty prompt loads", lambda c: generate(c, prompt=""), lambda a: a.done and a.done_reason == "load" and a.response == ""),
    ("ollama: no messages load", lambda c: chat(c, messages=[]), lambda a: a.done and a.done_reason == "load"),
    ("ollama: the models", lambda c: client(c).list().models, lambda a: len(a) == 1 and bool(a[0].model) and int(a[0].size) > 0 and a[0].details.format == "gguf" and a[0].modified_at is not None and bool(a[0].digest)),
    ("ollama: show", described, lambda a: a[1].modelinfo["general.architecture"] == "llama" and a[1].details.quantization_level == "Q4_1" and "completion" in a[1].capabilities and "im_start" in a[1].template),
    ("ollama: ps", lambda c: client(c).ps().models, lambda a: len(a) == 1 and bool(a[0].model) and a[0].context_length > 0 and a[0].expires_at is not None),
    ("ollama: version", lambda c: raw(c, "GET", "/api/version"), lambda a: isinstance(a["version"], str)),
    ("ollama: embed", lambda c: client(c, c.embedding_url).embed(MODEL, ["One", "Two", "One"]),
     lambda a: a.embeddings[0] == a.embeddings[2] != a.embeddings[1] and abs(sum(x * x for x in a.embeddings[0]) - 1) < 1e-3 and a.prompt_eval_count > 0 and a.total_duration > 0),
    ("ollama: embed one text, of 16 dimensions", lambda c: client(c, c.embedding_url).embed(MODEL, "One", dimensions=16), lambda a: len(a.embeddings) == 1 and len(a.embeddings[0]) == 16),
    ("ollama: embed truncates", lambda c: client(c, c.embedding_url).embed(MODEL, "one " * 30000), lambda a: len(a.embeddings) == 1),
    ("ollama: embed, truncate false", lambda c: client(c, c.embedding_url).embed(MODEL, "one " * 30000, truncate=False), refused(ollama.ResponseError, "tokens")),
    ("ollama: pulling a model is refused", lambda c: client(c).pull("gemma3"), refused(ollama.ResponseError, "")),
]
