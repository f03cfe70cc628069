"""What scripts/bench-gpu must know of models beside their speed: how large a GGUF file's tensors are,
where a person would put them with llama.cpp, and how far apart two evaluations are.
"""
import concurrent.futures
import math
import os
import re
import struct


class Failed(Exception):
    """A step of scripts/bench-gpu did, in one line."""


GGUF_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value's type


def tensor_bytes(path):
    """{name: bytes} of a GGUF file's tensors, padding included (GGUF specification, version 3)."""
    with open(path, "rb") as f:
        def number(form):
            return struct.unpack("<" + form, f.read(struct.calcsize(form)))[0]
        def text():
            return f.read(number("Q")).decode("utf-8", "replace")
        def skip(kind):
            if kind == 8:
                f.seek(number("Q"), 1)
            elif kind == 9:
                inner, n = number("I"), number("Q")
                if inner in GGUF_FIXED:
                    f.seek(GGUF_FIXED[inner] * n, 1)
                else:
                    for _ in range(n):
                        skip(inner)
            else:
                f.seek(GGUF_FIXED[kind], 1)
        if f.read(4) != b"GGUF":
            raise Failed(f"{os.path.basename(path)} is no GGUF file")
        _, n_tensors, n_keys = number("I"), number("Q"), number("Q")
        for _ in range(n_keys):
            text()
            skip(number("I"))
        offsets = []
        for _ in range(n_tensors):
            name = text()
            f.seek(8 * number("I") + 4, 1)
            offsets.append((number("Q"), name))
        data = os.path.getsize(path) - (f.tell() + 31) // 32 * 32
    offsets.sort()
    ends = [o for o, _ in offsets[1:]] + [data]
    return {name: end - offset for (offset, name), end in zip(offsets, ends)}


def layer_bytes(tensors, pattern=""):
    """Bytes of each layer's tensors whose names match."""
    out = {}
    for name, size in tensors.items():
        m = re.match(r"blk\.(\d+)\.(.*)", name)
        if m and re.search(pattern, m.group(2)):
            out[int(m.group(1))] = out.get(int(m.group(1)), 0) + size
    return [out[i] for i in sorted(out)]


def hand_set(tensors, budget, kv_layer_bytes):
    """The placements that a person tries with llama.cpp at so much memory: {name: options}. Only
    weights and KV are counted, which favours it: its working memory comes on top."""
    layers = layer_bytes(tensors)
    output = tensors.get("output.weight", tensors.get("token_embd.weight", 0))
    out, used, n = {}, 0, 0
    for size in reversed(layers):  # from the last one to the first
        if used + size + kv_layer_bytes > budget:
            break
        used, n = used + size + kv_layer_bytes, n + 1
    if n == len(layers) and used + output <= budget:
        n += 1
    out[f"-ngl {n}"] = ["-ngl", str(n)]
    # All attention on the GPU, and the feed-forward of as many layers as fit.
    ffn = layer_bytes(tensors, "^ffn_(up|gate|down)")
    used = sum(layers) - sum(ffn) + len(layers) * kv_layer_bytes + output
    kept = len(layers)
    for size in reversed(ffn):
        if used + size > budget:
            break
        used, kept = used + size, kept - 1
    if used <= budget and kept:
        which = "|".join(str(i) for i in range(kept))
        out[f"-ot ffn of {kept} layers=CPU"] = ["-ngl", "99", "-ot",
                                               rf"^blk\.({which})\.ffn_(up|gate|down)\.weight$=CPU"]
    return out


def compare_row(a, b, following):
    """Of two rows of logits: KL divergence, squared error, energy of the first, whether the best token is
    the same, and how much less likely than in the first, as a logarithm, the following id is in the second."""
    top_a, top_b = max(a), max(b)
    sum_a, sum_b = math.fsum(math.exp(v - top_a) for v in a), math.fsum(math.exp(v - top_b) for v in b)
    shift = top_b + math.log(sum_b) - top_a - math.log(sum_a)
    return (math.fsum(math.exp(x - top_a) / sum_a * (x - y + shift) for x, y in zip(a, b)),
            math.fsum((x - y) ** 2 for x, y in zip(a, b)), math.fsum(x * x for x in a),
            a.index(top_a) == b.index(top_b),
            a[following] - b[following] + shift if following is not None else 0.0)


def compare_logits(reference, other, ids):
    """Of the logits behind each id: mean KL divergence, NMSE, how often the best token is the same, and
    the perplexity of the ids over that of the reference."""
    rows, width = len(ids), len(reference) // len(ids)
    if len(reference) != len(other) or not width:
        raise Failed("the logits are not of one size")
    following = [i if i < width else None for i in ids[1:]] + [None]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        parts = [[v[r * width:(r + 1) * width] for r in range(rows)] for v in (reference, other)]
        found = list(zip(*pool.map(compare_row, *parts, following, chunksize=8)))
    return {"rows": rows, "kl": sum(found[0]) / rows, "nmse": sum(found[1]) / sum(found[2]),
            "same_top": sum(found[3]) / rows,
            "perplexity_ratio": math.exp(sum(found[4]) / max(1, rows - 1))}


