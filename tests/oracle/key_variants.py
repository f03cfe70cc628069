"""Variants of a model's keys, for an oracle that sees every key (key_oracle.py).

A variant is the same file with some keys of its architecture left out, added or changed; tensors stay. Kinds:
  left out      each key
  converter     only the keys that a converter of llama.cpp writes for the architecture
  set           a long rope base, a window of 8 positions and a scaling of 4, each key then left out
  changed       each number and flag
  added         each key that llama.cpp's writer knows and the file does not have
"""
import ast
import glob
import os
import re
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
IDS = 24  # tokens of logits: enough for windows of 8
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TYPES = {"uint32": U32, "float32": F32, "bool": BOOL, "string": STRING, "array": ARRAY}
SET = {"rope.freq_base": (F32, 5e5), "attention.sliding_window": (U32, 8), "rope.scaling.type": (STRING, "linear"),
       "rope.scaling.factor": (F32, 4.0)}
ROUNDS = 3  # other values of each number
ADDED = {U32: (2, 8), F32: (0.7, 1.5), BOOL: (True, True)}
# What makes a key count that does nothing alone.
COMPANIONS = {"rope.scaling.": {"rope.scaling.type": (STRING, "yarn"), "rope.scaling.factor": (F32, 4.0),
                                "rope.scaling.original_context_length": (U32, 16)},
              "expert_group_": {"expert_group_count": (U32, 2), "expert_group_used_count": (U32, 1)}}


class Header:
    """A GGUF file's keys, and the rest of its bytes. An array is (its elements' type, list)."""

    def __init__(self, data):
        self.data, self.at, self.keys = data, 8, {}
        self.magic, (tensors, keys) = data[:8], self.take("QQ")
        for _ in range(keys):
            key = self.string()
            kind, = self.take("I")
            self.keys[key] = (kind, self.value(kind))
        infos = self.at
        for _ in range(tensors):
            self.string()
            dims, = self.take("I")
            self.take(f"{dims}QIQ")
        self.tensors, self.infos = tensors, data[infos:self.at]
        self.weights = memoryview(data)[(self.at + 31) // 32 * 32:]
        self.arch = self.keys["general.architecture"][1]

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def string(self):
        n, = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.take(SCALARS[kind])[0]
        elements, n = self.take("IQ")
        return elements, [self.value(elements) for _ in range(n)]


def pack(kind, value):
    if kind == STRING:
        text = value.encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        elements, values = value
        return struct.pack("<IQ", elements, len(values)) + b"".join(pack(elements, v) for v in values)
    return struct.pack("<" + SCALARS[kind], value)


def header_bytes(header, edits):
    """The keys with `edits` (name without the architecture: None or (type, value)), then the tensors' infos."""
    keys = dict(header.keys)
    for key, entry in edits.items():
        keys.pop(f"{header.arch}.{key}", None)
        if entry:
            keys[f"{header.arch}.{key}"] = entry
    out = [header.magic, struct.pack("<QQ", header.tensors, len(keys))]
    out += [pack(STRING, k) + struct.pack("<I", kind) + pack(kind, v) for k, (kind, v) in keys.items()]
    text = b"".join(out) + header.infos
    return text + bytes(-len(text) % 32)


def of_arch(header):
    prefix = header.arch + "."
    return {k[len(prefix):]: v for k, v in header.keys.items() if k.startswith(prefix)}


# --------------------------------------------------------------------------------- llama.cpp's converters


def writer_keys(peer):
    """What gguf-py's writer calls keys: {method: [(key, type)]}"""
    with open(os.path.join(peer, "gguf-py", "gguf", "constants.py"), encoding="utf-8") as f:
        names = {}
        for c in next(n for n in ast.parse(f.read()).body if isinstance(n, ast.ClassDef) and n.name == "Keys").body:
            for a in c.body if isinstance(c, ast.ClassDef) else []:
                if isinstance(a, ast.Assign) and isinstance(a.value, ast.Constant):
                    names[f"Keys.{c.name}.{a.targets[0].id}"] = str(a.value.value)
    with open(os.path.join(peer, "gguf-py", "gguf", "gguf_writer.py"), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    methods = {}
    for m in ast.walk(tree):
        if isinstance(m, ast.FunctionDef) and m.name.startswith("add_"):
            text = ast.unparse(m)
            kinds = [TYPES[k] for k in re.findall(r"self\.add_(uint32|float32|bool|string|array)\(", text)]
            used = [names[k].removeprefix("{arch}.") for k in re.findall(r"Keys\.\w+\.\w+", text)
                    if names.get(k, "").startswith("{arch}.")]
            if kinds and used:
                methods[m.name] = [(k, kinds[0]) for k in used]
    return methods


def used_keys(peer):
    """Keys that llama.cpp's source reads for some model."""
    found, names = set(), {}
    with open(os.path.join(peer, "src", "llama-arch.cpp"), encoding="utf-8") as f:
        names = dict(re.findall(r'\{ *(LLM_KV_\w+), *"%s\.([^"]+)"', f.read()))
    for path in glob.glob(os.path.join(peer, "src", "llama-model.cpp")) + glob.glob(os.path.join(peer, "src", "models", "*.cpp")):
        with open(path, encoding="utf-8") as f:
            found.update(re.findall(r"LLM_KV_\w+", f.read()))
    return {names[k] for k in found if k in names}


def converters(peer, methods):
    """{architecture: [(class, keys that it may write)]}"""
    classes, archs = {}, {}
    with open(os.path.join(peer, "gguf-py", "gguf", "constants.py"), encoding="utf-8") as f:
        for name, arch in re.findall(r'MODEL_ARCH\.(\w+): +"([^"]+)"', f.read()):
            archs[name] = arch
    for path in glob.glob(os.path.join(peer, "conversion", "*.py")):
        with open(path, encoding="utf-8") as f:
            for c in ast.parse(f.read()).body:
                if isinstance(c, ast.ClassDef):
                    text = ast.unparse(c)
                    arch = re.search(r"^    model_arch = gguf\.MODEL_ARCH\.(\w+)", text, re.M)
                    own = {k for m in re.findall(r"gguf_writer\.(add_\w+)\(", text) for k, _ in methods.get(m, [])}
                    bases = [b.id if isinstance(b, ast.Name) else b.attr for b in c.bases
                             if isinstance(b, (ast.Name, ast.Attribute))]
                    inherits = "super()" in text or "def set_gguf_parameters" not in text
                    classes[c.name] = (arch and archs.get(arch[1]), own, bases if inherits else [], bases)

    def keys_of(name):
        _, own, bases, _ = classes.get(name, (None, set(), [], []))
        return own.union(*map(keys_of, bases))

    def arch_of(name):
        arch, _, _, bases = classes.get(name, (None, set(), [], []))
        return arch or next(filter(None, map(arch_of, bases)), None)

    out = {}
    for name in sorted(classes):
        if (arch := arch_of(name)):
            out.setdefault(arch, []).append((name, keys_of(name)))
    return out


# ----------------------------------------------------------------------------------------------- variants


def other_values(kind, value):
    """Other values of a key."""
    if kind == BOOL:
        return [not value]
    if kind in (F32, 12):
        return [v for v in (value * 1.5, 0.0, 0.7) if v != value]
    if kind in SCALARS:
        most = (1 << 8 * struct.calcsize(SCALARS[kind]) - (SCALARS[kind].islower())) - 1
        return [v for v in dict.fromkeys((value + 1, value // 2, 0, value * 2)) if v != value and abs(v) <= most]
    if kind == ARRAY and value[0] in SCALARS and value[1]:
        elements, values = value
        each = [[other_values(elements, v)[i % len(other_values(elements, v))] for v in values] for i in ((0,) if elements == BOOL else (0, 1))]
        one = [[other_values(elements, values[0])[0], *values[1:]]]
        turned = [values[1:] + values[:1]]
        uniform = [[v] * len(values) for v in dict.fromkeys(values)] if len(values) < 64 else []
        return [(elements, v) for v in each + one + turned + uniform if v != values]
    return []


def companions(key):
    return next((dict(v) for k, v in COMPANIONS.items() if key.startswith(k)), {})


def families(header, known, written):
    """Lists of variants that change one key each of the same base: (kind, base's edits, [(key, entry)]).

    known: {key: type}, all that may be added; written: what converters() gives."""
    keys = of_arch(header)
    windows = {**SET, "attention.sliding_window_pattern": None}  # as the architecture has them
    yield "set", {}, []
    yield "left out", {}, [(k, None) for k in keys]
    yield "left out", SET, [(k, None) for k in [*SET, *(k for k in keys if k not in SET)]]
    if "attention.sliding_window_pattern" in keys:
        yield "left out", windows, [(k, None) for k in keys if k not in windows or k in SET]
    for name, kept in written.get(header.arch, []):
        yield "converter", {k: None for k in keys if k not in kept}, []
    others = {k: other_values(*v) for k, v in keys.items()}
    for i in range(ROUNDS):
        yield "changed", {}, [(k, (keys[k][0], v[i])) for k, v in others.items() if len(v) > i]
    yield "changed", SET, [(k, (keys[k][0], v[0])) for k, v in others.items() if v and k not in SET]
    new = {k: t for k, t in known.items() if k not in keys and t in ADDED}
    yield "added", {}, [(k, (t, ADDED[t][0])) for k, t in new.items()]
    yield "added", SET, [(k, (t, ADDED[t][1])) for k, t in new.items() if k not in SET]
    for prefix, more in COMPANIONS.items():
        mine = [(k, (t, ADDED[t][1])) for k, t in {**new, **{k: v[0] for k, v in keys.items()}}.items()
                if k.startswith(prefix) and k not in more and t in ADDED]
        yield "changed", {**SET, **more}, mine
        yield "left out", {**SET, **more}, [(k, None) for k in more]
