"""Turns a model with ReLU into one as PowerInfer's converter writes it (facts of its repository): magic PWRI, ffn_down
transposed as ffn_down_t with its bias, predictors fc1 and fc2; and into a twin with the same values as other files have them.
Predicted is the twin with the predictors' neurons alone, in float32."""

import numpy as np
from gguf import GGMLQuantizationType, quants

from grow_arch import rewrite
from llama_numpy import Model

RANK, THRESHOLD = 32, 0.25
F32 = GGMLQuantizationType.F32


def twins(model, powerinfer, plain, kind, layers, width, ffn):
    """kind: the type of ffn_down_t. Returns the predictors by their names."""
    rng = np.random.default_rng(3)

    def transposed(t):
        x = np.ascontiguousarray(quants.dequantize(t.data, t.tensor_type).T.astype(np.float32))
        return quants.quantize(x, kind) if kind != F32 else x

    def theirs(t):
        if t.name.endswith("ffn_down.weight"):
            return t.name.replace("ffn_down", "ffn_down_t"), transposed(t), kind
        return t.name.replace("ffn_down.bias", "ffn_down_t.bias"), t.data, t.tensor_type

    def ours(t):
        if t.name.endswith("ffn_down.weight"):
            return t.name, np.ascontiguousarray(quants.dequantize(transposed(t), kind).T.astype(np.float32)), F32
        return t.name, t.data, t.tensor_type

    predictors = [(f"blk.{i}.{name}.weight", rng.normal(0, 0.1, shape).astype(np.float32), F32)
                  for i in range(layers) for name, shape in (("fc1", (RANK, width)), ("fc2", (ffn, RANK)))]
    rewrite(model, plain, ours)
    rewrite(model, powerinfer, theirs, predictors, [("powerinfer.sparse_threshold", THRESHOLD)])
    with open(powerinfer, "r+b") as f:
        f.write(b"PWRI")
    return {name: data for name, data, _ in predictors}


class Predicted(Model):
    def __init__(self, plain, predictors):
        super().__init__(plain)
        self.predictors, self.kept = predictors, []

    def ffn(self, x, blk):
        fc1, fc2 = (self.predictors[f"{blk}{name}.weight"] for name in ("fc1", "fc2"))
        self.mask = np.maximum(x @ fc1.T, 0) @ fc2.T > THRESHOLD
        self.kept.append(self.mask.mean())
        return super().ffn(x, blk)

    def activate(self, gate):
        return super().activate(gate) * self.mask
