#!/usr/bin/env python3
"""Writes tests/data/quant_vectors.bin: for every block type that we read, two random blocks and
what the gguf package's dequantiser makes of them. Run it again only when a type is added.

File: per type u32 type number, u32 bytes of the blocks, u32 elements, the blocks, the float32s. Then
for types with tables as many blocks as name every entry of these, in the same way with 65536 added
to the number, and instead of the float32s a hash of their bits (FNV-1a by words, u64).
"""
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

TYPES = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K,
         T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
# Blocks of these in which every entry of the type's tables occurs.
TABLES = {T.IQ1_S: 64, T.IQ1_M: 16, T.IQ2_XXS: 8, T.IQ2_XS: 16, T.IQ2_S: 32, T.IQ3_XXS: 4, T.IQ3_S: 8,
          T.TQ1_0: 10, T.TQ2_0: 8, T.NVFP4: 64}
SCALES_AT = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
             T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
             T.Q2_K: [80, 82], T.Q3_K: [108], T.IQ4_NL: [0], T.IQ4_XS: [0],
             T.IQ1_S: [0], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0],
             T.TQ1_0: [52], T.TQ2_0: [64]}


def blocks_of(rng, kind, count):
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES_AT.get(kind, []):
        half = (rng.standard_normal(count) * 0.05).astype(np.float16)
        blocks[:, at:at + 2] = half.view(np.uint8).reshape(count, 2)
    if kind == T.MXFP4:  # the exponent is a byte; the lowest two make subnormal scales
        exponents = np.r_[0:4, 120:128, 248:252]
        blocks = rng.integers(0, 256, (exponents.size, size), dtype=np.uint8)
        blocks[:, 0] = exponents
    if kind == T.IQ1_M:  # the scale is the upper nibbles of four words
        half = (rng.standard_normal(count) * 0.05).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (half >> 4 * i & 15) << 4
    if kind == T.F16:
        blocks = (rng.standard_normal(count)).astype(np.float16).view(np.uint8)
    if kind == T.BF16:
        bits = rng.standard_normal(count).astype(np.float32).view(np.uint32)
        blocks = (bits >> 16).astype(np.uint16).view(np.uint8)
    return blocks.reshape(-1)


def count_up(kind, raw):
    """Indices of codebooks, or the bytes of the other types, become 0, 1, 2 and so on."""
    count = len(raw)
    groups = {T.IQ3_XXS: 64, T.IQ3_S: 64, T.TQ1_0: 52, T.TQ2_0: 64, T.NVFP4: 4}.get(kind, 32)
    index = np.arange(count * groups).reshape(count, groups)
    low, high = index % 256, index // 256
    if kind == T.IQ2_XXS:
        raw[:, 2:66].reshape(count, 8, 8)[:, :, :4] = low.reshape(count, 8, 4)
    elif kind == T.IQ2_XS:
        raw[:, 2:66] = (raw[:, 2:66].copy().view("<u2") & 0xfe00 | index % 512).astype("<u2").view(np.uint8)
    else:
        at = 2 if kind in (T.IQ1_S, T.IQ2_S, T.IQ3_XXS, T.IQ3_S) else 0
        raw[:, at:at + groups] = low
    if kind == T.IQ2_S:
        raw[:, 66:74] = ((high.reshape(count, 8, 4) & 3) << [0, 2, 4, 6]).sum(axis=2)
    if kind == T.IQ3_S:
        raw[:, 66:74] = ((high.reshape(count, 8, 8) & 1) << range(8)).sum(axis=2)
    if kind == T.IQ1_S:
        bits = ((high.reshape(count, 8, 4) & 7) << [0, 3, 6, 9]).sum(axis=2)
        raw[:, 34:50] = (raw[:, 34:50].copy().view("<u2") & 0xf000 | bits).astype("<u2").view(np.uint8)


def hash_of(values):
    h = 0xcbf29ce484222325
    for word in values.view(np.uint32).tolist():
        h = (h ^ word) * 0x100000001b3 % 2**64
    return h


def main():
    rng = np.random.default_rng(1)
    out = pathlib.Path(__file__).parent.parent / "data" / "quant_vectors.bin"
    with open(out, "wb") as f:
        for kind in TYPES + list(TABLES):
            elems, _ = GGML_QUANT_SIZES[kind]
            raw = blocks_of(rng, kind, 2 if elems > 1 else 32)
            values = dequantize(raw, kind).astype(np.float32).reshape(-1)
            f.write(struct.pack("<III", int(kind), raw.size, values.size))
            f.write(raw.tobytes())
            f.write(values.tobytes())
        for kind, count in TABLES.items():
            raw = blocks_of(rng, kind, count).reshape(count, -1)
            count_up(kind, raw)
            values = dequantize(raw.reshape(-1), kind).astype(np.float32).reshape(-1)
            f.write(struct.pack("<III", int(kind) + 65536, raw.size, values.size))
            f.write(raw.tobytes())
            f.write(struct.pack("<Q", hash_of(values)))


if __name__ == "__main__":
    main()
