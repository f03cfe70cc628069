"""Turns what scripts/bench-gpu measured into gpu.md, gpu.json and gpu.svg.

Records no host name and no path: results are meant to be shared. What was not measured is named, and
has no number.
"""
import json
import os

from bench_report import percent, verdict
from bench_roofline import roofline

# What must hold. Of all on the GPU, by type: decode over llama.cpp's, and its share of the bandwidth
# that a copy reaches; prefill of both lengths over llama.cpp's. Of a request with a share of the
# weights there: over --fit on. Of a large matrix-vector product: share of a copy's bandwidth.
DECODE = {"Q4_0": (1.5, None), "Q4_K_M": (1.5, None), "F16": (1.2, 0.7)}
PREFILL = 1.0
HYBRID = {0.10: 1.0, 0.25: 1.15, 0.5: 1.25, 0.75: 1.45}
LARGE_PRODUCT, LARGE_BYTES = 0.8, 30e6
PREDICTION = 0.10
PERPLEXITY, KL = 0.005, 0.0039
IDLE = 0.10  # of a hybrid decode step that the CPU bounds
FIT = "--fit on"
DRAWN = ("Q4_0", "Q4_K", "F16")  # in the picture


def row(*cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def head(*names):
    return [row(*names), "|" + "---|" * len(names)]


def within(ratios, limit):
    """Whether predicted / measured is; None without numbers."""
    if not ratios:
        return None
    return all(1 - limit <= r <= 1 + limit for r in ratios.values())


def predicted(ratios):
    return ", ".join(f"{phase} {r:.2f}" for phase, r in ratios.items()) if ratios else "–"


def by_library(case):
    """Whether cuBLAS computed it, as its class says: f16.cublas."""
    return "." in case["class"]


def library_words(kernels):
    """Of cuBLAS, whose version bench-cuda says: 130000 for 13.0.0, 0 where there is none."""
    version = kernels.get("cublas")
    if version is None:
        return []
    if not version:
        return ["cuBLAS was not found: F16 and BF16 products of many rows have nothing beside them.", ""]
    return [f"Of F16 and BF16 products of many rows cuBLAS {version // 10000}.{version // 100 % 100}.{version % 100} "
            "stands behind ours, with our packing of the input.", ""]


def kernel_lines(kernels):
    copy = kernels["copy_bytes_per_s"]
    lines = ["## Kernels", "",
             f"A copy within the GPU's memory moves {copy / 1e9:.0f} GB/s, read and written. A product's GB/s are of its "
             f"weights; in percent of a copy's. Packing the input counts; of one row, (in brackets) where the norm before "
             f"it has done that, as in decode. Those of one row that read more than {LARGE_BYTES / 1e6:.0f} MB must reach "
             f"{percent(LARGE_PRODUCT)} by themselves, without packing.", ""]
    lines += library_words(kernels)
    rows = sorted({c["rows"] for c in kernels["cases"]})
    lines += head("product", *(f"{r} row{'s' * (r > 1)}" for r in rows), "")
    products, beside = {}, {}
    for c in kernels["cases"]:
        into = beside if by_library(c) else products
        into.setdefault(c["op"].rsplit("/t", 1)[0], {})[c["rows"]] = c
    for name, cases in products.items():
        cells = []
        for r in rows:
            c, library = cases.get(r), beside.get(name, {}).get(r)
            if not c:
                cells.append("–")
            elif r <= 16:
                cells.append(f"{c['bytes_per_s'] / 1e9:.0f} GB/s, {percent(c['of_copy'])}" +
                             (f" ({percent(c['packed_of_copy'])})" if "packed_of_copy" in c else ""))
            else:
                cells.append(f"{c['flops_per_s'] / 1e12:.1f} TFLOP/s" +
                             (f", cuBLAS {library['flops_per_s'] / 1e12:.1f}" if library else ""))
        one = cases.get(1)
        holds = None
        if one and one["bytes"] > LARGE_BYTES:
            holds = one.get("packed_of_copy", one["of_copy"]) >= LARGE_PRODUCT
        lines.append(row(name, *cells, verdict(holds)))
    return lines + [""] + other_lines(kernels.get("others"))


def other_lines(others):
    """Attention, the choice of candidates, products with active neurons; bytes are of weights, KV or logits."""
    if not others:
        return []
    lines = head("other kernels", "µs", "GB/s, in percent of a copy's", "TFLOP/s")
    for c in others:
        read = "–" if c["flops_per_s"] else f"{c['bytes_per_s'] / 1e9:.0f} GB/s, {percent(c['of_copy'])}"
        lines.append(row(c["op"], f"{c['ns'] / 1e3:.1f}", read,
                         f"{c['flops_per_s'] / 1e12:.1f}" if c["flops_per_s"] else "–"))
    return lines + [""]


def full_lines(steps, copy):
    lines = ["## All on the GPU", ""]
    lines += head("model", "tokens/s", "oato-run", "llama.cpp", "÷ llama.cpp", "share of a copy's bandwidth",
                  "predicted / measured", "target", "")
    for name, step in steps.items():
        if not name.startswith("full-") or step["state"] != "done":
            continue
        kind, r = name[len("full-"):], step["result"]
        ours, peer = r["oato"], r.get("llama.cpp", {})
        ratio_wanted, share_wanted = DECODE.get(kind, (None, None))
        for phase, words in (("decode", "decode"), ("prefill", f"prefill {r['prompt']}"), ("long", f"prefill {r['long']}")):
            if phase not in ours:
                continue
            ratio = ours[phase] / peer[phase] if peer.get(phase) else None
            share = ours[phase] * r["weight_bytes"] / copy if phase == "decode" and copy else None
            wanted = ratio_wanted if phase == "decode" else PREFILL
            target = [f"≥ {wanted:g} × llama.cpp"] if wanted else []
            held = [ratio >= wanted] if wanted and ratio else [None]
            if phase == "decode" and share_wanted:
                target.append(f"≥ {percent(share_wanted)}")
                held.append(share >= share_wanted if share else None)
            guess = {p: v for p, v in (r.get("predicted_over_measured") or {}).items() if p == phase}
            lines.append(row(kind, words, f"{ours[phase]:.1f}", f"{peer[phase]:.1f}" if ratio else "–",
                             f"{ratio:.2f}" if ratio else "–", percent(share) if share else "–", predicted(guess),
                             ", ".join(target) or "–",
                             verdict(False if False in held else None if None in held else True)))
    return lines + [""]


def cpu_bound(hybrid):
    """Whether a decode step has the CPU work longer than the GPU, as planned."""
    return hybrid["decode_ns"].get("cpu:0", 0) > hybrid["decode_ns"].get("cuda:0", 0)


def hybrid_lines(steps):
    done = [s["result"] for n, s in steps.items() if n.startswith("hybrid-") and s["state"] == "done"]
    if not done:
        return []
    r = done[0]
    lines = ["## Part of the weights on the GPU", "",
             f"A request of {r['prompt']} tokens that generates {r['generate']}, in seconds. The GPU's memory is held to so "
             "much of the weights' bytes, all included (of placements set by hand only weights and KV are counted, which "
             f"favours them). Where the plan has the CPU work longer than the GPU, it must idle less than {percent(IDLE)} of a "
             "decode step.", ""]
    lines += head("weights' bytes on the GPU", "oato-run", "llama.cpp `--fit on`", "its best by hand", "÷ `--fit on`",
                  "÷ by hand", "CPU idle", "predicted / measured", "target", "")
    for r in sorted(done, key=lambda r: r["share"]):
        s = r["request_s"]
        fit = s.get(FIT)
        by_hand = min(((t, n) for n, t in s.items() if n not in ("oato", FIT)), default=None)
        wanted = HYBRID.get(r["share"])
        holds = fit / s["oato"] >= wanted if fit and wanted else None
        if cpu_bound(r) and r["cpu_idle"] >= IDLE:
            holds = False
        lines.append(row(percent(r["share"]), f"{s['oato']:.3f}", f"{fit:.3f}" if fit else "–",
                         f"{by_hand[0]:.3f} ({by_hand[1]})" if by_hand else "–",
                         f"{fit / s['oato']:.2f}" if fit else "–",
                         f"{by_hand[0] / s['oato']:.2f}" if by_hand else "–", percent(r["cpu_idle"]),
                         predicted(r.get("predicted_over_measured")),
                         f"≥ {wanted:g} × --fit on" if wanted else "–", verdict(holds)))
    return lines + [""]


def check_lines(steps):
    lines = []
    tests = steps.get("tests", {}).get("result")
    if tests:
        lines.append("- Tests on the GPU: " + ", ".join(f"{n} {t['passed']} passed, {t['failed']} failed"
                                                        for n, t in tests.items()) + ".")
    sanitizer = steps.get("sanitizer", {}).get("result")
    for name, words in (sanitizer or {}).items():
        lines.append(f"- compute-sanitizer, {name}: {words}")
    logits = steps.get("logits", {}).get("result")
    if logits:
        lines.append(f"- Logits of {logits['rows']} tokens of a random model, all on the GPU against all on the CPU: KL divergence "
                     f"{logits['kl']:.2g}, NMSE {logits['nmse']:.2g}, the same best token in {percent(logits['same_top'])}.")
    agreement = steps.get("agreement", {}).get("result")
    if agreement:
        cpu = agreement["CPU"]["perplexity_ratio"]
        for r in agreement.values():
            off = abs(r["perplexity_ratio"] / cpu - 1)
            holds = r["kl"] <= KL and off <= PERPLEXITY and r["same_bits"]
            lines.append(f"- The trained model, {percent(r['on_gpu'])} of its memory on the GPU, {r['rows']} tokens of a text: KL divergence "
                         f"from the float32 evaluation {r['kl']:.2g}, at most {KL:g}; perplexity {100 * off:.2f} % from the CPU's, at "
                         f"most {100 * PERPLEXITY:g} %; {'the same bits' if r['same_bits'] else 'different bits'} in {r['runs']} runs "
                         f"({verdict(holds)}).")
    guesses = {n: s["result"].get("predicted_over_measured") for n, s in steps.items()
               if s["state"] == "done" and n.startswith(("full-", "hybrid-"))}
    judged = {n: within(g, PREDICTION) for n, g in guesses.items() if g}
    if judged:
        lines.append(f"- Predictions within {percent(PREDICTION)}: {sum(judged.values())} of {len(judged)}.")
    missing = [f"{n}: {s['why']}" for n, s in steps.items() if s["state"] != "done"]
    lines += [f"- Not measured: {words}" for words in missing]
    return (["## Checks", ""] + lines + [""]) if lines else []


def title_of(about):
    return about.get("gpu", {}).get("name") or next((d.strip() for d in about.get("devices", []) if "cuda" in d), "GPU")


def markdown(content):
    about, steps = content["about"], content["steps"]
    gpu = about.get("gpu", {})
    kernels = steps.get("kernels", {}).get("result")
    lines = [f"# {title_of(about)}: oato-run and llama.cpp", ""]
    if about.get("quick") or about.get("emulated"):
        lines += ["**A trial on tiny models: no number here says how fast anything is.**", ""]
    facts = [f"driver {gpu['driver_version']}" if gpu else "", f"{gpu['clocks.max.sm']} MHz at most" if gpu else "",
             f"{gpu['memory.total']} MiB" if gpu else "", f"{about.get('threads')} threads of {about.get('cpu')}",
             f"revision {about.get('revision')}", str(about.get("date"))]
    lines += ["; ".join(f for f in facts if f) + ". Medians; ratios are of one run.", ""]
    if kernels:
        lines += ["![kernels](gpu.svg)", ""]
    lines += full_lines(steps, kernels and kernels["copy_bytes_per_s"]) if any(n.startswith("full-") for n in steps) else []
    lines += hybrid_lines(steps)
    lines += kernel_lines(kernels) if kernels else []
    lines += check_lines(steps)
    return "\n".join(lines + ["Made by `scripts/bench-gpu`.", ""])


def picture(content):
    """The products of the types that are drawn, below the bandwidth of a copy and the fastest of them."""
    kernels = content["steps"].get("kernels", {}).get("result")
    if not kernels or not kernels["cases"]:
        return None
    marks = {}  # by type and rows: of all shapes together
    for c in kernels["cases"]:
        if c["type"] in DRAWN and not by_library(c):
            operations = 2 * c["k"] * c["n"] * c["rows"]
            x, y = marks.setdefault((c["type"], c["rows"]), ([], []))
            x.append(operations / c["bytes"])
            y.append(operations / (c["ns"] * 1e-9))
    marks = [{"label": f"{kind}, {rows} row{'s' * (rows > 1)}", "x": sum(x) / len(x), "y": {"oato-run": y}}
             for (kind, rows), (x, y) in marks.items()]
    fastest = max(c["flops_per_s"] for c in kernels["cases"])
    return roofline(f"{title_of(content['about'])}: products", kernels["copy_bytes_per_s"],
                    {"fastest product": fastest}, marks) if marks else None


def write(content, folder):
    """gpu.json, gpu.md and gpu.svg, each by one rename."""
    files = {"gpu.json": json.dumps(content, indent=1) + "\n", "gpu.md": markdown(content), "gpu.svg": picture(content)}
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        if text:
            path = os.path.join(folder, name)
            with open(path + ".partial", "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(path + ".partial", path)
