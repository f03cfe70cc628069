"""No signal fails an input or output: every program, and most of its verbs, gives in a storm of
signals (storm.c) what it gives without one. Then the standard descriptors that are closed at the
start: none becomes a file's.

    test_storm.py BINARY_DIR STORM_LIBRARY
"""
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from rig import Server, at_once, check, finish, until

BIN, STORM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HARDWARE = "rtx3090-ryzen5950x"
PLAN = ["--prompt", "16", "-n", "8", "-c", "256"]


def storm_of(folder):
    return {"LD_PRELOAD": STORM, "OATO_STORM": os.path.join(folder, "count"), "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}


def run(folder, storm, program, *args, given=None):
    """Its exit status and output; in a folder of its own, where it leaves its files."""
    p = subprocess.run([os.path.join(BIN, program), *args], cwd=folder, input=given, capture_output=True,
                       env={**os.environ, **storm_of(folder)} if storm else None, timeout=120)
    return p.returncode, p.stdout, p.stderr.decode(errors="replace")


def files(folder):
    return {n: open(os.path.join(folder, n), "rb").read() for n in os.listdir(folder) if n != "count"}


def both(quiet, stormy, name, program, *args, given=None, same=True):
    """In both folders; the same status, output and files, unless times are printed."""
    a, b = run(quiet, False, program, *args, given=given), run(stormy, True, program, *args, given=given)
    good = a[0] == b[0] == 0 and (not same or (a[1] == b[1] and files(quiet) == files(stormy)))
    check(good, f"{program} {name}", f"status {a[0]} and {b[0]}, {len(a[1])} and {len(b[1])} bytes: {b[2][-300:]}")


def serve(folder, storm):
    """What a server answers, and its exit status."""
    s = Server(os.path.join(BIN, "oato-serve"), "m.gguf", "-c", "256", cwd=folder, env=storm_of(folder) if storm else {})
    body = {"prompt": "The river", "n_predict": 12, "cache_prompt": False}
    whole = s.ask("/completion", body)[1]["content"]
    pieces = "".join(e["content"] for e in s.events("/completion", body))
    return whole, pieces, s.ask("/tokenize", {"content": "two lines\n"}), s.end()


def typed(folder):
    """A talk at a terminal in a storm: what is typed is answered, Ctrl-C is only a warning. Its exit status."""
    child, fd = pty.fork()
    if not child:
        os.chdir(folder)
        args = ["oato-run", "chat", "m.gguf", "-n", "6", "--temp", "0", "-t", "2"]
        os.execve(os.path.join(BIN, "oato-run"), args, {**os.environ, **storm_of(folder), "TERM": "xterm"})
    seen = b""
    for keys, wanted in [("", "> "), ("Gr\u00fc\u00df Gott\r", "(cut at -n 6)"), ("\x03", "Ctrl-C again"), ("/help\r", "/clear"), ("/bye\r", "decode")]:
        time.sleep(0.3)  # the prompt is there a moment before the editor waits for keys
        os.write(fd, keys.encode())
        end = time.monotonic() + 60
        while wanted.encode() not in seen and time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    seen += os.read(fd, 4096)
                except OSError:
                    break
        if wanted.encode() not in seen:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"no {wanted!r} in {seen!r}"
        seen = seen.partition(wanted.encode())[2]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def closed(folder, program, *args, which):
    """Its exit status and what it says where the descriptors of `which` are closed."""
    close = ["/bin/sh", "-c", 'exec "$@" ' + " ".join(("0<&-", "1>&-", "2>&-")[fd] for fd in which), "sh"]
    p = subprocess.run([*close, os.path.join(BIN, program), *args], cwd=folder, timeout=120, stdin=subprocess.DEVNULL, capture_output=True)
    return p.returncode, p.stdout + p.stderr


def closed_server(folder):
    """The health of a server that was started without any of them, as daemons are, and its exit status."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([os.path.join(BIN, "oato-serve"), "m.gguf", "--port", str(port), "-c", "256"], cwd=folder,
                         preexec_fn=lambda: [os.close(fd) for fd in range(3)])

    def health():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).status
        except OSError:
            return None
    said = until(health, 60)
    p.send_signal(signal.SIGTERM)
    return said, p.wait(60)


def programs_in_a_storm(quiet, stormy):
    b = lambda *args, **more: both(quiet, stormy, *args, **more)
    b("", "oato-make-model", "--layers", "2", "--width", "128", "--ffn", "256", "--type", "Q4_1", "m.gguf")
    with open(os.path.join(quiet, "m.gguf"), "rb") as f:
        model = f.read()
    text = ("The river was wide. " * 40).encode()
    for folder in quiet, stormy:
        open(os.path.join(folder, "text.txt"), "wb").write(text)
    b("plan", "oato-plan", "m.gguf", "--hardware", HARDWARE, *PLAN, "-o", "m.plan")
    b("show", "oato-plan", "show", "m.plan")
    b("show --json", "oato-plan", "show", "m.plan", "--json")
    b("explain", "oato-plan", "explain", "m.plan", "-m", "m.gguf", "--hardware", HARDWARE)
    b("check", "oato-plan", "check", "m.plan", "m.gguf", "--hardware", HARDWARE)
    b("header", "oato-plan", "header", "m.gguf", "-o", "h.gguf")
    b("diff", "oato-plan", "diff", "m.plan", "m.plan")
    b("export", "oato-plan", "export", "m.plan", "-m", "m.gguf", "--to", "llama.cpp")
    cpu = ["m.gguf", "--devices", "cpu", "-t", "2"]
    b("generate", "oato-run", *cpu, "-p", "The river", "-n", "12", "--temp", "0")
    b("generate --json", "oato-run", *cpu, "-p", "The river", "-p", "A", "-n", "12", "--json", "--temp", "0")
    b("a prompt from a pipe", "oato-run", *cpu, "-n", "12", "--temp", "0", given=text)
    b("chat", "oato-run", "chat", *cpu, "-n", "12", "--temp", "0", given=b"Hi\nWhere is it?\n/help\nHo\n")
    b("tokenize", "oato-run", "tokenize", "m.gguf", "-f", "text.txt")
    b("logits", "oato-run", "logits", *cpu, "--ids", "1,2,3,4", "-o", "logits.bin")
    b("perplexity", "oato-run", "perplexity", *cpu, "-f", "text.txt", "-c", "64")
    b("bench", "oato-run", "bench", *cpu, "-p", "16", "-n", "4", "-r", "1", same=False)
    b("", "oato-profile", "m.gguf", "-o", "machine.yaml", "--quick", "--devices", "cpu", same=False)
    b("plan from the profile", "oato-plan", "m.gguf", "-p", "machine.yaml", *PLAN, "-o", "own.plan", same=False)
    one, other, status = at_once([lambda: serve(quiet, False), lambda: serve(stormy, True), lambda: typed(stormy)])
    check(one == other and one[3] == 0, "oato-serve", f"{one} and {other}")
    check(status == 0, "oato-run chat at a terminal", status)
    counts = [line.split() for line in open(os.path.join(stormy, "count"))]
    struck = sum(int(n) for n, _ in counts), sum(int(n) for _, n in counts)
    check(struck[0] > 500 and struck[1] > 2000, f"{struck[0]} signals and {struck[1]} calls that failed", struck)
    return model


def descriptors_that_are_closed(quiet, model):
    for which in [[0], [1], [2], [0, 1], [0, 1, 2]]:
        name = f"with {which} closed"
        for program, *args in [("oato-run", "m.gguf", "-p", "The river", "-n", "4"),
                               ("oato-run", "chat", "m.gguf", "-n", "4"),
                               ("oato-run", "logits", "m.gguf", "--ids", "1,2", "-o", "closed.bin"),
                               ("oato-plan", "m.gguf", "--hardware", HARDWARE, *PLAN, "-o", "closed.plan"),
                               ("oato-make-model", "--layers", "2", "--width", "128", "--ffn", "256", "--type", "Q4_1", "closed.gguf")]:
            got, said = closed(quiet, program, *args, which=which)
            check(got == 0 and (args[0] != "chat" or 0 not in which or b"decode 0 tokens" in said or 2 in which),
                  f"{program} {args[0]} {name}", f"{got} {said[-300:]}")
        now = files(quiet)
        check(now["m.gguf"] == model, "the model is as it was, " + name)
        for made, usual in [("closed.plan", "m.plan"), ("closed.gguf", "m.gguf")]:
            check(now[made] == now[usual], f"{made} {name} is as usual")
            os.remove(os.path.join(quiet, made))
    check(closed_server(quiet) == (200, 0), "oato-serve with [0, 1, 2] closed")


with tempfile.TemporaryDirectory() as quiet, tempfile.TemporaryDirectory() as stormy:
    descriptors_that_are_closed(quiet, programs_in_a_storm(quiet, stormy))
sys.exit(finish())
