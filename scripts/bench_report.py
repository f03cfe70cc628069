#!/usr/bin/env python3
"""Turns what scripts/bench-peers measured (a folder of rounds) into tables and a roofline.

Prints Markdown; with --out FOLDER also writes FOLDER/cpu-CLASS[-LEVEL][-8b].md, .json and .svg. Records no
host name and no path: results are meant to be shared. Input: about.json, peaks*.json, and for each row
a folder with row.json and ENGINE-N.json as the programs printed them (ENGINE: oato, llama.cpp, ik).
"""
import argparse
import glob
import json
import os
import re
import statistics
import sys

from bench_roofline import roofline

ENGINES = {"oato": "oato-run", "llama.cpp": "llama.cpp", "ik": "ik_llama.cpp"}
UBATCH = 512  # tokens of a step of prefill: the weights are read once for so many
MEMORY_SLACK = 1.05

# What must hold on a class of machine: (ratio to the peer, share of the read bandwidth or None,
# multiple of our own single sequence or None). The classes without a column of their own are held to
# that of AVX2.
PEER = {"amx": "llama.cpp", "avx512-vnni": "llama.cpp", "avx2": "ik"}
TARGETS = {
    "amx": {
        ("1b-Q4_0", "decode"): (1.05, 0.92, None), ("1b-Q8_0", "decode"): (1.05, 0.92, None),
        ("1b-F16", "decode"): (1.05, 0.92, None), ("1b-BF16", "decode"): (1.05, 0.92, None),
        ("1b-Q4_K", "decode"): (1.5, None, None), ("1b-Q4_K_M", "decode"): (1.5, None, None),
        ("1b-Q5_K", "decode"): (1.5, None, None), ("1b-Q6_K", "decode"): (1.5, None, None),
        ("smollm2-Q4_1", "decode"): (1.0, None, None), ("1b-Q4_0-4k", "decode"): (1.2, 0.8, None),
        ("1b-Q4_0", "prefill"): (4, None, None), ("1b-Q8_0", "prefill"): (4, None, None),
        ("1b-Q4_K_M", "prefill"): (4, None, None), ("1b-F16", "prefill"): (8, None, None),
        ("1b-BF16", "prefill"): (8, None, None), ("smollm2-Q4_1", "prefill"): (2.5, None, None),
        ("1b-Q4_0-batch8", "decode"): (1.5, None, 4),
    },
    "avx512-vnni": {
        ("1b-Q4_0", "decode"): (1.8, 0.85, None), ("1b-Q8_0", "decode"): (1.7, 0.85, None),
        ("1b-F16", "decode"): (1.5, 0.85, None), ("1b-BF16", "decode"): (1.5, 0.85, None),
        ("1b-Q4_K", "decode"): (1.7, None, None), ("1b-Q4_K_M", "decode"): (1.7, None, None),
        ("1b-Q5_K", "decode"): (1.7, None, None), ("1b-Q6_K", "decode"): (1.7, None, None),
        ("smollm2-Q4_1", "decode"): (1.5, None, None), ("1b-Q4_0-4k", "decode"): (5, 0.8, None),
        ("1b-Q4_0", "prefill"): (3.2, None, None), ("1b-Q8_0", "prefill"): (4.5, None, None),
        ("1b-Q4_K_M", "prefill"): (2.6, None, None), ("1b-F16", "prefill"): (1.7, None, None),
        ("1b-BF16", "prefill"): (1.7, None, None), ("smollm2-Q4_1", "prefill"): (5.5, None, None),
        ("1b-Q4_0-batch8", "decode"): (2.5, None, 4),
    },
    "avx2": {
        ("1b-Q4_0", "decode"): (1.2, None, None), ("1b-Q8_0", "decode"): (1.2, None, None),
        ("1b-F16", "decode"): (1.1, None, None), ("1b-BF16", "decode"): (1.1, None, None),
        ("1b-Q4_K", "decode"): (1.15, None, None), ("1b-Q4_K_M", "decode"): (1.15, None, None),
        ("1b-Q5_K", "decode"): (1.15, None, None), ("1b-Q6_K", "decode"): (1.15, None, None),
        ("smollm2-Q4_1", "decode"): (1.05, None, None), ("1b-Q4_0-4k", "decode"): (1.2, None, None),
        ("1b-Q4_0", "prefill"): (1.15, None, None), ("1b-Q8_0", "prefill"): (1.15, None, None),
        ("1b-Q4_K_M", "prefill"): (1.15, None, None), ("1b-F16", "prefill"): (1.1, None, None),
        ("1b-BF16", "prefill"): (1.1, None, None), ("smollm2-Q4_1", "prefill"): (1.1, None, None),
    },
}
LEVEL_OF_CLASS = {"amx": "amx", "avx512-vnni": "avx512", "avx512": "avx512", "avx-vnni": "avxvnni", "avx2": "avx2"}


def load(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    # llama-batched-bench prints one object a line among empty ones.
    return json.loads(text if text.lstrip().startswith("[") else text.strip().splitlines()[-1])


def speeds(engine, result):
    """{phase: tokens/s} of one run, whichever program printed it."""
    if engine != "llama.cpp":
        return {ph: result[ph]["tokens_per_s"] for ph in ("prefill", "decode") if result[ph]["tokens"]}
    if isinstance(result, dict):
        return {"decode": result["speed_tg"]}
    return {"prefill" if r["n_prompt"] else "decode": r["avg_ts"] for r in result}


def bandwidth_beside(path):
    """Bytes a second that could be read around a run: the mean of before and after it."""
    with open(path + ".read", encoding="utf-8") as f:
        return statistics.mean(json.loads(line)["read_bytes_per_s"] for line in f)


def read_row(folder):
    """row.json with `runs`, {engine: [result of each round]}, `joules` and, of ours, `read` beside it."""
    with open(os.path.join(folder, "row.json"), encoding="utf-8") as f:
        row = json.load(f)
    row["runs"], row["joules"], row["read"] = {}, {}, []
    for engine in ENGINES:
        files = glob.glob(os.path.join(glob.escape(folder), engine + "-*.json"))
        files.sort(key=lambda p: int(re.search(r"-(\d+)\.json$", p).group(1)))
        if files:
            row["runs"][engine] = [load(p) for p in files]
        if engine == "oato":
            row["read"] = [bandwidth_beside(p) for p in files]
        joules = [load(p + ".energy") * 1e-6 for p in files if os.path.exists(p + ".energy")]
        joules = [j for j in joules if j > 0]  # the counter wraps
        if joules:
            row["joules"][engine] = statistics.median(joules)
    return row


def token_cost(row, phase, work):
    """(operations, bytes) of a token: what any program has to compute and to read."""
    if phase == "prefill":
        n = row["prefill"]
        steps = (n + UBATCH - 1) // UBATCH
        ops = work["prefill_operations"] + work["attention_operations"] * (n + 1) / 2
        return ops, work["weight_bytes"] * steps / n
    positions = row["depth"] + (row["generate"] + 1) / 2
    return (work["decode_operations"] + work["attention_operations"] * positions,
            work["weight_bytes"] / row["batch"] + work["position_bytes"] * positions)


def prefill_peak(model, level, peaks):
    """The kind of instruction that limits prefill of a weight type at a level."""
    if level == "amx":
        return "bf16"
    if re.search(r"-BF16\.gguf$", model):
        return max((k for k in ("f32", "bf16") if k in peaks), key=peaks.get)
    return "f32" if re.search(r"-F(16|32)\.gguf$", model) else "int8"


def percent(share):
    return f"{100 * share:.0f} %"


def judge(entry, target, peer, singles):
    """What must hold, in words, and whether it does; None when a number for it is missing."""
    ratio, share, multiple = target
    asked = [f"≥ {ratio:g} × {ENGINES[peer]}"]
    held = [entry["ratio"][peer] >= ratio if peer in entry["ratio"] else None]
    if share:
        asked.append(f"≥ {percent(share)} of the bandwidth")
        held.append(entry["share"]["oato"] >= share)
    if multiple:
        single = singles.get(entry["name"].replace("-batch8", ""))
        asked.append(f"≥ {multiple} × our single")
        held.append(entry["median"]["oato"] >= multiple * single if single else None)
    if peer != "ik" and "ik" in entry["ratio"]:
        asked.append(f"≥ {ENGINES['ik']}")
        held.append(entry["ratio"]["ik"] >= 1)
    verdict = False if False in held else None if None in held else True
    return ", ".join(asked), verdict


def entries_of(row, peaks, level):
    """One entry for each phase that the row measured."""
    out = []
    multiply = peaks["operations_per_s"][level]
    work = row["runs"]["oato"][0]["work"]
    for phase in ("prefill", "decode"):
        rates = {e: [speeds(e, r)[phase] for r in runs] for e, runs in row["runs"].items()
                 if all(phase in speeds(e, r) for r in runs)}
        if "oato" not in rates:
            continue
        ops, read = token_cost(row, phase, work)
        limit = prefill_peak(row["model"], level, multiply) if phase == "prefill" else "read"
        # Of each round its own bandwidth; the peers' rounds are beside ours.
        limits = [multiply[limit] / ops if phase == "prefill" else bandwidth / read for bandwidth in row["read"]]
        median = {e: statistics.median(v) for e, v in rates.items()}
        out.append({"name": row["name"], "phase": phase, "model": row["model"],
                    "tokens": row["prefill" if phase == "prefill" else "generate"],
                    "depth": row["depth"], "batch": row["batch"], "tokens_per_s": rates, "median": median,
                    "ratio": {e: median["oato"] / v for e, v in median.items() if e != "oato" and v > 0},
                    "limit": limit,
                    "share": {e: statistics.median(v / peak for v, peak in zip(rates[e], limits)) for e in median},
                    "read_bytes_per_s": row["read"],
                    "operations_per_byte": ops / read,
                    "operations_per_s": {e: v * ops for e, v in median.items()}})
    return out


def memory_of(row):
    runs = row["runs"]["oato"]
    kv = runs[0]["kv_bytes"]
    peak = max(r["peak_rss_bytes"] for r in runs)
    allowed = MEMORY_SLACK * (row["file_bytes"] + kv)
    return {"name": row["name"], "file_bytes": row["file_bytes"], "kv_bytes": kv, "peak_bytes": peak,
            "allowed_bytes": round(allowed), "holds": peak <= allowed}


def read_peaks(folder):
    """The best of what was measured before and after the rows: a shared host gives less at times."""
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "peaks*.json")))
    if not files:
        sys.exit(f"{folder}: the peaks of the machine were not measured")
    best, *others = [load(p) for p in files]
    for other in others:
        best["read_bytes_per_s"] = max(best["read_bytes_per_s"], other["read_bytes_per_s"])
        for level, kinds in best["operations_per_s"].items():
            for kind in kinds:
                kinds[kind] = max(kinds[kind], other["operations_per_s"][level][kind])
    return best


def summarise(folder):
    """Everything that is known, as one object."""
    with open(os.path.join(folder, "about.json"), encoding="utf-8") as f:
        about = json.load(f)
    peaks = read_peaks(folder)
    rows = [read_row(os.path.dirname(p)) for p in glob.glob(os.path.join(glob.escape(folder), "*", "row.json"))]
    rows = sorted((r for r in rows if "oato" in r["runs"]), key=lambda r: r["place"])
    if not rows:
        sys.exit(f"{folder}: no row was measured")
    level = about["isa"] or LEVEL_OF_CLASS.get(about["class"], "")
    # A level that was not built is held to the best that was.
    known = peaks["operations_per_s"]
    if not known:
        sys.exit(f"{folder}: the machine's multiply peaks are not known; the report is for x86-64")
    if level not in known:
        level = list(known)[-1]
    column = about["class"] if not about["isa"] or about["isa"] == LEVEL_OF_CLASS.get(about["class"]) else about["isa"]
    column = column if column in TARGETS else "avx2"
    entries = [e for r in rows for e in entries_of(r, peaks, level)]
    singles = {e["name"]: e["median"]["oato"] for e in entries if e["phase"] == "decode"}
    for e in entries:
        target = TARGETS[column].get((e["name"], e["phase"]))
        e["target"], e["holds"] = judge(e, target, PEER[column], singles) if target else (None, None)
    return {**about, "level": level, "targets_of": column,
            "rounds": min(len(runs) for r in rows for runs in r["runs"].values()), "peaks": peaks,
            "rows": entries, "memory": [memory_of(r) for r in rows],
            "joules_per_run": {r["name"]: r["joules"] for r in rows if r["joules"]}}


def label(e, short=False):
    kind = re.search(r"[-.]((?:BF|F|Q)\d+(?:_[0-9A-Z]+)*)\.gguf$", e["model"])
    shape = {"smollm2": "SmolLM2", "1b": "1B", "8b": "8B"}.get(e["name"].split("-")[0])
    what = f"{shape} {kind.group(1)}" if shape and kind else e["model"].removesuffix(".gguf")
    if e["phase"] == "prefill":
        return f"prefill {e['tokens']}, {what}"
    if e["batch"] > 1:
        return f"{e['batch']} sequences, {what}" if short else f"decode of {e['batch']} sequences, {what}"
    return f"decode at {e['depth']}, {what}" if e["depth"] else f"decode, {what}"


def verdict(holds):
    return {True: "holds", False: "**missed**", None: ""}[holds]


def speed_table(s):
    peers = [p for p in ENGINES if p != "oato" and any(p in e["median"] for e in s["rows"])]
    head = ["tokens/s"] + [ENGINES[p] for p in ["oato"] + peers] + ["÷ " + ENGINES[p] for p in peers]
    head += ["share of the limit", "target", ""]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for e in s["rows"]:
        cells = [label(e)]
        for p in ["oato"] + peers:
            v = e["tokens_per_s"].get(p)
            cells.append(f"{e['median'][p]:.1f} ({min(v):.1f} to {max(v):.1f})" if v else "–")
        cells += [f"{e['ratio'][p]:.2f}" if p in e["ratio"] else "–" for p in peers]
        cells += [f"{percent(e['share']['oato'])} {e['limit']}", e["target"] or "–", verdict(e["holds"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def memory_table(s):
    lines = ["| MiB | file | KV | peak of oato-run | allowed: 1.05 × (file + KV) | |", "|---|---|---|---|---|---|"]
    for m in s["memory"]:
        cells = [f"{m[k] / 2**20:.0f}" for k in ("file_bytes", "kv_bytes", "peak_bytes", "allowed_bytes")]
        lines.append(f"| {m['name']} | " + " | ".join(cells) + f" | {verdict(m['holds'])} |")
    return lines


def energy_text(s):
    if not s["joules_per_run"]:
        return ["Energy: not readable here."]
    lines = ["Energy of the processor packages in one run, loading included (medians):", "",
             "| J | " + " | ".join(ENGINES.values()) + " |", "|---|" + "---|" * len(ENGINES)]
    for name, joules in s["joules_per_run"].items():
        lines.append(f"| {name} | " + " | ".join(f"{joules[e]:.1f}" if e in joules else "–" for e in ENGINES) + " |")
    return lines


def peaks_text(s):
    names = {"int8": "TOP/s int8", "int16": "TOP/s int16", "f32": "TFLOP/s float32", "bf16": "TFLOP/s bf16"}
    level = s["peaks"]["operations_per_s"][s["level"]]
    peaks = ", ".join(f"{v / 1e12:.2f} {names[k]}" for k, v in level.items())
    return (f"Peaks of the machine, {s['threads']} threads busy: {s['peaks']['read_bytes_per_s'] / 1e9:.1f} GB/s read "
            f"from {s['peaks']['buffer_bytes'] / 2**30:.1f} GiB; at level {s['level']} {peaks}.")


def file_name(s):
    return "-".join(["cpu", s["class"]] + [s["isa"]] * bool(s["isa"]) + [s["suite"]] * (s["suite"] in ("8b", "types")))


def markdown(s):
    rounds = f"{s['rounds']} alternating round" + ("s" if s["rounds"] > 1 else "")
    forced = f", our level forced to {s['isa']}" if s["isa"] else ""
    missed = [e for e in s["rows"] if e["holds"] is False] + [m for m in s["memory"] if not m["holds"]]
    judged = [e for e in s["rows"] if e["holds"] is not None] + s["memory"]
    lines = [f"# {s['class']}: oato-run and its peers", "",
             f"{s['cpu']}, class {s['class']}{forced}, {s['threads']} threads each, {rounds}, "
             f"load before {s['load_before']}, revision {s['revision']}; medians (lowest to highest round).",
             peaks_text(s) + " Shares of the bandwidth are of what could be read around each round of ours.",
             f"Targets that hold: {len(judged) - len(missed)} of {len(judged)}.", "",
             f"![roofline]({file_name(s)}.svg)", ""]
    lines += speed_table(s) + [""] + memory_table(s) + [""] + energy_text(s)
    return "\n".join(lines + ["", f"Made by `{s['command']}`.", ""])


def picture(s):
    marks = [{"label": label(e, short=True), "x": e["operations_per_byte"],
              "y": {ENGINES[k]: [v] for k, v in e["operations_per_s"].items()}} for e in s["rows"]]
    title = f"{s['cpu']}, {s['class']}, {s['threads']} threads" + (f", level {s['isa']}" if s["isa"] else "")
    return roofline(title, s["peaks"]["read_bytes_per_s"], s["peaks"]["operations_per_s"][s["level"]], marks)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--out")
    a = p.parse_args()
    s = summarise(a.folder)
    text = markdown(s)
    print(text)
    if not a.out:
        return
    os.makedirs(a.out, exist_ok=True)
    for suffix, content in ((".md", text), (".json", json.dumps(s, indent=1) + "\n"), (".svg", picture(s))):
        with open(os.path.join(a.out, file_name(s) + suffix), "w", encoding="utf-8") as f:
            f.write(content)


if __name__ == "__main__":
    main()
