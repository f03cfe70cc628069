#!/usr/bin/env python3
"""scripts/fetch-model without the network: its tables are well-formed, parts are put together in order and
verified, and what is wrong is refused in one line. Run by ctest."""
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
SCRIPT = os.path.join(SCRIPTS, "fetch-model")


def table(name):
    with open(SCRIPT, encoding="utf-8") as f:
        text = re.search(rf"^{name}='\n(.*?)'$", f.read(), re.MULTILINE | re.DOTALL).group(1)
    return [line.split(" | ") for line in text.splitlines()]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Table(unittest.TestCase):
    def test_a_model_has_a_name_and_a_file_of_its_own(self):
        rows = table("models")
        for column in (0, 1, 3):
            self.assertEqual(len({r[column] for r in rows}), len(rows))
        for name, file, size, digest in rows:
            self.assertRegex(name, r"^[a-z0-9._-]+$")
            self.assertRegex(file, r"^[A-Za-z0-9._-]+\.gguf$")
            self.assertGreater(int(size), 1 << 20)
            self.assertRegex(digest, r"^[0-9a-f]{64}$")

    def test_every_part_is_pinned_and_of_a_model(self):
        rows = table("parts")
        names = [r[0] for r in table("models")]
        self.assertEqual(list(dict.fromkeys(r[0] for r in rows)), names)
        for column in (2, 3, 4):
            self.assertEqual(len({r[column] for r in rows}), len(rows))
        for _, package, file, digest, path in rows:
            self.assertRegex(package, r"^[a-z0-9-]+==[0-9.]+$")
            self.assertEqual(file.split("-")[:2], [package.split("==")[0].replace("-", "_"), package.split("==")[1]])
            self.assertTrue(file.endswith("-py3-none-any.whl"))
            self.assertRegex(digest, r"^[0-9a-f]{64}$")
            self.assertTrue(path.startswith(file.split("-")[0] + "/"))


class Fetch(unittest.TestCase):
    """A copy of the script with a table of two small models, whose packages lie in the cache."""

    def setUp(self):
        self.work = tempfile.mkdtemp()
        self.cache = os.path.join(self.work, "cache")
        scripts = os.path.join(self.work, "scripts")
        os.makedirs(os.path.join(self.cache, "downloads"))
        os.makedirs(os.path.join(self.cache, "venv", "bin"))
        os.makedirs(scripts)
        shutil.copy(os.path.join(SCRIPTS, "common.sh"), scripts)
        # pip, to whom nothing can be downloaded
        self.write("venv/bin/python", b"#!/bin/sh\nexit 1\n")
        os.chmod(os.path.join(self.cache, "venv/bin/python"), 0o755)
        self.parts = {"one": [b"GGUF one"], "two": [b"GGUF ", b"in three ", b"parts"]}
        models, parts = "", ""
        for name, pieces in self.parts.items():
            whole = b"".join(pieces)
            models += f"{name} | {name}.gguf | {len(whole)} | {sha256(whole)}\n"
            for i, piece in enumerate(pieces):
                path = os.path.join(self.cache, "downloads", f"{name}{i}.whl")
                with zipfile.ZipFile(path, "w") as z:
                    z.writestr(f"{name}/part{i}", piece)
                with open(path, "rb") as f:
                    parts += f"{name} | {name}{i}==1.0 | {name}{i}.whl | {sha256(f.read())} | {name}/part{i}\n"
        with open(SCRIPT, encoding="utf-8") as f:
            text = f.read()
        for key, rows in (("models", models), ("parts", parts)):
            text = re.sub(rf"^{key}='\n.*?'$", lambda m, k=key, r=rows: f"{k}='\n{r}'", text, flags=re.MULTILINE | re.DOTALL)
        self.script = os.path.join(scripts, "fetch-model")
        with open(self.script, "w", encoding="utf-8") as f:
            f.write(re.sub(r"^default=.*$", "default=one", text, flags=re.MULTILINE))

    def tearDown(self):
        shutil.rmtree(self.work)

    def write(self, name, data):
        with open(os.path.join(self.cache, name), "wb") as f:
            f.write(data)

    def run_script(self, *args):
        env = dict(os.environ, OATO_CACHE=self.cache)
        return subprocess.run(["bash", self.script, *args], env=env, capture_output=True, text=True, check=False)

    def path(self, name):
        return os.path.join(self.cache, "models", name + ".gguf")

    def test_parts_make_the_model_and_packages_are_removed(self):
        r = self.run_script("--all")
        self.assertEqual((r.returncode, r.stdout.split()), (0, [self.path("one"), self.path("two")]), r.stderr)
        with open(self.path("two"), "rb") as f:
            self.assertEqual(f.read(), b"GGUF in three parts")
        self.assertEqual(os.listdir(os.path.join(self.cache, "downloads")), [])
        for args, expected in (((), "one"), (("two",), "two"), ((self.path("two"),), "two")):
            self.assertEqual(self.run_script(*args).stdout.split(), [self.path(expected)])
        self.assertEqual(self.run_script("--cached").stdout, r.stdout)

    def test_what_is_missing_is_named_with_the_way_out(self):
        self.run_script()
        r = self.run_script("--cached")
        self.assertEqual((r.returncode, r.stdout.split()), (1, [self.path("one")]))
        self.assertIn("two.gguf is not in the cache; scripts/fetch-model two fetches it", r.stderr)

    def test_without_the_network_the_parts_that_are_there_are_kept(self):
        os.remove(os.path.join(self.cache, "downloads", "two2.whl"))
        r = self.run_script("two")
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("cannot download two2==1.0; run it again when the network is back", r.stderr)
        self.assertFalse(os.path.exists(self.path("two")))
        self.assertTrue(os.path.exists(os.path.join(self.cache, "downloads", "two0.whl")))

    def test_a_damaged_model_is_made_again(self):
        self.run_script("one")
        self.write("models/one.gguf", b"GGUF bad")
        r = self.run_script("one")  # and its package was removed
        self.assertEqual((r.returncode, r.stdout), (1, ""))

    def test_mistakes_are_one_line(self):
        self.write("text", b"no model")
        for status, *args in ((1, "none"), (2, "--none"), (2, "one", "two"), (1, os.path.join(self.cache, "text"))):
            r = self.run_script(*args)
            self.assertEqual((r.returncode, r.stdout, len(r.stderr.splitlines())), (status, "", 1), r.stderr)
        self.assertEqual(self.run_script("--list").stdout.split(), ["one", "two"])


if __name__ == "__main__":
    unittest.main()
