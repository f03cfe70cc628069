#!/usr/bin/env python3
"""Evaluates llama and qwen2 GGUF files in float32 with numpy: the outside oracle of our logits.

Weights are dequantised by gguf.quants (the reference dequantisers of the format) and every product
is a float32 matrix product; nothing is shared with our kernels. Whole windows are evaluated at once,
without a KV cache, so an error of ours in paging or chunking cannot hide here.

  llama_numpy.py logits MODEL.gguf --ids 1,2,3|@FILE [-n N] -o FILE   raw float32, tokens x vocabulary
  llama_numpy.py perplexity MODEL.gguf --ids @FILE [-c 512]           as llama.cpp defines it

RoPE: llama files hold permuted q/k, pairs are (2i, 2i+1); qwen2 pairs (i, i + n/2).
"""
import argparse
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

ADJACENT_PAIRS = {"llama": True, "qwen2": False}


class Model:
    """The weights of one file as float32 matrices of shape (rows, k)."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = self.key("general.architecture")
        if self.arch not in ADJACENT_PAIRS:
            sys.exit(f"{path}: architecture '{self.arch}'; known: {', '.join(ADJACENT_PAIRS)}")
        self.layers = self.hparam("block_count")
        self.width = self.hparam("embedding_length")
        self.heads = self.hparam("attention.head_count")
        self.kv_heads = self.hparam("attention.head_count_kv", self.heads)
        self.head = self.hparam("attention.key_length", self.width // self.heads)
        self.eps = np.float32(self.hparam("attention.layer_norm_rms_epsilon"))
        self.rope_dims = self.hparam("rope.dimension_count", self.head)
        self.rope_base = self.hparam("rope.freq_base", 10000.0)
        kind = self.hparam("rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            sys.exit(f"{path}: rope.scaling.type '{kind}'; known: none, linear")
        factor = self.hparam("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
        self.rope_scale = 1.0 / (factor or 1.0)  # the peer takes 0 as "not scaled"
        self.cache = {}
        self.embedding = self.weight("token_embd.weight")
        tied = "output.weight" not in self.tensors
        self.output = self.embedding if tied else self.weight("output.weight")
        self.vocab = self.output.shape[0]

    def key(self, name, default=None):
        field = self.fields.get(name)
        return default if field is None else field.contents()

    def hparam(self, name, default=None):
        return self.key(f"{self.arch}.{name}", default)

    def weight(self, name):
        """The dequantised tensor, or None when the file has none of that name."""
        if name not in self.cache:
            t = self.tensors.get(name)
            if t is None:
                return None
            self.cache[name] = np.ascontiguousarray(dequantize(t.data, t.tensor_type), np.float32)
        return self.cache[name]

    def linear(self, x, name, bias_first=False):
        """W x, times the tensor's scale and plus its bias where the file has them."""
        y = x @ self.weight(name + ".weight").T
        bias, scale = self.weight(name + ".bias"), self.weight(name + ".scale")
        if bias_first and bias is not None:
            y = y + bias
        if scale is not None:
            y = y * scale
        return y if bias_first or bias is None else y + bias

    def norm(self, x, name):
        mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64)
        scale = 1.0 / np.sqrt(mean_square + self.eps)
        return (x * scale.astype(np.float32)) * self.weight(name + ".weight")

    def rope(self, x):
        """Rotates x of shape (tokens, heads, head) by its positions 0, 1, ..."""
        half = self.rope_dims // 2
        freq = self.rope_base ** (-np.arange(half, dtype=np.float64) / half) * self.rope_scale
        factors = self.weight("rope_freqs.weight")
        if factors is not None:
            freq = freq / factors.astype(np.float64)
        angle = np.arange(x.shape[0])[:, None] * freq[None, :]
        cos = np.cos(angle).astype(np.float32)[:, None, :]
        sin = np.sin(angle).astype(np.float32)[:, None, :]
        if ADJACENT_PAIRS[self.arch]:
            a, b = slice(0, self.rope_dims, 2), slice(1, self.rope_dims, 2)
        else:
            a, b = slice(0, half), slice(half, self.rope_dims)
        y = x.copy()
        y[..., a] = x[..., a] * cos - x[..., b] * sin
        y[..., b] = x[..., a] * sin + x[..., b] * cos
        return y

    def attention(self, x, blk):
        n = x.shape[0]
        q = self.rope(self.linear(x, blk + "attn_q").reshape(n, self.heads, self.head))
        k = self.rope(self.linear(x, blk + "attn_k").reshape(n, self.kv_heads, self.head))
        v = self.linear(x, blk + "attn_v").reshape(n, self.kv_heads, self.head)
        mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        group = self.heads // self.kv_heads
        out = np.empty_like(q)
        for h in range(self.heads):
            scores = q[:, h] @ k[:, h // group].T * np.float32(self.head ** -0.5) + mask
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[:, h] = p @ v[:, h // group]
        return self.linear(out.reshape(n, -1), blk + "attn_output")

    def activate(self, gate):
        """SiLU, or ReLU where the file says so; self.active gets which neurons are not exactly 0."""
        relu = self.hparam("feed_forward_activation") == "relu"
        y = np.maximum(gate, 0) if relu else gate / (1 + np.exp(-gate))
        self.active.append(y != 0)
        return y

    def ffn(self, x, blk):
        """As in the peer, biases come before scales here, and qwen2 has neither."""
        if self.arch == "qwen2":
            gate, up = (x @ self.weight(blk + n).T for n in ("ffn_gate.weight", "ffn_up.weight"))
            return (self.activate(gate) * up) @ self.weight(blk + "ffn_down.weight").T
        gate, up = (self.linear(x, blk + n, bias_first=True) for n in ("ffn_gate", "ffn_up"))
        return self.linear(self.activate(gate) * up, blk + "ffn_down", bias_first=True)

    def logits(self, ids, first=0):
        """Logits of rows first.. of the window ids, shape (len(ids) - first, vocab)."""
        x = self.embedding[ids]
        self.active = []
        for i in range(self.layers):
            blk = f"blk.{i}."
            x = x + self.attention(self.norm(x, blk + "attn_norm"), blk)
            x = x + self.ffn(self.norm(x, blk + "ffn_norm"), blk)
        x = self.norm(x, "output_norm")[first:] @ self.output.T
        bias = self.weight("output.bias")
        return x if bias is None else x + bias


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def perplexity(model, ids, window):
    """Second half of each whole window; the last token of a window predicts nothing."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - window + 1, window):
        chunk = ids[start:start + window]
        first = window // 2
        logp = log_softmax(model.logits(chunk, first)[:-1])
        target = chunk[first + 1:]
        total -= logp[np.arange(len(target)), target].sum()
        count += len(target)
        print(f"window {start // window + 1}: {np.exp(total / count):.4f}", file=sys.stderr)
    if count == 0:
        sys.exit(f"{len(ids)} ids do not fill one window of {window}")
    return np.exp(total / count)


def parse_ids(text):
    if text.startswith("@"):
        with open(text[1:], encoding="ascii") as f:
            text = f.read()
    return np.array([int(t) for t in text.replace(",", " ").split()], np.int64)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("verb", choices=["logits", "perplexity"])
    p.add_argument("model")
    p.add_argument("--ids", required=True, help="1,2,3 or @FILE of numbers")
    p.add_argument("-n", type=int, help="use the first N ids only")
    p.add_argument("-c", "--window", type=int, default=512, help="tokens of a window (default 512)")
    p.add_argument("-o", "--output", help="file for the logits")
    a = p.parse_args()
    ids = parse_ids(a.ids)[:a.n]
    model = Model(a.model)
    if a.verb == "perplexity":
        print(f"perplexity {perplexity(model, ids, a.window):.4f}")
        return
    if not a.output:
        p.error("logits needs -o FILE")
    model.logits(ids).astype(np.float32).tofile(a.output)


if __name__ == "__main__":
    main()
