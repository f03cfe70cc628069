"""Models in Hugging Face's form that are odd: scripts/convert-hf refuses each with one line, and leaves no file.

    odd_hf.refusals(folder, check)      folder: a model of opt_hf.write_model
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHARD = "model-00001-of-00002.safetensors"


def header(edit):
    """Edits the header of a safetensors file."""
    def of(data):
        n = int.from_bytes(data[:8], "little")
        text = json.dumps(edit(json.loads(data[8:8 + n]))).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + n:]
    return of


def first(key, *value):
    """Sets or drops what the header says of the first tensor."""
    def edit(tensors):
        tensor = next(iter(tensors.values()))
        tensor.pop(key)
        if value:
            tensor[key] = value[0]
        return tensors
    return header(edit)


def config(key, *value):
    def of(data):
        c = json.loads(data)
        c.pop(key)
        if value:
            c[key] = value[0]
        return json.dumps(c).encode()
    return of


def text(new):
    return lambda data: new


# Of each file: what replaces it, or makes another one of it
ODD = {
    "config.json": [text(b"[]"), text(b"3"), text(b"null"), text(b""), text(b"\xff\xfe{"), text(b"[" * 100000),
                    config("architectures", "OPTForCausalLM"), config("architectures", 3), config("architectures", [3]), config("architectures", [[]]),
                    config("hidden_size"), config("hidden_size", "64"), config("hidden_size", -64), config("num_hidden_layers", None),
                    config("num_hidden_layers", 1.5), config("num_hidden_layers", 2**40), config("num_hidden_layers", 3), config("num_hidden_layers", 1),
                    config("vocab_size", "288"), config("vocab_size", 10**12), config("vocab_size", 10), config("num_attention_heads", 0),
                    config("num_attention_heads", 5), config("bos_token_id", None), config("bos_token_id", [2]), config("bos_token_id", "2"),
                    config("bos_token_id", -1), config("eos_token_id"), config("pad_token_id", [1])],
    SHARD: [header(lambda h: []), header(lambda h: "x"), header(lambda h: {name: 3 for name in h}), header(lambda h: {"x" + name: t for name, t in h.items()}),
            first("data_offsets"), first("dtype"), first("shape"), first("data_offsets", [-100, 28]), first("data_offsets", [128, 0]),
            first("data_offsets", "ab"), first("data_offsets", [0]), first("data_offsets", [0.0, 128.0]), first("data_offsets", None),
            first("shape", "64"), first("shape", [-64]), first("shape", [64.0]), first("shape", [[64]]), first("shape", [2**62, 4]),
            first("dtype", 3), first("dtype", []), first("dtype", "I64"), text(b""), text(b"12345"), lambda data: data[:8] + b"\xff" * 20 + data[28:]],
    "vocab.json": [text(b"[]"), text(b"7"), text(b'{"a":"b"}'), text(b'{"a":null}'), text(b'{"a":[1]}'), text(b'{"a":1,"b":1}'), text(b'{"a":288}'),
                   lambda data: data[:99]],
    "merges.txt": [text(b"\xff\xfe\xff"), text(b"#version: 0.2\nabc\n"), None],
}


def program():
    loader = importlib.machinery.SourceFileLoader("convert_hf", os.path.join(HERE, "..", "..", "scripts", "convert-hf"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("convert_hf", loader))
    loader.exec_module(module)
    return module


def refused(convert, folder):
    """The line that it says; None: it does not end with one."""
    out = os.path.join(folder, "odd.gguf")
    sys.argv = ["convert-hf", folder, "-o", out]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            convert.run()
    except SystemExit as e:
        left = [name for name in os.listdir(folder) if name.startswith("odd.gguf")]
        return e.code if isinstance(e.code, str) and "\n" not in e.code and not left else None
    except Exception as e:  # what would be a traceback
        print(repr(e))
    return None


def refusals(folder, check):
    convert, n, wrong = program(), 0, []
    for name, edits in ODD.items():
        path = os.path.join(folder, name)
        with open(path, "rb") as f:
            whole = f.read()
        for i, edit in enumerate(edits):
            os.remove(path)
            if edit:
                with open(path, "wb") as f:
                    f.write(edit(whole))
            n += 1
            if not refused(convert, folder):
                wrong.append(f"{name} {i}")
            with open(path, "wb") as f:
                f.write(whole)
    check(not wrong, f"{n} odd inputs are refused by one line each {wrong}")
