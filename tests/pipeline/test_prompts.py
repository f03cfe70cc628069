#!/usr/bin/env python3
"""usage: test_prompts.py OATO_SERVE OATO_MAKE_MODEL

Prompts that last, by HTTP, for a model with attention only and one with recurrent state: a server that was stopped or killed, in the middle of writing, too, leaves a
folder from which the next one begins; what is damaged, too much, another model's or not writable costs a line at most; answers are those of computed prompts. And
/slots/{id} saves, restores and erases.
"""
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import rig
from rig import check, finish, make_model, side_by_side, until

serve, make = sys.argv[1:3]
PAGE, N = 64, 700
MODELS = {
    "llama": ["--layers", "3", "--width", "128", "--ffn", "256"],
    "qwen35": ["--arch", "qwen35", "--layers", "4", "--width", "128", "--ffn", "256", "--keys",
               "full_attention_interval=4 ssm.conv_kernel=4 ssm.inner_size=128 ssm.state_size=32 ssm.time_step_rank=4 ssm.group_count=2"],
}


class Server(rig.Server):
    always = (*rig.Server.always, "-c", "2048")

    def answer(self, ids, **more):
        """The text, and how many tokens of the prompt were there."""
        status, a = self.ask("/completion", {"prompt": ids, "n_predict": 12, "ignore_eos": True, **more})
        assert status == 200, a
        return a["content"], a["timings"]["cache_n"]

    def figures(self):
        return {k: float(v) for k, v in re.findall(r"^oato:prompt_cache_(\w+) (\S+)", self.ask("/metrics")[1], re.M)}

    def written(self):
        """Waits until all that is to be kept is written."""
        last = -1
        for _ in range(200):
            f = self.figures()
            if not f["waiting_bytes"] and f["written_bytes_total"] == last:
                return f
            last = f["written_bytes_total"]
            time.sleep(0.05)
        return None

    def warnings(self, how=signal.SIGTERM):
        """Ends it; the lines that it said, but for those of each start."""
        self.status = self.end(how)
        return [l for l in self.said if not re.search("listening|is ready|libgcov", l)] # which cannot write there, either


def prompt(seed, n=N):
    r = random.Random(seed)
    return [r.randrange(300, 500) for _ in range(n)]


def lasts(name, model, folder):
    def check(good, what):
        rig.check(good, f"{name}: {what}")
    cache = ["--prompt-cache", folder]
    plain = Server(serve, model)
    texts = {seed: plain.answer(prompt(seed))[0] for seed in range(4)}
    check(plain.warnings() == [] and plain.status == 0, "without a cache")
    most = (N - 1) // PAGE * PAGE
    s = Server(serve, model, *cache)
    check(s.answer(prompt(0)) == (texts[0], 0), "a prompt is computed")
    check(s.warnings() == [] and s.status == 0, "and the server ends without a word")
    s = Server(serve, model, *cache)
    check(s.answer(prompt(0)) == (texts[0], most), "after a restart it is read")
    check(s.answer(prompt(0)) == (texts[0], most), "and then in memory")
    f = s.figures()
    check((f["hits_total"], f["read_tokens_total"], f["failures_total"]) == (1, most, 0), f"as /metrics tells: {f}")
    status, a = s.ask("/v1/completions", {"prompt": prompt(0), "max_tokens": 1})
    check(a["usage"]["prompt_tokens_details"]["cached_tokens"] == most, "as do answers of OpenAI's form")
    half = prompt(0)[:400] + prompt(9)[:300]
    check(s.answer(half)[1] in ({"llama": [384], "qwen35": [0, 384]}[name]), "one that begins alike")
    s.written()
    s.end(signal.SIGKILL)
    s = Server(serve, model, *cache)
    check(s.answer(half)[1] == most, "what was written survives a kill")
    # killed while it writes, at several moments
    for i in range(4):
        s.answer(prompt(10 + i))
        if i:
            time.sleep(0.002 * i * i)
        s.end(signal.SIGKILL)
        open(os.path.join(folder, "%016x.page.oato-part" % i), "wb").close() # as if cut while writing
        s = Server(serve, model, *cache)
        check(not [f for f in os.listdir(folder) if "part" in f], "what a kill has left half written is removed")
        check(s.answer(prompt(0)) == (texts[0], most), "a kill damages nothing")
    s.answer(prompt(1)), s.answer(prompt(2))
    s.written()
    check(s.warnings() == [], "nobody was told anything")
    # damage
    for at in (0, 30, 100, -1):
        for f in os.listdir(folder):
            with open(os.path.join(folder, f), "r+b") as file:
                data = bytearray(file.read())
                data[at] ^= 4
                file.seek(0)
                file.write(data)
        s = Server(serve, model, *cache)
        check(s.answer(prompt(1)) == (texts[1], 0) and s.answer(prompt(2)) == (texts[2], 0), f"byte {at} of all files damaged: computed again")
        s.written()
        check(len(s.warnings()) == 1, "with one warning")
    s = Server(serve, model, *cache)
    check(s.answer(prompt(2)) == (texts[2], most) and s.warnings() == [], "and written again")
    # a bound, and a disk that is full
    s = Server(serve, model, *cache, "--prompt-cache-size", "1")
    for seed in range(4):
        check(s.answer(prompt(seed))[0] == texts[seed], "the bound of the folder changes no answer")
    f = s.written()
    check(f["bytes"] <= 1 << 20 and sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder)) <= 1 << 20, "and holds")
    s.end()


def refuses(model, other, folder):
    s = Server(serve, other, "--prompt-cache", folder)
    check(s.answer(prompt(0))[1] == 0 and s.warnings() == [], "another model finds nothing")
    s = Server(serve, model, "--prompt-cache", folder, "--kv", "q8_0")
    check(s.answer(prompt(0))[1] == 0 and s.warnings() == [], "nor does another type of KV")
    p = subprocess.run([serve, model, "--port", "0", "--prompt-cache", "/proc/none"], stderr=subprocess.PIPE, text=True, timeout=60)
    check(p.returncode == 6 and "/proc/none" in p.stderr.splitlines()[-1], f"status 6: a folder that cannot be written in: {p.stderr.splitlines()[-1]}")
    full = os.path.join(folder, "full")
    s = Server(serve, model, "--prompt-cache", full, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    first = s.answer(prompt(0))[0]
    for seed in range(3):
        s.answer(prompt(seed))
    check(s.answer(prompt(0))[0] == first, "a disk that is full changes no answer")
    until(lambda: s.figures()["failures_total"], 5)
    said = s.warnings()
    check(len(said) == 1 and "not kept" in said[0] and os.listdir(full) == [], f"one warning: {said}")


def slots(model, folder):
    # so the answer's first page is saved, too, which must not cost the state at the prompt's end
    options = ["--slot-save-path", folder, "--parallel", "2", "--deterministic"]
    s = Server(serve, model, *options)
    text = s.answer(prompt(0), id_slot=1)[0]
    status, a = s.ask("/slots/1?action=save", {"filename": "one"})
    whole = (N + 11) // PAGE * PAGE
    check(status == 200 and a["n_saved"] == whole and a["n_written"] == os.path.getsize(os.path.join(folder, "one")), f"saved: {a}")
    check(set(a) == {"id_slot", "filename", "n_saved", "n_written", "timings"} and a["timings"]["save_ms"] > 0, "as llama.cpp tells")
    status, a = s.ask("/slots/1?action=erase", {})
    check(status == 200 and a == {"id_slot": 1, "n_erased": N + 12} and s.answer(prompt(0))[1] == 0, "erased")
    s.end()
    s = Server(serve, model, *options)
    status, a = s.ask("/slots/0?action=restore", {"filename": "one"})
    check(status == 200 and a["n_restored"] == whole and a["id_slot"] == 0 and a["n_read"] == os.path.getsize(os.path.join(folder, "one")), f"restored: {a}")
    got, cached = s.answer(prompt(0))
    check(got == text and cached == (N - 1) // PAGE * PAGE, f"and used: {cached}")
    for path, body, wants in (("/slots/2?action=save", {"filename": "x"}, 400), ("/slots/0?action=dance", {}, 400), ("/slots/0", {}, 400),
                              ("/slots/0?action=save", {"filename": "../x"}, 400), ("/slots/0?action=save", {"filename": ".x"}, 400), ("/slots/0?action=save", {}, 400),
                              ("/slots/0?action=restore", {"filename": "none"}, 400), ("/slots/x?action=erase", {}, 400)):
        status, a = s.ask(path, body)
        check(status == wants and "message" in a["error"] and (body != {"filename": "none"} or " none: " in a["error"]["message"]), f"{status} {a}")
    outside = os.path.join(folder, "..", "outside")
    open(outside, "w").close()
    os.symlink(outside, os.path.join(folder, "link"))
    os.mkfifo(os.path.join(folder, "pipe"))
    for name in ("link", "pipe"):
        status, a = s.ask("/slots/0?action=save", {"filename": name})
        check(status == 400 and "is not a file" in a["error"]["message"] and not os.path.getsize(outside), f"a {name} is not written to")
    with open(os.path.join(folder, "one"), "r+b") as f:
        f.seek(5000)
        f.write(b"xyz")
    check(s.ask("/slots/0?action=restore", {"filename": "one"})[0] == 400 and s.answer(prompt(0))[0] == text, "damaged: refused, and nothing wrong is used")
    check(s.warnings() == [], "without a word")
    s = Server(serve, model)
    check(s.ask("/slots/0?action=save", {"filename": "x"})[0] == 501, "501 without --slot-save-path")
    s.end()


def share(model, folder):
    """Two servers: what one has kept the other reads, without having written anything."""
    one, other = (Server(serve, model, "--prompt-cache", folder) for _ in range(2))
    text, cached = one.answer(prompt(0))
    one.written()
    known = one.figures()["bytes"]
    until(lambda: other.figures()["bytes"] >= known, 20)
    check(not cached and other.answer(prompt(0)) == (text, (N - 1) // PAGE * PAGE), "two servers share a folder")
    check(one.warnings() == [] and other.warnings() == [], "without a word")


with tempfile.TemporaryDirectory() as home:
    models = {name: make_model(make, os.path.join(home, name + ".gguf"), "--context", "2048", *options) for name, options in MODELS.items()}
    tests = [(lasts, name, models[name], os.path.join(home, name + "-cache")) for name in models]
    tests += [(share, models["llama"], os.path.join(home, "shared"))] + [(slots, models[name], os.path.join(home, name + "-slots")) for name in models]
    side_by_side(lambda test, *given: test(*given), tests)
    refuses(models["llama"], models["qwen35"], os.path.join(home, "llama-cache"))
sys.exit(finish())
