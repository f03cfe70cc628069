#!/usr/bin/env python3
"""A tiny random OPT in Hugging Face's form, for scripts/convert-hf, and its logits by `transformers`.

  opt_hf.py        writes tests/data/opt/logits.npz; needs torch and transformers (see scripts/train-reglu
                   for torch; `pip install "transformers<4.41"` for Debian 12's)

The weights are drawn by numpy, so that only the logits are stored. Matrices are halves: F16 loses nothing.
"""

import json
import os

import numpy as np

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
WIDTH, HEADS, LAYERS, FFN, VOCAB, POSITIONS = 64, 4, 2, 160, 288, 130
CONFIG = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": WIDTH, "num_attention_heads": HEADS,
          "num_hidden_layers": LAYERS, "ffn_dim": FFN, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
          "word_embed_proj_dim": WIDTH, "do_layer_norm_before": True, "activation_function": "relu", "dropout": 0.0,
          "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
MERGES = ["Ġ t", "h e", "i n", "Ġt he", "e r", "a n", "o n", "r e"]


def tensors(seed=7):
    rng = np.random.default_rng(seed)
    shapes = {"embed_tokens.weight": (VOCAB, WIDTH), "embed_positions.weight": (POSITIONS + 2, WIDTH)}
    block = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH), "self_attn.v_proj": (WIDTH, WIDTH),
             "self_attn.out_proj": (WIDTH, WIDTH), "self_attn_layer_norm": (WIDTH,), "fc1": (FFN, WIDTH),
             "fc2": (WIDTH, FFN), "final_layer_norm": (WIDTH,)}
    parts = {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in block.items()}
    parts["final_layer_norm"] = (WIDTH,)
    for name, shape in parts.items():
        shapes[name + ".weight"], shapes[name + ".bias"] = shape, shape[:1]
    return {"model.decoder." + name: rng.normal(0, 0.3, shape).astype(np.float16).astype(np.float32)
            for name, shape in shapes.items()}


def write_safetensors(path, part, kind):
    header, at = {}, 0
    data = {name: x.astype(kind) for name, x in part.items()}
    for name, x in data.items():
        header[name] = {"dtype": "F32" if kind == np.float32 else "F16", "shape": x.shape,
                        "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in data.values()))


def vocabulary():
    """GPT-2's letters for bytes, the merges' tokens and OPT's special ones."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(m.replace(" ", "") for m in MERGES)]
    return {t: i for i, t in enumerate(tokens)}


def write_model(folder):
    t = tensors()
    names = sorted(t)
    write_safetensors(os.path.join(folder, "model-00001-of-00002.safetensors"), {n: t[n] for n in names[::2]}, np.float16)
    write_safetensors(os.path.join(folder, "model-00002-of-00002.safetensors"), {n: t[n] for n in names[1::2]}, np.float32)
    for name, value in (("config.json", CONFIG), ("vocab.json", vocabulary())):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n" + "\n".join(MERGES) + "\n")


def read_ids():
    with open(os.path.join(DATA, "archs", "ids.txt"), encoding="utf-8") as f:
        return [int(i) for i in f.read().split()]


def main():
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    model = OPTForCausalLM(OPTConfig(**CONFIG)).eval()
    state = {name: torch.from_numpy(x) for name, x in tensors().items()}
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys or missing.missing_keys not in ([], ["lm_head.weight"]):
        raise SystemExit(missing)
    model.tie_weights()
    ids = read_ids()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    os.makedirs(os.path.join(DATA, "opt"), exist_ok=True)
    np.savez_compressed(os.path.join(DATA, "opt", "logits.npz"), ids=np.array(ids, np.int32), logits=logits)


if __name__ == "__main__":
    main()
