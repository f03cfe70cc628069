#!/usr/bin/env python3
"""oato-machine-peaks prints JSON with a limit for every level that this processor has.

  test_machine_peaks.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile

FLAGS = {"avx2": "avx2", "avxvnni": "avx_vnni", "avx512": "avx512_vnni"}


def flags():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("flags"):
                return line.split()
    return []


def main():
    r = subprocess.run([sys.argv[1], "--threads", "2"], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    peaks = json.loads(r.stdout)
    assert peaks["threads"] == 2
    assert peaks["buffer_bytes"] >= max(2**30, 4 * peaks["l3_bytes"]) or peaks["l3_bytes"] >= 2**31, peaks
    # Only what no machine can be: a page a microsecond less, the caches of a large server more.
    assert 1e8 < peaks["read_bytes_per_s"] < 4e12, peaks
    for level, kinds in peaks["operations_per_s"].items():
        assert level not in FLAGS or FLAGS[level] in flags(), level
        assert {"int8", "int16", "f32"} <= set(kinds), peaks
        assert all(v > 1e8 for v in kinds.values()), peaks
    assert ("avx2" in peaks["operations_per_s"]) == ("avx2" in flags()), peaks
    r = subprocess.run([sys.argv[1], "--rows", "1152"], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    peaks = json.loads(r.stdout)
    assert 1e7 < peaks["rows_bytes_per_s"] < 2 * peaks["read_bytes_per_s"], peaks
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(sys.argv[1])) as f:
        f.write(os.urandom(8 << 20))
        f.flush()
        r = subprocess.run([sys.argv[1], "--file", f.name], capture_output=True, text=True, check=False)
    assert r.returncode == 0, r.stderr
    assert 1e5 < json.loads(r.stdout)["file_bytes_per_s"] < 1e12, r.stdout
    for status, *wrong in ((2, "--threads", "0"), (2, "--rows", "1000"), (3, "--file", __file__), (6, "--file", "/none")):
        r = subprocess.run([sys.argv[1], *wrong], capture_output=True, text=True, check=False)
        assert r.returncode == status and r.stderr.count("\n") == 1, r


if __name__ == "__main__":
    main()
