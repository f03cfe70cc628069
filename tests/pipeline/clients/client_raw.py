"""Addresses for which no package speaks: rerank, infill, /props, tokens, by HTTP."""
import json
import urllib.error
import urllib.request

from rows import ASK


def ask(url, path, body=None, method=None):
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as r:
            return r.status, json.loads(r.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


TEXTS = ["A machine uses power to apply forces.", "Paris is the capital of France.", "Learning is acquiring knowledge."]


def rerank(c, **more):
    return ask(c.embedding_url, "/v1/rerank", {"query": "Paris is the capital of France.", "documents": TEXTS, **more})


def infill(c, **more):
    return ask(c.infill_url, "/infill", {"input_prefix": "def add(a, b):\n", "input_suffix": "    return c\n", "prompt": "    c =", "n_predict": 8, "temperature": 0, **more})


ROWS = [
    ("rerank: documents by relevance", rerank, lambda a: a[0] == 200 and [r["index"] for r in a[1]["results"]][0] == 1 and len(a[1]["results"]) == 3
     and [r["relevance_score"] for r in a[1]["results"]] == sorted((r["relevance_score"] for r in a[1]["results"]), reverse=True) and a[1]["usage"]["total_tokens"] > 0),
    ("rerank: top_n and return_documents", lambda c: rerank(c, top_n=1, return_documents=True), lambda a: [r["document"]["text"] for r in a[1]["results"]] == [TEXTS[1]]),
    ("rerank: no documents", lambda c: rerank(c, documents=[]), lambda a: a[0] == 400 and "documents" in a[1]["error"]["message"]),
    ("rerank: the form of TEI", lambda c: ask(c.embedding_url, "/rerank", {"query": "Paris", "texts": TEXTS}), lambda a: a[0] == 200 and sorted(r["index"] for r in a[1]) == [0, 1, 2] and all("score" in r for r in a[1])),
    ("infill: between two texts", infill, lambda a: a[0] == 200 and a[1]["content"] != "" and a[1]["tokens_predicted"] == 8),
    ("infill: with other files", lambda c: infill(c, input_extra=[{"filename": "a.py", "text": "def take(a, b):\n    return a - b\n"}]), lambda a: a[0] == 200 and a[1]["content"] != ""),
    ("infill: a file without text", lambda c: infill(c, input_extra=[{"filename": "a.py"}]), lambda a: a[0] == 400 and "input_extra" in a[1]["error"]["message"]),
    ("infill: a model without fill-in tokens", lambda c: ask(c.url, "/infill", {"input_prefix": "a", "input_suffix": "b"}), lambda a: a[0] in (400, 501) and "fill" in a[1]["error"]["message"]),
    ("props: what the server is", lambda c: ask(c.url, "/props"), lambda a: a[0] == 200 and "im_start" in a[1]["chat_template"] and a[1]["total_slots"] > 0 and a[1]["default_generation_settings"]["n_ctx"] > 0),
    ("tokens: of a chat", lambda c: (ask(c.url, "/v1/chat/completions/input_tokens", {"messages": ASK})[1], ask(c.url, "/v1/chat/completions", {"messages": ASK, "max_tokens": 1})[1]),
     lambda a: a[0]["input_tokens"] == a[1]["usage"]["prompt_tokens"]),
    ("models: /v1/models/{id}", lambda c: ask(c.url, "/v1/models/" + ask(c.url, "/v1/models")[1]["data"][0]["id"]), lambda a: a[0] == 200 and a[1]["object"] == "model"),
]
