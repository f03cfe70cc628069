#!/usr/bin/env python3
"""usage: test_dialects.py OATO_SERVE OATO_MAKE_MODEL

The interfaces of OpenAI, Anthropic and Ollama by HTTP, on a tiny random model: the events of each stream come in the order that the
makers document (machines.py), and say what the answer without a stream says, which is the same text in every interface; calls
and reasoning come in the parts that each has for them; what is wrong is told in each one's form.
"""
import json
import pathlib
import re
import sys
import tempfile

import machines
from clients.rows import PLACE, is_place
from rig import Server, check, finish, make_model, norm

serve, make = sys.argv[1:3]
ASK = [{"role": "user", "content": "The river was"}]
CHAT, MESSAGES, RESPONSES, OLLAMA, GENERATE = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate"
THINKING = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"



def body_of(path, tokens, **more):
    """The same question in each interface; of a random model, whose tokens never end by themselves."""
    if path == CHAT:
        return {"messages": ASK, "max_tokens": tokens, "temperature": 0, **more}
    if path == MESSAGES:
        return {"model": "any", "messages": ASK, "max_tokens": tokens, "temperature": 0, **more}
    if path == RESPONSES:
        return {"model": "any", "input": ASK, "max_output_tokens": tokens, "temperature": 0, **more}
    if path == OLLAMA:
        return {"model": "any", "messages": ASK, "options": {"num_predict": tokens, "temperature": 0}, **more}
    return {"model": "any", "prompt": ASK[0]["content"], "options": {"num_predict": tokens, "temperature": 0}, **more}


def parts_of_message(m):
    return {"text": "".join(b.get("text", "") for b in m["content"]), "thinking": "".join(b.get("thinking", "") for b in m["content"]),
            "calls": [b["input"] for b in m["content"] if b["type"] == "tool_use"], "why": m["stop_reason"]}


def parts_of_response(r):
    return {"text": "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"]),
            "thinking": "".join(p["text"] for i in r["output"] if i["type"] == "reasoning" for p in [*(i.get("content") or []), *i["summary"]]),
            "calls": [json.loads(i["arguments"]) for i in r["output"] if i["type"] == "function_call"], "why": r["status"]}


def of_ollama(path):
    return (lambda e: e["message"].get("content") or "") if path == OLLAMA else (lambda e: e["response"])


def whole(server, path, body):
    """text, thinking, calls and why it ended, of an answer without a stream."""
    status, a = server.ask(path, {**body, "stream": False})
    if status != 200:
        return {"status": status, "error": a}
    if path == CHAT:
        m = a["choices"][0]["message"]
        return {"text": m["content"] or "", "thinking": m.get("reasoning_content") or "", "calls": [json.loads(t["function"]["arguments"]) for t in m.get("tool_calls") or []],
                "why": a["choices"][0]["finish_reason"]}
    if path == MESSAGES:
        return parts_of_message(a)
    if path == RESPONSES:
        return parts_of_response(a)
    a = machines.ollama([a], of_ollama(path))
    return {"text": a["text"], "thinking": a["thinking"], "calls": [c["arguments"] for c in a["calls"]], "why": a["done_reason"]}


def streamed(server, path, body):
    """The same of a stream, read by the machine of its interface."""
    a = server.ask(path, {**body, "stream": True})
    text, kind = a.text, a.headers["Content-Type"]
    if a[0] != 200:
        return {"status": a[0], "error": text}
    machines.need(kind == ("application/x-ndjson" if path in (OLLAMA, GENERATE) else "text/event-stream"), f"the type of a stream is {kind}")
    if path == CHAT:
        a = machines.chat(machines.chunks(text), "stream_options" in body)
        return {"text": a["content"], "thinking": a["reasoning"], "calls": [json.loads(c["arguments"]) for c in a["calls"]], "why": a["finish_reason"]}
    if path == MESSAGES:
        return parts_of_message(machines.messages(machines.named(text)))
    if path == RESPONSES:
        return parts_of_response(machines.responses(machines.named(text)))
    a = machines.ollama([json.loads(line) for line in text.splitlines()], of_ollama(path))
    return {"text": a["text"], "thinking": a["thinking"], "calls": [c["arguments"] for c in a["calls"]], "why": a["done_reason"]}


def both(server, path, body, what, must=lambda a: True):
    """Stream and whole answer say the same, which must be so."""
    try:
        a, b = whole(server, path, body), streamed(server, path, body)
        good = "status" not in a and must(a) and all(norm(a[k]) == norm(b[k]) if isinstance(a[k], str) else a[k] == b[k] for k in a)
        check(good, f"{path}: {what}" + ("" if good else f": {a} {b}"))
        return {"text": "", **a}
    except (machines.Disorder, KeyError, ValueError, TypeError) as error:
        check(False, f"{path}: {what}: {error!r}")
        return {"text": ""}


def texts(s):
    cut = {CHAT: "length", MESSAGES: "max_tokens", RESPONSES: "incomplete", OLLAMA: "length", GENERATE: "length"}
    for tokens in (1, 40):
        said = {path: both(s, path, body_of(path, tokens), f"{tokens} tokens", lambda a, why=why: a["why"] == why and a["text"])["text"] for path, why in cut.items()}
        check(len({norm(t) for t in said.values()}) == 1, f"{tokens} tokens: one text in every interface" + ("" if len(set(said.values())) == 1 else f": {said}"))
    both(s, CHAT, body_of(CHAT, 8, stream_options={"include_usage": True}) | {"stream_options": {"include_usage": True}}, "with usage")
    word = next(w for w in re.findall(r"\[\d+\]", said[CHAT]))
    both(s, MESSAGES, body_of(MESSAGES, 40, stop_sequences=["no such word", word]), "a stop sequence", lambda a: a["why"] == "stop_sequence" and word not in a["text"])
    both(s, OLLAMA, {**body_of(OLLAMA, 40), "options": {"num_predict": 40, "temperature": 0, "stop": [word]}}, "a stop word", lambda a: a["why"] == "stop" and word not in a["text"])
    both(s, RESPONSES, body_of(RESPONSES, 90, text={"format": {"type": "json_schema", "name": "s", "schema": PLACE}}), "a schema", lambda a: a["why"] == "completed" and is_place(json.loads(a["text"])))
    for path in (OLLAMA, GENERATE):
        both(s, path, body_of(path, 90, format=PLACE), "a schema", lambda a: a["why"] == "stop" and is_place(json.loads(a["text"])))


def calls(s):
    visit = {"name": "visit", "description": "plans a visit"}
    function = {"type": "function", "function": {**visit, "parameters": PLACE}}
    asks = {CHAT: {"tools": [function], "tool_choice": "required"}, MESSAGES: {"tools": [{**visit, "input_schema": PLACE}], "tool_choice": {"type": "any"}},
            RESPONSES: {"tools": [{"type": "function", **visit, "parameters": PLACE}], "tool_choice": "required"}}
    ends = {CHAT: ("tool_calls", "length"), MESSAGES: ("tool_use", "max_tokens"), RESPONSES: ("completed", "incomplete")}
    for path, more in asks.items():
        both(s, path, body_of(path, 200, **more), "a required call", lambda a: len(a["calls"]) == 1 and is_place(a["calls"][0]) and a["text"] == "" and a["why"] == ends[path][0])
        for tokens in (1, 5, 9, 14): # somewhere in the call
            a = s.ask(path, body_of(path, tokens, **more))
            check(a[0] == 200 and ends[path][1] in a.text and not re.search(r'"(content|text)": ?"[^"]*(visit|city)', a.text), f"{path}: a call cut after {tokens} tokens is no text")
    both(s, OLLAMA, body_of(OLLAMA, 12, tools=[function]), "tools that are not called", lambda a: a["calls"] == [] and a["text"])


def thinking(s):
    for path in (CHAT, MESSAGES, RESPONSES, OLLAMA):
        both(s, path, body_of(path, 12, **({"think": True} if path == OLLAMA else {})), "reasoning comes apart", lambda a: a["thinking"] and not a["text"])


def errors(s):
    """Each interface's own form, and 401 by each one's header."""
    for path, body, form in ((CHAT, {}, lambda e: e["error"]["code"] == 400 and e["error"]["message"]),
                             (MESSAGES, {"max_tokens": 1}, lambda e: e["type"] == "error" and e["error"]["type"] == "invalid_request_error" and e["error"]["message"]),
                             (RESPONSES, {"model": "any"}, lambda e: e["error"]["type"] == "invalid_request_error" and e["error"]["message"]),
                             (OLLAMA, {"messages": 3}, lambda e: isinstance(e["error"], str)), (GENERATE, {"prompt": 3}, lambda e: isinstance(e["error"], str))):
        for more in ({}, {"stream": True}):
            a = s.ask(path, {**body, **more}, {"Authorization": "Bearer secret"})
            check(a[0] == 400 and a.headers["Content-Type"].startswith("application/json") and form(a[1]), f"400 at {path}: {a.text[:120]}")
        status, said = s.ask(path, body_of(path, 1))
        error = said["error"]
        check(status == 401 and (isinstance(error, str) if path in (OLLAMA, GENERATE) else error["type"] == "authentication_error"), f"401 at {path}: {said}")
    check(s.ask(MESSAGES, body_of(MESSAGES, 1), {"x-api-key": "secret"})[0] == 200, "Anthropic's clients send their key as x-api-key")


with tempfile.TemporaryDirectory() as folder:
    model = make_model(make, folder + "/tiny.gguf")
    (pathlib.Path(folder) / "thinking.jinja").write_text(THINKING)
    for options, tests in (((), (texts, calls)), (("--chat-template-file", folder + "/thinking.jinja"), (thinking,)), (("--api-key", "secret"), (errors,))):
        with Server(serve, model, *options) as server:
            for test in tests:
                test(server)
sys.exit(finish())
