"""What the tests of oato-serve share: servers at free ports, requests, waiting, and checks that are counted.

A test is a script: it starts servers (`with Server(serve, model, "-c", "512") as s:` also checks that they end well), asks
(`status, said = s.ask("/completion", {...})`), checks (`check(status == 200, "an answer")`), and ends by `sys.exit(finish())`. What only
one test needs it adds in a subclass of Server. CMake runs tests by `python3 -Es`, which finds this file beside them.
"""
import atexit
import concurrent.futures
import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import machines

results = [] # of all checks; lists are safe where threads check, too


def check(good, what, *got):
    """Prints whether what must be true is, and what was got instead."""
    results.append(bool(good))
    print("ok   " if good else "WRONG", what, *(() if good else (f"{x!s:.2000}" for x in got)), flush=True)


def finish():
    """The exit status of a test."""
    wrong = results.count(False)
    print(f"{len(results)} checks, {wrong} wrong")
    return wrong > 0


def until(holds, seconds=10, pause=0.005):
    """Waits until holds() is true; its last value."""
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(pause)
    return value


def at_once(calls, most=None):
    """The results of functions that are called at the same time, most of them at a time (None: all), in the order in which they stand."""
    with concurrent.futures.ThreadPoolExecutor(most or len(calls)) as pool:
        return [f.result() for f in [pool.submit(call) for call in calls]]


def side_by_side(call, rows, most=2):
    """call(*row) of each row, on both of the processors that a test of ours has (CMakeLists.txt); the results, in order."""
    return at_once([functools.partial(call, *row) for row in rows], most)


def norm(text):
    """A random model says bytes that are no UTF-8; how many marks stand for them differs."""
    return re.sub("\ufffd+", "\ufffd", text)


def is_sanitized(program):
    """Sanitizers make a program slow, and its memory large."""
    return b"__asan_init" in pathlib.Path(program).read_bytes()


def make_model(make, path, *options):
    """A tiny random model by oato-make-model; its path."""
    subprocess.run([make, "--layers", "1", "--context", "16384", *options, str(path)], check=True, stdout=subprocess.DEVNULL)
    return str(path)


def is_real(model):
    """Whether it is a model (else the program that makes one). Ends the test as skipped where it is missing."""
    if model.endswith(".gguf") and not os.path.exists(model):
        print("skipped: scripts/fetch-model fetches", model)
        sys.exit(1 if os.environ.get("OATO_REQUIRE_MODEL") == "1" else 77)
    return model.endswith(".gguf")


class Answer(tuple):
    """(status, said) of a request: said is what its JSON says, or its text. Also .text, .data (bytes) and .headers (by any case)."""
    def __new__(cls, status, headers, data):
        text = data.decode(errors="replace")
        is_json = headers.get("Content-Type", "").startswith("application/json") and text
        a = super().__new__(cls, (status, json.loads(text) if is_json else text))
        a.text, a.data, a.headers = text, data, headers
        return a


class Server:
    """oato-serve at a free port, ready when it is made, without a plan. said: the lines that it has written so far.

    options: of the command line, behind those that all servers of a test have; how: of subprocess.Popen, env: more variables."""
    always = ("-t", "1", "--temp", "0") # the same answer each time, by one of the machine's processors
    headers = {} # of all requests

    def __init__(self, serve, *options, env={}, **how):
        command = [serve, "--port", "0", *self.always, *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                                        env={**os.environ, "OATO_PLAN": "none", **env}, **how)
        atexit.register(self.process.kill) # a test that breaks off leaves no server
        self.said = []
        for line in self.process.stderr:
            self.said.append(line)
            if re.search(" is ready, |, serving [0-9]+ model", line): # that of several models loads them when they are asked for
                break
        else:
            raise SystemExit(f"{' '.join(command)} does not start: {''.join(self.said)}")
        self.port = int(re.search(r":(\d+), ", "".join(self.said))[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def connect(self, host="127.0.0.1", timeout=120):
        return http.client.HTTPConnection(host, self.port, timeout=timeout)

    def socket(self, timeout=10):
        """A connection for bytes that are no ordinary request."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, path, body=None, headers={}, method=None, **how):
        """body: bytes or text as they are, else sent as JSON. Without one a GET, with one a POST, unless method says otherwise."""
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        with contextlib.closing(self.connect(**how)) as c:
            c.request(method or ("GET" if body is None else "POST"), path, data, {**self.headers, **headers})
            r = c.getresponse()
            return Answer(r.status, r.headers, r.read())

    def good(self, path, body=None, **how):
        """What an answer says, which must be one."""
        status, said = self.ask(path, body, **how)
        check(status == 200, f"{path} answers", status, said)
        return said

    def events(self, path, body):
        """The events of an answer as a stream: what their JSON says, or "[DONE]"."""
        a = self.ask(path, {**body, "stream": True})
        check(a[0] == 200 and a.headers["Content-Type"] == "text/event-stream", f"{path} answers with a stream", a)
        events = []
        for name, data in machines.sse(a.text):
            events.append(data if data == "[DONE]" else json.loads(data))
            if name is not None:
                check(name == events[-1]["type"], "an event has its type as its name", name, data)
        return events

    def busy(self):
        """How many answers it computes."""
        return sum(slot["is_processing"] for slot in self.ask("/slots")[1])

    def decoded(self):
        """How many tokens each answer that it computes has so far."""
        return [slot["n_decoded"] for slot in self.ask("/slots")[1] if slot["is_processing"]]

    def memory(self, name="VmHWM"):
        """MiB that its process has (VmRSS), or had at most; 0 when it has ended."""
        try:
            found = re.search(name + r":\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii"))
        except OSError:
            return 0
        return int(found[1]) / 1024 if found else 0

    def end(self, how=signal.SIGTERM):
        """Its exit status; said has all its lines then."""
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.reader.join()
        return status

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and self.process.returncode is None:
            check(self.end() == 0, "the server ends", "".join(self.said))
