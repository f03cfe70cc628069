#!/usr/bin/env python3
"""Compares two files of logits (raw float32, tokens x vocabulary): NMSE of the second against the
first, mean KL divergence from the first to the second, and how often their top token agrees.

  compare_logits.py REFERENCE OURS --vocab N [--max-nmse X] [--max-kl X] [--min-top1 PERCENT]

Exit status 1 when a limit is missed.
"""
import argparse
import sys

import numpy as np


def compare(reference, ours):
    """Dict of nmse, kl, top1 (fraction) for two arrays of shape (tokens, vocab)."""
    a, b = reference.astype(np.float64), ours.astype(np.float64)
    nmse = ((a - b) ** 2).sum() / (a ** 2).sum()
    la, lb = (x - x.max(axis=1, keepdims=True) for x in (a, b))
    la, lb = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (la, lb))
    kl = (np.exp(la) * (la - lb)).sum(axis=1).mean()
    return {"nmse": nmse, "kl": kl, "top1": (a.argmax(axis=1) == b.argmax(axis=1)).mean()}


def load(path, vocab):
    data = np.fromfile(path, np.float32)
    if data.size == 0 or data.size % vocab:
        sys.exit(f"{path}: {data.size} floats are no whole number of rows of {vocab}")
    if not np.isfinite(data).all():
        sys.exit(f"{path}: holds a number that is not finite")
    return data.reshape(-1, vocab)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("reference")
    p.add_argument("ours")
    p.add_argument("--vocab", type=int, required=True)
    p.add_argument("--max-nmse", type=float)
    p.add_argument("--max-kl", type=float)
    p.add_argument("--min-top1", type=float, help="per cent")
    a = p.parse_args()
    reference, ours = load(a.reference, a.vocab), load(a.ours, a.vocab)
    if reference.shape != ours.shape:
        sys.exit(f"{a.ours}: {ours.shape[0]} rows; {a.reference} has {reference.shape[0]}")
    r = compare(reference, ours)
    print(f"tokens {len(ours)}  nmse {r['nmse']:.3e}  kl {r['kl']:.6f}  top1 {100 * r['top1']:.2f} %")
    bad = (a.max_nmse is not None and not r["nmse"] <= a.max_nmse) \
        or (a.max_kl is not None and not r["kl"] <= a.max_kl) \
        or (a.min_top1 is not None and not 100 * r["top1"] >= a.min_top1)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
