#!/usr/bin/env python3
"""usage: test_ollama.py OATO_SERVE OATO_MAKE_MODEL

By HTTP, on a tiny random model: Ollama's addresses (lines of JSON in the order that it documents, options, formats, tools, refusals), /v1/rerank
by cosines and by a ranking head, /infill and suffix, and embeddings beside answers, which have the bits of a server with --embeddings and are
what numpy computes, where there is numpy.
"""
import base64
import concurrent.futures
import json
import math
import pathlib
import re
import struct
import sys
import tempfile

import rig
from gguf_file import FILL_IN, with_keys
from rig import check, finish, make_model

serve, make = sys.argv[1:3]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "oracle"))
TEXTS = ["The river was", "a", "The river was wide and slow.", "x" * 200, "one two three"]


class Server(rig.Server):
    always = (*rig.Server.always, "-c", "1024")

    def lines(self, path, body):
        a = self.ask(path, body)
        kind = a.headers["Content-Type"]
        check(a[0] == 200 and kind == "application/x-ndjson" and a.text.endswith("\n"), f"{path}: lines of JSON ({a[0]}, {kind})")
        return [json.loads(line) for line in a.text.splitlines()]

    def vectors(self, texts, **more):
        status, a = self.ask("/v1/embeddings", {"input": texts, "encoding_format": "base64", **more})
        check(status == 200 and [d["index"] for d in a["data"]] == list(range(len(texts))), "embeddings, a vector for each text")
        return [d["embedding"] for d in a["data"]]


def floats(text):
    data = base64.b64decode(text)
    return struct.unpack(f"<{len(data) // 4}f", data)


def chats(s):
    chat = {"model": "some:latest", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Go"}], "options": {"num_predict": 9, "temperature": 0}}
    same = {"messages": chat["messages"], "max_tokens": 9, "temperature": 0}
    expected = s.ask("/v1/chat/completions", same)[1]["choices"][0]
    status, a = s.ask("/api/chat", {**chat, "stream": False})
    check(status == 200 and a["message"] == {"role": "assistant", "content": expected["message"]["content"]} and a["done"] and a["model"] == "some:latest", "a chat is OpenAI's")
    check(a["done_reason"] == expected["finish_reason"].replace("tool_calls", "stop") and a["eval_count"] == 9 and a["prompt_eval_count"] > 9, "its counts")
    check(all(isinstance(a[k], int) and a[k] >= 0 for k in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"))
          and a["total_duration"] >= a["prompt_eval_duration"] + a["eval_duration"] and a["created_at"].endswith("Z"), "its times are nanoseconds")
    lines = s.lines("/api/chat", chat)
    check("".join(l["message"]["content"] for l in lines) == a["message"]["content"], "a stream says the same")
    check([l["done"] for l in lines] == [False] * (len(lines) - 1) + [True] and lines[-1]["message"]["content"] == "" and lines[-1]["eval_count"] == 9
          and "done_reason" not in lines[0], "the last line has the counts")
    probs = s.lines("/api/chat", {**chat, "logprobs": True, "top_logprobs": 2})
    probs = [p for l in probs for p in l.get("logprobs", [])]
    check(len(probs) == 9 and all(len(p["top_logprobs"]) == 2 and p["logprob"] <= 0 and "bytes" in p for p in probs), "log probabilities of each token")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"], "additionalProperties": False}
    wide = {**chat, "options": {"num_predict": 60, "temperature": 0}}
    said = json.loads("".join(l["message"]["content"] for l in s.lines("/api/chat", {**wide, "format": schema})))
    check(list(said) == ["n"], f"an answer of a schema: {said}")
    status, a = s.ask("/api/chat", {**chat, "format": "json", "stream": False})
    check(status == 200 and a["message"]["content"].lstrip()[:1] in ("{", ""), "an answer in JSON")


def generates(s):
    ask = {"model": "m", "prompt": "Go", "options": {"num_predict": 7}}
    lines = s.lines("/api/generate", ask)
    expected = s.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 7})[1]["choices"][0]["message"]["content"]
    check("".join(l["response"] for l in lines) == expected and lines[-1]["done"] and lines[-1]["done_reason"] == "length", "an answer by the template")
    raw = s.ask("/api/generate", {**ask, "raw": True, "stream": False})[1]["response"]
    check(raw == s.ask("/v1/completions", {"prompt": "Go", "max_tokens": 7})[1]["choices"][0]["text"], "raw: the prompt as it is")
    system = s.ask("/api/generate", {**ask, "system": "Be.", "stream": False})[1]
    check(system["prompt_eval_count"] > lines[-1]["prompt_eval_count"], "a system prompt comes first")
    stop = s.ask("/api/generate", {**ask, "raw": True, "stream": False, "options": {"num_predict": 7, "stop": [raw[2:4]]}})[1]
    check(stop["done_reason"] == "stop" and stop["response"] == raw[:raw.index(raw[2:4])], "a stop word")
    for body, reason in (({"model": "m"}, "load"), ({"model": "m", "prompt": "", "keep_alive": 0}, "unload")):
        check(s.ask("/api/generate", body)[1] | {"created_at": ""} == {"model": "m", "created_at": "", "response": "", "done": True, "done_reason": reason}, reason)
    check(s.ask("/api/chat", {"model": "m", "messages": []})[1]["done_reason"] == "load", "an empty chat loads")


def tells(s):
    check(s.ask("/", method="HEAD")[0] == 200 and re.fullmatch(r"\d+\.\d+\.\d+", s.ask("/api/version")[1]["version"]), "HEAD / and the version, as clients ask")
    tags, ps, show = (s.ask(p, b)[1] for p, b in (("/api/tags", None), ("/api/ps", None), ("/api/show", {"model": "m"})))
    model = tags["models"][0]
    check(model["details"] == show["details"] and model["details"]["format"] == "gguf" and model["details"]["family"] == "llama" and model["size"] > 0
          and model["name"] == model["model"] and len(model["digest"]) >= 12, "the list of models")
    check(ps["models"][0]["name"] == model["name"] and ps["models"][0]["context_length"] == 1024 and ps["models"][0]["size_vram"] == 0, "what runs")
    check(show["model_info"]["general.architecture"] == "llama" and show["model_info"]["general.parameter_count"] > 1000
          and show["model_info"]["tokenizer.ggml.tokens"] is None and show["parameters"].split() == ["num_ctx", "1024"] and {"completion", "tools", "embedding"} <= set(show["capabilities"]), "a model's keys and abilities")


def refuses(s):
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    cases = [("/api/chat", {**chat, "options": {"temperature": "hot"}}, 400, "temperature"),
             ("/api/chat", {**chat, "options": {"tfs_z": 0.5}}, 400, "tfs_z"), ("/api/chat", {**chat, "options": []}, 400, "options"),
             ("/api/chat", {**chat, "format": "xml"}, 400, "format"), ("/api/chat", {**chat, "messages": [{"role": "user", "content": "x", "images": ["a"]}]}, 400, "images"),
             ("/api/chat", {**chat, "messages": 1}, 400, "messages"), ("/api/chat", {**chat, "think": True}, 400, "thinking"),
             ("/api/generate", {"prompt": "x", "template": "y"}, 400, "template"), ("/api/generate", {"prompt": "x", "context": [1]}, 400, "context"),
             ("/api/generate", {"prompt": "x", "images": ["a"]}, 400, "images"), ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, 400, "raw"),
             ("/api/generate", {"prompt": "x", "suffix": "y"}, 501, "filling in"), ("/api/embed", {"input": []}, 400, "input"), ("/api/embed", {"input": "x", "dimensions": 65}, 400, "64"),
             ("/api/embed", {"input": "x " * 2000, "truncate": False}, 400, "context"), ("/api/pull", {"model": "m"}, 501, "/api/pull"), ("/api/create", {"model": "m"}, 501, "/api/create")]
    for path, body, expected, word in cases:
        status, a = s.ask(path, body)
        check(status == expected and list(a) == ["error"] and word in a["error"], f"{status} {a['error'] if isinstance(a.get('error'), str) else a}")
    check(s.ask("/api/delete", {"model": "m"}, method="DELETE")[0] == 501 and s.ask("/api/blobs/sha256:1", method="HEAD")[0] == 501, "models are not changed over HTTP")
    fine = {"num_ctx": 131072, "num_gpu": 1, "num_thread": 2, "use_mmap": True, "tfs_z": 1, "penalize_newline": True, "num_predict": 1, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
            "seed": 3, "repeat_penalty": 1.1, "repeat_last_n": 8, "mirostat": 0, "stop": ["q"]}
    check(s.ask("/api/chat", {**chat, "stream": False, "keep_alive": "5m", "think": False, "format": "", "tools": [], "options": fine})[0] == 200, "options that clients set pass")
    for path, body, word in (("/infill", {"input_prefix": "a", "input_suffix": "b"}, "filling in"), ("/v1/completions", {"prompt": "a", "suffix": "b"}, "filling in")):
        status, a = s.ask(path, body)
        check(status == 501 and word in a["error"]["message"], f"{path}: {status} {a['error']['message']}")
    for body, word in (({"query": "x"}, "documents"), ({"query": "", "documents": ["a"]}, "query"), ({"query": "x", "documents": [1]}, "documents[0]"), ({"query": "x", "texts": ["a", None]}, "texts[1]"),
                       ({"query": "x", "texts": []}, "texts wants"), ({"query": "x", "texts": ["a"], "documents": ["a"]}, "texts or documents"), ({"query": "x", "documents": ["a"], "top_n": 0}, "top_n")):
        status, a = s.ask("/v1/rerank", body)
        check(status == 400 and word in a["error"]["message"], f"400: rerank {body}: {a['error']['message']}")
    check(len(s.ask("/api/embed", {"input": "x", "dimensions": 0})[1]["embeddings"][0]) == 64, "dimensions 0 are all of them")


HERMES = ("{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
          "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.a }}{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")


def calls(s):
    tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 77}}}]},
               {"role": "tool", "tool_name": "add", "content": "78"}]
    status, a = s.ask("/api/chat", {"model": "m", "messages": history, "tools": [tool], "stream": False, "options": {"num_predict": 3}})
    openai = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 77}"}}]},
              {"role": "tool", "name": "add", "content": "78"}]
    n = s.ask("/v1/chat/completions/input_tokens", {"messages": openai, "tools": [tool]})[1]["input_tokens"]
    check(status == 200 and a["prompt_eval_count"] == n, f"calls and results reach the template: {a.get('prompt_eval_count')} tokens, {n}")


def embeddings(s, other, model):
    """Of a server that answers meanwhile, and of another that makes nothing else."""
    expected = other.vectors(TEXTS)
    answer = {"prompt": "The river was", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    said = s.ask("/v1/completions", answer)[1]["choices"][0]["text"]
    check(s.vectors(TEXTS) == expected, "embeddings of a server that answers have the bits of --embeddings")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(s.ask, "/v1/completions", answer) for _ in range(4)]
        vectors = [pool.submit(s.vectors, TEXTS * 4) for _ in range(3)]
        check(all(v.result() == expected * 4 for v in vectors), "beside answers, too")
        check(all(a.result()[1]["choices"][0]["text"] == said for a in answers), "and the answers are the same")
    first = floats(s.vectors(TEXTS[:1], dimensions=8)[0])
    whole = floats(expected[0])[:8]
    scale = math.sqrt(sum(x * x for x in whole))
    check(len(first) == 8 and max(abs(x - y / scale) for x, y in zip(first, whole)) < 1e-6, "dimensions: the first ones, with length 1 again")
    embed = s.ask("/api/embed", {"model": "m", "input": TEXTS})[1]
    check(embed["prompt_eval_count"] > len(TEXTS) and all(max(abs(x - y) for x, y in zip(a, floats(b))) < 1e-7 for a, b in zip(embed["embeddings"], expected)), "Ollama's")
    check(len(s.ask("/api/embed", {"input": "x " * 2000})[1]["embeddings"]) == 1, "a text that is too long is cut")
    check(s.ask("/api/embeddings", {"prompt": TEXTS[0]})[1]["embedding"] == embed["embeddings"][0], "the old address")
    status, a = s.ask("/v1/embeddings", {"input": [f"{i}" for i in range(2048)]})
    check(status == 200 and len(a["data"]) == 2048, f"2,048 inputs in one request ({status})")
    check(s.ask("/v1/embeddings", {"input": ["x"] * 2049})[0] == 400 and s.ask("/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False})[0] == 200, "not more")
    a = s.ask("/v1/rerank", {"query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[0]}, TEXTS[2]], "return_documents": True})[1]
    scores = {r["index"]: r["relevance_score"] for r in a["results"]}
    cosines = [sum(x * y for x, y in zip(floats(expected[0]), floats(expected[i]))) for i in (1, 0, 2)]
    check(all(abs(scores[i] - cosines[i]) < 1e-6 for i in range(3)) and list(scores.values()) == sorted(scores.values(), reverse=True)
          and a["results"][0] == {"index": 1, "relevance_score": a["results"][0]["relevance_score"], "document": {"text": TEXTS[0]}}, "rerank by cosines")
    tei = s.ask("/rerank", {"query": TEXTS[0], "texts": [TEXTS[1], TEXTS[0]], "return_text": True, "top_n": 1})[1]
    check(len(tei) == 1 and tei[0]["index"] == 1 and tei[0]["text"] == TEXTS[0] and abs(tei[0]["score"] - 1) < 1e-6, f"in the form of text-embeddings-inference: {tei}")
    check([len(s.ask(path, {"query": "a", "documents": ["b", "c"], "top_n": 1})[1]["results"]) for path in ("/rerank", "/reranking", "/v1/reranking")] == [1] * 3, "top_n")
    ids = s.ask("/tokenize", {"content": TEXTS[2], "add_special": True})[1]["tokens"]
    try:
        import numpy
        from llama_numpy import Model
    except ImportError:
        print("no numpy or gguf: not compared with them")
        return
    oracle = Model(model)
    oracle.output = numpy.eye(64, dtype=numpy.float32)
    state = oracle.logits(numpy.array(ids, numpy.int64))[-1]
    check(numpy.abs(state / numpy.linalg.norm(state) - floats(expected[2])).max() < 2e-3, "what numpy computes")


def ranks(model, folder):
    rows = [[math.sin(i * k + k) for i in range(64)] for k in (1, 2)]
    path = with_keys(model, folder + "/rank.gguf", {"tokenizer.chat_template.rerank": "Q {query} D {document} ?"}, {"cls.output.weight": rows})
    documents = ["a cat", "{query} the river", "dogs"]
    with Server(serve, path) as s, Server(serve, path, "--embeddings", "--pooling", "none") as other:
        for r in s.ask("/v1/rerank", {"query": "what {document}", "documents": documents})[1]["results"]:
            state = other.ask("/embeddings", {"input": f"Q what {{document}} D {documents[r['index']]} ?"})[1][0]["embedding"][-1]
            yes, no = (sum(x * y for x, y in zip(row, state)) for row in rows)
            check(abs(r["relevance_score"] - 1 / (1 + math.exp(no - yes))) < 1e-4, f"a ranking head's score: {r}")


def fills(model, folder):
    marks = {**FILL_IN, "tokenizer.ggml.fim_rep_token_id": 303, "tokenizer.ggml.fim_sep_token_id": 304}
    for spm in (False, True):
        keys = {k: v for k, v in marks.items() if not spm or "pre" in k or "suf" in k}
        s = Server(serve, with_keys(model, folder + "/fim.gguf", keys))

        def ids(text, special=False):
            return s.ask("/tokenize", {"content": text, "add_special": special, "parse_special": False})[1]["tokens"]

        def answer(prompt):
            return s.ask("/completion", {"prompt": prompt, "n_predict": 8})[1]["content"]

        bos = ids("", True)
        order = ([301] + ids("after") + [300] + ids("before <s>") if spm else [300] + ids("before <s>") + [301] + ids("after") + [302])
        body = {"input_prefix": "before <s>", "input_suffix": "after", "n_predict": 8}
        expected = answer(bos + order)
        check(s.ask("/infill", body)[1]["content"] == expected, f"/infill, {'SPM' if spm else 'PSM'}")
        check(s.ask("/v1/completions", {"prompt": "before <s>", "suffix": "after", "max_tokens": 8})[1]["choices"][0]["text"] == expected, "suffix")
        check(s.ask("/api/generate", {"model": "m", "prompt": "before <s>", "suffix": "after", "stream": False, "options": {"num_predict": 8}})[1]["response"] == expected
              and "insert" in s.ask("/api/show", {})[1]["capabilities"], "Ollama's suffix")
        if not spm:
            extra = [{"filename": "a.c", "text": "int a;"}, {"text": "int b;"}]
            files = [303] + ids("project\n") + [304] + ids("a.c") + ids("\n") + ids("int a;") + [304] + ids("\n") + ids("int b;") + [304] + ids("current\n")
            check(s.ask("/infill", {**body, "prompt": "go", "input_extra": extra})[1]["content"]
                  == answer(bos + files + [300] + ids("before <s>") + ids("go") + [301] + ids("after") + [302]), "other files, and a middle that has begun")
            status, a = s.ask("/infill", {**body, "input_extra": [{"text": "word " * 3000}]})
            vim = {**body, "prompt": "", "input_extra": [{"text": "x", "time": [1, 2], "filename": "f"}], "stop": [], "n_indent": 4, "samplers": ["top_k", "top_p", "infill"],
                   "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 250, "response_fields": ["content", "stop_type", "timings/prompt_n", "tokens_cached"]}
            lines = s.ask("/infill", {**vim, "n_predict": 40, "grammar": r'root ::= "a\n    b\n  c"'})[1]
            check((lines["content"], lines["stop_type"]) == ("a\n    b", "limit") and set(lines) == set(vim["response_fields"]), f"what llama.vim asks for: {lines}")
            late = s.ask("/infill", {**vim, "n_indent": 0, "t_max_predict_ms": 1, "n_predict": 900, "grammar": r'root ::= "' + r"ab\n" * 300 + '"'})[1]
            check(late["stop_type"] == "limit" and late["content"].endswith("b\n") and len(late["content"]) < 2000, f"time ends an answer with its line, after {len(late['content'])} bytes")
            check(s.ask("/infill", {**vim, "n_predict": 0, "response_fields": [""]})[0] == 200, "it warms the cache up")
            check(status == 200 and a["tokens_evaluated"] == 1024 - 1 - 8, f"other files are cut, so that an answer has room: {a.get('tokens_evaluated')} tokens")
        check(s.ask("/infill", {**body, "input_extra": [1]})[0] == 400 and s.ask("/infill", {"input_prefix": 1})[0] == 400, "400: /infill")
        check(s.end() == 0, "the server ends", s.said)


with tempfile.TemporaryDirectory() as folder:
    model = make_model(make, folder + "/tiny.gguf", "--context", "4096")
    with Server(serve, model, "--chat-template", "chatml") as server:
        for test in chats, generates, tells, refuses:
            test(server)
        with Server(serve, model, "--embeddings") as other:
            embeddings(server, other, model)
    with Server(serve, model, "--chat-template", HERMES) as server:
        calls(server)
    ranks(model, folder)
    fills(model, folder)
sys.exit(finish())
