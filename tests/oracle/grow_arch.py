#!/usr/bin/env python3
"""Grows a header (tests/data/archs/*.head) into the whole tiny random model that llama.cpp's
test-llama-archs wrote.

That program fills each tensor from a generator seeded by its name, so the weights need not be
stored: 1.2 million floats come out of a 3 KB header. The recipe, a fact about the peer: mt19937
seeded with SEED xor libstdc++'s hash of the name (MurmurHash64A), then normal deviates by
libstdc++'s polar method, rounded to float32 at each step. The platform's logf may differ from ours
in the last bit, hence in a few weights by 1e-7 of their value.

  grow_arch.py HEADER STDEV OUT.gguf    the model
  grow_arch.py --cut MODEL.gguf HEADER  the header of a model
  grow_arch.py --plain MODEL.gguf OUT   the model without factors for each expert (*_exps.scale),
                                        which only files of a type that we do not read have
"""
import os
import re
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

SEED = 1234
MASK = (1 << 64) - 1


def name_hash(name):
    """libstdc++'s std::hash<std::string> on 64-bit hosts."""
    data, mul, h = name.encode(), 0xC6A4A7935BD1E995, 0xC70F6907
    h ^= len(data) * mul & MASK
    whole = len(data) & ~7
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i:i + 8], "little") * mul & MASK
        h = (h ^ (k ^ k >> 47) * mul & MASK) * mul & MASK
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * mul & MASK
    h = (h ^ h >> 47) * mul & MASK
    return h ^ h >> 47


def normals(seed, count):
    """count deviates as libstdc++'s normal_distribution<float> draws them from mt19937(seed)."""
    raw = np.random.RandomState(seed & 0xFFFFFFFF)
    out = np.empty(0, np.float32)
    one = np.nextafter(np.float32(1), np.float32(0))
    while out.size < count:
        u = raw.randint(0, 2 ** 32, size=2 * count, dtype=np.uint32).astype(np.float32)
        u = np.minimum(u * np.float32(2 ** -32), one)
        x, y = (2.0 * u[0::2].astype(np.float64) - 1).astype(np.float32), \
            (2.0 * u[1::2].astype(np.float64) - 1).astype(np.float32)
        r2 = x * x + y * y
        keep = (r2 <= 1) & (r2 > 0)
        x, y, r2 = x[keep], y[keep], r2[keep]
        log = np.log(r2.astype(np.float64)).astype(np.float32)
        scale = np.sqrt(np.float32(-2) * log / r2)
        out = np.append(out, np.stack([y * scale, x * scale], axis=1).reshape(-1))
    return out[:count]


def grow(header, stdev, path):
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(header, "rb") as f, open(temporary, "wb") as out:
        out.write(f.read())
        out.truncate(256 << 20)  # sparse; cut to size below
    reader = GGUFReader(temporary, "r+")
    end = 0
    for t in reader.tensors:
        if t.tensor_type != GGMLQuantizationType.F32:
            sys.exit(f"{header}: {t.name} is {t.tensor_type.name}; only F32 can be grown")
        deviates = normals(SEED ^ name_hash(t.name), int(t.n_elements))
        if "ssm_a" in t.name:  # what a state decays by is negative
            deviates = -np.abs(deviates)
        t.data[...] = (deviates * np.float32(stdev)).reshape(t.data.shape)
        end = max(end, t.data_offset + (int(t.n_bytes) + 31) // 32 * 32)
    del reader, t
    os.truncate(temporary, end)
    os.replace(temporary, path)


def amplify(path):
    """Makes attention matter, in place: factors of 1, larger scores."""
    reader = GGUFReader(path, "r+")
    architecture = reader.fields["general.architecture"].contents()
    # Gemma 4 does not divide scores by the root of a head's size, 32.
    gain = 5 if architecture == "gemma4" else 12
    # HRM's norms have no weights near 0.1, and its loops would make rounding grow to anything.
    product = 0.5 if architecture == "hrm_text" else 8
    for t in reader.tensors:
        name = t.name.split(".", 2)[-1]
        if re.fullmatch(r"attn_(q|k|v|qkv|output)\.scale", name):
            t.data[...] = 1
        elif re.fullmatch(r"attn_(q|k|qkv)\.(weight|bias)", name):
            t.data[...] *= product
        elif re.fullmatch(r"attn_(q|k)_norm\.weight", name):
            t.data[...] *= gain


def header_of(model):
    with open(model, "rb") as f:
        return f.read(min(t.data_offset for t in GGUFReader(model).tensors))


def cut(model, header):
    with open(header, "wb") as out:
        out.write(header_of(model))


def rewrite(model, out, change, added=(), floats=()):
    """Copies a model; change(tensor) gives its new (name, data, type), None: leave it out. added: more of these;
    floats: more keys and their values."""
    reader = GGUFReader(model)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        array = field.types[:1] == [GGUFValueType.ARRAY]
        if key.startswith("GGUF.") or key == "general.architecture" or array and not field.contents():
            continue
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if array else None)
    for key, value in floats:
        writer.add_float32(key, value)
    for name, data, kind in [*filter(None, map(change, reader.tensors)), *added]:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plain(model, out):
    def change(t):
        dropped = t.name.endswith(("_exps.scale", "_exps.input_scale"))
        return None if dropped else (t.name, t.data, t.tensor_type)

    rewrite(model, out, change)


def main():
    args = sys.argv[1:]
    if len(args) == 3 and args[0] == "--cut":
        cut(args[1], args[2])
    elif len(args) == 3 and args[0] == "--plain":
        plain(args[1], args[2])
    elif len(args) == 3 and not args[0].startswith("-"):
        grow(args[0], float(args[1]), args[2])
    else:
        print(__doc__)
        sys.exit(0 if args in (["-h"], ["--help"]) else 2)


if __name__ == "__main__":
    main()
