"""GGUF files with other keys, and with more tensors, than oato-make-model gives them (docs of the format: ggml's docs/gguf.md)."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
# A model that fills in: its prompt is made of these tokens.
FILL_IN = {"tokenizer.ggml.fim_pre_token_id": 300, "tokenizer.ggml.fim_suf_token_id": 301, "tokenizer.ggml.fim_mid_token_id": 302}


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    """Of a scalar, a string, or an array: (kind of its elements, list)."""
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
    return struct.pack("<" + SCALARS[kind], v)


class Gguf:
    """keys: (kind, bytes of the value) by name."""
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 8
        self.n_tensors, n = self.take("QQ")
        self.keys = {}
        for _ in range(n):
            key = self.string().decode()
            kind, = self.take("I")
            begin = self.at
            self.skip(kind)
            self.keys[key] = (kind, self.data[begin:self.at])
        begin = self.at
        for _ in range(self.n_tensors):
            self.string()
            dims, = self.take("I")
            self.at += 8 * dims + 12
        self.tensors, self.weights = self.data[begin:self.at], self.data[(self.at + 31) // 32 * 32:]

    def take(self, what):
        v = struct.unpack_from("<" + what, self.data, self.at)
        self.at += struct.calcsize("<" + what)
        return v

    def string(self):
        n, = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, n = self.take("IQ")
            for _ in range(n):
                self.skip(of)
        else:
            self.at += struct.calcsize(SCALARS[kind])

    def save(self, path, keys={}, tensors={}):
        """keys: new ones or other values, whole numbers, texts, or (kind, value); tensors: more of them, rows of floats."""
        all_keys = dict(self.keys)
        for key, v in keys.items():
            kind, v = v if isinstance(v, tuple) else (U32 if isinstance(v, int) else STRING, v)
            all_keys[key] = (kind, value(kind, v))
        infos, weights = self.tensors, self.weights
        for name, rows in tensors.items():
            weights += bytes(-len(weights) % 32)
            infos += text(name) + struct.pack("<IQQIQ", 2, len(rows[0]), len(rows), 0, len(weights))
            weights += b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows)
        head = b"GGUF" + struct.pack("<IQQ", 3, self.n_tensors + len(tensors), len(all_keys))
        head += b"".join(text(k) + struct.pack("<I", kind) + raw for k, (kind, raw) in all_keys.items()) + infos
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % 32) + weights)


def with_keys(path, to, keys, tensors={}):
    """A copy of a file with other keys and more tensors; its path."""
    Gguf(path).save(to, keys, tensors)
    return to
