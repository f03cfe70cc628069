#!/usr/bin/env python3
"""scripts/plan-regression on a repository made up here: plans that hold, that got slower, that no
longer fit, that are not the best any more, and files that are missing or bad.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "plan-regression"
MACHINE = ROOT / "docs" / "hardware" / "rtx3060-laptop.yaml"
BIN = pathlib.Path(sys.argv.pop() if len(sys.argv) > 1 else ROOT / "build/release/bin")
SIZES = "--layers 4 --width 1024 --ffn 4096 --heads 16 --kv-heads 16 --vocab 32000 --type Q8_0".split()


class Regression(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.call(BIN / "oato-make-model", *SIZES, "--header-only", "--no-tokenizer",
                  self.folder / "small.gguf")
        self.text = MACHINE.read_text(encoding="utf-8")
        self.write_machine()
        self.plan("small@laptop.plan", "-p", self.folder / "laptop.profile.yaml")

    def call(self, *words):
        subprocess.run([str(w) for w in words], check=True, capture_output=True)

    def write_machine(self, old="", new=""):
        self.assertIn(old, self.text)
        (self.folder / "laptop.profile.yaml").write_text(self.text.replace(old, new),
                                                         encoding="utf-8")

    def plan(self, name, *machine):
        self.call(BIN / "oato-plan", self.folder / "small.gguf", *machine, "--prompt", 64,
                  "--generate", 32, "--context", 256, "--budget", "cuda:0=64MiB", "-o",
                  self.folder / name)

    def run_script(self, *words):
        return subprocess.run([str(w) for w in (SCRIPT, self.folder, "--oato-plan",
                                                BIN / "oato-plan", *words)],
                              capture_output=True, text=True)

    def expect(self, status, verdicts, *words):
        """Runs with and without --json; the verdicts come in order of the plans' names."""
        got = self.run_script(*words)
        self.assertEqual(got.returncode, status, got.stdout + got.stderr)
        got_json = self.run_script("--json", *words)
        report = json.loads(got_json.stdout)
        self.assertEqual(got_json.returncode, 0 if report["good"] else status)
        self.assertEqual([row["verdict"] for row in report["plans"]], verdicts, report)
        self.assertEqual(report["good"], status == 0)
        for verdict in verdicts:
            self.assertIn(verdict, got.stdout)
        return got.stdout, report["plans"]

    def test_plans_hold_and_come_out_the_same(self):
        self.plan("small@rtx3060-laptop.plan", "--hardware", "rtx3060-laptop")
        self.expect(0, ["fine", "fine"], "--exact")

    def test_a_slower_machine_is_told_and_allowed(self):
        self.write_machine("read_bytes_per_s: 41000000000", "read_bytes_per_s: 20500000000")
        out, rows = self.expect(1, ["SLOWER"])
        self.assertIn("against what the plan promised", out)
        self.assertGreater(rows[0]["change_percent"], 20)
        self.assertGreater(rows[0]["now_ms"], rows[0]["limit_ms"])
        self.expect(0, ["fine"], "--max-slower", "100%")

    def measured(self, median, p10):
        """A profile with rows of this model's shapes, which vary as said: shares of its medians."""
        text = (ROOT / "docs/hardware/epyc-zen5-2cores.yaml").read_text(encoding="utf-8")

        def scaled(row):
            ns = float(row[1])
            return f"median_ns: {ns * median:.1f}, p10_ns: {ns * p10:.1f}, p90_ns: {ns * median:.1f}"

        text = re.sub(r"median_ns: ([^,]+), p10_ns: [^,]+, p90_ns: [^,]+", scaled, text)
        (self.folder / "epyc.profile.yaml").write_text(text, encoding="utf-8")

    def test_what_measurements_cannot_tell_is_not_fine(self):
        (self.folder / "small@laptop.plan").unlink()
        sizes = ("--layers 2 --width 576 --ffn 1536 --heads 9 --kv-heads 3 --vocab 49152 "
                 "--type Q4_1").split()
        self.call(BIN / "oato-make-model", *sizes, "--header-only", "--no-tokenizer",
                  self.folder / "little.gguf")
        self.measured(1, 1)
        self.call(BIN / "oato-plan", self.folder / "little.gguf", "-p",
                  self.folder / "epyc.profile.yaml", "--prompt", 64, "--generate", 32, "--context",
                  512, "-o", self.folder / "little@epyc.plan")
        before = (self.folder / "little@epyc.plan").read_bytes()
        self.expect(0, ["fine"])
        self.measured(1, 0.6)
        self.expect(7, ["TOO NOISY TO TELL"])
        self.expect(0, ["fine"], "--max-slower", "90%")
        self.assertEqual(self.run_script("--update").returncode, 7)
        self.assertEqual((self.folder / "little@epyc.plan").read_bytes(), before)
        self.measured(3, 1)
        self.expect(1, ["SLOWER"])

    def test_a_better_gpu_makes_the_plan_not_the_best(self):
        self.plan("small@laptop.plan", "-p", self.folder / "laptop.profile.yaml", "--devices",
                  "cpu:0,cuda:0", "--solver", "cpu")
        out, _ = self.expect(1, ["NOT BEST"])
        self.assertIn("against the best plan of today", out)

    def test_less_memory_does_not_fit(self):
        self.write_machine("free_bytes: 5905580032", "free_bytes: 10000000")
        self.expect(1, ["NO FIT"])

    def test_another_plan_of_the_same_speed_differs(self):
        path = self.folder / "small@laptop.plan"
        before = path.read_bytes()
        self.call(BIN / "oato-plan", self.folder / "small.gguf", "-p",
                  self.folder / "laptop.profile.yaml", "--prompt", 64, "--generate", 32,
                  "--context", 256, "--budget", "cuda:0=64MiB", "--solver", "layers", "-o", path)
        self.assertNotEqual(before, path.read_bytes())
        self.expect(0, ["fine"], "--max-slower", "100%")
        out, _ = self.expect(1, ["DIFFERS"], "--max-slower", "100%", "--exact")
        self.assertIn("oato-plan diff", out)

    def test_update_plans_anew_what_does_not_hold(self):
        self.plan("small@rtx3060-laptop.plan", "--hardware", "rtx3060-laptop")
        fine = (self.folder / "small@rtx3060-laptop.plan").read_bytes()
        self.write_machine("read_bytes_per_s: 41000000000", "read_bytes_per_s: 20500000000")
        got = self.run_script("--update")
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        self.assertIn("fine, planned anew", got.stdout)
        self.assertEqual((self.folder / "small@rtx3060-laptop.plan").read_bytes(), fine)
        self.expect(0, ["fine", "fine"], "--exact")

    def test_what_was_planned_for_is_kept_by_an_update(self):
        path = self.folder / "small@laptop.plan"
        options = ["--prompt", 32, "--generate", 16, "--context", 128, "--batch", 2, "--ubatch", 64,
                   "--kv", "q8_0", "--minimize", "time-per-token", "--devices", "cpu:0,cuda:0",
                   "--budget", "cuda:0=48MiB"]
        model, machine = self.folder / "small.gguf", self.folder / "laptop.profile.yaml"
        self.call(BIN / "oato-plan", model, "-p", machine, *options, "--solver", "cpu", "-o", path)
        self.assertEqual(self.run_script("--update").returncode, 0)
        again = self.folder / "again"
        self.call(BIN / "oato-plan", model, "-p", machine, *options, "-o", again)
        self.assertEqual(path.read_bytes(), again.read_bytes())

    def test_bad_files_are_told_and_do_not_stop_the_others(self):
        (self.folder / "small@nowhere.plan").write_bytes(
            (self.folder / "small@laptop.plan").read_bytes())
        (self.folder / "large@laptop.plan").write_bytes(b"no plan")
        (self.folder / "nameless.plan").write_bytes(b"no plan")
        (self.folder / "small@rtx3060-laptop.plan").write_bytes(b"no plan")
        out, _ = self.expect(3, ["BAD", "BAD", "fine", "BAD", "BAD"])
        self.assertIn("no large.gguf", out)
        self.assertIn("MODEL@MACHINE.plan", out)
        self.assertIn("nowhere", out)
        broken = (self.folder / "small@rtx3060-laptop.plan").read_bytes()
        self.assertEqual(self.run_script("--update").returncode, 3)
        self.assertEqual((self.folder / "small@rtx3060-laptop.plan").read_bytes(), broken)

    def test_folders_apart(self):
        plans = self.folder / "plans"
        plans.mkdir()
        (self.folder / "small@laptop.plan").rename(plans / "small@laptop.plan")
        got = subprocess.run([SCRIPT, plans, "--models", self.folder, "--profiles", self.folder,
                              "--oato-plan", BIN / "oato-plan"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)

    def test_wrong_usage(self):
        for words in (["--folders"], ["--oato-plan", "none"], ["--models", "none"]):
            self.assertEqual(self.run_script(*words).returncode, 2)
        (self.folder / "small@laptop.plan").unlink()
        got = self.run_script()
        self.assertEqual(got.returncode, 3)
        self.assertIn("no plans", got.stderr)


if __name__ == "__main__":
    if not os.access(BIN / "oato-plan", os.X_OK):
        sys.exit(f"no oato-plan in {BIN}")
    unittest.main()
