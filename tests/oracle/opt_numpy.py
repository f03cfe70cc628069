"""A tiny random OPT and its logits, straight from its paper (Zhang et al. 2022) and the code that it names: a decoder
whose norms stand before its blocks, with biases everywhere, ReLU, and learned positions of which the first has number
2. llama.cpp has no OPT; the names are those that PowerInfer's converter gives, with ffn_down as other models have it."""

import numpy as np
from gguf import GGUFWriter

WIDTH, HEADS, LAYERS, FFN, VOCAB, POSITIONS, OFFSET = 64, 4, 2, 160, 128, 130, 2


def make(path, seed=7):
    """Writes the model; returns its tensors by name."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (VOCAB, WIDTH), "position_embd.weight": (POSITIONS, WIDTH)}
    blocks = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH),
              "attn_v": (WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_up": (FFN, WIDTH),
              "ffn_down": (WIDTH, FFN)}
    rows = {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in blocks.items()}
    rows["output_norm"] = (WIDTH,)
    for name, shape in rows.items():
        shapes[name + ".weight"], shapes[name + ".bias"] = shape, shape[:1]
    t = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    w = GGUFWriter(path, "opt")
    w.add_context_length(POSITIONS)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_tokenizer_model("none")
    for name, x in t.items():
        w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return t


def logits(tensors, ids):
    t = {name: x.astype(np.float64) for name, x in tensors.items()}

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * t[name + ".weight"] + t[name + ".bias"]

    def linear(name, x):
        return x @ t[name + ".weight"].T + t[name + ".bias"]

    n, d = len(ids), WIDTH // HEADS
    x = t["token_embd.weight"][ids] + t["position_embd.weight"][OFFSET : OFFSET + n]
    for layer in range(LAYERS):
        b = f"blk.{layer}."
        m = norm(b + "attn_norm", x)
        q, k, v = (linear(b + name, m).reshape(n, HEADS, d) for name in ("attn_q", "attn_k", "attn_v"))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
        scores[:, np.arange(n)[:, None] < np.arange(n)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + linear(b + "attn_output", np.einsum("hij,jhd->ihd", p, v).reshape(n, WIDTH))
        x = x + linear(b + "ffn_down", np.maximum(linear(b + "ffn_up", norm(b + "ffn_norm", x)), 0))
    return norm("output_norm", x) @ t["token_embd.weight"].T
