#!/usr/bin/env python3
"""What the documents promise: links lead somewhere, named files exist, options in manual pages are
those of --help, messages are quoted as the programs say them, and what scripts/document makes is made.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

from documents import ROOT, command_of, dead_links, markdown, options_of

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/release/bin")
MODEL = pathlib.Path(os.environ.get("OATO_CACHE", pathlib.Path.home() / ".cache/oato")) / \
    "models/SmolLM2-135M-Instruct.Q4_1.gguf"
os.environ["OATO_PLAN"] = "none"  # whatever plan a program would make for this machine
SOURCES = ("base", "kernels", "models", "text", "planfmt", "lowering", "executor", "profiler", "solver", "front",
           "net", "server")


def literals():
    """Each text of the sources, adjacent ones joined, as a pattern: what is printed into it is any."""
    string = r'"(?:[^"\\\n]|\\.)*"'
    for folder in SOURCES:
        for path in [*(ROOT / folder).rglob("*.c"), *(ROOT / folder).rglob("*.h")]:
            text = path.read_text(encoding="utf-8")
            for found in re.findall(rf"(?:{string}(?:\s|PRI[a-zA-Z0-9]+)*)+", text):
                said = "".join(s[1:-1] for s in re.findall(string, re.sub(r"\bPRI\w+", '"d"', found)))
                said = said.replace('\\"', '"').replace("\\n", "")
                parts = re.split(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z]", said)
                if len("".join(parts)) >= 12:
                    yield re.compile(".+".join(map(re.escape, parts)).replace("%%", "%"))


def quotes(page):
    """The messages that a page quotes: lines of code behind a >."""
    return re.findall(r"^> `(.+)`$", page.read_text(encoding="utf-8"), re.M)


def is_said(quote, patterns):
    """Whether a text of the sources is it, by itself or behind a program's name, "warning" and a file's name."""
    found = re.fullmatch(r"((oato-?[a-z]*: )?(?:warning: )?)(.+)", quote)
    forms = {quote, found[3], found[3].split(": ", 1)[-1]}
    return any(pattern.fullmatch(form) for pattern in patterns for form in forms)


def manual(page):
    """The page, in mdoc or man macros, with plain dashes."""
    return page.read_text(encoding="utf-8").replace("\\-", "-")


def verbs_of_page(text):
    """Those that the page refers to."""
    return set(re.findall(r"^\.Xr oato-([a-z]+) 1", text, re.M)) if ".Dt OATO 1" in text else set()


class Documents(unittest.TestCase):
    maxDiff = None

    def test_links(self):
        self.assertEqual(dead_links(ROOT), [])

    def test_links_can_be_dead(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A head\n[a](page.md#a-head) [b](page.md#b) [c](gone.md) [d](https://x)\n",
                            encoding="utf-8")
            self.assertEqual(dead_links(pathlib.Path(folder)), ["page.md: page.md#b", "page.md: gone.md"])

    def test_named_files(self):
        gone = []
        for page in markdown(ROOT):
            text = page.read_text(encoding="utf-8")
            for name in re.findall(r"`((?:docs|scripts|tests|cmake)/[\w./-]*\w)`", text):
                if not (ROOT / name).exists() and not (page.parent / name).exists():
                    gone.append(f"{page.relative_to(ROOT)}: {name}")
        self.assertEqual(gone, [])

    def test_made_parts(self):
        got = subprocess.run([ROOT / "scripts/document", "--check", "--bin", BIN], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)

    def test_manual_pages_have_all_options(self):
        for page in sorted((ROOT / "docs/man").glob("*.1")):
            text = manual(page)
            for other in re.findall(r"^The others are those of\n\.Xr ([a-z-]+) 1", text, re.M):
                text += manual(page.parent / f"{other}.1")
            for own in (page.parent / f"{page.stem}-{verb}.1" for verb in verbs_of_page(text)):
                text += manual(own) if own.exists() else ""
            named = set(re.findall(r"(?:(?:Fl|,) -?|--)([a-z][a-z-]*)", text))
            self.assertEqual(options_of(command_of(BIN, page)) - named - {"help"}, set(), page.name)

    def test_manual_pages_have_no_others(self):
        for page in sorted((ROOT / "docs/man").glob("*.1")):
            items = re.findall(r"^\.It (Fl .*)$|^\.TP\n\.B[IR]* (.*)$", manual(page), re.M)
            named = {name for item in items for name in re.findall(r"(?:Fl -|--)([a-z-]+)", "".join(item))}
            command = command_of(BIN, page)
            for name in named - options_of(command):
                got = subprocess.run([*command, f"--{name}"], capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL)
                self.assertNotIn("unknown option", got.stderr, page.name)

    def test_figures_of_the_readme(self):
        """The medians that the README states are those of the tables that it names."""
        stated = re.findall(r"\*\*median\*\* of (\d+) and of (\d+) rows \| ([\d.]+) \| ([\d.]+) \|",
                            (ROOT / "README.md").read_text(encoding="utf-8"))
        found = []
        for name in ("cpu-avx512-vnni", "gpu"):
            table = (ROOT / f"docs/benchmarks/{name}.md").read_text(encoding="utf-8").split("\n## Part")[0]
            rows = [line.split(" | ") for line in table.splitlines() if re.match(r"\| .*(?:prefill|decode)", line)]
            ratios = [[float(row[4]) for row in rows if phase in row[0] + row[1]] for phase in ("prefill", "decode")]
            found.append((*(str(len(r)) for r in ratios), *(f"{statistics.median(r):.1f}" for r in ratios)))
        self.assertEqual(stated, found)

    def test_records_are_those_of_the_model(self):
        page = (ROOT / "docs/forward-pass.md").read_text(encoding="utf-8")
        shown = re.findall(r"^\| `(\d+ [^`]+)` \|", page, re.M)
        self.assertGreater(len(shown), 14)
        if not MODEL.exists():
            self.assertNotIn("OATO_REQUIRE_MODEL", os.environ)
            self.skipTest("no model; scripts/fetch-model")
        got = subprocess.run([BIN / "oato-run", MODEL, "--dump-program"], capture_output=True, text=True, check=True)
        records = [re.sub(r"^ *(\d+) run +", r"\1 ", line) for line in got.stdout.split("# decode")[1].splitlines()]
        self.assertEqual([record for record in shown if record not in records], [])

    def test_messages_are_said(self):
        patterns = list(literals())
        page = ROOT / "docs/trouble.md"
        self.assertGreater(len(quotes(page)), 10)
        missing = [quote for quote in quotes(page) if not is_said(quote, patterns)]
        self.assertEqual(missing, [])
        self.assertFalse(is_said("oato-run: no program says this sentence", patterns))


if __name__ == "__main__":
    unittest.main()
