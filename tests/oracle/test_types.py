#!/usr/bin/env python3
"""Types that differ inside a layer, as in files whose quantiser chose one for each tensor: gate, up
and down of the experts and of the shared experts. Such a model must compute what the same numbers
in float32 do. Run by ctest (label oracle).

  test_types.py OATO_RUN OATO_MAKE_MODEL
"""
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

from compare_logits import compare

SHAPE = ["--arch", "qwen2moe", "--layers", "2", "--width", "256", "--ffn", "256", "--heads", "4", "--kv-heads", "2",
         "--vocab", "300", "--experts", "6", "--experts-used", "2",
         "--keys", "expert_feed_forward_length=256 expert_shared_feed_forward_length=512"]
# Of a layer: gate, up, down of the experts, then of the shared ones.
MIXES = ((("IQ2_XXS", "IQ3_S", "Q4_K", "Q8_0", "Q5_1", "IQ1_M"), ("Q6_K", "MXFP4", "IQ1_S", "IQ4_XS", "F16", "Q3_K")),
         (("IQ2_S", "Q5_0", "NVFP4", "BF16", "Q2_K", "TQ1_0"), ("IQ3_XXS", "IQ2_XS", "F32", "Q4_0", "Q4_1", "Q5_K")))
PARTS = ("gate_exps", "up_exps", "down_exps", "gate_shexp", "up_shexp", "down_shexp")
IDS = [int(i) for i in np.random.RandomState(1).randint(0, 300, 24)]
# Levels with vectors round inputs to bytes, and a token may choose another expert by a hair.
NMSE = {"ref": 1e-11}


def must_run(*args, isa="ref"):
    r = subprocess.run(args, env=dict(os.environ, OATO_CPU_ISA=isa), capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit(f"OATO_CPU_ISA={isa} {' '.join(args)}: status {r.returncode}: {r.stderr}")


def save(source, tensors, path):
    """The keys of source, and tensors as (name, data, type or None for float32)."""
    writer = GGUFWriter(path, source.fields["general.architecture"].contents())
    for key, field in source.fields.items():
        array = field.types[:1] == [GGUFValueType.ARRAY]
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if array else None)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixed(make, mix, work):
    """Paths of the model, and of the same in float32."""
    models = {}
    for kind in {"F32"}.union(*mix):
        path = os.path.join(work, kind + ".gguf")
        must_run(make, *SHAPE, "--type", kind, "-o", path)
        models[kind] = GGUFReader(path)
    tensors, plain = [], []
    by_name = {kind: {t.name: t for t in m.tensors} for kind, m in models.items()}
    for t in models["F32"].tensors:
        part = re.fullmatch(r"blk\.(\d+)\.ffn_(\w+)\.weight", t.name)
        if part and part[2] in PARTS:
            t = by_name[mix[int(part[1])][PARTS.index(part[2])]][t.name]
        tensors.append((t.name, t.data, t.tensor_type))
        plain.append((t.name, quants.dequantize(t.data, t.tensor_type).astype(np.float32), None))
    paths = [os.path.join(work, name) for name in ("mixed.gguf", "plain.gguf")]
    save(models["F32"], tensors, paths[0])
    save(models["F32"], plain, paths[1])
    return paths


def logits(run, model, isa, work, *options):
    path = os.path.join(work, "logits")
    must_run(run, "logits", model, "--ids", ",".join(map(str, IDS)), "--kv", "f32", *options, "-o", path, isa=isa)
    return np.fromfile(path, np.float32).reshape(len(IDS), -1)


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    run, make = map(os.path.abspath, sys.argv[1:])
    failures = 0
    for mix in MIXES:
        with tempfile.TemporaryDirectory() as work:
            model, plain = mixed(make, mix, work)
            exact = logits(run, plain, "ref", work)
            for isa in ("ref", ""):
                for ubatch in ("512", "1"):
                    nmse = compare(exact, logits(run, model, isa, work, "--ubatch", ubatch))["nmse"]
                    good = nmse < NMSE.get(isa, 2e-2)
                    failures += not good
                    print(f"{'ok   ' if good else 'WRONG'} {mix[0][0]} ..., {isa or 'best'}, steps of {ubatch}: nmse {nmse:.2e}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
