"""Prints GGUF files as the gguf package reads it: test_gguf.c compares this with our reader.

Also holds the random models to what random_model.h promises: every matrix dequantises to finite
values of standard deviation 1/sqrt(k) and mean 0.
"""
import sys

import gguf
import numpy as np

XXH = 0xFFFFFFFFFFFFFFFF
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)


def rotate(x, r):
    return ((x << r) | (x >> (64 - r))) & XXH


def mix(acc, lane):
    return rotate((acc + lane * P2) & XXH, 31) * P1 & XXH


def xxh64(data):
    n, at = len(data), 0
    if n >= 32:
        v = [(P1 + P2) & XXH, P2, 0, -P1 & XXH]
        while at + 32 <= n:
            for i in range(4):
                v[i] = mix(v[i], int.from_bytes(data[at:at + 8], "little"))
                at += 8
        h = sum(rotate(x, r) for x, r in zip(v, (1, 7, 12, 18))) & XXH
        for x in v:
            h = ((h ^ mix(0, x)) * P1 + P4) & XXH
    else:
        h = P5
    h = (h + n) & XXH
    while at + 8 <= n:
        h = (rotate(h ^ mix(0, int.from_bytes(data[at:at + 8], "little")), 27) * P1 + P4) & XXH
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ (int.from_bytes(data[at:at + 4], "little") * P1 & XXH), 23) * P2 + P3) & XXH
        at += 4
    while at < n:
        h = rotate(h ^ (data[at] * P5 & XXH), 11) * P1 & XXH
        at += 1
    h = (h ^ h >> 33) * P2 & XXH
    h = (h ^ h >> 29) * P3 & XXH
    return h ^ h >> 32


def show(value, kind):
    if kind == gguf.GGUFValueType.STRING:
        return f"{xxh64(bytes(value)):016x}"
    if kind == gguf.GGUFValueType.BOOL:
        return str(int(value[0]))
    if kind in (gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.FLOAT64):
        return f"{float(value[0]):.9g}"
    n = int(value[0])
    return f"{n:d}" if n < 2**63 else f"{float(n):.9g}"


def describe(path):
    reader = gguf.GGUFReader(path)
    random_model = False
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        outer, inner = field.types[0], field.types[-1]
        array = outer == gguf.GGUFValueType.ARRAY
        if array and len(field.types) == 1:
            inner = gguf.GGUFValueType(field.parts[-2][0])  # an empty array
        values = [field.parts[i] for i in field.data]
        count = len(values)
        print(name, int(outer), int(inner), count, *[show(v, inner) for v in values[:20]])
        random_model |= name == "general.name" and bytes(values[0]) == b"random"
    for t in reader.tensors:
        raw = np.frombuffer(np.ascontiguousarray(t.data).tobytes(), dtype=np.uint8)
        print(t.name, t.tensor_type.name, *[int(n) for n in t.shape], raw.size,
              int(raw.sum(dtype=np.uint64)))
        if random_model and len(t.shape) == 2:
            w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            deviation = w.std() * float(t.shape[0]) ** 0.5
            assert np.isfinite(w).all() and 0.9 < deviation < 1.1, (t.name, deviation)
            assert abs(w.mean()) < 0.1 * w.std(), (t.name, w.mean(), w.std())


for path in sys.argv[1:]:
    describe(path)
