"""What the tables of calls share: servers, and rows that are run one behind another.

A row is (name, what is asked, what must be true of the result). The first takes the client's Context and may put away for later rows
what it needs in `context.kept`; the second takes the result and says what is wrong, or nothing (True counts as nothing, False as
'not so'). A row whose second part is made by refused() must be refused with that exception and name the member.
"""
import atexit
import dataclasses
import os
import pathlib
import re
import signal
import struct
import subprocess
import time
import traceback
import types

MODEL = "any"
CAPITAL = "What is the capital of France?"
ASK = [{"role": "user", "content": CAPITAL}]
PLACE = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"],
         "additionalProperties": False}
ANSWER = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}}, "required": ["capital", "sure"],
          "additionalProperties": False}


def is_place(value):
    return isinstance(value, dict) and sorted(value) == ["city", "days"] and value["city"] in ("Paris", "Rome") and 1 <= value["days"] <= 9


def is_answer(value):
    return isinstance(value, dict) and sorted(value) == ["capital", "sure"] and isinstance(value["capital"], str) and isinstance(value["sure"], bool)


@dataclasses.dataclass
class Context:
    url: str # of the server with a chat model
    embedding_url: str
    thinking_url: str # of a server whose template begins in reasoning
    infill_url: str
    kept: types.SimpleNamespace = dataclasses.field(default_factory=types.SimpleNamespace)


class Refused:
    def __init__(self, kind, word):
        self.kind, self.word = kind, word


def refused(kind, word):
    """The result is this exception, whose text has the word: a request is refused by name."""
    return Refused(kind, word)


def wrong(must, ask, context):
    """What is wrong with a row, or None."""
    try:
        result = ask(context)
    except Exception as error: # whatever a client raises
        if isinstance(must, Refused):
            if isinstance(error, must.kind):
                return None if must.word in str(error) else f"the refusal does not name {must.word}: {error}"
        return f"{type(error).__name__}: {str(error)[:600] or traceback.format_exc()[-600:]}"
    if isinstance(must, Refused):
        return f"is not refused: {str(result)[:300]}"
    try:
        said = must(result)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]} in {str(result)[:500]}"
    if said is True or said is None:
        return None
    return f"not so: {str(result)[:600]}" if said is False else said


def run(rows, context, only=""):
    """(right, wrong) of the rows."""
    counts = [0, 0]
    for name, ask, must in rows:
        if only and only not in name:
            continue
        began = time.monotonic()
        why = wrong(must, ask, context)
        counts[why is not None] += 1
        print(f"{'WRONG' if why else 'ok   '} {name} ({time.monotonic() - began:.1f} s)" + (f": {why}" if why else ""), flush=True)
    return counts


class Server:
    """A server at a free port of its own. url is where it listens."""
    def __init__(self, serve, *options):
        self.process = subprocess.Popen([serve, *map(str, options), "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OATO_PLAN": "none"})
        atexit.register(self.process.kill) # a test that breaks off leaves no server
        line = self.process.stderr.readline()
        if not (port := re.search(r":(\d+), loading", line)):
            raise SystemExit(f"the server does not start: {line}{self.process.stderr.read()}")
        self.url = f"http://127.0.0.1:{port[1]}"
        self.process.stderr.readline()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        said = self.process.stderr.read()
        status = self.process.wait(60)
        return None if status == 0 else f"the server ends with {status}: {said[-500:]}"


def with_keys(path, to, keys):
    """A copy of a GGUF with more keys, whole numbers, at its beginning. Tensors are aligned to 32 bytes, so they move by as many."""
    def pack(name, kind, value):
        return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value
    data = pathlib.Path(path).read_bytes()
    more = b"".join(pack(name, 4, struct.pack("<I", value)) for name, value in keys.items())
    blank = pack("test.blank", 8, struct.pack("<Q", 0))
    fill = -(len(more) + len(blank)) % 32
    more += pack("test.blank", 8, struct.pack("<Q", fill) + b" " * fill)
    pathlib.Path(to).write_bytes(data[:16] + struct.pack("<Q", struct.unpack_from("<Q", data, 16)[0] + len(keys) + 1) + more + data[24:])
    return to


# A model that fills in: its prompt is made of these tokens.
FILL_IN = {"tokenizer.ggml.fim_pre_token_id": 300, "tokenizer.ggml.fim_suf_token_id": 301, "tokenizer.ggml.fim_mid_token_id": 302}


def make_model(make, path, *options):
    subprocess.run([make, "--layers", "1", "--context", "16384", *options, str(path)], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(path)
