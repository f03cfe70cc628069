#!/usr/bin/env python3
"""usage: test_models.py OATO_SERVE OATO_MAKE_MODEL

oato-serve --models: of models that do not fit together each is loaded when it is asked for, and none of 200 requests in random order
from 8 clients is lost, while the memory of the process stays within --memory. Who asks for a model that is busy elsewhere waits, or is
told to come back; what cannot be loaded says why, and harms nobody; SIGTERM ends it in the middle of loading.
"""
import concurrent.futures
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

import rig
from rig import at_once, check, finish, is_sanitized, make_model, until

serve, make = sys.argv[1:3]
sanitized = is_sanitized(serve)
MODEL = ["--width", "512", "--ffn", "1024", "--layers", "4", "--vocab", "1024", "--heads", "8", "--kv-heads", "4"] # 43 MiB
# 48 MiB of it are the server's own; one model fits, two do not. Sanitizers keep what was freed, and a shadow of all.
MEMORY, ONE = 48 + 12 + 90, 80 # two that are loaded are more than ONE
class Server(rig.Server):
    always = (*rig.Server.always, "-c", "512", "--models")

    def say(self, model, n=6, **how):
        status, a = self.ask("/completion", {"model": model, "prompt": "The river", "n_predict": n, "ignore_eos": True}, **how)
        return status, a.get("content") or a["error"]["message"]

    def status(self, model):
        return next(m for m in self.ask("/v1/models")[1]["data"] if m["id"] == model)["status"]

    def wait_for(self, model, value):
        return until(lambda: self.status(model)["value"] == value)


class Memory(threading.Thread):
    """The most that the process had, looked at every few milliseconds."""
    def __init__(self, s):
        super().__init__(daemon=True)
        self.server, self.most, self.looks = s, 0, 0
        self.start()

    def run(self):
        while self.server.process.returncode is None:
            self.most, self.looks = max(self.most, self.server.memory("VmRSS")), self.looks + 1
            time.sleep(0.003)


def two_do_not_fit(folder):
    s = Server(serve, folder, "--memory", MEMORY)
    memory = Memory(s)
    text = {m: s.say(m)[1] for m in ("one", "two")}
    check(text["one"] != text["two"] and s.status("one")["value"] == "unloaded" and s.status("two")["value"] == "loaded",
          "one goes for the other")
    order = [random.choice(("one", "two")) for _ in range(200)]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(s.say, order))
    wrong = [a for m, a in zip(order, answers) if a != (200, text[m])]
    check(not wrong, f"200 requests of 8 clients are answered right; the models were loaded {sum('ready' in line for line in s.said)} times"
          + (f"; {len(wrong)} are not: {wrong[0]}" if wrong else ""))
    check(s.end() == 0, "and it ends")
    check(memory.most < min(MEMORY, ONE) or sanitized, f"memory stays within {MEMORY} MiB: {memory.most:.0f} at most in {memory.looks} looks")
    return text


def names_and_failures(folder, text):
    bad = f"{folder}/other/bad.gguf" # where no other server of this test looks
    files = f"{folder}/one.gguf,{folder}/two.gguf,{bad}"
    os.mkdir(f"{folder}/other")
    with open(bad, "wb") as f:
        f.write(b"no model at all")
    s = Server(serve, files, "--memory", 2 * MEMORY)
    check(s.say("three")[0] == 404 and "three" in s.say("three")[1], "a model that there is not: 404")
    check(s.ask("/completion", {"prompt": "x"})[0] == 400, "no name of a model: 400")
    status, why = s.say("bad")
    check(status == 500 and "bad.gguf" in why and s.status("bad").get("failed"), f"a file that is none: 500, {why}")
    before = time.monotonic()
    check(s.say("bad")[0] == 500 and time.monotonic() - before < 1, "which is not tried again at once")
    check(s.say("one.gguf") == (200, text["one"]) and s.say("two:latest") == (200, text["two"]), "others go on, by other names, too")
    check(s.status("one")["value"] == s.status("two")["value"] == "loaded", "both are loaded where there is room")
    for path in ("/props", "/slots", "/metrics", "/tokenizer_info"):
        check(s.ask(f"{path}?model=one")[0] == 200 and s.ask(f"{path}?model=bad")[0] in (400, 500) and s.ask(f"{path}?model=x")[0] == 404,
              f"{path} is of the model that is named")
    check(s.ask("/props?model=two")[1]["model_alias"] == "two" and s.ask("/props")[1]["role"] == "router", "so says /props, and who serves them")
    check(s.ask("/v1/models/one")[1]["id"] == "one" and s.ask("/health")[0] == 200, "/v1/models/one")
    check(s.ask("/models/load", {"model": "one"})[0] == 400 and s.ask("/models/unload", {"model": "one"}) == (200, {"success": True})
          and s.wait_for("one", "unloaded"), "/models/unload")
    check(s.ask("/props?model=one")[0] == 400, "who only looks loads nothing")
    check(s.ask("/models/unload", {"model": "one"})[0] == 400 and s.ask("/models/load", {"model": "x"})[0] == 404, "what cannot be done is refused")
    check(s.ask("/models/load", {"model": "one"})[0] == 200 and s.wait_for("one", "loaded"), "/models/load")
    check(s.ask("/api/show", {"name": "one"})[0] == 200 and s.ask("/api/generate", {"model": "one", "keep_alive": "0s"})[1]["done_reason"] == "unload"
          and s.wait_for("one", "unloaded"), "as Ollama's clients ask")
    tags = s.ask("/api/tags")[1]["models"]
    check(all(isinstance(t["details"][k], str) and t["digest"] for t in tags for k in ("format", "family", "parameter_size", "quantization_level")), f"what is not loaded has every member: {tags}")
    check(s.say("one") == (200, text["one"]), "an answer waits for a model that has just gone")
    check(s.end() == 0, "and it ends")


def busy(folder):
    """While `one` answers without end."""
    s = Server(serve, folder, "--memory", MEMORY, "--models-wait", "1", "--queue", "3")
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        s.say("one")
        long = [clients.submit(s.say, "one", 350) for _ in range(2)]
        until(lambda: len([x for x in s.ask("/slots?model=one")[1] if x["is_processing"]]) == 2 or any(r.done() for r in long))
        waits = [clients.submit(s.say, "two") for _ in range(4)]
        refused = [w.result() for w in waits]
        stayed = not any(r.done() for r in long) # on this machine
        check(not stayed or all(r[0] in (200, 503) for r in refused), "who waits for a busy model's memory is told to come back")
        check(sum("too many" in r[1] for r in refused) == 1 or not stayed, "and so many wait, no more")
        check(all(r.result()[0] == 200 for r in long), "no answer is cut for another model")
    check(s.say("two")[0] == 200, "which is loaded once they have ended")
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        long = clients.submit(s.say, "two", 500)
        time.sleep(0.1)
        try:
            s.say("one", timeout=0.3)
        except TimeoutError:
            pass
        gone = time.monotonic()
        long.result()
        gone_first = time.monotonic() - gone > 1.5 # a client that closed is told from one that only sends no more
    time.sleep(0.3)
    check(not gone_first or s.status("two")["value"] == "loaded", "who goes before its turn takes nobody's")
    check(s.end() == 0, "and it ends")


def bounds(folder):
    os.mkdir(f"{folder}/grows")
    grows = make_model(make, f"{folder}/grows/grows.gguf", "--context", "512")
    s = Server(serve, f"{folder}/one.gguf,{grows}", "--memory", 70)
    status, why = s.say("one")
    check(status == 500 and "--memory" in why, f"what never fits says so: {why}")
    check(s.say("grows")[0] == 200 and s.ask("/models/unload", {"model": "grows"})[0] == 200 and s.wait_for("grows", "unloaded"), "a small one fits")
    os.unlink(grows)
    os.link(f"{folder}/one.gguf", grows)
    status, why = s.say("grows")
    check(status == 500 and "--memory" in why, f"a file that was replaced by a larger one is measured again: {why}")
    check(s.end() == 0, "and it ends")


def options_and_signals(folder):
    def refused(*options):
        r = subprocess.run([serve, *options], capture_output=True, text=True, check=False)
        return r.returncode and r.stderr.count("\n") == 1
    for options in (["--plan", "x"], ["--alias", "a"], ["--decision-log", "x"], ["--neurons", "x"], [f"{folder}/one.gguf"]):
        check(refused("--models", folder, *options), f"--models refuses {options[0] if options[0][0] == '-' else 'a model'}")
    check(refused("--models", f"{folder}/empty"), "and what is not there")
    if not sanitized: # which take more than 70 MiB themselves
        bounds(folder)
    s = Server(serve, folder, "--memory", MEMORY, "--models-max", "1", "--no-models-autoload")
    check(s.say("one")[0] == 400 and s.ask("/props")[1]["max_instances"] == 1, "--no-models-autoload")
    s.ask("/models/load", {"model": "one"})
    before = time.monotonic()
    check(s.end() == 0 and time.monotonic() - before < 10, "SIGTERM while one is loaded")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(("one", "two")):
            make_model(make, f"{folder}/{name}.gguf", "--context", "512", "--seed", str(i), *MODEL)
        at_once([lambda: names_and_failures(folder, two_do_not_fit(folder)), lambda: (busy(folder), options_and_signals(folder))])
    sys.exit(finish())


main()
