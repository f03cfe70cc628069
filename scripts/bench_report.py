#!/usr/bin/env python3
"""Turns the rounds of scripts/bench-peers (oato-N.json, llama.cpp-N.json) into a table.

Prints Markdown; with --out FOLDER also writes FOLDER/cpu-CLASS.md and .json. Records no host name
and no path: results are meant to be shared.
"""
import argparse
import json
import os
import re
import statistics
import subprocess

import yaml

CLASSES = [("amx", "amx_int8"), ("avx512-vnni", "avx512_vnni"), ("avx512", "avx512f"),
           ("avx-vnni", "avx_vnni"), ("avx2", "avx2")]


def cpu():
    """Class and model name of this host's processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        text = f.read()
    flags = re.search(r"^flags\s*:(.*)$", text, re.M)
    flags = flags.group(1).split() if flags else []
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    return next((c for c, flag in CLASSES if flag in flags), "other"), name.group(1) if name else "unknown"


def rounds(folder):
    """{engine: {phase: [tokens/s of each round]}} in the order of the rounds."""
    out = {"oato": {"prefill": [], "decode": []}, "llama.cpp": {"prefill": [], "decode": []}}
    i = 1
    while os.path.exists(os.path.join(folder, f"oato-{i}.json")):
        with open(os.path.join(folder, f"oato-{i}.json"), encoding="utf-8") as f:
            ours = json.load(f)
        with open(os.path.join(folder, f"llama.cpp-{i}.json"), encoding="utf-8") as f:
            theirs = json.load(f)
        for phase in ("prefill", "decode"):
            out["oato"][phase].append(ours[phase]["tokens_per_s"])
        for row in theirs:
            out["llama.cpp"]["prefill" if row["n_prompt"] else "decode"].append(row["avg_ts"])
        i += 1
    return out


def bandwidth(path):
    """Bytes/s that the CPU reads, from a profile; None when it does not say."""
    with open(path, encoding="utf-8") as f:
        profile = yaml.safe_load(f)
    for device in profile.get("devices", []):
        if str(device.get("id", device.get("kind", ""))).startswith("cpu"):
            return device.get("read_bytes_per_s")
    return None


def revision():
    r = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
                       cwd=os.path.dirname(os.path.abspath(__file__)))
    return r.stdout.strip() or "unknown"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--model", required=True)
    p.add_argument("--threads", required=True, type=int)
    p.add_argument("--load", default="?")
    p.add_argument("--command", required=True)
    p.add_argument("--profile")
    p.add_argument("--out")
    a = p.parse_args()
    kind, name = cpu()
    measured = rounds(a.folder)
    median = {e: {ph: statistics.median(v) for ph, v in phases.items()} for e, phases in measured.items()}
    result = {"cpu": {"class": kind, "model": name}, "model": a.model, "threads": a.threads,
              "rounds": len(measured["oato"]["decode"]), "load_before": a.load, "revision": revision(),
              "command": a.command, "tokens": {"prefill": 512, "decode": 64},
              "tokens_per_s": measured, "median_tokens_per_s": median,
              "ratio": {ph: median["oato"][ph] / median["llama.cpp"][ph] for ph in ("prefill", "decode")}}
    if a.profile:
        result["read_bytes_per_s"] = bandwidth(a.profile)

    lines = [f"# {a.model} on {kind}: oato-run and llama.cpp", "",
             f"{name}, {a.threads} threads, {result['rounds']} alternating rounds, load before {a.load}, "
             f"revision {result['revision']}; medians (lowest to highest round), tokens/s.", "",
             "| | oato-run | llama.cpp | ratio |", "|---|---|---|---|"]
    for phase, label in (("prefill", "prefill 512"), ("decode", "decode 64")):
        cells = [f"{median[e][phase]:.1f} ({min(v):.1f} to {max(v):.1f})"
                 for e in ("oato", "llama.cpp") for v in [measured[e][phase]]]
        lines.append(f"| {label} | {cells[0]} | {cells[1]} | {result['ratio'][phase]:.2f} |")
    if result.get("read_bytes_per_s"):
        lines += ["", f"Measured read bandwidth: {result['read_bytes_per_s'] / 1e9:.1f} GB/s."]
    lines += ["", f"Made by `{a.command}`.", ""]
    print("\n".join(lines))
    if a.out:
        os.makedirs(a.out, exist_ok=True)
        base = os.path.join(a.out, f"cpu-{kind}")
        with open(base + ".md", "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        with open(base + ".json", "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
