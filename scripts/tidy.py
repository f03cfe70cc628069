#!/usr/bin/env python3
"""usage: tidy.py BUILD_FOLDER NODES JOBS FILE...

Runs clang-tidy on files of the source tree with the compile commands of a build folder; NODES limits
its analyzer. A file without a complaint is remembered below the cache by all that clang-tidy reads:
its text, that of each header, .clang-tidy, the command and the program itself. Every checkout knows
it then. A complaint is never remembered.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

BUILD, NODES, JOBS, FILES = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
ROOT = os.getcwd()
CACHE = os.environ.get("OATO_CACHE") or os.path.expanduser("~/.cache/oato")
STORE = os.path.join(CACHE, "tidy")
KEPT_DAYS = 30
EXTRA = [f"--extra-arg={word}" for option in ("-analyzer-config", f"max-nodes={NODES}") for word in ("-Xclang", option)]


def output_of(command, folder=ROOT):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@functools.lru_cache(maxsize=None)
def hash_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def anywhere(text):
    """The same in every checkout."""
    return text.replace(BUILD, "BUILD").replace(ROOT, "ROOT")


def key_of(entry, version):
    """None: the file cannot be read as clang would."""
    command = shlex.split(entry["command"])
    source = command[command.index("-c") + 1]
    words, flags = iter(command), []
    for word in words:
        if word in ("-o", "-MF", "-MT"):
            next(words)
        elif word not in ("-c", "-MD", source) and (flags or word.startswith("-")):  # behind ccache and the compiler
            flags.append(word)
    r = output_of(["clang", "-M", "-w", *flags, source], entry["directory"])
    if r.returncode:
        return None
    read = shlex.split(r.stdout.replace("\\\n", " "))[1:]
    paths = {os.path.realpath(os.path.join(entry["directory"], p)) for p in read}
    texts = sorted(anywhere(p) + " " + hash_of(p) for p in paths)
    parts = (version, hash_of(".clang-tidy"), NODES, *map(anywhere, flags), anywhere(source), *texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check(name, entry, version):
    """What clang-tidy complains of; empty: nothing."""
    key = key_of(entry, version)
    mark = os.path.join(STORE, key) if key else None
    if mark and os.path.exists(mark):
        os.utime(mark)
        return "", True
    r = output_of(["clang-tidy", "--quiet", "-p", BUILD, *EXTRA, name])
    if r.returncode or r.stdout.strip():
        return r.stdout + (r.stderr if r.returncode else "") + f"{name}: clang-tidy ended with status {r.returncode}\n", False
    if mark:
        with open(mark, "w", encoding="utf-8"):
            pass
    return "", False


def main():
    os.makedirs(STORE, exist_ok=True)
    for mark in os.scandir(STORE):
        if mark.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
            os.remove(mark.path)
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as f:
        entries = {os.path.relpath(e["file"], ROOT): e for e in json.load(f) if e["file"].endswith(".c")}
    program = os.path.realpath(shutil.which("clang-tidy"))
    version = output_of(["clang-tidy", "--version"]).stdout + hash_of(program)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(lambda n: check(n, entries[n], version), [n for n in FILES if n in entries]))
    complaints = [text for text, _ in results if text]
    sys.stdout.write("".join(complaints))
    print(f"clang-tidy: {len(results)} files, {sum(known for _, known in results)} of them known to be clean")
    return 1 if complaints else 0


sys.exit(main())
