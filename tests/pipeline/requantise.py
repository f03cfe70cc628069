#!/usr/bin/env python3
"""A model with all its matrices in one type: what they say in the file, requantised by the gguf package.

  requantise.py MODEL.gguf TYPE OUT.gguf     such as Q4_0, Q8_0, F16
"""
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType, quants

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from grow_arch import rewrite  # pylint: disable=wrong-import-position


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    model, name, out = sys.argv[1:]
    kind = GGMLQuantizationType[name]

    def change(t):
        if len(t.shape) < 2:
            return t.name, t.data, t.tensor_type
        values = quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        return t.name, quants.quantize(values, kind), kind

    rewrite(model, out, change)
    return 0


if __name__ == "__main__":
    sys.exit(main())
