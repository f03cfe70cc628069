#!/usr/bin/env python3
"""test_planted.py OATO_MAKE_MODEL OATO_MAKE_NEURONS: models into which frequencies are planted
(oato-make-neurons --plant) fire as the sidecar says, counted by a float32 evaluation in numpy; and so do those
with --predictors, whose predictors name nearly all that fire and few others."""

import os
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from llama_numpy import Model

WIDTH, LAYERS, FFN, VOCAB, TOKENS, MEAN = 256, 3, 512, 4096, 1500, 0.1
failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("ok    " if ok else "WRONG ") + text, flush=True)


def opt_active(path, ids):
    """Which neurons fire. Blocks add so little to the stream that it is the embedding's here."""
    t = {x.name: dequantize(x.data, x.tensor_type) for x in GGUFReader(path).tensors}
    x = t["token_embd.weight"][ids] + t["position_embd.weight"][2 : 2 + len(ids)]
    x = x - x.mean(-1, keepdims=True)
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return [x @ t[f"blk.{i}.ffn_up.weight"].T + t[f"blk.{i}.ffn_up.bias"] > 0 for i in range(LAYERS)]


def llama_active(path, ids):
    m = Model(path)
    for at in range(0, TOKENS, 250): # windows: attention of all to all would take long
        m.logits(ids[at : at + 250])
        parts = m.active if at == 0 else [np.concatenate(pair) for pair in zip(parts, m.active, strict=True)]
    return parts


def opt_inputs(path, ids):
    t = {x.name: dequantize(x.data, x.tensor_type) for x in GGUFReader(path).tensors}
    x = t["token_embd.weight"][ids] + t["position_embd.weight"][2 : 2 + len(ids)]
    x = x - x.mean(-1, keepdims=True)
    return [x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)] * LAYERS


class Inputs(Model):
    """Keeps what gates read."""

    def linear(self, x, name, bias_first=False):
        if name.endswith("ffn_gate"):
            self.read.append(x)
        return super().linear(x, name, bias_first)


def llama_inputs(path, ids):
    m = Inputs(path)
    m.read = []
    for at in range(0, TOKENS, 250):
        m.logits(ids[at : at + 250])
    return [np.concatenate(m.read[i::LAYERS]) for i in range(LAYERS)]


def judge_predictor(sidecar, layer, x, active, text):
    t = {y.name: dequantize(y.data, y.tensor_type) for y in GGUFReader(sidecar).tensors if "predict_" in y.name}
    down, up, bias = (t[f"blk.{layer}.predict_{n}"] for n in ("down", "up", "bias"))
    guess = np.maximum(x @ down.T, 0) @ up.T + bias > 0
    found, share = (guess & active).sum() / active.sum(), guess.mean()
    check(found > 0.9 and share < MEAN * 1.3, f"{text}: a predictor of rank {len(down)} finds {found:.3f} in {share:.3f} of the neurons")


def judge(make_model, make_neurons, arch, kind, rank, work):
    model, sidecar = os.path.join(work, "m.gguf"), os.path.join(work, "m.neurons.gguf")
    options = {"llama": ["--keys", "feed_forward_activation=relu"], "opt": ["--keys", "attention.layer_norm_epsilon=1e-5"]}[arch]
    optional = {"llama": [], "opt": ["--optional", "bias"]}[arch]
    subprocess.run([make_model, model, "--arch", arch, "--type", kind, "--width", str(WIDTH), "--layers", str(LAYERS),
                    "--ffn", str(FFN), "--vocab", str(VOCAB), "--context", "2048", "--kv-heads", "4", *options, *optional],
                   check=True)
    subprocess.run([make_neurons, model, "-o", sidecar, "--plant", "--hot", "0.26", "--mean", str(MEAN),
                    *(["--predictors", rank] if rank else [])], check=True)
    truth = {t.name: t.data for t in GGUFReader(sidecar).tensors}
    ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS)
    inputs = {"llama": llama_inputs, "opt": opt_inputs}[arch](model, ids) if rank else None
    for layer, active in enumerate({"llama": llama_active, "opt": opt_active}[arch](model, ids)):
        p, counted = truth[f"blk.{layer}.ffn_freq"].astype(np.float64), active.mean(0)
        error = np.abs(counted - p) / np.sqrt(p * (1 - p) / TOKENS + 0.01**2)
        hot = np.sort(counted)[::-1]
        share = hot[: round(0.26 * FFN)].sum() / hot.sum()
        text = f"{arch} {kind} layer {layer}: mean {counted.mean():.3f}, 26 % cause {share:.2f}, errors {error.mean():.2f}, {error.max():.1f}"
        check(abs(counted.mean() - MEAN) < 0.01 and abs(share - 0.8) < 0.03 and error.mean() < 1.2 and error.max() < 6, text)
        if rank:
            judge_predictor(sidecar, layer, inputs[layer], active, f"{arch} {kind} layer {layer}")


def main():
    for arch, kind, rank in (("llama", "Q4_0", ""), ("llama", "Q8_0", "64"), ("llama", "F16", ""), ("opt", "F32", ""), ("opt", "Q4_0", "64")):
        with tempfile.TemporaryDirectory() as work:
            judge(*sys.argv[1:], arch, kind, rank, work)
    sys.exit(failures != 0)


main()
