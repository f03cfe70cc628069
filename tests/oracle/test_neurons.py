#!/usr/bin/env python3
"""Holds the counts of oato-profile --calibrate to numpy; run by ctest (label oracle).

  test_neurons.py OATO_PROFILE OATO_RUN OATO_MAKE_MODEL

A tiny llama with ReLU and one with SiLU are evaluated in float32 by llama_numpy.py over the same
windows. Two float32 evaluations differ by about 1e-6: where an activation is that near to the
threshold a neuron may fire in one of them, so that each count must lie between that of numpy with a
slightly higher and with a slightly lower threshold. Quantiles are the edges of bins 1/64 octave wide.

What predictors of the trained model (tests/data/reglu) find of the held-out tenth of the text is
computed again from the sidecar's tensors.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from llama_numpy import Model

TEXT = "/usr/share/common-licenses/GPL-3"
WINDOW, LEVEL, LOOK = 96, 0.8, 2048
SLACK = 2e-5

failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("ok    " if ok else "WRONG ") + text, flush=True)


def must_run(*args):
    env = dict(os.environ, OATO_CPU_ISA="ref")
    r = subprocess.run(args, env=env, capture_output=True, text=True, check=False)
    if r.returncode:
        sys.exit(f"{args[0]}: {r.stderr}")
    return r.stdout


class Recorder(Model):
    """Keeps |activation(gate)| and what matrices read."""

    def __init__(self, path, relu):
        super().__init__(path)
        self.relu = relu
        self.seen = {}
        self.gates = {}

    def keep(self, name, x):
        self.seen.setdefault(name, []).append(np.abs(x))

    def linear(self, x, name, bias_first=False):
        self.keep(name + ".in", x)
        return super().linear(x, name, bias_first)

    def ffn(self, x, blk):
        gate, up = (self.linear(x, blk + n) for n in ("ffn_gate", "ffn_up"))
        act = np.maximum(gate, 0) if self.relu else gate / (1 + np.exp(-gate))
        self.keep(blk + "ffn_act", act)
        self.gates.setdefault(int(blk.split(".")[1]), []).append(gate)
        return self.linear(act * up, blk + "ffn_down")


def windows(ids, bos):
    """As calibration cuts: each window begins with the BOS that the text begins with."""
    lead = [bos] if ids[0] == bos else []
    ids = ids[len(lead):]
    step = WINDOW - len(lead)
    return [lead + ids[i:i + step] for i in range(0, len(ids), step)]


def is_quantile(x, q, edge):
    """At least the share q is below the edge, and fewer are below the bin that ends there."""
    x = x.ravel()
    if not edge:
        return (x == 0).mean() >= q - 1e-9
    least = x.size * q
    return ((x <= edge * (1 + SLACK)).sum() >= least - 1
            and (x < edge * (1 - 1 / 64) * (1 - SLACK)).sum() <= least + 1) or edge <= 2.0 ** -16


def compare(profile, run, make, folder, activation):
    path, text, out = (os.path.join(folder, n) for n in ("m.gguf", "text", "m.neurons.gguf"))
    must_run(make, "--layers", "3", "--type", "F32", "--keys",
             f"feed_forward_activation={activation}", path)
    with open(TEXT, "rb") as f, open(text, "wb") as t:
        t.write(f.read()[3000:9000])
    must_run(profile, path, "--calibrate", text, "-o", out, "--window", str(WINDOW), "--level",
             str(LEVEL), "-t", "2", "--replace")
    ids = [int(i) for i in must_run(run, "tokenize", path, "-f", text, "--ids").split()]
    model = Recorder(path, activation == "relu")
    cut = windows(ids, model.key("tokenizer.ggml.bos_token_id"))
    for w in cut:
        model.logits(np.array(w))
    seen = {k: np.concatenate(v) for k, v in model.seen.items()}
    model.gates = {k: np.concatenate(v) for k, v in model.gates.items()}
    file = GGUFReader(out)
    tensors = {t.name: t.data for t in file.tensors}
    key = {n: f.contents() for n, f in file.fields.items()}
    tokens = sum(map(len, cut))
    check(key["oato.neurons.tokens"] == tokens == key["oato.neurons.text_tokens"],
          f"{activation}: {tokens} tokens counted")
    look = 0
    for w in cut:
        look += len(w) if look < LOOK else 0
    thresholds = key.get("oato.neurons.ffn_threshold", [0.0] * model.layers)
    for i in range(model.layers):
        act = seen[f"blk.{i}.ffn_act"]
        t = np.float32(thresholds[i])
        if activation == "relu":
            check(t == 0, f"{activation}: no threshold in layer {i}")
        else:
            check(is_quantile(act[:look], LEVEL, t), f"{activation}: threshold of layer {i}: {t:.4g}")
        counts = tensors[f"blk.{i}.ffn_freq"].astype(np.float64) * tokens
        check(np.abs(counts - np.rint(counts)).max() < 1e-3, "frequencies are whole counts")
        near = model.gates[i] if activation == "relu" else act
        least, most = ((near > t + d).sum(0) for d in (SLACK, -SLACK))
        check(((np.rint(counts) >= least) & (np.rint(counts) <= most)).all(),
              f"{activation}: how often the {act.shape[1]} neurons of layer {i} fire; "
              f"{(most - least).sum()} of {act.size} are too near to tell")
    for name, x in seen.items():
        q = tensors[name + "_quantiles"]
        wrong = [j for j in range(101) if not is_quantile(x, j / 100, q[j])]
        check(not wrong, f"{activation}: quantiles of {name}" + (f": {wrong}" if wrong else ""))
    check(not [n for n in tensors if n.endswith("_counts")], "a finished file has no counts")


class BlockRecorder(Model):
    """Keeps what each feed-forward block reads and what its neurons hand on."""

    def __init__(self, path):
        super().__init__(path)
        self.read, self.made = {}, {}

    def ffn(self, x, blk):
        h = np.maximum(self.linear(x, blk + "ffn_gate"), 0) * self.linear(x, blk + "ffn_up")
        self.read.setdefault(blk, []).append(x)
        self.made.setdefault(blk, []).append(np.abs(h))
        return self.linear(h, blk + "ffn_down")


def predictors(profile, run, folder):
    path, text = os.path.join(folder, "reglu.gguf"), os.path.join(folder, "text")
    shutil.copy(os.path.join(os.path.dirname(__file__), "../data/reglu/reglu.gguf"), path)
    with open(TEXT, "rb") as f, open(text, "wb") as t:
        t.write(f.read()[:5000])
    must_run(profile, path, "--calibrate", text, "--window", str(WINDOW), "--predictors", "-t", "1")
    ids = [int(i) for i in must_run(run, "tokenize", path, "-f", text, "--ids").split()]
    model = BlockRecorder(path)
    for w in windows(ids, model.key("tokenizer.ggml.bos_token_id")):
        model.logits(np.array(w))
    sidecar = os.path.join(folder, "reglu.neurons.gguf")
    file = GGUFReader(sidecar)
    t = {x.name: dequantize(x.data, x.tensor_type) for x in file.tensors if ".predict_" in x.name}
    said = np.reshape(file.fields["oato.neurons.predictors"].contents(), (-1, 3))
    for i in range(model.layers):
        blk = f"blk.{i}."
        x, mass = (np.concatenate(v[blk]) for v in (model.read, model.made))
        x, mass = x[-(len(x) // 10):], mass[-(len(mass) // 10):]
        score = np.maximum(x @ t[blk + "predict_down"].T, 0) @ t[blk + "predict_up"].T + t[blk + "predict_bias"]
        found, share = mass[score > 0].sum() / mass.sum(), (score > 0).mean()
        check(abs(found - said[i][0]) < 0.01 and abs(share - said[i][1]) < 0.005 and found > 0.95,
              f"predictor of layer {i}: {100 * found:.2f} % of mass in {100 * share:.2f} % of the neurons, as the sidecar says")
    out = must_run(run, "perplexity", path, "-f", text, "-c", "128", "--compare", "dense", "--sparse", "predict",
                   "--neurons", sidecar)
    dense, ours = (float(line.split()[1]) for line in out.splitlines()[-2:])
    check(ours < 1.02 * dense and ours != dense, f"perplexity {dense} becomes {ours}")


def main():
    profile, run, make = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for activation in ("relu", "silu"):
            compare(profile, run, make, folder, activation)
        predictors(profile, run, folder)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
