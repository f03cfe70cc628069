#!/usr/bin/env python3
"""usage: test_life.py OATO_SERVE MODEL_OR_OATO_MAKE_MODEL

How a server begins and ends: what cannot work is refused before anybody is told that it listens, signals let answers end, and the exit
status is that of the serving. What it tells of itself (/props, seeds, pieces of characters, limits) is what it does and takes.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import rig
from rig import check, finish, is_real, make_model, until

serve, model = sys.argv[1:3]


class Server(rig.Server):
    always = ("-t", "1") # its own values are told
    headers = {"Authorization": "Bearer b"}


def refused_first(tiny, folder):
    """One line, and not a word of listening."""
    text = f"{folder}/text"
    with open(text, "w", encoding="utf-8") as f:
        f.write("{% for")
    with open(tiny, "rb") as f, open(f"{folder}/cut.gguf", "wb") as out:
        out.write(f.read(3000))
    for what, options in (("no model", ["/nowhere.gguf"]), ("a text", [text]), ("a model cut short", [f"{folder}/cut.gguf"]),
                          ("a plan that is none", [tiny, "--plan", text]), ("no plan", [tiny, "--plan", "/nowhere"]),
                          ("a device of no kind", [tiny, "--devices", "rocm:0"]), ("no template", [tiny, "--chat-template-file", "/nowhere"]),
                          ("a broken template", [tiny, "--chat-template-file", text]), ("an unknown one", [tiny, "--chat-template", "none"]),
                          ("variables that are no JSON", [tiny, "--chat-template", "{{ a }}", "--chat-template-kwargs", "{"])):
        r = subprocess.run([serve, *options, "--port", "0", "-t", "1"], capture_output=True, text=True, timeout=60, check=False)
        line = r.stderr.splitlines()
        check(r.returncode in (2, 3, 6) and len(line) == 1 and "listening" not in r.stderr, f"{what} is refused first", r.returncode, line)


def signals(tiny):
    """An answer that runs is let end, be it SIGTERM, SIGINT or SIGHUP; one that the parent ignores changes nothing."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    ignore = {n: Server(serve, tiny, preexec_fn=lambda n=n: signal.signal(n, signal.SIG_IGN)) for n in numbers}
    for number, s in ignore.items():
        s.process.send_signal(number)
    for number in numbers:
        s = Server(serve, tiny)
        got = []
        t = threading.Thread(target=lambda s=s, got=got: got.append(s.ask("/completion", {"prompt": "A", "n_predict": 500, "ignore_eos": True})))
        t.start()
        until(lambda: s.busy() or got)
        s.process.send_signal(signal.SIGPIPE) # as from a message that nobody reads
        status = s.end(number)
        t.join()
        check(status == 0 and got[0][0] == 200 and got[0][1]["tokens_predicted"] == 500, f"{number.name}: the answer that runs ends", status, got)
    time.sleep(0.2)
    for number, s in ignore.items():
        check(s.ask("/health")[0] == 200, f"{number.name} that was ignored stays ignored")
        s.end(signal.SIGTERM if number != signal.SIGTERM else signal.SIGINT)


def unkept(tiny):
    """Weights that cannot be kept are a warning, and no error of the end."""
    s = Server(serve, tiny, "--prepared-cache", "/proc/nowhere")
    status, said = s.end(), "".join(s.said)
    check(status == 0 and said.count("not kept") == 1 and not said.rstrip().endswith("directory"), "a cache that cannot be written", status, said)


def told(s, real):
    props = s.ask("/props")[1]
    of = props["default_generation_settings"]["params"]
    check(of["seed"] == -1 and of["temperature"] == 0.8 and of["typical_p"] == 1 and of["top_k"] == 40, "/props has the values that are used", of)
    check(not real or "<|im_start|>" in props["chat_template"] and "{%" in props["chat_template"], "and the template's text", props["chat_template"][:99])
    keys = (("a key", 200), ("a  key", 401), ("b", 200), ("c", 200), ("key", 401), ("a", 401))
    got = [(k, s.ask("/props", headers={"Authorization": f"Bearer {k}"})[0]) for k, _ in keys]
    check(got == list(keys), "keys may have blanks", got)

    def ask(path, **body):
        return s.ask(path, body)
    for seed in (0, 4294967295, 2**63 - 1):
        got = ask("/completion", prompt="A", n_predict=1, seed=seed)[1]
        check(got["generation_settings"]["seed"] == seed, f"seed {seed}", got)
    exact = {"n_predict": 2147483647, "repeat_last_n": 2147483647, "temperature": 0.12345678, "dry_base": 1.75}
    got = ask("/completion", prompt="A", **{**exact, "grammar": 'root ::= "A"'})[1]["generation_settings"]
    check(all(abs(got[name] - value) <= 1e-8 for name, value in exact.items() if name != "repeat_last_n"), "numbers are told exactly", got)
    seeds = [ask("/completion", prompt="A", n_predict=1)[1]["generation_settings"]["seed"] for _ in range(20)]
    check(len(set(seeds)) == 20 and all(ask("/completion", prompt="A", n_predict=1, seed=x)[0] == 200 for x in seeds), "seeds that are told are taken")
    for name, least, value in (("repeat_last_n", -1, -5), ("max_tokens", -1, -2), ("n_predict", -1, -5), ("top_k", -1, 3000000000), ("dry_penalty_last_n", -1, -2),
                               ("n_probs", 0, -1), ("repeat_penalty", 0.01, 0)):
        status, got = ask("/completion", **{"prompt": "A", "n_predict": 1, name: value})
        message = got.get("error", {}).get("message", "")
        check(status == 400 and f"from {least} to" in message and "e+" not in message, f"{name} {value} is refused exactly", status, message)


def pieces(s):
    """Bytes of a character that several tokens make: each is told as it is."""
    listed = s.ask("/tokenize", {"content": "\U0001f469", "with_pieces": True})[1]["tokens"]
    bytes_of = [p["piece"] if isinstance(p["piece"], list) else list(p["piece"].encode()) for p in listed]
    check(any(isinstance(p["piece"], list) for p in listed) and bytes(sum(bytes_of, [])).endswith("\U0001f469".encode()), "pieces of half characters are bytes", listed)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 20, "temperature": 0,
            "logit_bias": {str(p["id"]): 60 + i for i, p in enumerate(listed) if isinstance(p["piece"], list)}}
    for one in s.ask("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]:
        every = [one, *one["top_logprobs"]]
        names = {t["token"]: t["bytes"] for t in every}
        half = [t for t in every if "\\x" in t["token"]]
        check(all("\ufffd" not in t["token"] and names[t["token"]] == t["bytes"] for t in every) and half and
              all(t["token"] == "".join(f"\\x{b:02x}" for b in t["bytes"]) for t in half), "and so are tokens of log probabilities", every[:3])


def main():
    real = is_real(model)
    with tempfile.TemporaryDirectory() as folder:
        tiny = model
        if not real:
            tiny = make_model(model, f"{folder}/tiny.gguf", "--layers", "2", "--context", "512")
            refused_first(tiny, folder)
            signals(tiny)
            unkept(tiny)
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as f:
            f.write("  c \r\n\n")
        with Server(serve, tiny, "--api-key", "a key, b ", "--api-key-file", keys, "-c", "512") as s:
            told(s, real)
            if real:
                pieces(s)
    sys.exit(finish())


main()
