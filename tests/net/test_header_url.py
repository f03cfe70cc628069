#!/usr/bin/env python3
"""usage: test_header_url.py FOLDER

oato-plan header of a URL, from FOLDER with the programs: the same bytes as of the whole file, of which little is fetched.
"""
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hub import Hub

bin = os.path.abspath(sys.argv[1])
failures = 0
folder = tempfile.TemporaryDirectory(prefix="oato-header-")
hub = Hub(folder.name)
temporary = folder.name + "/tmp"
os.mkdir(temporary)
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": folder.name, "HF_ENDPOINT": hub.url, "SSL_CERT_FILE": hub.cert, "TMPDIR": temporary,
               **{name: value for name, value in os.environ.items() if name.startswith(("ASAN_", "GCOV_"))}}


def check(good, what, more=""):
    global failures
    failures += not good
    print("ok   " if good else "WRONG", what, "" if good else more, flush=True)


def string(s):
    return struct.pack("<Q", len(s)) + s


def with_keys(gguf, *keys):
    """The file with more keys, the last of which makes up for alignment."""
    magic, version, tensors, n = struct.unpack_from("<4sIQQ", gguf)
    more = b"".join(string(key) + value for key, value in keys)
    fill = string(b"test.fill") + struct.pack("<I", 8) + struct.pack("<Q", 0)
    pad = -(len(more) + len(fill)) % 32
    return struct.pack("<4sIQQ", magic, version, tensors, n + len(keys) + 1) + more + fill[:-8] + string(b"x" * pad) + gguf[24:]


def header(of):
    out = folder.name + "/out.gguf"
    if os.path.exists(out):
        os.unlink(out)
    r = subprocess.run([bin + "/oato-plan", "header", of, "-o", out], capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    return r, open(out, "rb").read() if os.path.exists(out) else None


made = folder.name + "/made.gguf"
subprocess.run([bin + "/oato-make-model", made, "--layers", "2", "--width", "512", "--vocab", "4096"], check=True, stdout=subprocess.DEVNULL)
model = open(made, "rb").read()
words = struct.pack("<IIQ", 9, 8, 300000) + b"".join(string(b"word%06d" % i) for i in range(300000)) # 5.4 MB
large = with_keys(model, (b"test.words", words))
SPLIT = [f"made-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
subprocess.run([bin + "/oato-make-model", made, "--layers", "3", "--split", "3"], check=True, stdout=subprocess.DEVNULL)
hub.repos = {"owner/repo": {"m.gguf": model, "large.gguf": large, "cut.gguf": large[:1000000], "bad.gguf": b"GGUFx" * 99}}
hub.repos["owner/repo"].update({name: open(f"{folder.name}/{name}", "rb").read() for name in SPLIT})
for name, data in hub.repos["owner/repo"].items():
    open(f"{folder.name}/{name}", "wb").write(data)
for name, most in (("m.gguf", 1 << 20), ("large.gguf", 8 << 20), (SPLIT[0], 3 << 20), (SPLIT[2], 3 << 20)):
    r, want = header(f"{folder.name}/{name}")
    for ranges in True, False:
        hub.ranges, hub.served = ranges, 0
        got, data = header(f"{hub.url}/owner/repo/resolve/main/{name}?download=true")
        check(got.returncode == 0 and want and data == want and (not ranges or hub.served <= most + 99999),
              f"{name} {'by' if ranges else 'without'} ranges: the header of the whole file", got.stderr + f" {hub.served}")
hub.ranges = True
for name, word, status in (("cut.gguf", "end inside the header", 3), ("bad.gguf", "version", 3), ("no.gguf", "does not have it", 2)):
    r, data = header(f"{hub.url}/owner/repo/resolve/main/{name}")
    check(r.returncode == status and word in r.stderr and r.stderr.count("\n") == 1 and data is None, f"{name}: one line", f"{r.returncode} {r.stderr}")
check(os.listdir(temporary) == [], "nothing is left behind")
hub.close()
folder.cleanup()
print("all good" if not failures else f"{failures} WRONG")
sys.exit(failures > 0)
