#!/usr/bin/env python3
"""Starts the real llama-server with what `oato-plan export` says and reads in its log where each
tensor went; run by ctest (label oracle). A loopback rpc-server of the peer stands in for the GPU.

  test_export.py OATO_PLAN OATO_MAKE_MODEL

For the default model and a model of experts that the last program makes, planned for a machine of the library, whose
times no other work on this one can change. Exit status 77 (skipped) without the default model or a peer built by
`scripts/fetch-peer --build llama-server ggml-rpc-server`.
"""
import collections
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import gguf

CACHE = os.environ.get("OATO_CACHE") or os.path.expanduser("~/.cache/oato")
MODEL = os.path.join(CACHE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
PEER = os.path.join(CACHE, "peers", "llama.cpp", "build", "bin")
MACHINE, DEVICE = "rtx3060-laptop", "cuda:0"
# Budget, context and what else is asked for: KV of some layers there, the output too, and weights without KV; then plans
# that have whole tensors of most layers on either side.
WHOLE, ATTENTION, FIT = ["--whole-only", "--minimize", "time-per-token"], ["--solver", "powerinfer"], ["--solver", "fit"]
REQUESTS = (("24MiB", "512"), ("40MiB", "512"), ("40MiB", "8192"), ("60MiB", "512", *WHOLE), ("30MiB", "512", *ATTENTION))
EXPERTS = ("--arch", "qwen3moe", "--layers", "4", "--width", "512", "--ffn", "384", "--heads", "8", "--kv-heads", "4",
           "--head-dim", "64", "--vocab", "2048", "--experts", "32", "--experts-used", "8", "--type", "Q4_0")
EXPERTS_REQUESTS = (("24MiB", "512"), ("30MiB", "512"), ("36MiB", "512"), ("60MiB", "512", *WHOLE),
                    ("30MiB", "512", *FIT))
PATIENCE = 120  # seconds


def must_run(*args):
    r = subprocess.run(args, capture_output=True, text=True, check=False)
    if r.returncode != 0:
        sys.exit(f"{shlex.join(args)}: status {r.returncode}: {r.stderr}")
    return r


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def is_healthy(port):
    """The server listens before it has loaded the model."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_for(ready, port, process):
    for _ in range(10 * PATIENCE):
        if process.poll() is not None:
            sys.exit(f"{shlex.join(process.args)} ended with status {process.returncode}")
        if ready(port):
            return
        time.sleep(0.1)
    sys.exit(f"{shlex.join(process.args)} is not ready after {PATIENCE} s")


def planned(shown, told, model, device_name):
    """Buffer of each tensor: where the larger share of its operator is in decode, the CPU where halves
    are equal; the smallest shares are left on the CPU when all would exceed the budget. The lookup in
    a tied matrix says nothing about it. How many operators are divided comes second."""
    plan, sizes = json.loads(shown), {t.name: int(t.n_bytes) for t in gguf.GGUFReader(model).tensors}
    there = next(d for d in plan["devices"] if d["id"] == DEVICE)
    tensors = {op["op"]: op["tensors"] for op in json.loads(told) if not op["key"].startswith("embed/") and op["tensors"]}
    bytes_of = {op: sum(sizes[t] for t in names) for op, names in tensors.items()}
    share = {}
    for op in tensors:
        parts = [p for p in plan["parts"] if p["op"] == op and p["decode"]]
        share[op] = sum((p["end"] - p["begin"]) * (p["home"] == DEVICE) for p in parts) / sum(p["end"] - p["begin"] for p in parts)
    divided = [op for op in share if 0 < share[op] < 1]
    taken = {op for op in share if share[op] > 0.5}
    others = there["planned_bytes"] - sum(share[op] * bytes_of[op] for op in share)
    while sum(bytes_of[op] for op in taken) > there["budget_bytes"] - max(0, others) and taken & set(divided):
        least = min((op for op in reversed(divided) if op in taken), key=lambda op: share[op])
        layer = least.rpartition(".")[0]
        taken -= {op for op in divided if op.rpartition(".")[0] == layer and share[op] <= share[least]}
    return {name: device_name if op in taken else "CPU" for op, names in tensors.items() for name in names}, len(divided)


def log_of_server(command, rpc_port, folder):
    port = free_port()
    words = shlex.split(command)
    words[0] = os.path.join(PEER, words[0])
    # First, because -dev and -ot know only the devices that were named before them.
    words[1:1] = ["--rpc", f"127.0.0.1:{rpc_port}", "--host", "127.0.0.1", "--port", str(port), "-v", "--no-warmup"]
    path = os.path.join(folder, "server.log")
    with open(path, "w", encoding="utf-8") as log:
        server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(is_healthy, port, server)
        finally:
            server.kill()
            server.wait()
    with open(path, encoding="utf-8", errors="replace") as log:
        return log.read()


def placed_by_server(log, tensors, device_name):
    """Where each tensor went. A layer's are on its device unless the log says that they were overridden."""
    layers = {int(n): d for n, d in re.findall(r"layer +(\d+) assigned to device (\S+),", log)}
    moved = dict(re.findall(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)", log))
    found = {}
    for name in tensors:
        m = re.match(r"blk\.(\d+)\.", name)
        layer = layers[int(m[1])] if m else layers[max(layers)]
        buffer = moved.get(name, device_name if layer.startswith("RPC") else layer)
        found[name] = "CPU" if buffer.startswith("CPU") else buffer  # CPU_REPACK
    return found


def by_layer(tensors):
    """How often layers are placed in each way; what is in no layer is a way of its own. Which of equal layers
    are placed how may differ: llama.cpp can keep only the first ones' KV on the CPU."""
    layers = collections.defaultdict(dict)
    for name, where in tensors.items():
        layer, _, rest = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("", "", name)
        layers[layer][rest] = where
    return collections.Counter(tuple(sorted(layer.items())) for layer in layers.values())


def wrong_layers(log, command, tensors, device_name):
    """Ways of layers that the plan has more often than the server."""
    for way in by_layer(tensors) - by_layer(placed_by_server(log, tensors, device_name)):
        yield f"no layer is placed as planned: {dict(way)}; {command}"


def check_model(plan_program, model, requests, folder):
    """Failures among the requests, and operators that were divided in their plans. That no plan has a quarter of the
    tensors on either side is a failure, too."""
    plan = os.path.join(folder, "model.plan")
    port = free_port()
    device_name = f"RPC0[127.0.0.1:{port}]"
    failures, all_divided, mixed = 0, 0, False
    rpc = subprocess.Popen([os.path.join(PEER, "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(listens, port, rpc)
        for budget, context, *options in requests:
            must_run(plan_program, model, "--hardware", MACHINE, "-o", plan, "--prompt", "64", "--generate", "64",
                     "--context", context, "--ubatch", "32", "--budget", DEVICE + "=" + budget, *options)
            told = must_run(plan_program, "explain", plan, "-m", model, "--hardware", MACHINE, "--json").stdout
            shown = must_run(plan_program, "show", plan, "--json").stdout
            tensors, divided = planned(shown, told, model, device_name)
            r = must_run(plan_program, "export", plan, "-m", model, "--device-name", DEVICE + "=" + device_name)
            wrong = list(wrong_layers(log_of_server(r.stdout, port, folder), r.stdout, tensors, device_name))
            there = sum(d != "CPU" for d in tensors.values())
            print(f"{'WRONG' if wrong else 'ok   '} {os.path.basename(model)}, {' '.join([budget, *options])}, context {context}: {there} of "
                  f"{len(tensors)} tensors on {device_name}, {divided} operators divided", *re.findall(r" -ngl \d+", r.stdout))
            print("\n".join(wrong))
            failures += bool(wrong)
            mixed = mixed or 0.25 < there / len(tensors) < 0.75
            all_divided += divided
    finally:
        rpc.kill()
        rpc.wait()
    return failures + (not mixed), all_divided


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    missing = [p for p in (MODEL, os.path.join(PEER, "llama-server"), os.path.join(PEER, "ggml-rpc-server"))
               if not os.path.exists(p)]
    if missing:
        print("skipped: no", missing[0])
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        failures, divided = check_model(sys.argv[1], MODEL, REQUESTS, folder)
        model = os.path.join(folder, "experts.gguf")
        must_run(sys.argv[2], *EXPERTS, model)
        wrong, more = check_model(sys.argv[1], model, EXPERTS_REQUESTS, folder)
        if not divided + more:
            print("WRONG no plan divides anything")
    sys.exit(bool(failures or wrong or not divided + more))


if __name__ == "__main__":
    main()
