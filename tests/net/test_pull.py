#!/usr/bin/env python3
"""usage: test_pull.py FOLDER

oato pull, ls, rm and -hf against a hub on this machine, from FOLDER with the programs: what comes is complete or is not there, whatever the hub and
the way to it do; what was cut is gone on with; the token goes to the hub alone; nothing is written outside the folder of models.
"""
import errno
import hashlib
import json
import os
import pty
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hub import Hub

OATO = os.path.abspath(sys.argv[1]) + "/oato"
USAGE, FILE, IO, NET, DENIED = 2, 3, 6, 8, 9
MB = 1 << 20
seed = int.from_bytes(os.urandom(4), "little")
print("seed", seed)
random.seed(seed)
failures = 0
folder = tempfile.TemporaryDirectory(prefix="oato-pull-")
hub = Hub(folder.name)
cache = folder.name + "/cache"
models = cache + "/models"
REPO = "owner/Repo-GGUF"
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": folder.name, "HF_ENDPOINT": hub.url, "OATO_CACHE": cache, "CURL_CA_BUNDLE": hub.cert,
               **{name: value for name, value in os.environ.items() if name.startswith(("ASAN_", "GCOV_"))}}


def check(good, what, more=""):
    global failures
    failures += not good
    print("ok   " if good else "WRONG", what, "" if good else more, flush=True)


def oato(*args, env={}, **more):
    return subprocess.run([OATO, *args], capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, **env}, **more)


def start(*args):
    return subprocess.Popen([OATO, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def files():
    """All that lies in the folder of models."""
    return sorted(os.path.relpath(os.path.join(at, name), models) for at, _, names in os.walk(models) for name in names)


def fresh(**files_of):
    hub.reset()
    subprocess.run(["rm", "-rf", cache], check=True)
    hub.repos = {REPO: {name.replace("__", "-") + ".gguf": data for name, data in files_of.items()}}


def fails(status, r, word, what, kept=()):
    lines = r.stderr.splitlines()
    check(r.returncode == status and len(lines) == 1 and word in r.stderr and not r.stdout and files() == sorted(kept), what,
          f"status {r.returncode}, stderr {r.stderr!r}, files {files()}")


def content(path):
    with open(path, "rb") as f:
        return f.read()


def good(r, name, data, what):
    path = f"{models}/{REPO}/{name}"
    check(r.returncode == 0 and r.stdout == path + "\n" and content(path) == data and not [f for f in files() if f.endswith(".part")], what,
          f"status {r.returncode}, stderr {r.stderr!r}, files {files()}")


big, small = random.randbytes(6 * MB + 12345), random.randbytes(100000)
Q4, Q8, BIG = "m-Q4_K_M.gguf", "m-Q8_0.gguf", f"{REPO}/m-Q4_K_M.gguf"
both = {"m__Q4_K_M": big, "m__Q8_0": small}

# Names and lists.
fresh(**both, mmproj__m__Q4_K_M=b"not a model")
hub.pause = 0.01
r = oato("pull", REPO)
good(r, Q4, big, "a model without a QUANT is its Q4_K_M")
check(r.stderr.count("\n") == 1 and "\r" not in r.stderr, "no progress in a pipe", repr(r.stderr))
check(hub.most_running > 1, "several parts come at the same time", str(hub.most_running))
served = hub.served
r = oato("pull", REPO + ":q4_k_m")
check(r.returncode == 0 and "already" in r.stderr and hub.served == served, "what is here is not fetched again", r.stderr)
hub.page = 2 # Q8_0 is on the second page of the list
good(oato("pull", REPO + ":Q8_0"), Q8, small, "a QUANT, of a list in pages")
fails(USAGE, oato("pull", REPO + ":Q2_K"), "Q4_K_M, Q8_0", "a QUANT that does not exist: what does", (BIG, f"{REPO}/{Q8}"))
fails(USAGE, oato("pull", "owner"), "OWNER/REPO", "no name of a model", (BIG, f"{REPO}/{Q8}"))
fails(USAGE, oato("pull", "../../x"), "OWNER/REPO", "nor is a path", (BIG, f"{REPO}/{Q8}"))
r = oato("ls")
check(REPO + ":Q4_K_M " in r.stdout and REPO + ":Q8_0 " in r.stdout and "2 models, 6.4 MB" in r.stdout, "ls names them as pull does", r.stdout)
said = json.loads(oato("ls", "--json").stdout)
check([m["name"] for m in said["models"]] == [REPO + ":Q4_K_M", REPO + ":Q8_0"] and said["models"][0]["bytes"] == len(big) and
      said["disk_bytes"] >= len(big) + len(small) and said["models"][1]["complete"], "ls --json", str(said))
n = len(hub.requests)
r = oato("run", "-hf", REPO + ":Q8_0", "-p", "x")
check(r.returncode == FILE and "Q8_0.gguf: does not begin with 'GGUF'" in r.stderr and len(hub.requests) == n, "-hf of one that is here asks nobody", r.stderr)
r = oato(REPO, "-p", "x")
check(r.returncode == FILE and "Q4_K_M.gguf: does not begin with 'GGUF'" in r.stderr, "a name in place of a path", r.stderr)
r = oato("owner/other", "-p", "x")
check(r.returncode == USAGE and "oato pull owner/other" in r.stderr, "a name that is not here: how to fetch it", r.stderr)
subprocess.run(["rm", "-r", models], check=True)
r = oato("run", "-hf", REPO + ":Q8_0", "-p", "x")
check(r.returncode == FILE and files() == [f"{REPO}/{Q8}"], "-hf fetches what is not here", r.stderr)
r = oato("rm", REPO)
check(r.returncode == 0 and files() == [] and not os.path.exists(models + "/owner"), "rm of the only one of a repository", r.stderr)

fresh(a__Q4_K_M=small, b__Q4_K_M=small, c__Q6_K=small)
fails(USAGE, oato("pull", REPO), "a-Q4_K_M, b-Q4_K_M, c-Q6_K", "two models of a QUANT: both are named")
good(oato("pull", REPO + ":b-Q4_K_M.gguf"), "b-Q4_K_M.gguf", small, "one of them by its file")
oato("pull", REPO + ":Q6_K")
fails(USAGE, oato("rm", REPO), "Q4_K_M, Q6_K", "rm that could mean two", (f"{REPO}/b-Q4_K_M.gguf", f"{REPO}/c-Q6_K.gguf"))
outside = folder.name + "/outside.gguf"
open(outside, "w").close()
for path in (outside, "../../../outside.gguf", models + "/../../outside.gguf", f"{REPO}/../../../../outside.gguf"):
    r = oato("rm", path, cwd=f"{models}/owner")
    check(r.returncode == USAGE and os.path.exists(outside) and r.stderr.count("\n") == 1, f"rm refuses {path.replace(folder.name, '')}", r.stderr)
r = oato("rm", f"{models}/{REPO}/c-Q6_K.gguf")
check(r.returncode == 0 and files() == [f"{REPO}/b-Q4_K_M.gguf"], "rm of a path in the folder", r.stderr)

parts = [random.randbytes(70000) for _ in range(3)]
fresh(**{f"x__Q4_K_M__0000{i + 1}__of__00003": p for i, p in enumerate(parts)})
r = oato("pull", REPO)
check(r.returncode == 0 and r.stdout.endswith("x-Q4_K_M-00001-of-00003.gguf\n") and [content(f"{models}/{f}") for f in files()] == parts,
      "all parts of a split model", r.stderr)
check("3 parts" in oato("ls").stdout and oato("ls").stdout.count("\n") == 2, "which ls shows as one")
os.unlink(f"{models}/{REPO}/x-Q4_K_M-00002-of-00003.gguf")
check("unfinished" in oato("ls").stdout and oato(REPO, "-p", "x").returncode == USAGE, "a part is missing here")
del hub.repos[REPO]["x-Q4_K_M-00002-of-00003.gguf"]
r = oato("pull", REPO)
check(r.returncode == USAGE and "part 2 of 3" in r.stderr, "a part is missing there", r.stderr)
check(oato("rm", REPO + ":Q4_K_M").returncode == 0 and files() == [], "rm of one with a missing part")

# Ways that fail.
fresh(**both)
hub.sums[Q4] = "0" * 64
fails(FILE, oato("pull", REPO), "checksum", "a wrong sum")
hub.sums[Q4], hub.linked = hashlib.sha256(big).hexdigest(), "0" * 64
fails(FILE, oato("pull", REPO), "another checksum", "another sum beside the file than in the list")
fresh(**both)
hub.plain, hub.sums = {Q4, Q8}, {Q4: "", Q8: ""}
hub.linked = hashlib.sha256(small).hexdigest()
good(oato("pull", REPO + ":Q8_0"), Q8, small, "a sum that only the file's answer tells")
hub.linked = ""
fails(FILE, oato("pull", REPO), "no checksum", "no sum at all", (f"{REPO}/{Q8}",))
fresh(**both)
hub.plain = {Q8}
good(oato("pull", REPO + ":Q8_0"), Q8, small, "a file that git has")
hub.repos[REPO]["n-F16.gguf"] = small
hub.plain, hub.sums = {"n-F16.gguf"}, {"n-F16.gguf": "0" * 40}
fails(FILE, oato("pull", REPO + ":F16"), "checksum", "the same with a wrong sum", (f"{REPO}/{Q8}",))
fresh(**both)
fails(IO, oato("pull", REPO, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MB, MB))), os.strerror(errno.EFBIG), "a disk without room")
fresh(**both)
loop = [(302, {"Location": f"/{REPO}/resolve/again"})] * 100
hub.status = {f"/{REPO}/resolve": loop}
fails(NET, oato("pull", REPO), "loop", "a redirect loop")
for target in ("file:///etc/passwd", hub.url.replace("https", "http"), "ftp://localhost/x", "https://user\\@x y/"):
    hub.status = {f"/{REPO}/resolve": [(302, {"Location": target})] * 100}
    fails(NET, oato("pull", REPO), "refused" if "user" not in target else "", f"a redirect to {target.split(':')[0]}")
hub.status = {f"/{REPO}/resolve": [(302, {})] * 100}
fails(NET, oato("pull", REPO), "nowhere", "a redirect to nowhere")
fresh(**both)
hub.token = "hf_secret"
fails(DENIED, oato("pull", REPO), "HF_TOKEN", "no token")
fails(DENIED, oato("pull", REPO, env={"HF_TOKEN": "hf_wrong"}), "does not accept", "a wrong token")
fails(USAGE, oato("pull", REPO, env={"HF_TOKEN": "hf\r\nX-Evil: 1"}), "character", "a token that would be two headers")
good(oato("pull", REPO + ":Q8_0", env={"HF_TOKEN": "hf_secret"}), Q8, small, "the right token")
check(hub.asked("cdn") and not [r for r in hub.asked("cdn") if "Authorization" in r[2]], "does not follow a redirect to another host")
with open(folder.name + "/token", "w") as f:
    f.write("hf_secret\n")
r = oato("pull", REPO + ":Q8_0", env={"HF_HOME": folder.name})
check(r.returncode == 0, "the token's file", r.stderr)
fresh(**both)
fails(USAGE, oato("pull", "owner/nothing"), "check the name", "a name that does not exist")
hub.status = {"/api": [(401, {"X-Error-Code": "RepoNotFound"})] * 100}
fails(USAGE, oato("pull", "owner/nothing"), "check the name", "the same by another status")
hub.status = {"/api": [(403, {"X-Error-Code": "GatedRepo"})] * 100}
fails(DENIED, oato("pull", REPO), "terms", "terms to be accepted")
hub.status = {"/api": [(429, {"Retry-After": "9999"})] * 100}
fails(NET, oato("pull", REPO), "try again later", "a server that wants us to wait for hours")
begin = time.monotonic()
hub.status = {"/api": [(429, {"Retry-After": "1"})], f"/{REPO}/m": [(503, {})]}
good(oato("pull", REPO + ":Q8_0"), Q8, small, "one that wants us to wait for a second")
check(time.monotonic() - begin >= 1, "gets it")
fresh(**both)
fails(NET, oato("pull", REPO, env={"CURL_CA_BUNDLE": ""}), "not trusted", "an unknown certificate")
check(oato("pull", REPO + ":Q8_0", env={"CURL_CA_BUNDLE": "", "SSL_CERT_FILE": hub.cert}).returncode == 0, "one that SSL_CERT_FILE trusts")
fresh(**both)
fails(NET, oato("pull", REPO, env={"HF_ENDPOINT": "https://localhost:1"}), "cannot be reached", "nobody is there")
fails(USAGE, oato("pull", REPO, env={"HF_ENDPOINT": "file:///etc"}), "HF_ENDPOINT", "HF_ENDPOINT is a file")
with socket.create_server(("127.0.0.1", 0)) as proxy:
    said = []

    def refuse():
        c, _ = proxy.accept()
        said.append(c.recv(1000))
        c.sendall(b"HTTP/1.1 403 No\r\n\r\n")
        c.close()
    threading.Thread(target=refuse, daemon=True).start()
    fails(NET, oato("pull", REPO, env={"https_proxy": "http://127.0.0.1:%d" % proxy.getsockname()[1]}), "cannot be reached", "a proxy that refuses")
    check(said[0].startswith(b"CONNECT localhost"), "was asked")
for body in (b"<html>", b'{"error": "x"}'):
    hub.repos["owner/odd"] = {}
    hub.extra = []
    old, hub.servers[0].RequestHandlerClass.list = hub.servers[0].RequestHandlerClass.list, lambda self, repo: self.answer(200, {}, body)
    fails(NET, oato("pull", "owner/odd"), "list of files", "an answer that is no list")
    hub.servers[0].RequestHandlerClass.list = old

# Paths that would lead elsewhere.
fresh(c__Q8_0=small)
for path in ("../../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a/../../../../../evil-Q4_K_M.gguf", "..\\evil-Q4_K_M.gguf", ".evil-Q4_K_M.gguf", "a//evil-Q4_K_M.gguf",
             "evil\n-Q4_K_M.gguf"):
    hub.extra.append({"type": "file", "path": path, "size": 5, "lfs": {"oid": hashlib.sha256(b"evil!").hexdigest(), "size": 5}})
    hub.repos[REPO][path] = b"evil!"
r = oato("pull", REPO + ":Q4_K_M")
hub.repos[REPO] = {"c-Q8_0.gguf": small}
found = subprocess.run(["find", folder.name, "-name", "*evil*"], capture_output=True, text=True).stdout
check(r.returncode == USAGE and not found and files() == [], "paths that lead out of the folder are not there", r.stderr + found)

# Cuts.
fresh(**both)
cuts = [random.randrange(4 * MB // 5) for _ in range(12)]
hub.cut = lambda: cuts.pop() if cuts else None
good(oato("pull", REPO), Q4, big, "12 cuts by the server")
check(not cuts and hub.served < len(big) * 1.2, "after which little came twice", f"{hub.served}")
fresh(**both)
hub.pause = 0.004
ends, sent = [signal.SIGINT] * 4 + [signal.SIGKILL] * 4, 0
random.shuffle(ends)
for end in ends:
    at, done = hub.served + random.randrange(MB // 4, MB * 3 // 4), threading.Event()
    hub.on_bytes = lambda served: served >= at and done.set()
    p = start("pull", REPO)
    done.wait(20)
    p.send_signal(end)
    out, err = p.communicate(timeout=20)
    if end == signal.SIGINT:
        check(p.returncode == 130 and ".part: the same command goes on" in err and err.count("\n") == 1, "Ctrl-C tells how to go on", f"{p.returncode} {err}")
    check(files() == [BIG + ".part"] and not out, "and leaves nothing but a part", str(files()))
hub.on_bytes = lambda served: None
check("unfinished" in oato("ls").stdout, "which ls shows", oato("ls").stdout)
hub.pause = 0
before = hub.served
good(oato("pull", REPO), Q4, big, "8 stops of the program")
check(hub.served - before < len(big) * 0.8, "after which only the rest is fetched", f"{hub.served - before}")
fresh(**both)
hub.cut = lambda: hub.ranges or None
hub.ranges = False
good(oato("pull", REPO), Q4, big, "a server without ranges")
fresh(**both)


def expire(served):
    if served > 2 * MB:
        hub.link = 1


hub.on_bytes = expire
good(oato("pull", REPO), Q4, big, "links that run out")

# The file changes between two tries.
fresh(**both)
hub.pause, done = 0.005, threading.Event()
hub.on_bytes = lambda served: served > 2 * MB and done.set()
p = start("pull", REPO)
done.wait(20)
p.send_signal(signal.SIGINT)
p.communicate(timeout=20)
other = random.randbytes(len(big))
hub.reset()
hub.repos[REPO][Q4] = other
r = oato("pull", REPO)
good(r, Q4, other, "a file that is another one at the second try")
check("from the beginning" in r.stderr, "which is told", r.stderr)

# Two at once.
fresh(**both)
hub.pause = 0.01
a, b = start("pull", REPO), start("pull", REPO)
(_, said_a), (_, said_b) = a.communicate(timeout=60), b.communicate(timeout=60)
check(a.returncode == b.returncode == 0 and content(f"{models}/{BIG}") == big and hub.served < len(big) * 1.1 and "waiting for it" in said_a + said_b,
      "of two at once one waits", said_a + said_b)
fresh(**both)
hub.pause, done = 0.02, threading.Event()
hub.on_bytes = lambda served: served > MB and done.set()
p = start("pull", REPO)
done.wait(20)
r = oato("rm", REPO)
check(r.returncode == IO and "another process" in r.stderr, "rm leaves alone what is being fetched", r.stderr)
p.send_signal(signal.SIGINT)
p.communicate(timeout=20)
check(oato("rm", REPO).returncode == 0 and files() == [], "and removes what is not")

# A terminal.
fresh(**both)
hub.pause = 0.01
master, slave = pty.openpty()
p = subprocess.Popen([OATO, "pull", REPO], stdout=subprocess.DEVNULL, stderr=slave,
                     env=ENVIRONMENT | {"TERM": "xterm"})
os.close(slave)
shown = b""
try:
    while part := os.read(master, 65536):
        shown += part
except OSError:
    pass
check(p.wait() == 0 and b"m-Q4_K_M.gguf  " in shown and b" %" in shown and b"MB/s" in shown, "progress on a terminal", repr(shown[-300:]))

hub.close()
folder.cleanup()
print("all good" if not failures else f"{failures} WRONG")
sys.exit(failures > 0)
