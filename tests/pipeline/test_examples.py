#!/usr/bin/env python3
"""usage: test_examples.py OATO_SERVE OATO_MAKE_MODEL [--model FILE] [--only WORD]

The examples of docs/serving.md hold: each ```bash block with curl is run by bash against a server, and must answer with the status and
the members that the block behind it shows (docs/serving.md says how to read them, section "Addresses"). Each address of
server/openapi.json has an example. On tiny random models; with --model on that one. --only: blocks with this word.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from gguf_file import FILL_IN, with_keys
from rig import Server, check, finish, make_model

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = "http://127.0.0.1:8080"
FENCED = re.compile(r"^```(\w*)(?: (\d+))?\n(.*?)^```$|^(#+ )", re.S | re.M)
ANY = "\0any" # a value that is not shown


def shown(text):
    """The JSON of a text in which ... stands for what is left out."""
    words = re.findall(r'"(?:[^"\\]|\\.)*"|\.\.\.|[^".]+|\.', text)
    kept = []
    for w in words:
        if w == "...":
            before = "".join(kept).rstrip()
            if before.endswith(":"):
                kept.append(json.dumps(ANY))
            elif before.endswith(","):
                kept = [before[:-1]]
            continue
        kept.append(w)
    return json.loads(re.sub(r"([\[{])\s*,", r"\1", "".join(kept)))


def kind(value):
    return "number" if type(value) in (int, float) else type(value).__name__


def differs(wanted, got, where=""):
    """Why got is not as shown, or nothing."""
    if wanted == ANY:
        return None
    if kind(wanted) != kind(got):
        return f"{where or 'the answer'} is {json.dumps(got)[:200]}, not {json.dumps(wanted)[:200]}"
    if isinstance(wanted, dict):
        missing = [k for k in wanted if k not in got]
        if missing:
            return f"{where}.{missing[0]} is missing in {json.dumps(got)[:300]}"
        return next((why for k in wanted if (why := differs(wanted[k], got[k], f"{where}.{k}"))), None)
    if isinstance(wanted, list):
        if len(got) < len(wanted):
            return f"{where} has {len(got)} elements, {len(wanted)} are shown"
        return next((why for i, w in enumerate(wanted) if (why := differs(w, got[i], f"{where}[{i}]"))), None)
    if isinstance(wanted, str):
        pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
        return None if re.fullmatch(pattern, got, re.S) else f"{where} is {got!r}, not {wanted!r}"
    if isinstance(wanted, bool) or wanted is None:
        return None if wanted is got else f"{where} is {got}, not {wanted}"
    return None # numbers: any


def line_is(wanted, got):
    head = re.match(r"(data: )?(?=[{\[])", wanted)
    if not head or wanted.endswith("]") and "DONE" in wanted:
        return re.fullmatch(".*".join(re.escape(part) for part in wanted.split("...")), got) is not None
    if not got.startswith(head[0]):
        return False
    try:
        return not differs(shown(wanted[len(head[0]):]), json.loads(got[len(head[0]):]))
    except json.JSONDecodeError:
        return False


def lines_differ(wanted, got):
    """The lines of a stream come in this order, others may be between them."""
    rest = iter(got.splitlines())
    for line in wanted.splitlines():
        if line.strip() in ("", "..."):
            continue
        if not any(line_is(line.strip(), one.strip()) for one in rest):
            return f"no line '{line}' where it should be in\n{got[:1500]}"
    return None


class Example:
    def __init__(self, code, form, status, answer):
        self.code, self.form, self.status, self.answer = code, form, status, answer
        options = re.match(r"# oato-serve (.*)\n", self.code)
        self.options = options[1] if options else "MODEL.gguf"
        self.code = self.code[options.end() if options else 0:]
        self.title = " ".join(re.search(r"curl.*?(?=$| -d| \\)", self.code, re.M)[0].split())

    def asks(self):
        """(method, path) of each curl."""
        for line in re.findall(r"curl (?:[^\\\n]|\\\n)*", self.code):
            path = re.search(re.escape(HERE) + r"([^\s'\"?]*)", line)
            method = re.search(r"(?:-X|--request) (\w+)", line)
            data = re.search(r" (-d|--data\S*|--json)[ @]", line)
            if path:
                yield method[1] if method else "POST" if data else "GET", path[1] or "/"

    def run(self, url, folder):
        """Why the answer is not the one that is shown, or nothing."""
        result = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", self.code.replace(HERE, url)], capture_output=True, text=True, timeout=120, cwd=folder,
                                env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "OATO_HEADS": f"{folder}/heads"})
        heads = (folder / "heads").read_text().splitlines()
        (folder / "heads").unlink()
        statuses = [int(line.split()[1]) for line in heads if line.startswith("HTTP/") and line.split()[1] != "100"]
        if result.returncode or not statuses:
            return f"ends with {result.returncode}: {result.stderr[-500:]}"
        if statuses[-1] != self.status or any(s >= 300 for s in statuses[:-1]):
            return f"status {statuses}, {self.status} is shown: {result.stdout[:500]}"
        if self.form == "json":
            try:
                got = json.loads(result.stdout)
            except json.JSONDecodeError:
                return f"no JSON: {result.stdout[:300]}"
            return differs(shown(self.answer), got)
        return lines_differ(self.answer, result.stdout) if self.form else None


def examples_of(text):
    """The bash blocks with curl, each with the block of JSON or text that follows it before the next heading."""
    found = [*FENCED.finditer(text), None]
    for block, then in zip(found, found[1:]):
        if block[1] == "bash" and re.search(r"^(\w+=.*)?curl ", block[3], re.M):
            answered = then and then[1] in ("json", "text")
            yield Example(block[3], then[1], int(then[2] or 200), then[3]) if answered else Example(block[3], None, 200, None)


def documented(examples):
    """Each address of openapi.json has an example."""
    seen = {ask for e in examples for ask in e.asks()}
    for path, methods in json.loads((ROOT / "server/openapi.json").read_text())["paths"].items():
        pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path))
        for method in methods:
            if method in ("get", "post", "put", "delete", "patch"):
                check(any(m == method.upper() and re.fullmatch(pattern, p) for m, p in seen), f"{method.upper()} {path} has an example in docs/serving.md")


def main():
    p = argparse.ArgumentParser(usage=__doc__.removeprefix("usage: "))
    p.add_argument("serve")
    p.add_argument("make")
    p.add_argument("--model")
    p.add_argument("--only")
    a = p.parse_args()
    curl = shutil.which("curl")
    if not curl:
        print("skipped: curl is missing; scripts/setup installs it")
        return 77
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    examples = list(examples_of(text))
    documented(examples)
    if a.only:
        examples = [e for e in examples if a.only in e.code]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "bin").mkdir()
        shim = folder / "bin/curl"
        shim.write_text(f'#!/bin/sh\n{curl} -sS --max-time 100 -D "$OATO_HEADS.one" "$@"\ns=$?\ncat "$OATO_HEADS.one" >> "$OATO_HEADS"\nexit $s\n')
        shim.chmod(0o755)

        def make(path, *options):
            path = folder / path
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                make_model(a.make, path, "--context", "4096", *options)
            return path

        def files(word):
            if word == "MODELS":
                return make("models/one.gguf").parent if make("models/two.gguf", "--seed", "2") else None
            if word == "DIR":
                (folder / "dir").mkdir(exist_ok=True)
                return folder / "dir"
            if word == "CODER.gguf":
                return with_keys(make("MODEL.gguf"), folder / word, FILL_IN)
            if word.endswith(".gguf"):
                return a.model if a.model and word == "MODEL.gguf" else make(word)
            return word

        for options in dict.fromkeys(e.options for e in examples):
            with Server(a.serve, *map(files, options.split())) as server:
                for e in examples:
                    if e.options == options:
                        why = e.run(server.url, folder)
                        check(not why, e.title.replace(HERE, ""), why)
    return finish()


sys.exit(main())
