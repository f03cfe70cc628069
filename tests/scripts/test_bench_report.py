#!/usr/bin/env python3
"""What scripts/bench_report.py makes of recorded rounds (tests/data/bench), and that the scripts around
it refuse mistakes in one line.

The rounds have the form in which oato-run, llama-bench, llama-batched-bench and ik_bench print them,
with round numbers in it, so that every expected value below can be checked by hand.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DATA = os.path.join(ROOT, "tests", "data", "bench")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import bench_report  # noqa: E402
import bench_roofline  # noqa: E402


class Report(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp()
        self.folder = os.path.join(self.work, "in")
        shutil.copytree(DATA, self.folder)

    def tearDown(self):
        shutil.rmtree(self.work)

    def edit(self, path, **changes):
        path = os.path.join(self.folder, path)
        with open(path, encoding="utf-8") as f:
            content = json.load(f)
        content.update(changes)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(content, f)

    def bandwidths(self, path, *measured):
        with open(os.path.join(self.folder, path + ".read"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"read_bytes_per_s": m}) + "\n" for m in measured)

    def rows(self):
        return {(e["name"], e["phase"]): e for e in bench_report.summarise(self.folder)["rows"]}

    def test_medians_of_rounds_are_compared(self):
        row = self.rows()["smollm2-Q4_1", "decode"]
        self.assertEqual(row["tokens_per_s"]["oato"], [610, 590, 600])
        self.assertEqual(row["median"], {"oato": 600, "llama.cpp": 240, "ik": 620})
        self.assertEqual(row["ratio"]["llama.cpp"], 2.5)

    def test_decode_is_a_share_of_the_bandwidth_with_the_cache_counted(self):
        rows = self.rows()
        # The tokens see 1 to 32 positions, 16.5 on average.
        read = 603979776 + 16.5 * 32768
        self.assertAlmostEqual(rows["1b-Q4_0", "decode"]["share"]["oato"], 120 * read / 80e9)
        read = 603979776 + (4096 + 8.5) * 32768
        self.assertAlmostEqual(rows["1b-Q4_0-4k", "decode"]["share"]["oato"], 90 * read / 80e9)
        # Eight sequences share one pass over the weights.
        read = 603979776 / 8 + (16 + 8.5) * 32768
        self.assertAlmostEqual(rows["1b-Q4_0-batch8", "decode"]["share"]["oato"], 480 * read / 80e9)

    def test_prefill_is_a_share_of_the_multiply_peak_of_the_type(self):
        row = self.rows()["1b-Q4_0", "prefill"]
        self.assertEqual(row["limit"], "int8")
        self.assertAlmostEqual(row["share"]["oato"], 500 * (1946157056 + 131072 * 513 / 2) / 2e12)
        self.edit("1b-Q4_0/row.json", model="1b-F16.gguf")
        row = self.rows()["1b-Q4_0", "prefill"]
        self.assertEqual(row["limit"], "f32")
        self.assertAlmostEqual(row["share"]["oato"], 500 * (1946157056 + 131072 * 513 / 2) / 5e11)
        for level, bf16, limit in (("avx512", 4e11, "f32"), ("avx512", 6e11, "bf16"), ("amx", 6e11, "bf16")):
            self.assertEqual(bench_report.prefill_peak("1b-BF16.gguf", level, {"f32": 5e11, "bf16": bf16}), limit)
        self.assertEqual(bench_report.prefill_peak("1b-Q4_0.gguf", "amx", {"int8": 15e12, "bf16": 7e12}), "bf16")

    def test_the_best_measurement_of_a_peak_counts(self):
        shutil.copy(os.path.join(self.folder, "peaks.json"), os.path.join(self.folder, "peaks-after.json"))
        self.edit("peaks-after.json", read_bytes_per_s=70e9,
                  operations_per_s={"avx2": {"int8": 1, "int16": 1, "f32": 1},
                                    "avx512": {"int8": 3e12, "int16": 1, "f32": 1}})
        peaks = bench_report.read_peaks(self.folder)
        self.assertEqual(peaks["read_bytes_per_s"], 80e9)
        self.assertEqual(peaks["operations_per_s"]["avx512"], {"int8": 3e12, "int16": 1e12, "f32": 5e11})

    def test_every_part_of_a_target_binds(self):
        rows = self.rows()
        self.assertIs(rows["1b-Q4_0", "decode"]["holds"], True)
        self.assertEqual(rows["1b-Q4_0", "decode"]["target"],
                         "≥ 1.8 × llama.cpp, ≥ 85 % of the bandwidth, ≥ ik_llama.cpp")
        self.assertIs(rows["smollm2-Q4_1", "decode"]["holds"], False)  # 2.5 times llama.cpp, but below ik
        self.assertIs(rows["1b-Q4_0-4k", "decode"]["holds"], True)  # without ik: it failed there
        self.assertIs(rows["1b-Q4_0-batch8", "decode"]["holds"], True)  # 480 = 4 x 120
        self.edit("1b-Q4_0-batch8/oato-1.json", decode={"tokens": 128, "tokens_per_s": 479})
        self.assertIs(self.rows()["1b-Q4_0-batch8", "decode"]["holds"], False)
        self.edit("1b-Q4_0-batch8/oato-1.json", decode={"tokens": 128, "tokens_per_s": 480})
        self.bandwidths("1b-Q4_0/oato-1.json", 90e9, 90e9)
        self.assertIs(self.rows()["1b-Q4_0", "decode"]["holds"], False)

    def test_a_round_is_held_to_the_bandwidth_around_it(self):
        for i, bandwidth in enumerate((50e9, 80e9, 60e9), 1):  # of 610, 590 and 600 tokens/s
            self.bandwidths(f"smollm2-Q4_1/oato-{i}.json", bandwidth - 2e9, bandwidth + 2e9)
        row = self.rows()["smollm2-Q4_1", "decode"]
        self.assertEqual(row["read_bytes_per_s"], [50e9, 80e9, 60e9])
        work = row["operations_per_s"]["oato"] / 600 / row["operations_per_byte"]  # bytes of a token
        self.assertAlmostEqual(row["share"]["oato"], 600 * work / 60e9)

    def test_a_target_without_its_peer_is_not_judged(self):
        os.remove(os.path.join(self.folder, "1b-Q4_0-4k", "llama.cpp-1.json"))
        row = self.rows()["1b-Q4_0-4k", "decode"]
        self.assertIsNone(row["holds"])
        self.assertEqual(row["ratio"], {})

    def test_the_forced_level_brings_its_targets_and_its_peaks(self):
        self.edit("about.json", isa="avx2")
        s = bench_report.summarise(self.folder)
        self.assertEqual((s["level"], s["targets_of"]), ("avx2", "avx2"))
        self.assertEqual(bench_report.file_name(s), "cpu-avx512-vnni-avx2")
        rows = {(e["name"], e["phase"]): e for e in s["rows"]}
        self.assertEqual(rows["1b-Q4_0", "decode"]["target"], "≥ 1.2 × ik_llama.cpp")
        self.assertIs(rows["1b-Q4_0", "decode"]["holds"], True)
        self.assertIsNone(rows["1b-Q4_0-batch8", "decode"]["target"])
        self.assertAlmostEqual(rows["1b-Q4_0", "prefill"]["share"]["oato"],
                               500 * (1946157056 + 131072 * 513 / 2) / 5e11)
        self.edit("about.json", isa="", suite="8b", **{"class": "avx-vnni"})
        self.assertEqual(bench_report.file_name(bench_report.summarise(self.folder)), "cpu-avx-vnni-8b")
        self.assertEqual(bench_report.summarise(self.folder)["targets_of"], "avx2")

    def test_every_row_of_the_issue_suite_has_a_target(self):
        with open(os.path.join(ROOT, "scripts", "bench-peers"), encoding="utf-8") as f:
            text = f.read()
        words = [r.split() for r in text.split("quick_rows='")[1].split("large_rows")[0].splitlines()]
        rows = {(r[0], phase) for r in words if len(r) == 6
                for phase, n in (("prefill", r[2]), ("decode", r[3])) if n != "0"}
        self.assertEqual(len(rows), 17)
        for column in ("amx", "avx512-vnni"):
            self.assertEqual(rows, set(bench_report.TARGETS[column]))
        self.assertEqual(rows - {("1b-Q4_0-batch8", "decode")}, set(bench_report.TARGETS["avx2"]))

    def test_memory_may_be_file_and_cache_and_a_twentieth(self):
        memory = {m["name"]: m for m in bench_report.summarise(self.folder)["memory"]}
        self.assertEqual(memory["1b-Q4_0-batch8"]["allowed_bytes"], round(1.05 * (605182944 + 16777216)))
        self.assertTrue(memory["1b-Q4_0-batch8"]["holds"])
        self.assertFalse(memory["1b-Q4_0"]["holds"])
        self.assertEqual(memory["smollm2-Q4_1"]["peak_bytes"], 104000003)  # of the worst round

    def test_energy_is_told_where_it_is_read(self):
        s = bench_report.summarise(self.folder)
        # Without the round in which the counter wrapped.
        self.assertEqual(s["joules_per_run"], {"smollm2-Q4_1": {"oato": 31, "llama.cpp": 90}})
        self.assertIn("| smollm2-Q4_1 | 31.0 | 90.0 | – |", bench_report.markdown(s))
        for n in os.listdir(os.path.join(self.folder, "smollm2-Q4_1")):
            if n.endswith(".energy"):
                os.remove(os.path.join(self.folder, "smollm2-Q4_1", n))
        self.assertIn("Energy: not readable here.", bench_report.markdown(bench_report.summarise(self.folder)))

    def test_files_say_all_and_name_no_machine(self):
        out = os.path.join(self.work, "out")
        program = os.path.join(ROOT, "scripts", "bench_report.py")
        r = subprocess.run([sys.executable, "-B", program, self.folder, "--out", out], capture_output=True, text=True,
                           check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(sorted(os.listdir(out)), ["cpu-avx512-vnni." + e for e in ("json", "md", "svg")])
        texts = {}
        for name in os.listdir(out):
            with open(os.path.join(out, name), encoding="utf-8") as f:
                texts[name[-3:].strip(".")] = f.read()
        self.assertEqual(texts["md"].strip(), r.stdout.strip())
        for wanted in ("AMD EPYC, class avx512-vnni, 2 threads each, 1 alternating round, load before 0.08",
                       "revision 0123abc", "80.0 GB/s read", "2.00 TOP/s int8", "`scripts/bench-peers --suite issue`",
                       "| decode, 1B Q4_0 | 120.0 (120.0 to 120.0) | 60.0 (60.0 to 60.0) | 70.0 (70.0 to 70.0) | 2.00 | "
                       "1.71 | 91 % read |", "| decode at 4096, 1B Q4_0 |", "| decode of 8 sequences, 1B Q4_0 |"):
            self.assertIn(wanted, texts["md"])
        self.assertEqual(json.loads(texts["son"])["rows"][0]["median"]["oato"], 2500)
        for text in texts.values():
            self.assertNotIn(self.work, text)

    def test_no_row_is_an_error(self):
        for name in os.listdir(self.folder):
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        with self.assertRaises(SystemExit):
            bench_report.summarise(self.folder)


class Roofline(unittest.TestCase):
    def test_labels_lie_inside_and_not_on_each_other(self):
        rows = [{"label": f"row {i}", "x": 1 + i / 9, "y": {"oato-run": [1e10, 2e10]}} for i in range(18)]
        roofs = {"int8": 1.92e12, "int16": 0.95e12, "bf16": 0.88e12, "f32": 0.47e12}
        root = xml.etree.ElementTree.fromstring(bench_roofline.roofline("t", 74e9, roofs, rows))
        texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
        for t in texts:
            self.assertTrue(0 <= float(t.get("x")) <= bench_roofline.WIDTH, t.text)
            self.assertIn("stroke", t.get("paint-order"))
        names = [float(t.get("y")) for t in texts if t.text.endswith("TOP/s") and t.text.split()[0].isalnum()
                 and not t.text[0].isdigit()]
        lines = [float(e.get("y1")) for e in root.iter("{http://www.w3.org/2000/svg}line")
                 if e.get("y1") == e.get("y2") and e.get("stroke-width") == "2"]
        self.assertEqual((len(names), len(lines)), (4, 4))
        for y in names:  # the letters, 10 high, are above or below every roof
            self.assertFalse([x for x in lines if y - 10 < x < y], names)

    def test_marks_stand_where_they_were_measured(self):
        rows = [{"label": "a < b", "x": x, "y": {"oato-run": [10 * x * 1e9], "llama.cpp": [5 * x * 1e9]}}
                for x in (1, 2, 4)]
        root = xml.etree.ElementTree.fromstring(bench_roofline.roofline("t", 20e9, {"int8": 1e12}, rows))
        name = "{http://www.w3.org/2000/svg}"
        circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(name + "circle")][:3]
        self.assertEqual(len(list(root.iter(name + "circle"))), 4)  # one of them in the legend
        self.assertEqual(len(list(root.iter(name + "rect"))), 2 + 4)
        self.assertEqual(len(list(root.iter(name + "path"))), 0)
        # Logarithmic: equal steps for equal factors, upwards for faster.
        self.assertAlmostEqual(circles[1][0] - circles[0][0], circles[2][0] - circles[1][0], delta=0.11)
        self.assertAlmostEqual(circles[1][1] - circles[0][1], circles[2][1] - circles[1][1], delta=0.11)
        self.assertLess(circles[1][1], circles[0][1])

    def test_names_keep_apart_and_inside(self):
        at = bench_roofline.spread([50, 50, 50, 99, 100], 10, 0, 100)
        self.assertEqual(at, sorted(at))
        self.assertTrue(all(b - a >= 10 for a, b in zip(at, at[1:])))
        self.assertTrue(0 <= at[0] and at[-1] <= 100)


class Mistakes(unittest.TestCase):
    def test_are_one_line(self):
        for command, says in (("bench-peers --suite all", "unknown suite 'all'"),
                              ("bench-peers --rounds 0", "--rounds 0"),
                              ("bench-peers -t x", "--threads x"),
                              ("bench-peers --peers vllm", "--peers vllm"),
                              ("bench-peers --isa", "needs a value"),
                              ("make-model 1b", "name a shape and a type"),
                              ("make-model 3b Q4_0", "unknown shape '3b'"),
                              ("fetch-peer ik x", "no argument")):
            script, *arguments = command.split()
            r = subprocess.run([os.path.join(ROOT, "scripts", script), *arguments], capture_output=True, text=True,
                               check=False)
            self.assertEqual((r.returncode, r.stdout), (2, ""), command)
            self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
            self.assertIn(says, r.stderr)


if __name__ == "__main__":
    unittest.main()
