#!/usr/bin/env python3
"""scripts/bench-serve against oato-serve alone: every request of both kinds of load is answered.

usage: test_bench_serve.py FOLDER   (has oato-serve); 77: there is no model
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(os.environ.get("OATO_CACHE") or os.path.expanduser("~/.cache/oato"),
                     "models/SmolLM2-135M-Instruct.Q4_1.gguf")


def bench(*options):
    command = [f"{ROOT}/scripts/bench-serve", "--bin", sys.argv[1], "--no-peer", "-r", "1", "--requests", "4",
               "--scale", "0.05", "-t", "1", "--json", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300).stdout)


if not os.path.isfile(MODEL):
    sys.exit(1 if os.environ.get("OATO_REQUIRE_MODEL") else 77)
runs = bench("--clients", "2", "--policies", "swap") + bench("--rate", "20", "--cv", "2", "--shared", "64")
assert [(r["server"], r["load"]) for r in runs] == [("swap", "2 clients"), ("adaptive", "20/s, CV 2")], runs
for r in runs:
    assert r["failed"] == 0 and r["preemptions"] == 0 and r["tokens_per_s"] > 0, r
    assert 0 < r["ttft_p50_s"] <= r["ttft_p95_s"] and r["turnaround_ms"] > 0, r
