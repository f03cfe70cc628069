#!/usr/bin/env python3
"""usage: test_nasty.py OATO_SERVE MODEL_OR_OATO_MAKE_MODEL

Schemas and grammars that are made to be expensive (tests/server/nasty.py) are refused with 400 and one line of JSON, or answered,
while four ordinary clients and /health are served as if they were not there. A client that goes takes its work along.
"""
import json
import os
import sys
import tempfile
import threading
import time

from rig import Server, check, finish, is_real, is_sanitized, make_model, until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
import nasty # noqa: E402

serve, model = sys.argv[1:3]
sanitized = is_sanitized(serve)
SECONDS_MOST = 8 if sanitized else 2 # that anybody else waits: 0.5 s, generously, for the machine does other things, too
MEGABYTES_MOST = 200 # for all of them, with what the allocator keeps; about 25 each



class Ordinary(threading.Thread):
    """Streams answers, and remembers how long it waited for a piece, at most."""
    BODY = {"prompt": "The river was", "n_predict": 40, "ignore_eos": True, "stream": True}

    def __init__(self, s):
        super().__init__()
        self.server, self.texts, self.waits, self.goes_on = s, [], [], True

    def run(self):
        while self.goes_on:
            c = self.server.connect()
            c.request("POST", "/completion", json.dumps(self.BODY))
            r, text, before = c.getresponse(), "", time.monotonic()
            for line in r:
                if line.startswith(b"data: "):
                    text += json.loads(line[6:])["content"]
                    now = time.monotonic()
                    self.waits.append(now - before)
                    before = now
            c.close()
            self.texts.append(text)
            time.sleep(0.01) # four that never rest take all processors, and the server begins vast requests only where one is idle


class Health(threading.Thread):
    def __init__(self, s):
        super().__init__()
        self.server, self.waits, self.goes_on = s, [], True

    def run(self):
        while self.goes_on:
            before = time.monotonic()
            assert self.server.ask("/health")[0] == 200
            self.waits.append(time.monotonic() - before)
            time.sleep(0.02)


def percentile(waits, share):
    return sorted(waits)[int(share * (len(waits) - 1))]


def refused_or_answered(s, name, body, took):
    before = time.monotonic()
    status, a = s.ask("/completion", {"prompt": "A", "n_predict": 8, **body})
    took.append((time.monotonic() - before, name))
    error = a.get("error", {}).get("message", "")
    if status not in (200, 400) or (status == 400 and (not error or "\n" in error)):
        check(False, f"{name}: {status} {a}")


def company(s):
    alone = [Ordinary(s) for _ in range(4)]
    for o in alone:
        o.start()
    time.sleep(0.5)
    for o in alone:
        o.goes_on = False
    for o in alone:
        o.join()
    text = alone[0].texts[0]
    s.ask("/completion", {"prompt": "A", "n_predict": 2, "grammar": 'root ::= "a"'}) # sorts the vocabulary
    before, took = s.memory(), []
    watchers = [Health(s)] + [Ordinary(s) for _ in range(4)]
    for w in watchers:
        w.start()
    for name, body in nasty.bodies():
        refused_or_answered(s, name, body, took)
    for w in watchers:
        w.goes_on = False
    for w in watchers:
        w.join()
    ordinary = [x for w in watchers[1:] for x in w.waits]
    quiet = [x for o in alone for x in o.waits]
    check(all(t == text for w in watchers[1:] for t in w.texts), f"{sum(len(w.texts) for w in watchers[1:])} ordinary answers are the same")
    check(max(watchers[0].waits) < SECONDS_MOST, f"/health waits {max(watchers[0].waits):.3f} s at most")
    check(max(ordinary) < SECONDS_MOST, f"an ordinary client waits {max(ordinary):.3f} s at most; "
          f"95 % {percentile(ordinary, .95) * 1e3:.2f} ms, {percentile(quiet, .95) * 1e3:.2f} alone")
    more = s.memory() - before
    check(more < MEGABYTES_MOST or sanitized, f"{len(took)} nasty requests took {more:.0f} MB at most")
    print("     longest:", ", ".join(f"{n} {t:.2f} s" for t, n in sorted(took)[:-6:-1]))


def an_answer_ends_with_the_reason(s):
    """A grammar that is too much in the middle of a text only."""
    gbnf = 'root ::= "abcdefgh" (' + " | ".join(f'"{i}"' for i in range(5000)) + ")"
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 60, "stream": True, "grammar": gbnf}))
    events = [line.decode() for line in c.getresponse() if line.startswith(b"data: ") and b"[DONE]" not in line]
    c.close()
    check("more than 4096 readings" in events[-1] and not any('"length"' in e or '"stop"' in e for e in events),
          "a stream that cannot go on ends with an error")


def a_client_goes(s):
    """In the middle of a mask that takes long: its place is free at once."""
    body = {"prompt": "A", "n_predict": 400, "ignore_eos": False, "stream": True, "grammar": dict(nasty.grammars())["ambiguous_any"]}
    clients = [s.connect() for _ in range(8)]
    for c in clients:
        c.request("POST", "/completion", json.dumps(body))
    time.sleep(0.3)
    for c in clients:
        c.close()
    before = time.monotonic()
    until(lambda: not s.busy(), 20)
    took = time.monotonic() - before
    check(took < 4 * SECONDS_MOST, f"clients that go free their places in {took:.2f} s")


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = model if is_real(model) else make_model(model, f"{folder}/tiny.gguf", "--layers", "2", "--context", "512")
        with Server(serve, path, "--parallel", "8", "--context", "8192") as s:
            company(s)
            an_answer_ends_with_the_reason(s)
            a_client_goes(s)
    sys.exit(finish())


main()
