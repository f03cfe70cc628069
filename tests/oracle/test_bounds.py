"""usage: test_bounds.py OATO-PLAN OATO-MAKE-MODEL HARDWARE-FOLDER [--long] [--seed N]
No bound that oato-plan states is beaten by a placement of another solver with prices of its own (placement.py): of
random models on random machines, and of known models on machines of the hardware library, with files to stream
from, unlike GPUs and searches that the clock ends. A cache of experts, which a plan gets when it is finished,
changes no bound, and a plan for ranks, whose division nobody searches, states none. The plan's own placement has the
price that the plan states. A search for single changes and swaps finds nothing better than a plan that is called
optimal, and less memory never makes a plan better by more than its gap. --long: 100 random cases, 24 real ones and
60 s of changes; else a sample."""
import argparse
import os
import random
import sys
import tempfile
import time

import yaml
from placement import Machine, Problem, load_json, run, solve

GIB, MIB = 1 << 30, 1 << 20
TYPES = ["Q4_0", "Q8_0", "Q4_K", "F16"]
LINK = {"latency_ns": 8000, "sync_ns": 5000}


def storage_rows(rate):
    return [{"depth": 1, "bytes": 4096, "direct": True, "bytes_per_s": rate / 20, "latency_ns": 9000},
            {"depth": 8, "bytes": 1 << 20, "direct": True, "bytes_per_s": rate, "latency_ns": 100000}]


def random_machine(r):
    """A host and one or two unlike accelerators, of which only data sheets are known."""
    def device(i, kind, read, flops):
        return {"id": f"{kind}:{i}", "kind": kind, "model": "made up", "memory_bytes": 64 * GIB, "free_bytes": 60 * GIB,
                "threads": 8 if kind == "cpu" else 0, "is_host": kind == "cpu", "read_bytes_per_s": read,
                "flops_per_s": flops, "record_overhead_ns": r.choice([100, 500, 2500]),
                "step_overhead_ns": r.choice([1000, 10000]), "data_sheet": True, "refills": kind != "cpu"}
    devices = [device(0, "cpu", r.uniform(1e10, 1e11), r.uniform(1e11, 1e12))]
    links = []
    for i in range(r.choice([1, 1, 2])):
        devices.append(device(i, "cuda", r.uniform(1e11, 1e12), r.uniform(1e12, 5e13)))
        rate = r.uniform(4e9, 3e10)
        links += [{"from": a, "to": b, "bytes_per_s": rate, **LINK}
                  for a, b in (("cpu:0", f"cuda:{i}"), (f"cuda:{i}", "cpu:0"))]
    p = {"oato_profile": 1, "tool": "data sheet", "date": "2026-01-01", "notes": "made up",
         "machine": {"cpu": "made up", "memory_bytes": 64 * GIB}, "devices": devices, "links": links}
    if r.random() < 0.6:
        p["storage"] = storage_rows(r.uniform(1e9, 1e10))
    return p


def random_model(r):
    width = 256 * r.choice([1, 2, 4])
    words = ["--layers", r.randint(1, 4), "--width", width, "--ffn", 256 * r.choice([2, 4, 8]), "--heads", width // 64,
             "--kv-heads", r.choice([1, 2, 4]), "--vocab", r.choice([512, 4096]), "--context", 4096, "--type", r.choice(TYPES)]
    if r.random() < 0.35:
        words += ["--arch", "qwen3moe", "--experts", r.choice([4, 8]), "--experts-used", 2, "--head-dim", 64]
    return [str(w) for w in words]


class Case:
    """A model on a machine with some memory, and what oato-plan makes of it."""

    def __init__(self, tools, folder, name, model, profile, budgets, request, options=(), words=()):
        self.tools, self.name, self.model, self.profile = tools, name, model, profile
        self.path = os.path.join(folder, "plan")
        self.budgets, self.request, self.options = budgets, request, options
        self.experts = "--experts" in words

    def plan(self, budgets=None):
        words = [self.tools.oato_plan, self.model, "-p", self.profile, "-o", self.path, "--json", *self.options]
        for d, size in (budgets or self.budgets).items():
            words += ["--budget", f"{d}={int(size)}"]
        for k, v in self.request.items():
            words += [f"--{k}", str(v)]
        status, out, err = run(*words)
        if status == 4:
            return None
        if status:
            raise SystemExit(f"{self.name}: {' '.join(map(str, words))}: {err}")
        return load_json(out[out.index("{"):])

    def explain(self):
        status, out, err = run(self.tools.oato_plan, "explain", self.path, "-m", self.model, "-p", self.profile, "--json")
        if status:
            raise SystemExit(f"{self.name}: {err}")
        return load_json(out)


def place_of(p, plan):
    """The plan's placement in our options; None: a unit is divided in a way that we do not price."""
    parts = {}
    for x in plan["parts"]:
        parts.setdefault(x["op"], []).append(x)
    kv = {f"blk.{x['layer']}.kv_store": x["device"] for x in plan["kv"]}
    place = []
    for u, ops in enumerate(p.units):
        decode = [[x for x in parts[o.name] if x["decode"] and x["begin"] < x["end"]] for o in ops]
        where = [[p.ids.index(x["device"]) for x in d] for d in decode]
        filed = [o for o, d in zip(ops, decode) if any(x["home"] == "file" for x in d)]
        on = where[0][0]
        streams = [x for x in parts[ops[0].name] if not x["decode"] and x["home"] != x["device"]]
        if len({w for ws in where for w in ws}) == 1:
            attends = [x for o in ops if o.kind == "attention" for x in parts[o.name] if x["home"] != x["device"]]
            if attends:
                place.append(p.attended(u, p.ids.index(attends[0]["device"])))
            elif filed:
                place.append(p.from_file(u, on, filed))
            elif streams:
                place.append(p.streamed(u, p.ids.index(streams[0]["device"])))
            else:
                place.append(p.whole(u, on))
            continue
        if len(ops) == 2 and all(len(w) == 1 for w in where):
            place.append(p.apart(u, where[0][0], where[1][0]))
            continue
        if where[0] != where[-1]:
            return None
        whole = sum(x["end"] - x["begin"] for x in decode[0])
        shares = {on: (x["end"] - x["begin"]) / whole for on, x in zip(where[0], decode[0])}
        stream = p.ids.index(streams[0]["device"]) if streams else None
        place.append([p.divided(u, shares, base, stream) if len(ops) == 2 else p.divided_output(u, shares, base)
                      for base in shares])
    for u, x in enumerate(place):  # where parts are merged follows from their neighbours
        if isinstance(x, list):
            def at(o, u=u):
                return p.total(*p.price([o if v == u else (y[0] if isinstance(y, list) else y) for v, y in enumerate(place)]))
            place[u] = min(x, key=at)
    for u, ops in enumerate(p.units):
        for o in ops:
            assert o.name not in kv or p.ids.index(kv[o.name]) == place[u].out[1], o.name
    return place


def reserves(plan):
    """What each device sets aside beside weights, KV and rooms; unused ones have nothing to give."""
    return [x["set_aside_bytes"] if x["planned_bytes"] else 1 << 60 for x in plan["devices"]]


def changes(p, place, budget, objective, seconds, r):
    """Looks for a cheaper placement by changes of one unit or two; None: there is none so far."""
    end, best = time.monotonic() + seconds, objective
    layers = {}
    for u, ops in enumerate(p.units):
        layers.setdefault(ops[0].layer, []).append(u)
    while time.monotonic() < end:
        other = list(place)
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            u = r.randrange(len(place))
            if r.random() < 0.3:
                v = r.choice([v for v in range(len(place)) if p.units[v][0].part == p.units[u][0].part])
                i = next((k for k, o in enumerate(p.options[u]) if o.name == other[u].name), None)
                j = next((k for k, o in enumerate(p.options[v]) if o.name == other[v].name), None)
                if i is not None and j is not None and len(p.options[u]) == len(p.options[v]):
                    other[u], other[v] = p.options[u][j], p.options[v][i]
            else:
                other[u] = r.choice(p.options[u])
        if p.fits(other, budget) and p.total(*p.price(other)) < best:
            return p.total(*p.price(other)), other
    return None


class Checks:
    def __init__(self, args):
        self.args, self.failed = args, 0
        self.counts = dict.fromkeys(["planned", "bounds", "equal", "optimal", "searched", "stored", "cut off", "found",
                                     "not ours", "cached", "of ranks"], 0)
        self.closest = 1e9

    def fail(self, case, text):
        self.failed += 1
        print(f"{case.name}: {text}\n  {case.options} {case.budgets} {case.request} {case.model} {case.profile}")

    def case(self, case, limit_s, change_s, r):
        plan = case.plan()
        if not plan:
            return
        c = self.counts
        c["planned"] += 1
        c["cut off"] += plan["timed_out"]
        c["stored"] += any(x["home"] == "file" for x in plan["parts"])
        q = {**plan["request"], "minimize": plan["request"]["minimize"]}
        p = Problem(Machine(case.profile), case.explain(), q, [0] * len(plan["devices"]))
        for o in p.ops:  # the times of matrices on data sheets are known
            for d, device in enumerate(p.m.devices):
                if o.matrix and o.ns[d] and device.get("data_sheet") and o.part != "output":
                    own = o.roofline_ns(device, q["batch"])
                    if abs(own - o.ns[d][1]) > 1 + 5e-3 * own: # activations' arithmetic left out
                        self.fail(case, f"{o.name} on {p.ids[d]} takes {o.ns[d][1]} ns, we say {own:.0f}")
        place, bound, objective = place_of(p, plan), plan["bound_ns"], plan["objective_ns"]
        # we round other sums to whole nanoseconds: of each unit one more or less in every step
        tolerance = 5e-6 * objective + len(p.units) * (q["generate"] + len(p.chunks))
        if place is None:
            c["not ours"] += 1
            return
        own = p.total(*p.price(place))
        if abs(own - objective) > tolerance:
            self.fail(case, f"the plan's placement takes {own} ns, it says {objective}")
            return
        c["equal"] += 1
        p.reserve = reserves(plan)
        budget = [x["budget_bytes"] for x in plan["devices"]]
        if not p.fits(place, budget):
            self.fail(case, "the plan's placement does not fit by our sums")
            return
        if bound:
            c["bounds"] += 1
            if bound > objective:
                self.fail(case, "the bound is above the objective")
            other, ns = solve(p, budget, limit_s, objective)
            if other and p.fits(other, budget):
                c["found"] += 1
                self.closest = min(self.closest, ns / bound)
                if ns < bound - tolerance:
                    self.fail(case, f"{ns / bound - 1:+.4%} of the bound {bound}, objective {objective}: {describe(p, other)}")
        if bound and objective - bound < 5e-6 * objective:
            c["optimal"] += 1
            better = changes(p, place, budget, objective - tolerance, change_s, r)
            c["searched"] += 1
            if better:
                self.fail(case, f"called optimal, {better[0] / objective - 1:+.4%} by changes: {describe(p, better[1])}")

    def without_bounds(self, case):
        """With a cache of experts the bound is that of the plan without; of ranks there is none."""
        plain = case.plan()
        for words in ([["--expert-cache", "auto"]] if case.experts else []) + [["--ranks", "2"]]:
            plan = Case(case.tools, os.path.dirname(case.path), case.name, case.model, case.profile, case.budgets,
                        case.request, ("--gap", "0", *words)).plan()
            if not plan or not plain:
                continue
            if "--ranks" in words:
                self.counts["of ranks"] += 1
                if plan["bound_ns"] or plan["bound_of"] != "nothing":
                    self.fail(case, f"ranks: a bound of {plan['bound_ns']}, of {plan['bound_of']}")
                continue
            self.counts["cached"] += plan["bound_of"] == "plans without caches"
            if plan["bound_ns"] > plain["objective_ns"] or (plan["bound_of"] == "all" and plan.get("caches")):
                self.fail(case, f"a cache: bound {plan['bound_ns']} of {plan['bound_of']}, without {plain['objective_ns']}")

    def monotone(self, case):
        """Less memory on a device."""
        for d in case.budgets:
            last = None
            for part in (1, 0.85, 0.7):
                plan = case.plan({**case.budgets, d: case.budgets[d] * part})
                if not plan:
                    break
                gap = 1 - plan["bound_ns"] / plan["objective_ns"] if plan["bound_ns"] else 1
                if last and plan["objective_ns"] < last[0] * (1 - last[1] - 1e-6):
                    self.fail(case, f"{part:.0%} of {d} is faster: {plan['objective_ns']} ns, {last[0]} ns with more")
                last = plan["objective_ns"], gap


def describe(p, place):
    return ", ".join(f"{ops[0].name} {o.name}" for ops, o in zip(p.units, place))[:1500]


def random_cases(tools, folder, n, seed):
    for i in range(n):
        r = random.Random(seed * 1000 + i)
        model, profile = os.path.join(folder, f"m{i}.gguf"), os.path.join(folder, f"p{i}.yaml")
        words = random_model(r)
        status, _, err = run(tools.make_model, *words, "--header-only", "--no-tokenizer", model)
        assert status == 0, err
        machine = random_machine(r)
        with open(profile, "w", encoding="utf-8") as f:
            yaml.safe_dump(machine, f, sort_keys=False)
        request = {"prompt": r.choice([64, 128]), "generate": r.choice([4, 32, 128]), "context": 1024, "ubatch": 64,
                   "minimize": r.choice(["latency", "latency", "ttft", "time-per-token"])}
        whole = Case(tools, folder, "", model, profile, {}, request, ("--solver", "cpu")).plan()
        size = whole["devices"][0]["planned_bytes"]
        work = whole["devices"][0]["work_bytes"]
        budgets = {d["id"]: work + (size - work) * r.uniform(0.1, 0.7) for d in machine["devices"] if d["kind"] != "cpu"}
        if "storage" in machine:
            budgets["cpu:0"] = work + (size - work) * r.uniform(0.4, 0.95)
        options = ["--gap", "0"] if r.random() < 0.6 else []
        options += ["--time-limit", r.choice(["0.05", "2", "2"])]
        yield Case(tools, folder, f"random {seed}:{i}", model, profile, budgets, request, tuple(options), words), r


REAL = [("1b", "Q8_0"), ("8b", "Q4_K_M"), ("qwen3-8b", "Q8_0"), ("qwen3-30b-a3b", "Q4_K_M")]
MACHINES = ["rtx4090-xeon4314", "rtx3060-laptop", "2xrtx3090-ryzen5950x", "rtx2080ti-i7-12700k", "ascend910b-kunpeng920",
            "rtx3090-ryzen5950x"]


def real_cases(tools, folder, n, seed):
    for i in range(n):
        r = random.Random(seed * 77 + i)
        (shape, kind), machine = REAL[i % len(REAL)], MACHINES[(i // len(REAL) + i) % len(MACHINES)]
        model, profile = os.path.join(folder, f"{shape}.gguf"), os.path.join(folder, f"{machine}{i}.yaml")
        status, _, err = run(tools.make_model, "--shape", shape, "--type", kind, "--header-only", "--no-tokenizer", model)
        assert status == 0, err
        with open(os.path.join(tools.hardware, machine + ".yaml"), encoding="utf-8") as f:
            p = yaml.safe_load(f)
        stored = i % 3 == 0
        if stored:
            p["storage"] = storage_rows(7e9)
        with open(profile, "w", encoding="utf-8") as f:
            yaml.safe_dump(p, f, sort_keys=False)
        request = {"prompt": 512, "generate": 128, "context": 4096}
        whole = Case(tools, folder, "", model, profile, {"cpu:0": 200 * GIB}, request, ("--solver", "cpu")).plan()
        size = sum(x["planned_bytes"] - x["work_bytes"] for x in whole["devices"])
        budgets = {d["id"]: size * r.uniform(0.1, 0.4) + 300 * MIB for d in p["devices"] if d["kind"] != "cpu"}
        if stored:
            budgets["cpu:0"] = max(size * 0.95 - sum(budgets.values()), size * 0.3) + whole["devices"][0]["work_bytes"]
        options = ("--time-limit", "0.3") if i % 5 == 4 else ()
        yield Case(tools, folder, f"{shape} on {machine}{' + storage' if stored else ''}", model, profile, budgets, request,
                   options), r


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("oato_plan")
    parser.add_argument("make_model")
    parser.add_argument("hardware")
    parser.add_argument("--long", action="store_true", default=os.environ.get("OATO_LONG") == "1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--random", type=int)
    parser.add_argument("--real", type=int)
    parser.add_argument("--only", help="the random case of this number")
    parser.add_argument("--keep", help="a folder to work in")
    args = parser.parse_args()
    checks = Checks(args)
    n, m = (100, 24) if args.long else (6, 1)
    n, m = n if args.random is None else args.random, m if args.real is None else args.real
    print(f"seed {args.seed}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or temporary
        for case, r in random_cases(args, folder, n, args.seed):
            if args.only and not case.name.endswith(f":{args.only}"):
                continue
            checks.case(case, 8 if args.long else 1, 60 if args.long and not checks.counts["searched"] else 1, r)
            if args.long and "--gap" in case.options:
                checks.monotone(case)
            if args.long or not checks.counts["of ranks"]:
                checks.without_bounds(case)
        for case, r in real_cases(args, folder, m, args.seed):
            checks.case(case, 20 if args.long else 3, 60 if args.long else 1, r)
    print(", ".join(f"{v} {k}" for k, v in checks.counts.items()), f"least of found / bound {checks.closest:.6f}")
    counts = checks.counts
    if not counts["bounds"] or not counts["equal"] or not counts["found"]:
        print("nothing was compared")
        checks.failed += 1
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    try:
        import highspy  # noqa: F401 pylint: disable=unused-import
    except ImportError:
        print("needs highspy: run scripts/setup")
        sys.exit(1 if os.environ.get("OATO_REQUIRE_MODEL") == "1" else 77)
    main()
