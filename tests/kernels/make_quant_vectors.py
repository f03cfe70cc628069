#!/usr/bin/env python3
"""Writes tests/data/quant_vectors.bin: for every block type that we read, two random blocks and
what the gguf package's dequantiser makes of them. Run it again only when a type is added.

File: per type u32 type number, u32 bytes of the blocks, u32 elements, the blocks, the float32s.
"""
import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

TYPES = [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K,
         T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
SCALES_AT = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
             T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
             T.Q2_K: [80, 82], T.Q3_K: [108], T.IQ4_NL: [0], T.IQ4_XS: [0]}


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
    if kind == T.F16:
        blocks = (rng.standard_normal(count)).astype(np.float16).view(np.uint8)
    if kind == T.BF16:
        bits = rng.standard_normal(count).astype(np.float32).view(np.uint32)
        blocks = (bits >> 16).astype(np.uint16).view(np.uint8)
    return blocks.reshape(-1)


def main():
    rng = np.random.default_rng(1)
    out = pathlib.Path(__file__).parent.parent / "data" / "quant_vectors.bin"
    with open(out, "wb") as f:
        for kind in TYPES:
            elems, _ = GGML_QUANT_SIZES[kind]
            raw = blocks_of(rng, kind, 2 if elems > 1 else 32)
            values = dequantize(raw, kind).astype(np.float32).reshape(-1)
            f.write(struct.pack("<III", int(kind), raw.size, values.size))
            f.write(raw.tobytes())
            f.write(values.tobytes())


if __name__ == "__main__":
    main()
