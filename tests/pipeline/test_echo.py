#!/usr/bin/env python3
"""usage: test_echo.py OATO_SERVE OATO_RUN MODEL|OATO_MAKE_MODEL [--lm-eval FOLDER]

Log probabilities of echoed prompts, as evaluation harnesses ask for them ("echo", "logprobs", one token or none): they are those of
the logits that oato-run writes. With a real model, the ten questions of lm_eval/ as lm-eval asks them; with --lm-eval, by lm-eval itself,
which the first run installs into an environment in FOLDER (skipped, 77, where it cannot).
"""
import array
import functools
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import rig
from rig import at_once, check, finish, is_real, make_model, side_by_side

serve, run, model = sys.argv[1:4]
lm_eval = pathlib.Path(sys.argv[5]) if sys.argv[4:5] == ["--lm-eval"] else None
PACKAGES = ["lm-eval==0.4.13", "aiohttp", "requests", "tenacity", "tqdm"]
FOLDER = pathlib.Path(__file__).resolve().parent / "lm_eval"


class Server(rig.Server):
    def ids(self, text):
        return self.ask("/tokenize", {"content": text, "add_special": True})[1]["tokens"]

    def choices(self, body):
        return self.ask("/v1/completions", body)[1]["choices"]


def logits(ids, folder):
    """Rows of floats, one for each token."""
    file = f"{folder}/{threading.get_ident()}.logits"
    subprocess.run([run, "logits", model, "--ids", ",".join(map(str, ids)), "-o", file, "-t", "1"], check=True, capture_output=True)
    with open(file, "rb") as f:
        all = array.array("f", f.read())
    vocab = len(all) // len(ids)
    return [all[i * vocab : (i + 1) * vocab] for i in range(len(ids))]


def logprob(row, id):
    most = max(row)
    return row[id] - most - math.log(math.fsum(math.exp(x - most) for x in row))


def near(a, b, within=1e-4):
    return a is not None and abs(a - b) < within


ECHO = {"echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0, "seed": 1234}


def aligned(choice):
    """The arrays have an entry for each token, and offsets say where tokens begin in the text."""
    p = choice["logprobs"]
    n = len(p["tokens"])
    text = choice["text"]
    whole = all(t == text[o : o + len(t)] for t, o in zip(p["tokens"], p["text_offset"]) if not t.startswith("bytes:") and o < len(text))
    return len(p["token_logprobs"]) == len(p["top_logprobs"]) == len(p["text_offset"]) == n and whole and p["text_offset"] == sorted(p["text_offset"])


def prompts(s, folder):
    texts = ["The river was wide, and the naïve €5 — 日本語 🙂 boat", "Once upon a time " * 30, "x y"]
    for text in texts:
        ids = s.ids(text)
        rows = logits(ids, folder)
        ask = {**ECHO, "prompt": ids}
        status, a = s.ask("/v1/completions", ask)
        c = a["choices"][0]
        p = c["logprobs"]
        n = len(ids)
        check(status == 200 and len(p["tokens"]) == n + 1 and p["token_logprobs"][0] is p["top_logprobs"][0] is None, f"{n} tokens and the one that is drawn")
        check(all(near(p["token_logprobs"][i + 1], logprob(rows[i], ids[i + 1])) for i in range(n - 1)), "have the log probabilities of oato-run's logits")
        check(all(near(max(p["top_logprobs"][i + 1].values()), logprob(rows[i], max(range(len(rows[i])), key=rows[i].__getitem__))) for i in range(n)), "so has the most likely one")
        check(all(p["token_logprobs"][i] in p["top_logprobs"][i].values() for i in range(1, n + 1)), "each token is among those listed for it")
        check(aligned(c), f"tokens and offsets are those of the text {c['text'][:30]!r}")
        check(s.choices(ask) == [c], "a second time, though the prompt is in the cache")
        none = s.ask("/v1/completions", {**ask, "max_tokens": 0})[1]
        check({k: v[:n] for k, v in p.items()} == none["choices"][0]["logprobs"] and none["usage"]["completion_tokens"] == 0, "max_tokens 0 gives the prompt's alone")
        four = {**ask, "max_tokens": 4, "ignore_eos": True}
        events = [e["choices"][0] for e in s.events("/v1/completions", four)[:-1]]
        joined = {k: sum((e["logprobs"][k] for e in events if e["logprobs"]), []) for k in p}
        check(joined == s.choices(four)[0]["logprobs"] and len(joined["tokens"]) == n + 4, "a stream has the same")
    alone = [s.choices({**ECHO, "prompt": t})[0] for t in texts]
    many = s.choices({**ECHO, "prompt": texts, "n": 2})
    check(all({**many[2 * i + k], "index": 0} == alone[i] for i in range(3) for k in range(2)), "several prompts, several answers to each")
    # beside answers that go on, and more of them at a time than a step has rows
    plain = {"prompt": "The river was", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    expected = s.choices(plain)[0]["text"]
    got = at_once([functools.partial(s.choices, {**ECHO, "prompt": texts[1]} if i % 2 else plain) for i in range(8)])
    check(all(got[i] == [alone[1]] for i in (1, 3, 5, 7)) and all(got[i][0]["text"] == expected for i in (0, 2, 4, 6)), "beside other answers, which stay as they are")
    status, a = s.ask("/v1/completions", {**ECHO, "prompt": ["one two three " * 100] * 100, "logprobs": 100})
    check(status == 400 and "logprobs" in a["error"]["message"], f"too many are refused: {a['error']['message']}")


def questions():
    with open(FOLDER / "questions.jsonl") as f:
        return [json.loads(line) for line in f]


def harness(s, folder):
    """Requests and sums as lm-eval has them: token ids of question and choice, one token more, which is left out again."""
    def one(q):
        context, of, worst = s.ids(q["question"]), [], 0
        checked = q["choices"] if lm_eval else (q["choices"][q["answer"]], q["choices"][q["answer"] - 1])
        for choice in q["choices"]:
            ids = s.ids(q["question"] + " " + choice)
            answer, = s.choices({"model": "any", "prompt": [ids], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True})
            of.append(sum(answer["logprobs"]["token_logprobs"][len(context):-1]))
            if choice not in checked: # oato-run opens the model each time
                continue
            rows = logits(ids, folder)
            exact = sum(logprob(rows[i - 1], ids[i]) for i in range(len(context), len(ids)))
            worst = max(worst, abs(exact - of[-1]))
        return of, worst, len(checked)
    sums, worst, n = zip(*side_by_side(one, [(q,) for q in questions()]))
    right = sum(of.index(max(of)) == q["answer"] for q, of in zip(questions(), sums))
    check(max(worst) < 1e-3, f"sums of {sum(n)} choices differ from those of oato-run's logits by {max(worst):.1e} at most; {right} of {len(sums)} are right")
    if lm_eval:
        out = pathlib.Path(folder) / "out"
        url = s.url + "/v1/completions"
        r = subprocess.run([lm_eval / "bin/python", "-m", "lm_eval", "--model", "local-completions", "--include_path", str(FOLDER), "--tasks", "oato_ten", "--log_samples", "--output_path", str(out),
                            "--model_args", f"model=any,base_url={url},tokenizer_backend=remote,num_concurrent=2"],
                           capture_output=True, text=True, cwd=FOLDER)
        samples = [json.loads(line) for f in out.rglob("samples_*.jsonl") for line in f.open()]
        scores = {x["doc"]["question"]: [float(y[0]) for y in x["filtered_resps"]] for x in samples}
        far = max((abs(a - b) for q, of in zip(questions(), sums) for a, b in zip(scores.get(q["question"], [math.inf]), of)), default=math.inf)
        acc = [x["acc"] for x in samples]
        check(len(samples) == len(sums) and far < 1e-3 and sum(acc) == right, f"lm-eval: {sum(acc)} of {len(acc)} right, scores differ by {far:.1e}" + ("" if samples else r.stderr[-2000:]))


real = is_real(model)
with tempfile.TemporaryDirectory() as folder:
    if lm_eval and not (lm_eval / "bin/python").exists():
        made = subprocess.run([sys.executable, "-m", "venv", lm_eval]).returncode == 0
        if not made or subprocess.run([lm_eval / "bin/python", "-m", "pip", "install", "-q", *PACKAGES]).returncode:
            shutil.rmtree(lm_eval, ignore_errors=True)
            print("skipped: lm-eval cannot be installed")
            sys.exit(77)
    model = model if real else make_model(model, folder + "/tiny.gguf", "--context", "2048")
    with Server(serve, model, *(("--parallel", "4", "-c", "4096") if real else ("--parallel", "3", "-c", "2048"))) as s:
        (harness if real else prompts)(s, folder)
sys.exit(finish())
