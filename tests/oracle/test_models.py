#!/usr/bin/env python3
"""Holds what real models make of real text to llama.cpp; run by ctest (labels oracle, slow, long), so by
`scripts/test all` alone, which fetches and builds what is needed.

  test_models.py OATO_RUN perplexity   of the GPL-3's beginning: within 1 % of llama-perplexity's
  test_models.py OATO_RUN tokens       of texts in many scripts, with control tokens and without: the
                                       ids of llama-tokenize
  test_models.py OATO_RUN greedy       llama-completion's most likely 24 tokens are ours, too, or their
                                       logits are as good as equal
  test_models.py OATO_RUN kv           perplexity with each type of the KV cache

The models are those of scripts/fetch-model --all. Tiny random files cannot replace them: they have every
key, where published files lack some, and hardly see their own attention. Exit status 77 (skipped) when
a model or a program of llama.cpp is missing, 1 with OATO_REQUIRE_MODEL=1.
"""
import os
import random
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..", "scripts")
CACHE = os.environ.get("OATO_CACHE") or os.path.expanduser("~/.cache/oato")
PEER = os.path.join(CACHE, "peers", "llama.cpp", "build", "bin")
GPL = "/usr/share/common-licenses/GPL-3"
GPL_BYTES = 12000  # 4 or 5 windows of 512 tokens: half a minute a model

# llama.cpp rounds activations to 8 bits in blocks, which alone costs Gemma 0.7 % of perplexity.
MAX_PERPLEXITY_OFF = 0.01
MAX_KV_OFF = {"f32": 0.002, "q8_0": 0.005}  # from f16
# Logits of two roundings to 8 bits differ by 0.1 to 0.4 here; a wrong model is off by several.
MAX_LOGIT_GAP, GENERATED = 0.8, 24
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Die Hauptstadt von Deutschland ist"]

EDGES = ["", " ", "\n\n", "  a ", "x  \r\n\r\nZ\x01\x7f\u00a0\u200b\ufeff\u3000end"]
LINES = [
    "Hello, World! It's a test -- don't, you'll, we've, I'M.\n\ttabs\tand  double   spaces    four     five\n",
    "Gr\u00fc\u00dfe aus Z\u00fcrich \u2014 \u4f60\u597d\uff0c\u4e16\u754c\uff01 \u3053\u3093\u306b\u3061\u306f \uc548\ub155 "
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22",
    "def f(x: int) -> int:\n    return x**2 + 0x1F - 3.14e-10  # why\n        if (a != b && c >= d || e == f) { return; }\n",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed e\u0301 \ufb00 \u00bd \u00b2 \u2122 \u2026 \u201cquoted\u201d \u2018single\u2019",
    "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>user<end_of_turn><bos><eos><unk><pad><|endoftext|> <|im_start|>",
    "1234567890 12,345.67 2026-11-28T13:00:00Z $100 50% http://example.com/a?b=c&d=e#f user@example.com",
    "\u2581\u2581word \u2581 <0x41> <0x0A> \\n \\\\ \\t", "a" * 300, "ab " * 200, " " * 100 + "x", "\t" * 40, "=" * 77,
]
# What random texts are made of. Where llama.cpp itself is known to be wrong is left out: bytes that are no
# UTF-8, which it replaces, and "</s>", which it takes for a control token in every vocabulary.
PIECES = ["<|im_start|>", "<|im_end|>", "<bos>", "<start_of_turn>", "<eos>", "<|endoftext|>", "<0x41>", "\u2581", " the",
          " of", "ing", "'s", "'LL", "\r\n", "    ", "\t\t", "123", "0", "\u0130", "\u00df", "\u017f", "\u212a"]
RANGES = [(32, 127)] * 6 + [(9, 14), (0xa0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xe80),
                            (0x1100, 0x1200), (0x2000, 0x2070), (0x2190, 0x2c00), (0x3000, 0x3100), (0x4e00, 0x9fff),
                            (0xac00, 0xd7a3), (0xfe00, 0xfe10), (0x1d400, 0x1d800), (0x1f300, 0x1faff)]

failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("ok    " if ok else "WRONG ") + text, flush=True)


def must_run(program, *args):
    r = subprocess.run([program, *args], capture_output=True, check=False)
    if r.returncode != 0:
        sys.exit(f"{program} {' '.join(args)[:200]}: status {r.returncode}: {r.stderr.decode(errors='replace')[-2000:]}")
    return r.stdout.decode(), r.stderr.decode(errors="replace")


def peer(name, *args):
    return must_run(os.path.join(PEER, name), *args)


def missing(text):
    print(text)
    sys.exit(1 if os.environ.get("OATO_REQUIRE_MODEL") == "1" else 77)


def models():
    """The paths of all of them."""
    r = subprocess.run([os.path.join(SCRIPTS, "fetch-model"), "--cached"], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        missing(f"{r.stderr.strip()}\nscripts/fetch-model --all fetches them all; it needs the network once")
    return r.stdout.split()


def name_of(model):
    return os.path.basename(model).removesuffix(".gguf")


def beginning(work):
    path = os.path.join(work, "text")
    with open(GPL, "rb") as f, open(path, "wb") as out:
        out.write(f.read(GPL_BYTES))
    return path


def our_perplexity(program, model, text, *options):
    return float(must_run(program, "perplexity", model, "-f", text, "-c", "512", *options)[0].split()[-1])


def perplexity(program, work):
    text = beginning(work)
    for model in models():
        ours = our_perplexity(program, model, text)
        out = "".join(peer("llama-perplexity", "-m", model, "-f", text, "-c", "512", "--no-escape"))
        theirs = float(out.split("Final estimate: PPL = ")[1].split()[0])
        off = ours / theirs - 1
        check(abs(off) <= MAX_PERPLEXITY_OFF, f"{name_of(model)}: perplexity {ours:.4f}, "
              f"{100 * off:+.2f} % of llama.cpp's {theirs:.4f} (limit {100 * MAX_PERPLEXITY_OFF:g} %)")


def kv(program, work):
    text = beginning(work)
    for model in models():
        f16 = our_perplexity(program, model, text)
        for kind, limit in MAX_KV_OFF.items():
            off = our_perplexity(program, model, text, "--kv", kind) / f16 - 1
            check(abs(off) <= limit and (off or kind == "f32"), f"{name_of(model)}: --kv {kind} {100 * off:+.3f} % of f16's {f16:.4f} (limit {100 * limit:g} %)")


def random_text(rnd):
    text = ""
    while len(text) < 4000:
        kind = rnd.random()
        if kind < 0.25:
            text += rnd.choice(PIECES)
        elif kind < 0.5:
            text += " " * rnd.randint(0, 3) + "".join(chr(rnd.randint(97, 122)) for _ in range(rnd.randint(1, 9)))
        else:
            low, high = rnd.choice(RANGES)
            text += "".join(chr(rnd.randrange(low, high)) for _ in range(rnd.randint(1, 5)))
    return text.replace("</s>", "")


def their_ids(model, path, special=True):
    plain = [] if special else ["--no-bos", "--no-parse-special"]
    out, _ = peer("llama-tokenize", "-m", model, "-f", path, "--ids", "--log-disable", "--no-escape", *plain)
    return [int(i) for i in out[out.rindex("[") + 1:out.rindex("]")].split(",") if i.strip()]


def our_ids(program, model, text, special=True):
    """By the command line: a file's last newline may be no part of a prompt."""
    plain = [] if special else ["--no-special"]
    return [int(i) for i in must_run(program, "tokenize", model, "-p", text, "--ids", *plain)[0].split()]


def tokens(program, work):
    seed = int(os.environ.get("OATO_TEST_SEED") or random.randrange(1 << 30))
    print(f"OATO_TEST_SEED={seed}")
    rnd = random.Random(seed)
    texts = EDGES + ["\n".join(LINES)] + [random_text(rnd) for _ in range(2)]
    path = os.path.join(work, "text")
    for model in models():
        wrong, count = 0, 0
        for text in texts:
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.write(text)
            for special in (True, False):
                theirs, ours = their_ids(model, path, special), our_ids(program, model, text, special)
                count += len(theirs)
                if theirs != ours:
                    wrong += 1
                    at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), min(len(theirs), len(ours)))
                    print(f"{text[:40]!r} special={special}: token {at} is {ours[at:at + 4]}, llama.cpp's {theirs[at:at + 4]}")
        check(wrong == 0 and count > 0, f"{name_of(model)}: {len(texts)} texts, {count} tokens, {wrong} differ")


def greedy(program, work):
    """Judged by logits of their answer, token by token: two answers part at a near tie and then say nothing."""
    raw = os.path.join(work, "logits")
    for model in models():
        worst = 0.0
        for prompt in PROMPTS:
            out, _ = peer("llama-completion", "-m", model, "-p", prompt, "-n", str(GENERATED), "--temp", "0", "-no-cnv",
                          "--no-escape", "--no-warmup", "--no-display-prompt", "-c", "512")
            for text in (prompt, prompt + out.removesuffix("\n").removesuffix(" [end of text]")):
                ids = our_ids(program, model, text)
                first = len(ids) if text == prompt else first
            must_run(program, "logits", model, "--ids", ",".join(map(str, ids)), "-o", raw)
            rows = np.fromfile(raw, np.float32).reshape(len(ids), -1)
            # the last token may be half of one whose other half was not generated
            gaps = [float(rows[i - 1].max() - rows[i - 1][ids[i]]) for i in range(first, len(ids) - 1)]
            check(len(gaps) > 4, f"{name_of(model)}: {prompt!r}: {len(gaps)} tokens, {sum(g > 0 for g in gaps)} of them "
                  f"not our first choice, at most {max(gaps, default=0):.3f} behind it")
            worst = max([worst, *gaps])
        check(worst <= MAX_LOGIT_GAP, f"{name_of(model)}: {worst:.3f} behind at most (limit {MAX_LOGIT_GAP:g})")


CASES = {"perplexity": (perplexity, "llama-perplexity"), "tokens": (tokens, "llama-tokenize"),
         "greedy": (greedy, "llama-completion"), "kv": (kv, None)}


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in CASES:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    case, needs = CASES[sys.argv[2]]
    if needs and not os.access(os.path.join(PEER, needs), os.X_OK):
        missing(f"{needs} is missing: scripts/fetch-peer --build builds it")
    if not os.path.exists(GPL):
        missing(f"{GPL} is missing: it is in Debian's package base-files")
    with tempfile.TemporaryDirectory() as work:
        case(os.path.abspath(sys.argv[1]), work)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
