#!/usr/bin/env python3
"""Writes a tiny random llama model that has everything a real one has: a byte-level BPE vocabulary
that can spell any text, grouped-query attention, quantised weights of several types, a tied
embedding. About 100 KB: for tests that must run the three programs but can wait for nothing.

  tiny_model.py OUT.gguf [SEED]
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter
from gguf.quants import quantize

WIDTH, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 64, 2, 4, 2, 128, 512
# Whole words that the merges below build up from bytes.
WORDS = ["the", "hello", "and", "\u0120world", "\u0120the"]


def byte_characters():
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b if b in plain else next(other)) for b in range(256)]


def vocabulary():
    tokens, merges = byte_characters(), []
    for word in WORDS:
        for i in range(1, len(word)):
            merge = f"{word[:i]} {word[i]}"
            if merge not in merges:
                merges.append(merge)
                tokens.append(word[:i + 1])
    tokens.append("<|endoftext|>")
    return tokens, merges


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    random = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) == 3 else 1)
    tokens, merges = vocabulary()
    w = GGUFWriter(sys.argv[1], "llama")
    w.add_name("tiny")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_vocab_size(len(tokens))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([1] * (len(tokens) - 1) + [3])
    w.add_token_merges(merges)
    w.add_eos_token_id(len(tokens) - 1)
    w.add_add_bos_token(False)

    def matrix(name, rows, k, kind):
        data = random.normal(0, k ** -0.5, (rows, k)).astype(np.float32)
        w.add_tensor(name + ".weight", quantize(data, kind), raw_dtype=kind)

    def norm(name):
        w.add_tensor(name + ".weight", random.normal(1, 0.1, WIDTH).astype(np.float32))

    kv = WIDTH // HEADS * KV_HEADS
    matrix("token_embd", len(tokens), WIDTH, Q.Q8_0)
    for i in range(LAYERS):
        blk = f"blk.{i}."
        norm(blk + "attn_norm")
        norm(blk + "ffn_norm")
        matrix(blk + "attn_q", WIDTH, WIDTH, Q.Q4_0)
        matrix(blk + "attn_k", kv, WIDTH, Q.Q4_0)
        matrix(blk + "attn_v", kv, WIDTH, Q.Q5_1)
        matrix(blk + "attn_output", WIDTH, WIDTH, Q.Q4_1)
        matrix(blk + "ffn_gate", FFN, WIDTH, Q.Q5_0)
        matrix(blk + "ffn_up", FFN, WIDTH, Q.F16)
        matrix(blk + "ffn_down", WIDTH, FFN, Q.BF16)
    norm("output_norm")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
