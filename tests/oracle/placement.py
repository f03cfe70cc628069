"""Placements of a model's operators, priced and searched by themselves: what test_bounds.py holds oato-plan's
bounds against. Nothing here is linked with solver/. The machine is read from the profile's YAML; operators, their
tensors and what one of them alone takes on a device come from `oato-plan explain --json` (the times of matrices on
data sheets are computed again and compared). All that a plan makes of it is this file's: how values flow, what
copies, shares, streams and files cost, what rooms they take, and the ILP that places it all (HiGHS).

Llama-like models and qwen3moe, one rank, without a sidecar; devices without direct links to each other.
"""
import json
import math
import re
import subprocess
from collections import defaultdict

import yaml

BLOCK = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
         "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
READ_ALIGN, STAGING_ALIGN, PAGE, KV_ROOMS, CUTS = 4096, 256, 64, 2, 6
PREFILL, DECODE = 0, 1


class Machine:
    def __init__(self, path):
        p = yaml.safe_load(open(path, encoding="utf-8"))
        self.devices = p["devices"]
        self.links = {(x["from"], x["to"]): x for x in p.get("links") or []}
        storage = p.get("storage") or []
        self.storage = max(storage, key=lambda r: r["depth"] * r["bytes"])["bytes_per_s"] if storage else 0

    def copy_ns(self, a, b, size, stream=False):
        """A copy between two devices; of weights to be streamed in their own rate."""
        one, two = self.devices[a], self.devices[b]
        if a == b or (one["is_host"] and two["is_host"]):
            return 0
        link = self.links[one["id"], two["id"]]
        rate = stream and link.get("stream_bytes_per_s") or link["bytes_per_s"]
        return link["latency_ns"] + link["sync_ns"] + size / rate * 1e9


class Op:
    def __init__(self, row, devices):
        self.name, self.kind = row["op"], row["key"].split("/")[0]
        self.type = next((w for w in row["key"].split("/")[1:] if w in BLOCK), None)
        self.key = dict(re.match(r"([a-z]+)(\d+)$", w).groups() for w in row["key"].split("/")[1:]
                        if re.match(r"([a-z]+)(\d+)$", w))
        self.key = {k: int(v) for k, v in self.key.items()}
        layer = re.match(r"blk\.(\d+)\.(.*)", self.name)
        self.layer, self.part = (int(layer[1]), layer[2]) if layer else (None, self.name)
        by_id = {d["device"]: d for d in row["devices"]}
        self.ns = [(by_id[d]["prefill_ns"], by_id[d]["decode_ns"]) if by_id[d]["supported"] else None for d in devices]
        self.unit_bytes = [by_id[d].get("unit_bytes", 0) for d in devices]
        self.matrix = self.kind in ("mul_mat", "gate_up", "qkv", "expert_gate_up", "expert_down")
        self.tensors = row["tensors"]

    def rows(self):
        n, experts = self.key["n"], self.key.get("e", 1)
        if self.kind == "qkv":
            n += 2 * self.key["m"]
        return n * experts * (2 if self.kind.endswith("gate_up") else 1)

    def file_bytes(self):
        elems, size = BLOCK[self.type]
        return self.rows() * self.key["k"] // elems * size

    def weights(self):
        return {"qkv": 3}.get(self.kind, 2 if self.kind.endswith("gate_up") else 1)

    def experts_read(self, tokens):
        e = self.key["e"]
        return e * (1 - (1 - self.key["u"] / e) ** tokens)

    def roofline_ns(self, device, tokens):
        """Of a matrix on a device of which only a data sheet is known."""
        share = self.experts_read(tokens) / self.key["e"] if "e" in self.key else 1
        each = self.rows() * self.key["k"] / self.key.get("e", 1) * self.key.get("u", 1)
        wide = self.key["k"] + self.key["n"] + 2 * self.key.get("m", 0)
        memory = (self.file_bytes() * share + 4 * tokens * wide) / device["read_bytes_per_s"]
        return max(memory, 2 * tokens * each / device["flops_per_s"]) * 1e9 + device["record_overhead_ns"]


class Option:
    """One way to run a unit: devices of its inputs and outputs by phase, and what it costs and takes."""

    def __init__(self, name, into, out, prefill, decode):
        self.name, self.into, self.out, self.prefill, self.decode = name, into, out, prefill, decode
        self.bytes, self.uses = defaultdict(int), {*into, *out}
        self.staged, self.stream, self.filed = 0, None, False  # the largest record that is streamed, and to where
        self.reads = []  # (device that reads, layer, bytes) of each matrix from a file
        self.room = 0  # of KV that is in a file
        self.history = 0  # room on `stream` for KV of the host that prompts attend to there


class Problem:
    def __init__(self, machine, rows, request, reserve):
        self.m, self.q = machine, request
        self.ids = [d["id"] for d in machine.devices]
        self.n = len(self.ids)
        self.host = next(i for i, d in enumerate(machine.devices) if d["is_host"])
        self.reserve = reserve
        self.ops = [Op(r, self.ids) for r in rows]
        self.chunks = [min(request["ubatch"], request["prompt"] - at) for at in range(0, request["prompt"], request["ubatch"])]
        self.together = {r["op"]: r["together_with"] for r in rows}
        self.units, self.unit_of = [], {}
        for o in self.ops:
            mates = [x for x in self.together[o.name].split(", ") if x in self.unit_of]
            if mates:
                self.unit_of[o.name] = self.unit_of[mates[0]]
                self.units[self.unit_of[o.name]].append(o)
            else:
                self.unit_of[o.name] = len(self.units)
                self.units.append([o])
        self.values = self.flow()
        self.options = [self.options_of(u) for u in range(len(self.units))]

    # ------------------------------------------------------------------------------- values

    def flow(self):
        """(producer, width, only rows of logits, readers, the host reads it) of each value between units."""
        values, at, readers, wide = [], {}, defaultdict(list), {}

        def make(name, op, width, last=False):
            at[name] = (op.name, width, last)

        def read(op, *names):
            for n in names:
                readers[n].append(op.name)

        x = norm = None
        width = self.ops[0].key["k"]
        for o in self.ops:
            p, i = o.part, o.layer
            here = f"{i}:"
            if p == "token_embd":
                make("x0", o, width)
                x = "x0"
            elif p in ("attn_norm", "ffn_norm"):
                read(o, x)
                norm = here + p
                make(norm, o, width)
            elif p == "attn_qkv":
                read(o, norm)
                for name, w in (("q", o.key["n"]), ("k", o.key["m"]), ("v", o.key["m"])):
                    make(here + name, o, w)
            elif p in ("attn_q", "attn_k", "attn_v"):
                read(o, norm)
                make(here + p[-1], o, o.key["n"])
            elif p in ("attn_q_norm", "attn_k_norm", "rope_q"):
                which = "k" if p == "attn_k_norm" else "q"
                read(o, here + which if which == "k" or p == "attn_q_norm" or here + "qn" not in at else here + "qn")
                make(here + {"attn_q_norm": "qn", "attn_k_norm": "kn", "rope_q": "qr"}[p], o, o.key["h"] * o.key["d"])
            elif p == "rope_k":
                read(o, here + ("kn" if here + "kn" in at else "k"))
            elif p == "kv_store":
                read(o, here + "v")
            elif p == "attention":
                read(o, here + "qr")
                make(here + "a", o, o.key["h"] * o.key["d"])
            elif p == "attn_output":
                read(o, here + "a")
                make(here + "o", o, o.key["n"])
            elif p in ("attn_add", "attn_add_norm", "ffn_add", "ffn_add_norm"):
                read(o, x, here + ("o" if p.startswith("attn") else "f"))
                x = here + p
                make(x, o, width)
                if p.endswith("norm"):
                    norm = here + p + "n"
                    make(norm, o, width)
            elif p == "ffn_gate_inp":
                read(o, norm)
                make(here + "g", o, o.key["n"])
            elif p == "ffn_route":
                read(o, here + "g")
                make(here + "r", o, 2 * o.key["u"])
            elif p.startswith("ffn_gate_up"):
                read(o, norm, *([here + "r"] if here + "r" in at else []))
            elif p.startswith("ffn_down"):
                read(o, *([here + "r"] if here + "r" in at else []))
                make(here + "f", o, o.key["n"])
            elif p == "select":
                read(o, x)
                x = "selected"
                make(x, o, width, True)
            elif p == "output_norm":
                read(o, x)
                make("normed", o, width, True)
            elif p == "output":
                read(o, "normed")
                make("logits", o, o.key["n"], True)
            else:
                raise ValueError(f"{o.name}: this test does not know how its values flow")
        for name, (op, w, last) in at.items():
            u = self.unit_of[op]
            to = sorted({self.unit_of[r] for r in readers[name]} - {u})
            if to or name == "logits":
                values.append((u, w, last, to, name == "logits"))
        return values

    def way_ns(self, width, last, a, b, tokens, final):
        """One copy of a value, where one of both is the host."""
        rows = (1 if final else 0) if last else tokens
        worker = a if self.m.devices[b]["is_host"] else b
        if not rows or self.m.devices[worker]["is_host"]:
            return 0
        return self.m.copy_ns(a, b, 4 * rows * width) + self.m.devices[worker]["record_overhead_ns"]

    def over_phases(self, each):
        """(of all prompts, of a step) of what each(tokens, is the last chunk) says."""
        q = self.q
        prefill = sum(each(t, i + 1 == len(self.chunks)) for i, t in enumerate(self.chunks)) * q["batch"]
        return round(prefill), round(each(q["batch"], q["batch"]))

    def copies(self, width, last, a, b):
        q = self.q
        prefill = sum(self.way_ns(width, last, a, b, t, i + 1 == len(self.chunks)) for i, t in enumerate(self.chunks))
        step = self.way_ns(width, False, a, b, q["batch"], True)
        return round(prefill * q["batch"]), round(step)

    def total(self, prefill, decode):
        return {"ttft": prefill, "time-per-token": decode}.get(self.q["minimize"], prefill + self.q["generate"] * decode)

    # ------------------------------------------------------------------------------ options

    def bytes_on(self, u, d):
        return self.units[u][0].unit_bytes[d]

    def whole(self, u, d):
        ns = [o.ns[d] for o in self.units[u]]
        if None in ns:
            return None
        x = Option(self.ids[d], (d, d), (d, d), sum(p for p, _ in ns), sum(n for _, n in ns))
        x.bytes[d] = self.bytes_on(u, d)
        return x

    def step_ns(self, o, d, decode):
        """Of one operator in a step: a full chunk, or one of decode."""
        return o.ns[d][1] if decode else o.ns[d][0] / (len(self.chunks) * self.q["batch"])

    def prepared(self, u, d):
        """Bytes of each operator's matrices on a device; of a unit's they are in proportion to the file's."""
        all_file = sum(o.file_bytes() for o in self.units[u])
        return [self.bytes_on(u, d) * o.file_bytes() / all_file for o in self.units[u]]

    def hidden_ns(self, u, tokens):
        """What the link copies while the layer's other operators compute."""
        layer = self.units[u][0].layer
        mates = [o for o in self.ops if o.layer == layer] if layer is not None else []
        matrix = [o for o in mates if o.matrix and any(o.ns[d] for d in range(self.n) if d != self.host)]
        other = sum(min(n[0] for n in o.ns if n) for o in mates if o not in matrix)
        everything = sum(o.file_bytes() for o in matrix)
        share = sum(o.file_bytes() for o in self.units[u]) / everything if everything else 0
        return other * tokens / (self.q["prompt"] * self.q["batch"]) * share

    def streamed(self, u, d):
        ops = self.units[u]
        if not all(o.matrix for o in ops) or ops[0].part == "output" or not self.chunks or None in [o.ns[d] for o in ops]:
            return None
        file = sum(o.file_bytes() for o in ops)
        prefill = sum(max(sum(self.step_ns(o, d, False) for o in ops),
                          self.m.copy_ns(self.host, d, file, True) - self.hidden_ns(u, t))
                      for t in self.chunks) * self.q["batch"]
        x = Option(f"{self.ids[self.host]}, prefill on {self.ids[d]}", (d, self.host), (d, self.host), round(prefill),
                   sum(o.ns[self.host][1] for o in ops))
        x.bytes[self.host] = self.bytes_on(u, self.host)
        x.stream = d
        x.staged = max(math.ceil(b) + o.weights() * STAGING_ALIGN for o, b in zip(ops, self.prepared(u, d)))
        return x

    def divided(self, u, shares, base, stream=None):
        """An FFN's neurons or experts dealt out to devices, {device: share}; the host's share may be streamed to one of
        them for prompts."""
        ops, host = self.units[u], self.host
        width, phases = ops[0].key["k"], []
        route = 2 * ops[0].key["u"] if ops[0].kind.startswith("expert") else 0
        for decode in (False, True):
            tokens = self.q["batch"] if decode else self.chunks[0]

            def ways(w, a, b, tokens=tokens):
                legs = [] if a == b else [(a, b)] if host in (a, b) else [(a, host), (host, b)]
                return sum(self.way_ns(w, False, x, y, tokens, True) for x, y in legs) if w else 0
            slowest = own = 0
            for on, part in shares.items():
                record = self.m.devices[on]["record_overhead_ns"]
                ns = sum((self.step_ns(o, on, decode) - record) * part + record for o in ops)
                ns += ways(width, base, on) + ways(route, base, on) + ways(ops[1].key["n"], on, base)
                slowest, own = max(slowest, ns), ns if on == base else own
            if base != host and host in shares:  # the accelerator's own queue makes the copies
                slowest = max(slowest, ways(width, base, host) + ways(route, base, host) + own
                              + ways(ops[1].key["n"], host, base))
            add = next(o for o in self.ops if o.kind == "add" and o.ns[base])
            phases.append(slowest + self.step_ns(add, base, decode) * (len(shares) - 1))
        prefill, into = phases[0] * len(self.chunks) * self.q["batch"], (base, base)
        if stream is not None:
            record = self.m.devices[stream]["record_overhead_ns"]
            link = self.m.copy_ns(host, stream, sum(o.file_bytes() for o in ops) * shares[host], True)
            prefill = sum(max(sum(self.step_ns(o, stream, False) + record for o in ops), link - self.hidden_ns(u, t))
                          for t in self.chunks) * self.q["batch"]
            into = (stream, base)
        x = Option(" + ".join(f"{self.ids[d]} {part:.0%}" for d, part in shares.items()), into, into, round(prefill),
                   round(phases[1]))
        if stream is not None:
            x.stream = stream
            x.staged = max(math.ceil(b * shares[host]) + o.weights() * 5 * STAGING_ALIGN
                           for o, b in zip(ops, self.prepared(u, stream)))
        for on, part in shares.items():
            x.uses.add(on)
            x.bytes[on] = sum(math.ceil(b * part) for b in self.prepared(u, on))
        return x

    def divided_output(self, u, shares, base):
        """Rows of the product that makes logits, which only a prompt's last chunk has, dealt out to devices."""
        o, = self.units[u]
        k, n = o.key["k"], o.key["n"]
        phases = []
        for final in [False] * (len(self.chunks) - 1) + [True]:
            slowest = own = 0

            def ways(w, a, b, final=final):
                legs = [] if a == b else [(a, b)] if self.host in (a, b) else [(a, self.host), (self.host, b)]
                return sum(self.way_ns(w, True, x, y, 1, final) for x, y in legs)
            for on, part in shares.items():
                record = self.m.devices[on]["record_overhead_ns"]
                ns = ((o.ns[on][1] - record) * part if final else 0) + record + ways(k, base, on) + ways(n, on, base)
                slowest, own = max(slowest, ns), ns if on == base else own
            if base != self.host and self.host in shares:
                slowest = max(slowest, ways(k, base, self.host) + own + ways(n, self.host, base))
            device = self.m.devices[base]
            add = 4 * 2 * n / device["read_bytes_per_s"] * 1e9 if final else 0
            phases.append(slowest + (add + device["record_overhead_ns"]) * (len(shares) - 1))
        x = Option(" + ".join(f"{self.ids[d]} {part:.0%}" for d, part in shares.items()), (base, base), (base, base),
                   round(sum(phases) * self.q["batch"]), round(phases[-1]))
        for on, part in shares.items():
            x.uses.add(on)
            x.bytes[on] = math.ceil(self.bytes_on(u, on) * part)
        return x

    def apart(self, u, a, b):
        """The two operators of a unit on different devices."""
        ops, host = self.units[u], self.host
        if not ops[0].ns[a] or not ops[1].ns[b]:
            return None
        inner = ops[0].key["n"] * ops[0].key.get("u", 1)
        legs = [self.copies(inner, False, a, host), self.copies(inner, False, host, b)]
        x = Option(f"{self.ids[a]}, then {self.ids[b]}", (a, a), (b, b),
                   ops[0].ns[a][0] + ops[1].ns[b][0] + sum(p for p, _ in legs),
                   ops[0].ns[a][1] + ops[1].ns[b][1] + sum(n for _, n in legs))
        x.bytes[a] += math.ceil(self.prepared(u, a)[0])
        x.bytes[b] += math.ceil(self.prepared(u, b)[1])
        return x

    def from_file(self, u, d, which):
        """Whole on d, with these operators' matrices (or KV) from the file at every step."""
        ops, q = self.units[u], self.q
        x = Option(f"{self.ids[d]}, from the file", (d, d), (d, d), 0, 0)
        passes = len(self.chunks) * q["batch"]
        sizes = self.prepared(u, d) if all(o.matrix for o in ops) else None
        kv = [o for o in ops if o.kind == "kv_store"]
        for i, o in enumerate(ops):
            prefill, decode = o.ns[d]
            if o in which and o.matrix:
                size = sizes[i] + o.weights() * READ_ALIGN
                read = size / self.m.storage * 1e9
                copy = self.m.copy_ns(self.host, d, size) if d != self.host else 0
                slices = "e" in o.key and d == self.host and sizes[i] % (o.key["e"] * o.weights() * READ_ALIGN) == 0
                share = [o.experts_read(t) / o.key["e"] if slices else 1 for t in (min(q["prompt"], q["ubatch"]), q["batch"])]
                prefill = max(prefill, round(max(read * share[0], copy) * passes))
                decode = max(decode, round(max(read * share[1], copy)))
                x.reads.append((d, o.layer, size))
            elif o in which:
                page = -(-self.page_bytes(o) // READ_ALIGN) * READ_ALIGN
                moved = 0
                for n, t in enumerate(self.chunks):
                    moved += (math.ceil(n * q["ubatch"] / PAGE) + math.ceil(t / PAGE)) * page * q["batch"]
                seen = q["prompt"] + q["generate"] // 2
                step = (math.ceil(seen / PAGE) + math.ceil(1 / PAGE)) * page * q["batch"]
                prefill = max(prefill, round(moved / self.m.storage * 1e9))
                decode = max(decode, round(step / self.m.storage * 1e9))
                x.room = KV_ROOMS * page * math.ceil(q["context"] / PAGE)
            elif o.matrix:
                x.bytes[d] += math.ceil(sizes[i])
            x.prefill += prefill
            x.decode += decode
        if not sizes and not kv:
            x.bytes[d] = 0
        if d != self.host:
            x.stream, x.filed = d, True
            x.staged = max(size for _, _, size in x.reads)
        return x

    def attended(self, u, d):
        """KV of the host, which prompts attend to on d: all that came before a step is copied there, new rows back."""
        ops, host, prefill = self.units[u], self.host, 0
        store = next(o for o in ops if o.kind == "kv_store")
        for o in ops:
            prefill += max(o.ns[d][0], store.ns[host][0]) if o.kind == "attention" else o.ns[d][0]
        rate = self.bytes_on(u, host) / math.ceil(self.q["context"] / PAGE) # of a page
        for n, t in enumerate(self.chunks):
            before = math.ceil(n * self.q["ubatch"] / PAGE) * rate
            prefill += self.q["batch"] * (self.m.copy_ns(host, d, before) if before else 0)
            prefill += self.q["batch"] * 2 * self.way_ns(store.key["g"] * store.key["d"], False, d, host, t, True)
        x = Option(f"{self.ids[host]}, attended on {self.ids[d]}", (d, host), (d, host), round(prefill),
                   sum(o.ns[host][1] for o in ops))
        x.bytes[host], x.stream, x.history = self.bytes_on(u, host), d, KV_ROOMS * self.bytes_on(u, d)
        return x

    def page_bytes(self, o):
        elems, size = BLOCK[o.type]
        return PAGE * 2 * (o.key["g"] * o.key["d"] // elems * size)

    def options_of(self, u):
        ops = self.units[u]
        found = [w for d in range(self.n) if (w := self.whole(u, d))]
        on_host = None not in [o.ns[self.host] for o in ops]
        matrices = [o for o in ops if o.matrix]
        for d in range(self.n):
            if d == self.host or None in [o.ns[d] for o in ops]:
                continue
            if on_host and self.chunks and any(o.kind == "attention" for o in ops):
                found.append(self.attended(u, d))
            if on_host and matrices:
                found += [x for x in [self.streamed(u, d)] if x]
            if on_host and ops[0].part == "output":
                for c in range(1, CUTS):
                    rows = round(c / CUTS * 16) / 16
                    found += [self.divided_output(u, {d: rows, self.host: 1 - rows}, base) for base in (d, self.host)]
            cuts = [self.groups(ops, c / CUTS) for c in range(1, CUTS)] if on_host and len(matrices) == 2 else []
            for share in cuts:
                both = {d: share, self.host: 1 - share}
                found += [self.divided(u, both, base) for base in both]
                found += [self.divided(u, both, self.host, d)] if self.chunks else []
            if len(ops) == 2 == len(matrices) and on_host:
                found += [self.apart(u, d, self.host), self.apart(u, self.host, d)]
            if self.m.storage and len(matrices) == len(ops) and ops[0].layer is not None:
                found.append(self.from_file(u, d, matrices))
        if self.m.storage and on_host:
            kv = [o for o in ops if o.kind == "kv_store"]
            if len(matrices) == len(ops):
                for mask in range(1, 1 << len(matrices)):
                    found.append(self.from_file(u, self.host, [o for k, o in enumerate(matrices) if mask >> k & 1]))
            elif kv:
                found.append(self.from_file(u, self.host, kv))
        return found

    @staticmethod
    def groups(ops, share):
        """The nearest share that falls on whole groups."""
        if "e" in ops[0].key:
            return max(1, round(share * ops[0].key["e"])) / ops[0].key["e"]
        group = max(64, BLOCK[ops[1].type][0])
        n = ops[0].key["n"] // group
        return max(1, round(share * n)) * group / ops[0].key["n"]

    # -------------------------------------------------------------------- prices and memory

    def price(self, place):
        """(prefill, decode) of a placement: an option for each unit."""
        prefill = sum(o.prefill for o in place)
        decode = sum(o.decode for o in place)
        for d in {self.host}.union(*(o.uses for o in place)):
            step = self.m.devices[d]["step_overhead_ns"]
            prefill += round(step * len(self.chunks) * self.q["batch"])
            decode += round(step)
        for u, width, last, readers, host in self.values:
            for phase in (PREFILL, DECODE):
                home, ns = place[u].out[phase], 0
                there = {place[r].into[phase] for r in readers} - {home}
                if there or host:
                    ns += self.copies(width, last, home, self.host)[phase]
                ns += sum(self.copies(width, last, self.host, d)[phase] for d in there)
                prefill, decode = (prefill + ns, decode) if phase == PREFILL else (prefill, decode + ns)
        return prefill, decode

    def rooms(self, place):
        """Bytes on each device that streams, rings and KV rooms take."""
        room, ring, room_kv = [0] * self.n, defaultdict(lambda: defaultdict(int)), 0
        history = [0] * self.n
        largest = defaultdict(int)
        for o in place:
            if o.stream is not None:
                room[o.stream] = max(room[o.stream], math.ceil(2 * o.staged))
                history[o.stream] = max(history[o.stream], o.history)
            for d, layer, size in o.reads:
                ring[d][layer] += math.ceil(size)
                largest[d] = max(largest[d], math.ceil(size))
            room_kv = max(room_kv, o.room)
        room[self.host] += sum(max(x.values()) + largest[d] for d, x in ring.items()) + room_kv
        return [a + b for a, b in zip(room, history)]

    def used(self, place):
        return [sum(o.bytes[d] for o in place) for d in range(self.n)]

    def fits(self, place, budget):
        room, used = self.rooms(place), self.used(place)
        links = {o.stream for o in place if o.stream is not None and not o.filed}
        files = {o.stream for o in place if o.filed}
        on = {self.host}.union(*(o.uses for o in place))
        apart = any(o.history for o in place) and any(o.reads or o.room for o in place)
        return not apart and not links & files and all(used[d] + room[d] + self.reserve[d] <= budget[d] for d in on)


def solve(p, budget, limit_s, below_ns):
    """The cheapest placement that HiGHS finds in time and its price; None: none below that price."""
    import highspy
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("time_limit", float(limit_s))
    h.setOptionValue("threads", 1)
    h.setOptionValue("mip_rel_gap", 1e-5)
    scale = max(below_ns, 1)
    cap = [max(budget[d] - p.reserve[d], 0) for d in range(p.n)]
    x = [[h.addVariable(0, 0 if any(b > cap[d] for d, b in o.bytes.items()) or any(p.reserve[d] > budget[d] for d in o.uses)
                        else 1, p.total(o.prefill, o.decode) / scale, highspy.HighsVarType.kInteger)
          for o in os] for os in p.options]
    for row in x:
        h.addConstr(sum(row) == 1)
    used = []
    for d in range(p.n):
        step = p.m.devices[d]["step_overhead_ns"]
        cost = p.total(round(step * len(p.chunks) * p.q["batch"]), round(step)) / scale
        used.append(h.addVariable(0 if d != p.host else 1, 1, cost))
    room = [h.addVariable(0, 1, 0) for _ in range(p.n)]
    longest = [h.addVariable(0, 1, 0) for _ in range(p.n)]
    largest = [h.addVariable(0, 1, 0) for _ in range(p.n)]
    history = [h.addVariable(0, 1, 0) for _ in range(p.n)]
    reads = h.addVariable(0, 1, 0, highspy.HighsVarType.kInteger)
    kv, files = h.addVariable(0, 1, 0), [h.addVariable(0, 1, 0, highspy.HighsVarType.kInteger) for _ in range(p.n)]
    host = max(cap[p.host], 1)
    layers = defaultdict(list)
    for os, row in zip(p.options, x):
        for d in range(p.n):
            on = [v for o, v in zip(os, row) if d in o.uses]
            if on and d != p.host:
                h.addConstr(sum(on) <= used[d])
        for o, v in zip(os, row):
            if o.stream is not None:
                h.addConstr(2 * o.staged / max(cap[o.stream], 1) * v <= room[o.stream])
                h.addConstr(v <= files[o.stream] if o.filed else v + files[o.stream] <= 1)
                if o.history:
                    h.addConstr(o.history / max(cap[o.stream], 1) * v <= history[o.stream])
                    h.addConstr(v + reads <= 1)
            if o.reads or o.room:
                h.addConstr(v <= reads)
            for d, layer, size in o.reads:
                layers[d, layer].append(size / host * v)
                h.addConstr(size / host * v <= largest[d])
            if o.room:
                h.addConstr(o.room / host * v <= kv)
    for (d, _), terms in layers.items():
        h.addConstr(sum(terms) <= longest[d])
    for d in range(p.n):
        terms = [o.bytes[d] / max(cap[d], 1) * v for os, row in zip(p.options, x) for o, v in zip(os, row) if o.bytes[d]]
        if d == p.host:
            terms += longest + largest + [kv]
        h.addConstr(sum(terms) + room[d] + history[d] <= 1)
    for u, width, last, readers, wanted in p.values:
        for phase in (PREFILL, DECODE):
            def price(a, b, width=width, last=last, phase=phase):
                ns = p.copies(width, last, a, b)[phase]
                return p.total(ns if phase == PREFILL else 0, ns if phase == DECODE else 0) / scale
            for d in range(p.n):
                if d == p.host:
                    continue
                made = [v for o, v in zip(p.options[u], x[u]) if o.out[phase] == d]
                leave, enter = h.addVariable(0, 1, price(d, p.host)), h.addVariable(0, 1, price(p.host, d))
                if wanted and made:
                    h.addConstr(sum(made) <= leave)
                for r in readers:
                    there = [v for o, v in zip(p.options[r], x[r]) if o.into[phase] == d]
                    if made:
                        h.addConstr(sum(made) - (sum(there) if there else 0) <= leave)
                    if there:
                        h.addConstr(sum(there) - (sum(made) if made else 0) <= enter)
    h.run()
    if h.getInfo().primal_solution_status != 2:
        return None, None
    values = h.getSolution().col_value
    place = [os[max(range(len(os)), key=lambda k, row=row: values[row[k].index])] for os, row in zip(p.options, x)]
    return place, p.total(*p.price(place))


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def load_json(text):
    return json.loads(text)
