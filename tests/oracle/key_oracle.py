"""Holds every key to llama.cpp (scripts/architectures --keys): variants of each tiny file (key_variants.py), both
programs' logits, an error of at most 30 times that of the file as it is. A variant may be more sensitive than its file:
where our own logits by two instruction sets, which round differently, are N times further apart, so may the error be."""
import json
import os
import shutil
import subprocess
import threading

import numpy as np
from compare_logits import compare
from grow_arch import amplify
from key_variants import IDS, Header, converters, families, header_bytes, used_keys, writer_keys

TIMES = 30     # the limit, in errors of the file as it is ..
FLOOR = 3e-9   # .. which is taken as no less than this: GELU is a table of half floats in llama.cpp, 8e-8
CONTEXT = "256"  # as peer_logits has it: files may have other frequencies beyond the original context
SAMPLES = {"left out": 5, "changed": 1, "added": 1}  # for ctest: files of each key ..
SAMPLE_ROWS = 2  # .. rows of logits ..
SHOWN = 1e-2   # .. of those whose key moves the peer's logits by as much
# llama.cpp's loader of qwen2vl does not read the key that its converter writes and the model was trained with.
NOT_FOLLOWED = {("qwen2vl", "attention.layer_norm_rms_epsilon")}
MOVED = 1e-3   # a key whose change moves the peer's logits by less, relative to their size, is not seen


class Peer:
    def __init__(self, judge, out, ids):
        self.out = out
        self.process = subprocess.Popen([judge, "--serve", out, *ids], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def logits(self, path, rows):
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        if int(self.process.stdout.readline()):
            return None
        return np.fromfile(self.out, np.float32).reshape(rows, -1)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(program, path, out, ids, isa):
    """Logits, or None and the reason."""
    command = [program, "logits", path, "--ids", ",".join(ids), "--kv", "f32", "-t", "1", "-c", CONTEXT,
               "-o", out]
    try:
        r = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                           env=dict(os.environ, OATO_CPU_ISA=isa))
    except subprocess.TimeoutExpired:
        return None, "hangs\n"
    if r.returncode:
        return None, r.stderr.strip() if r.returncode > 0 else f"signal {-r.returncode}\n{r.stderr}"
    return np.fromfile(out, np.float32).reshape(len(ids), -1), ""


def differ(a, b):
    return compare(a, b)["nmse"]


def distance(a, b):
    """Of b from a, relative to a's size."""
    return compare(a, b)["nmse"] ** 0.5 if a.shape == b.shape else float("inf")


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = dict.fromkeys(("same", "sensitive", "refused", "unloaded", "wild", "not followed", "different"), 0)
        self.faults, self.unseen, self.files, self.refusals = [], {}, 0, {}
        self.sample = {}  # {(key, kind): [(file, edits, the peer's last logits)]}

    def add(self, verdict, n=1):
        with self.lock:
            self.count[verdict] += n


    def write_sample(self, path):
        """For ctest: of each key those of some files, at equal distances in the alphabet."""
        data = {}
        for (key, kind), entries in sorted(self.sample.items()):
            entries.sort(key=lambda e: (e[0], str(e[1])))
            step = max(1, len(entries) // SAMPLES[kind])
            for name, edits, theirs in entries[::step][:SAMPLES[kind]]:
                data[f"{name}|{key}|{len(data)}|{json.dumps(edits)}"] = theirs
        np.savez_compressed(path, **data)


def edits_text(edits):
    return ", ".join(f"{k}={'-' if v is None else v[1]}" for k, v in edits.items())


class File:
    """One file, all of whose variants are judged."""

    def __init__(self, args, peer, model, work, ids, tally):
        self.name = os.path.basename(model).removesuffix(".gguf")
        self.path, self.out = os.path.join(work, "variant.gguf"), os.path.join(work, "ours")
        self.args, self.peer, self.ids, self.tally = args, peer, ids, tally
        self.moves, self.seen, self.limit, self.rounded = {}, {}, 0.0, 0.0
        self.suspects = set()  # keys that either program reads; the others are changed all at once
        shutil.copyfile(model, self.path)
        amplify(self.path)
        with open(self.path, "rb") as f:
            self.header = Header(f.read())

    def write(self, edits):
        data = header_bytes(self.header, edits)
        with open(self.path, "wb") as f:
            f.write(data)
            f.write(self.header.weights)
        return data

    def theirs(self):
        return self.peer.logits(self.path, len(self.ids))

    def ours(self, isa=None):
        return ours(os.path.join(self.args.bin, "oato-run"), self.path, self.out, self.ids, isa or self.args.isa)

    def rounding(self, got):
        """How far our logits by another instruction set are from `got`."""
        other, _ = self.ours("avx2" if self.args.isa == "ref" else "ref")
        return differ(got, other) if other is not None and other.shape == got.shape else 0.0

    def moved(self, key, by):
        self.moves[key] = max(self.moves.get(key, 0), by)
        if by:
            self.suspects.add(key)

    def judge(self, kind, key, edits, base):
        """One variant; gives the peer's logits, None if there is nothing to compare others with."""
        data = self.write(edits)
        if data in self.seen:
            return self.seen[data]
        theirs, self.seen[data] = self.theirs(), None
        if theirs is None or not np.isfinite(theirs).all() or not theirs.any():
            self.tally.add("unloaded" if theirs is None else "wild")
            self.moved(key, float("inf"))
            return None
        if base is not None:
            self.moved(key, distance(base, theirs))
        got, why = self.ours()
        fits = got is not None and got.shape == theirs.shape
        error = differ(theirs, got) if fits else float("inf")
        text = f"{self.name}: {kind} {key}: {edits_text(edits)}"
        verdict = "same" if error <= self.limit else "refused" if got is None and "\n" not in why else "different"
        if verdict == "different" and (self.header.arch, key) in NOT_FOLLOWED:
            verdict = "not followed"
        elif verdict == "different" and fits and error <= self.limit * self.rounding(got) / max(self.rounded, 1e-15):
            verdict = "sensitive"
        self.tally.add(verdict)
        if verdict in ("sensitive", "not followed"):
            return None
        if verdict == "same":
            self.seen[data] = theirs
            if kind in SAMPLES and key and distance(base, theirs) > SHOWN:
                with self.tally.lock:
                    self.tally.sample.setdefault((key, kind), []).append((self.name, edits, theirs[-SAMPLE_ROWS:]))
            return theirs
        self.suspects.add(key)
        with self.tally.lock:
            if verdict == "refused":
                self.tally.refusals.setdefault((kind, key), []).append(f"{text}: {why}")
            else:
                self.tally.faults.append(f"{text}: NMSE {error:.1e}, limit {self.limit:.1e} {why}")
                print(self.tally.faults[-1], flush=True)
        return None

    def judge_many(self, kind, variants, edits, base):
        """Variants of a base, together where the peer's logits keep every bit and ours stay near them."""
        if len(variants) == 1:
            self.judge(kind, variants[0][0], {**edits, **dict(variants)}, base)
            return
        data = self.write({**edits, **dict(variants)})
        theirs = self.theirs()
        if theirs is not None and theirs.shape == base.shape and (theirs == base).all():
            got, _ = self.ours()
            if got is not None and got.shape == base.shape and differ(base, got) <= self.limit:
                self.tally.add("same", len(variants))
                self.seen[data] = theirs
                for key, _ in variants:
                    self.moved(key, 0)
                return
        half = len(variants) // 2
        self.judge_many(kind, variants[:half], edits, base)
        self.judge_many(kind, variants[half:], edits, base)

    def judge_all(self, known):
        base, (got, why) = self.theirs(), self.ours()
        if base is None or got is None:
            return None if base is not None and "\n" not in why else f"{self.name}: {why or 'llama.cpp refuses it'}"
        noise = differ(base, got)
        self.rounded = self.rounding(got)
        self.limit = TIMES * max(noise, FLOOR)
        for kind, edits, variants in families(self.header, *known):
            base = self.judge(kind, "", edits, None)
            if base is None:
                continue
            for variant in list(variants):
                if variant[0] in self.suspects:
                    self.judge(kind, variant[0], {**edits, **dict([variant])}, base)
            together = [v for v in variants if v[0] not in self.suspects]
            if together:
                self.judge_many(kind, together, edits, base)
        with self.tally.lock:
            self.tally.files += 1
            for key, moved in self.moves.items():
                if key and moved < MOVED:
                    self.tally.unseen.setdefault(key, []).append(self.name)
            print(f"{self.name:28} {noise:.1e}  {self.tally.count}", flush=True)
        return None


def run(args, judge, peer_folder, models, work, ids):
    """Judges the files in `models`; gives the tally."""
    methods = writer_keys(peer_folder)
    types = {k: t for entries in methods.values() for k, t in entries}
    known = {k: types[k] for k in sorted(used_keys(peer_folder) & set(types))}, converters(peer_folder, methods)
    tally, left, ids = Tally(), list(reversed(models)), ids[:IDS]

    def worker(folder):
        os.mkdir(folder)
        peer = Peer(judge, os.path.join(folder, "theirs"), ids)
        while True:
            with tally.lock:
                if not left:
                    break
                model = left.pop()
            why = File(args, peer, model, folder, ids, tally).judge_all(known)
            if why:
                tally.add("different")
                tally.faults.append(why)
        peer.close()

    threads = [threading.Thread(target=worker, args=(os.path.join(work, f"worker{i}"),))
               for i in range(max(1, os.cpu_count() or 1))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return tally


LOADED = ("same", "sensitive", "refused", "not followed", "different")


def document(tally):
    c = tally.count
    text = f"""## Keys

Made by `scripts/architectures --keys`: {sum(c[v] for v in LOADED)} variants of {tally.files} files, in which keys are
left out, changed, added, or only those kept that one of llama.cpp's converters writes, and which llama.cpp loads.
{c["same"]} give its logits within {TIMES} times the error of the file as it is (taken as at least {FLOOR:.0e}), {c["sensitive"]} within
more because they are more sensitive to rounding (by as much as our own instruction sets are further apart), {c["refused"]} are
refused in one line, **{c["different"]} differ**. {c["unloaded"]} more are refused by llama.cpp, {c["wild"]} make it compute
infinities or nothing but 0. In {c["not followed"]} llama.cpp is not followed: {", ".join(f"{k} of {a}" for a, k in sorted(NOT_FOLLOWED))},
which its converter writes, models are trained with, and its loader does not read.
**{sum(map(len, tally.unseen.values()))} keys are unseen**: no change moves llama.cpp's own logits by {MOVED:.0e} of their size, so
that they are tested only for doing nothing here, either:

| key | files |
|---|---|
"""
    for key, names in sorted(tally.unseen.items()):
        all_of_them = len(names) > tally.files * 0.9
        text += f"| {key} | {'all but ' + str(tally.files - len(names)) if all_of_them else ', '.join(sorted(names))} |\n"
    return text
