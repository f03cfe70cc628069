#!/usr/bin/env python3
"""usage: test_install.py BUILD_FOLDER [COMPILER]

What `cmake --install` puts into a folder is of use there: headers compile, the example builds by
pkg-config alone and generates, links of documents hold, shells complete, plan-regression finds its oato-plan.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from documents import dead_links

BUILD = pathlib.Path(sys.argv[1])
COMPILER = sys.argv[2] if len(sys.argv) > 2 else "cc"
CACHE = pathlib.Path(os.environ.get("OATO_CACHE", pathlib.Path.home() / ".cache/oato"))
MODEL = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
os.environ["OATO_PLAN"] = "none"  # whatever plan a program would make for this machine
PROMPT = "The first thing to know about the Moon is that"

# What is asked of the shells: a program with a verb, as oato has them, stands in for one that exists.
ASKED = ((("oato-run", "--te"), "--temp"), (("oato-run", "ben"), "bench"), (("oato-plan", "hea"), "header"),
         (("fake", "ru"), "run"), (("fake", "run", "bench", "--dep"), "--depth"), (("oato-serve", "--por"), "--port"))
FAKE = """#!/bin/sh
[ "$1" != run ] || { shift; exec oato-run "$@"; }
printf 'Usage: fake VERB\\n  run   all that oato-run does\\n'
"""
BASH = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _oato "$1" "${!#}"; printf "%s\\n" "${COMPREPLY[@]}"'
ZSH = """fpath=($1 $fpath); shift; autoload -U _oato
_describe() { [[ $1 == -o ]] && shift; print -l -- ${${(P)2}%%:*} }
_files() { }
words=("$@"); CURRENT=$#; _oato"""
FISH = 'source $argv[1]; complete -C "$argv[2..]"'


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_in(cls.folder, "cmake", "--install", BUILD.resolve(), "--prefix", cls.folder / "made")
        cls.prefix = (cls.folder / "made").rename(cls.folder / "moved")
        cls.env = {**os.environ, "PATH": f"{cls.folder}:{cls.prefix / 'bin'}:{os.environ['PATH']}",
                   "PKG_CONFIG_PATH": str(next(cls.prefix.rglob("oato.pc")).parent)}
        (cls.folder / "fake").write_text(FAKE, encoding="utf-8")
        (cls.folder / "fake").chmod(0o755)

    @staticmethod
    def run_in(folder, *words, text=None, env=None):
        got = subprocess.run([str(w) for w in words], cwd=folder, capture_output=True, text=True, input=text, env=env)
        if got.returncode:
            raise AssertionError(f"{words}: status {got.returncode}\n{got.stdout}{got.stderr}")
        return got.stdout

    def test_headers_compile(self):
        include = self.prefix / "include/oato"
        headers = [str(h.relative_to(include)) for h in include.rglob("*.h")]
        self.assertIn("executor/session.h", headers)
        for header in headers:
            self.run_in(self.folder, COMPILER, "-std=c17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                        "-I", include, "-x", "c", "-", text=f'#include "{header}"\n')
        cxx = shutil.which("c++")
        if cxx:
            text = '#include <oato.h>\nint main() { session s{}; session_close(&s); }\n'
            for standard in ("c++17", "c++20"):
                self.run_in(self.folder, cxx, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                            "-I", include, "-x", "c++", "-", text=text)

    def test_example_generates(self):
        example = next(self.prefix.rglob("complete.c")).parent
        self.assertLess(len((example / "complete.c").read_text(encoding="utf-8").splitlines()), 50)
        self.run_in(example, "make", f"CC={COMPILER}", "CFLAGS=-Werror", env=self.env)
        if not MODEL.exists():
            self.assertNotIn("OATO_REQUIRE_MODEL", os.environ)
            self.skipTest("no model; scripts/fetch-model")
        told = self.run_in(example, "./complete", MODEL, PROMPT, 12)
        asked = self.run_in(example, self.prefix / "bin/oato-run", MODEL, "-p", PROMPT, "-n", 12, "--temp", 0)
        self.assertEqual(told, asked)
        self.assertGreater(len(told), len(PROMPT) + 12)

    def test_errors_of_the_example(self):
        example = next(self.prefix.rglob("complete.c")).parent
        self.run_in(example, "make", f"CC={COMPILER}", env=self.env)
        got = subprocess.run([example / "complete", "no-such.gguf", "x"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 6, got.stderr)
        self.assertRegex(got.stderr, r"^complete: .*no-such.gguf.*\n$")

    def test_links_hold(self):
        documents = next(self.prefix.rglob("LICENSE")).parent
        self.assertTrue((documents / "README.md").exists())
        self.assertEqual(dead_links(documents), [])

    def test_manual_pages(self):
        pages = {page.stem for page in self.prefix.rglob("*.1")}
        programs = {path.name for path in (self.prefix / "bin").iterdir()}
        self.assertLessEqual({"oato-run", "oato-plan", "oato-profile", "oato-serve"}, pages)
        self.assertTrue(all(page in programs or page.startswith("oato-") for page in pages), pages)

    def test_plan_regression(self):
        plans = self.folder / "plans"
        plans.mkdir()
        (plans / "a@b.plan").write_text("not a plan", encoding="utf-8")
        env = {**os.environ}
        env.pop("OATO_PLANNER", None)
        got = subprocess.run([self.prefix / "bin/plan-regression", plans], capture_output=True, text=True, env=env)
        self.assertEqual(got.returncode, 3, got.stderr)
        self.assertIn("BAD", got.stdout)

    def complete(self, shell, script, file, joined=False):
        if not shutil.which(shell):
            self.skipTest(f"no {shell} here")
        for words, wanted in ASKED:
            words = (" ".join(words),) if joined else words
            options = ("-f", "-c", script, "zsh", file) if shell == "zsh" else \
                ("-c", script, "bash", file) if shell == "bash" else ("--no-config", "-c", script, file)
            said = self.run_in(self.folder, shell, *options, *words, env={**self.env, "HOME": str(self.folder)})
            self.assertIn(wanted, [line.split("\t")[0] for line in said.splitlines()], words)

    def test_bash(self):
        files = self.prefix / "share/bash-completion/completions"
        self.assertEqual({f.name for f in files.iterdir()}, {f.stem for f in self.prefix.rglob("*.fish")})
        self.complete("bash", BASH, files / "oato-run")

    def test_zsh(self):
        self.complete("zsh", ZSH, self.prefix / "share/zsh/site-functions")

    def test_fish(self):
        files = self.prefix / "share/fish/vendor_completions.d"
        for words, _ in ASKED:
            shutil.copy(files / "oato-run.fish", self.folder / f"{words[0]}.fish")
        script = "for f in $argv[1]/*.fish; source $f; end; complete -C $argv[2]"
        self.complete("fish", script, self.folder, joined=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
