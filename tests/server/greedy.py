#!/usr/bin/env python3
"""usage: greedy.py [options] OATO_SERVE MODEL_OR_OATO_MAKE_MODEL

Requests that are made to be expensive (schemas, grammars, templates, conversations, prompts of 4 MB, biases, breakers, many answers,
stop words, lists of prompts, torn, half-closed and dripping connections), beside four well-behaved clients that stream. Those are timed
alone first, then under attack: their p95 may grow by --ratio at most, no answer of /health may take longer than --stall, the server may
take no more than --memory above what it took before, and nothing ends it. Then a server of embeddings is left by half-closed clients and
by SIGTERM. Prints the figures; exit status 1 when a limit is broken.

The figure of record, on a quiet machine, from the root of the repository:
  python3 tests/server/greedy.py build/ci/bin/oato-serve ~/.cache/oato/models/SmolLM2-135M-Instruct.Q4_1.gguf

With ASan and UBSan (build/asan/bin/oato-serve) limits of time and memory are four times as large: shadow memory is an eighth, freed
memory is kept in quarantine, for which ASAN_OPTIONS=quarantine_size_mb=16 is set, and pieces have red zones.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../pipeline"))
import nasty # noqa: E402
import rig # noqa: E402
from rig import at_once, check, finish, is_real, is_sanitized, make_model # noqa: E402

MB = 1 << 20
TEMPLATE = """{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if times %}{% for i in range(times) %}{% for k in range(times) %}{{ words | join(' ') | upper | length }}{% endfor %}{% endfor %}{% endif %}
{%- if words is sequence and sorts %}{{ words | sort | join(',') }}{% endif %}
{%- if nested %}{{ nested | tojson }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


class Server(rig.Server):
    always = ("--temp", "0", "--parallel", "8", "--context", "8192", "--api-key", "good,greedy", "--idle", "5")

    def __init__(self, options, model, *more):
        super().__init__(options.serve, model, "--port", options.port, *more, env={"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "quarantine_size_mb=16")})


def connect(port, timeout=300):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)


def post(port, path, data, key="greedy"):
    c = connect(port)
    c.request("POST", path, data, {"Authorization": "Bearer " + key})
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, text


# --------------------------------------------------------------------------------- well-behaved clients

class Good(threading.Thread):
    """Streams answers one after the other."""
    BODY = json.dumps({"prompt": "The river was", "max_tokens": 32, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})

    def __init__(self, port):
        super().__init__()
        self.port, self.goes_on, self.tokens, self.requests, self.wrong = port, True, [], [], []

    def run(self):
        while self.goes_on:
            begin = before = time.monotonic()
            try:
                c = connect(self.port)
                c.request("POST", "/v1/completions", self.BODY, {"Authorization": "Bearer good"})
                r = c.getresponse()
                events, last = 0, b""
                for line in r:
                    last = line if b'"usage"' in line else last
                    if line.startswith(b"data: "):
                        now = time.monotonic()
                        if events:
                            self.tokens.append(now - before)
                        before, events = now, events + 1
                c.close()
                self.requests.append(time.monotonic() - begin)
                if r.status != 200 or b'"completion_tokens":32' not in last:
                    self.wrong.append(f"{r.status}: {last}")
            except (OSError, http.client.HTTPException) as e:
                self.wrong.append(repr(e))
                time.sleep(0.1)


class Health(threading.Thread):
    def __init__(self, port):
        super().__init__()
        self.port, self.goes_on, self.waits = port, True, []

    def run(self):
        while self.goes_on:
            for path in ("/health", "/metrics"):
                begin = time.monotonic()
                try:
                    c = connect(self.port)
                    c.request("GET", path, headers={"Authorization": "Bearer good"})
                    c.getresponse().read()
                    c.close()
                except OSError:
                    pass
                self.waits.append(time.monotonic() - begin)
            time.sleep(0.05)


def p95(values):
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else float("inf")


def phase(port, until):
    """The figures of well-behaved clients while until() is run."""
    everybody = [Good(port) for _ in range(4)] + [Health(port)]
    for t in everybody:
        t.start()
    until()
    for t in everybody:
        t.goes_on = False
    for t in everybody:
        t.join()
    good, health = everybody[:4], everybody[4]
    return {"token": p95([w for g in good for w in g.tokens]), "request": p95([w for g in good for w in g.requests]),
            "longest": max((w for g in good for w in g.tokens), default=float("inf")), "health": max(health.waits),
            "answers": sum(len(g.requests) for g in good), "wrong": [w for g in good for w in g.wrong]}


# --------------------------------------------------------------------------------- the attack

def words(rng, n):
    return " ".join(rng.choice(("river", "boat", "Straße", "x1", "und", "\n")) for _ in range(n // 5))[:n]


def bodies(rng):
    """Pairs of a name and (path, request). They ask for one token at most: what the engine computes is shared by all, and no attack."""
    text, chat, tokenize = "/v1/completions", "/v1/chat/completions", "/tokenize"
    few = {"prompt": "A", "max_tokens": 1}
    hello = [{"role": "user", "content": "Hello"}]
    big = {"type": "object", "properties": {f"p{i}": {"type": "string", "description": words(rng, 200)} for i in range(8000)}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": big}}

    def kwargs(**k):
        return chat, {"messages": hello, "max_tokens": 1, "chat_template_kwargs": k}

    yield "prompt of words", (text, {"prompt": words(rng, 3400000), "max_tokens": 1})
    yield "prompt of one letter", (text, {"prompt": "a" * 4000000, "max_tokens": 1})
    yield "prompt of one word at the edge", (text, {"prompt": "ab" * 150000, "max_tokens": 1})
    yield "prompt of ids", (text, {"prompt": [1] * 1300000, "max_tokens": 1})
    yield "128 prompts", (text, {"prompt": [words(rng, 25000)] * 128, "max_tokens": 1})
    yield "message of 4 MB", (chat, {"messages": [{"role": "user", "content": words(rng, 3400000)}], "max_tokens": 1})
    yield "4000 messages", (chat, {"messages": [{"role": "user", "content": words(rng, 600)}] * 4000, "max_tokens": 1})
    yield "message of many parts", (chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 90000}], "max_tokens": 1})
    yield "tools with huge schemas", (chat, {"messages": hello, "tools": [tool], "max_tokens": 1})
    yield "a huge tool to call", (chat, {"messages": hello, "tools": [tool], "tool_choice": "required", "max_tokens": 1})
    yield "many tools", (chat, {"messages": hello, "max_tokens": 1, "tools": [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(30000)]})
    yield "template loops", kwargs(times=3000, words=["a", "b"])
    yield "template joins", kwargs(times=300, words=["word"] * 20000)
    yield "template sorts", kwargs(words=[str(rng.random()) for _ in range(100000)], sorts=True)
    yield "template of many keys", kwargs(**{f"k{i}": i for i in range(150000)})
    yield "template nests", (chat, json.dumps(kwargs(nested="@")[1]).replace('"@"', "[" * 1500 + "]" * 1500))
    yield "JSON nests", (text, '{"prompt":' + "[" * 2000000 + "]" * 1999000 + "}")
    yield "JSON of lists", (text, '{"prompt":"A","x":[' + "[]," * 1300000 + "[]]}")
    yield "JSON of objects", (text, '{"prompt":"A","x":[' + "{}," * 1300000 + "{}]}")
    yield "biases", (text, {**few, "n": 128, "logit_bias": [[i % 400, 0.001] for i in range(300000)]})
    yield "biases by key", (text, {**few, "n": 128, "logit_bias": {str(i): 1 for i in range(300000)}})
    yield "biases of texts", (text, {**few, "logit_bias": [["river boat " * 1500, 1]] * 200})
    yield "breakers", (text, {**few, "n": 8, "dry_multiplier": 1, "dry_sequence_breakers": ["a" * 192000 + chr(98 + i) for i in range(8)],
                              "prompt": "a" * 300})
    yield "answers", (text, {**few, "n": 128})
    yield "answers that look back", (text, {**few, "n": 128, "dry_multiplier": 1, "dry_penalty_last_n": -1, "repeat_last_n": -1,
                                            "repeat_penalty": 1.1, "presence_penalty": 1})
    yield "answers with a schema", (text, {**few, "n": 128, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": {"properties": {f"p{i}": {} for i in range(300)}}}}})
    yield "stop words", (text, {**few, "n": 64, "stop": ["a" * 1000 + chr(98 + i) for i in range(16)]})
    yield "too many stop words", (text, {**few, "stop": ["a"] * 200000})
    yield "log probabilities", (text, {**few, "n": 32, "logprobs": 100})
    yield "texts as tokens", (tokenize, {"content": words(rng, 3400000), "with_pieces": True})
    yield "a word as tokens", (tokenize, {"content": "a" * 4000000})
    yield "tokens as text", ("/detokenize", {"tokens": [7] * 1300000})
    yield "template applied", ("/apply-template", {"messages": [{"role": "user", "content": "x" * 100}] * 4000})
    yield "tokens counted", ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": words(rng, 3400000)}]})


def tear(port, data, rng):
    """Leaves in the middle of the request, or behind it; half-closes; drips."""
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer greedy\r\nContent-Length: %d\r\n\r\n" % len(data)
    how = rng.randrange(5)
    try:
        if how == 0:
            s.sendall(head + data[:rng.randrange(len(data))])
        elif how == 1:
            s.sendall(head + data)
        elif how == 2:
            s.sendall(head + data)
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass
        elif how == 3:
            s.sendall(head + data)
            time.sleep(rng.random() / 2)
        else:
            for byte in head[:8]:
                s.sendall(bytes([byte]))
                time.sleep(0.1)
    except OSError:
        pass
    s.close()


def attack_list(rng, n):
    """n requests of every kind, as they are sent: (name, path, data), path None: a torn one."""
    kinds = [(name, path, body if isinstance(body, str) else json.dumps(body)) for name, (path, body) in bodies(rng)]
    hard = [(name, "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 1, **body})) for name, body in nasty.bodies()]
    rng.shuffle(kinds)
    rng.shuffle(hard)
    attacks = []
    while len(attacks) < n:
        i = len(attacks)
        name, path, data = hard[i // 5 * 2 % len(hard)] if i % 5 < 2 else kinds[i // 5 * 2 % len(kinds)] if i % 5 == 2 else \
            kinds[(i // 5 * 2 + 1) % len(kinds)]
        attacks.append((f"torn {name}", None, data.encode()) if i % 5 == 4 else (name, path, data.encode()))
    return attacks


def attack(port, attacks, seed, results):
    """Of a process of its own, four at a time; an attacker's own work is done on another machine, so here it gives way."""
    os.nice(19)
    at, lock = iter(attacks), threading.Lock()

    def run(number):
        rng = random.Random(seed * 8 + number)
        while True:
            with lock:
                one = next(at, None)
            if one is None:
                return
            name, path, data = one
            begin = time.monotonic()
            try:
                status, text = (0, b"") if path is None else post(port, path, data)
                if path is None:
                    tear(port, data, rng)
                message = json.loads(text).get("error", {}).get("message", "") if text else ""
            except (OSError, http.client.HTTPException, ValueError) as e:
                status, message = -1, repr(e)
            results.put((name, status, time.monotonic() - begin, message))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def company(options, model):
    rng = random.Random(options.seed)
    attacks = attack_list(rng, options.requests)
    with open(os.path.join(options.folder, "template"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    s = Server(options, model, "--chat-template-file", f.name)
    post(s.port, "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 1, "grammar": 'root ::= "a"'})) # sorts the vocabulary
    phase(s.port, lambda: time.sleep(1))
    alone = phase(s.port, lambda: time.sleep(options.seconds))
    before = s.memory()
    results = multiprocessing.Queue()
    child = multiprocessing.Process(target=attack, args=(s.port, attacks, options.seed, results))
    got = []

    def until():
        child.start()
        end = time.monotonic() + options.most
        while len(got) < len(attacks) and time.monotonic() < end and s.process.poll() is None:
            try:
                got.append(results.get(timeout=1))
            except Exception: # nothing yet
                pass
        child.terminate()
        child.join()

    beside = phase(s.port, until)
    check(s.process.poll() is None, f"the server lives {''.join(s.said[-8:]) if s.process.poll() is not None else ''}")
    if s.process.poll() is not None:
        return
    more = s.memory() - before
    for name, status, seconds, message in sorted(got, key=lambda r: -r[2])[:options.show]:
        print(f"     {seconds:6.2f} s  {status:4d}  {name}: {message[:110]}")
    bad = [r for r in got if r[1] not in (0, 200, 400, 503)]
    check(len(got) == len(attacks), f"{len(got)} of {len(attacks)} greedy requests answered or dropped")
    check(not bad, f"each by 200, 400 or 503 {bad[:3] or ''}")
    for name, figures in (("alone", alone), ("attacked", beside)):
        print(f"     {name}: p95 {figures['token'] * 1e3:.1f} ms a token (longest {figures['longest'] * 1e3:.0f} ms), "
              f"{figures['request'] * 1e3:.0f} ms a request; {figures['answers']} answers; /health {figures['health'] * 1e3:.0f} ms at most")
    check(not beside["wrong"], f"well-behaved clients get what they ask for {beside['wrong'][:3] or ''}")
    for what in ("token", "request"):
        ratio = beside[what] / alone[what]
        check(ratio <= options.ratio, f"p95 of a {what} under attack: {ratio:.2f} of that without, at most {options.ratio}")
    check(beside["longest"] <= options.stall, f"no stream stands still longer than {options.stall} s: {beside['longest']:.2f} s")
    check(beside["health"] <= options.stall, f"/health and /metrics answer within {options.stall} s: {beside['health']:.2f} s")
    check(more <= options.memory, f"memory grew by {more:.0f} MB at its peak, at most {options.memory}")
    check(s.end() == 0, "SIGTERM afterwards", s.said)


# --------------------------------------------------------------------------------- dripping, embeddings, ending

def drips(options, model):
    with Server(options, model, "--idle", "1") as s:
        c, begin = s.socket(), time.monotonic()
        try:
            while time.monotonic() - begin < 20:
                c.sendall(b"G" if time.monotonic() - begin < 0.1 else b"E")
                time.sleep(0.2)
        except OSError:
            pass
        took = time.monotonic() - begin
        check(took < 11, f"a connection that drips is closed after {took:.1f} s with --idle 1")


def embeddings(options, model):
    body = json.dumps({"input": ["The river was " * 400] * 16}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer greedy\r\nContent-Length: %d\r\n\r\n" % len(body)
    for wait in (0, 0.2):
        s = Server(options, model, "--embeddings", "--drain", "0")
        waiting = []
        for half in (True, False) * 4:
            c = s.socket(60)
            c.sendall(head + body)
            if half:
                c.shutdown(socket.SHUT_WR)
            waiting.append(c)
        time.sleep(wait)
        check(s.end() == 0, f"SIGTERM: embeddings, half-closed clients, --drain 0, {wait} s", s.said)
        for c in waiting:
            c.close()
    with Server(options, model, "--embeddings") as s:
        c = s.socket(60)
        c.sendall(head + body)
        c.shutdown(socket.SHUT_WR)
        time.sleep(1)
        status, text = post(s.port, "/v1/embeddings", json.dumps({"input": "A"}))
        check(status == 200 and b"embedding" in text, "a half-closed client ends no server of embeddings")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("serve")
    p.add_argument("model")
    p.add_argument("--requests", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--seconds", type=float, default=20, help="of the phase without an attack")
    p.add_argument("--most", type=float, default=600, help="seconds of the attack")
    p.add_argument("--ratio", type=float, default=1.3)
    p.add_argument("--stall", type=float, default=0.5)
    p.add_argument("--memory", type=float, default=200, help="MB")
    p.add_argument("--show", type=int, default=8, help="slowest requests to print")
    p.add_argument("--port", type=int, default=0)
    options = p.parse_args()
    if is_sanitized(options.serve):
        options.stall, options.memory = 4 * options.stall, 4 * options.memory
    with tempfile.TemporaryDirectory() as options.folder:
        model = options.model if is_real(options.model) else make_model(options.model, options.folder + "/model.gguf", "--layers", "2", "--context", "8192")
        company(options, model)
        at_once([lambda: drips(options, model), lambda: embeddings(options, model)])
    sys.exit(finish())


if __name__ == "__main__":
    main()
