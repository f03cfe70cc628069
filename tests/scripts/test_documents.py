#!/usr/bin/env python3
"""What the documents promise: links lead somewhere, named files exist, options in manual pages are
those of --help, messages are quoted as the programs say them, and what scripts/document makes is made.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from documents import ROOT, dead_links, markdown, options_of

BIN = pathlib.Path(sys.argv.pop() if len(sys.argv) > 1 else ROOT / "build/release/bin")
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
    return re.findall(r"^> `(?:oato-?[a-z]*: )?(.+)`$", page.read_text(encoding="utf-8"), re.M)


def manual(page):
    """The page, in mdoc or man macros, with plain dashes."""
    return page.read_text(encoding="utf-8").replace("\\-", "-")


class Documents(unittest.TestCase):
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
            named = set(re.findall(r"(?:(?:Fl|,) -|--)([a-z-]+)", text))
            self.assertEqual(options_of(BIN / page.stem) - named, set(), page.name)

    def test_manual_pages_have_no_others(self):
        for page in sorted((ROOT / "docs/man").glob("*.1")):
            items = re.findall(r"^\.It (Fl .*)$|^\.TP\n\.B[IR]* (.*)$", manual(page), re.M)
            named = {name for item in items for name in re.findall(r"(?:Fl -|--)([a-z-]+)", "".join(item))}
            for name in named - options_of(BIN / page.stem):
                got = subprocess.run([BIN / page.stem, f"--{name}"], capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL)
                self.assertNotIn("unknown option", got.stderr, page.name)

    def test_messages_are_said(self):
        patterns = list(literals())
        page = ROOT / "docs/trouble.md"
        self.assertGreater(len(quotes(page)), 10)
        missing = [q for q in quotes(page) if not any(p.fullmatch(q) for p in patterns)]
        self.assertEqual(missing, [])
        self.assertFalse(any(p.fullmatch("no program says this sentence") for p in patterns))


if __name__ == "__main__":
    unittest.main()
