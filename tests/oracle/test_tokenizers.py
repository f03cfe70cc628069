#!/usr/bin/env python3
"""Holds our tokenizers to the libraries of their makers; run by ctest (label oracle).

  test_tokenizers.py OATO_CUTS cuts       pre-tokenizers: Hugging Face's tokenizers, whose engine is the
                                          one that published expressions are written for
  test_tokenizers.py OATO_CUTS raw        byte-pair encoding of characters (gemma4): the same library
  test_tokenizers.py OATO_CUTS wordpiece  WordPiece (bert): the same library
  test_tokenizers.py OATO_CUTS unigram    unigram (t5): sentencepiece

The texts mix scripts, marks, digits, contractions, spaces, line ends, punctuation and emoji; their seed
is printed, and taken from OATO_TEST_SEED. Vocabularies are trained here, on the GPL-3 and such texts.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import numpy as np

try:
    import sentencepiece
    from gguf import GGUFWriter, TokenType
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError as missing:
    print(f"{missing}: run scripts/setup")
    sys.exit(1 if os.environ.get("OATO_REQUIRE_MODEL") == "1" else 77)

TEXT = "/usr/share/common-licenses/GPL-3"
SHORT_TEXTS, LONG_PARTS = 400, 20000

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(upper, lower, suffix, digits, punctuation_end):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}|{digits}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+{punctuation_end}|" + SPACES)


GPT4O = cased(UPPER, LOWER, CONTRACTIONS + "?", r"\p{N}{1,3}", r"[\r\n/]*")
KIMI = r"[\p{Han}]+|" + cased(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                              CONTRACTIONS + "?", r"\p{N}{1,3}", r"[\r\n]*")
ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK3 = [r"\p{N}{1,3}", CJK, ASCII_WORD + r"[\r\n]*|" + SPACES]
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
BLOCKS = "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
AFMOE = "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f" \
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"

# As published (tokenizer.json, or the makers' code); one name of each row, and names of models that
# publish another wording of a row that they share.
PUBLISHED = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "chatglm-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "grok-2": [QWEN2],
    "qwen35": [QWEN35],
    "ufakzeka": [QWEN2.split("|", 7)[7]],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                   r"|\s+(?!\S)|\s+"],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "jais-2": [LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + BLOCKS + r"\s{1}"],
    "gpt-4o": [GPT4O],
    "minimax-m2": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "tekken": [cased(UPPER, LOWER, "", r"\p{N}", r"[\r\n/]*")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
              cased(UPPER, LOWER, CONTRACTIONS + "?", r"\p{N}", r"[\r\n/]*")],
    "kimi-k2": [KIMI],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "deepseek-v3": DEEPSEEK3,
    "hunyuan-dense": DEEPSEEK3,
    "spark2_5": [r"\p{N}{1,3}", CJK, ASCII_WORD + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    # The digits' expression is not published in a form that llama.cpp quotes; this is what it does.
    "afmoe": [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE, ASCII_WORD + r"[\r\n]*|" + SPACES],
}

failures = 0


def check(ok, text):
    global failures
    failures += not ok
    print(("ok    " if ok else "WRONG ") + text, flush=True)


# ------------------------------------------------------------------------------------- texts

RANGES = [(0x61, 0x7A), (0x41, 0x5A), (0x30, 0x39), (0x21, 0x2F), (0x21, 0x7E), (0xA0, 0x24F), (0x250, 0x2FF),
          (0x300, 0x36F), (0x370, 0x52F), (0x531, 0x58F), (0x590, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF),
          (0xE00, 0xEFF), (0x1000, 0x10FF), (0x1100, 0x11FF), (0x13A0, 0x13FD), (0x1780, 0x17FF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x24FF), (0x2E80, 0x303F), (0x3040, 0x318F), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFFEF), (0x10400, 0x1044F), (0x1F130, 0x1F189),
          (0x1F300, 0x1F64F), (0x20000, 0x20FFF), (0xA0, 0xD7FF), (0xE000, 0x1FFFF)]
PARTS = ["'s", "'S", "'t", "'RE", "'re", "'Ve", "'m", "'LL", "'ll", "'D", "'\u017f", "\u2019s", " ", "  ", "   ", " " * 9,
         "\n", "\n\n", "\r\n", "\r", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b",
         "\u200d", "\ufeff", "\u01c5", "\u02b0", "\u00b2", "\u2167", "\u2460", "e\u0301", "\u0301", "\u0939\u093f",
         "\u0e01\u0e33", "\u0661\u0662\u0663\u0664", "12", "123", "1234567", "3.14", "1,000,000", "1234abc", "12\u00b2",
         "//", "/", "...", "!?", "_", "camelCase", "HTTPServer", "McDonald", "don't", "DON'T", "\u00c9t\u00c9", "\u4e2d\u6587",
         "\u4e2dA", "\u3005", "\u3007", "\u302a", "\ud55c\uad6d\uc5b4", "\u304b\u306a\u30ab\u30ca", "\U0001f468\u200d\U0001f469", "\U0001f44d\U0001f3fd",
         "<sentinel:12>", "IMGIMGABZ", "\u2581", "\ufb01", "\uff21\uff22", "\u2026", "\u0964", "\u060c", " \u0301", "a b c"]


def usable(c, old):
    """Assigned, and for old: since Unicode 3.2 and of the same category, for libraries with old tables."""
    kind = unicodedata.category(chr(c))
    return kind not in ("Cn", "Cs") and (not old or unicodedata.ucd_3_2_0.category(chr(c)) == kind)


def make_text(rng, parts, old=False):
    out = []
    for _ in range(parts):
        if rng.random() < 0.5:
            part = rng.choice(PARTS)
            if old and not all(usable(ord(c), True) for c in part):
                continue
            out.append(part * (1 if rng.random() < 0.8 else rng.randint(2, 5)))
        else:
            low, high = rng.choice(RANGES)
            for _ in range(rng.randint(1, 6)):
                c = rng.randint(low, high)
                if usable(c, old):
                    out.append(chr(c) * (1 if rng.random() < 0.9 else rng.randint(2, 5)))
    return "".join(out)


def make_texts(work, old=False, short=SHORT_TEXTS, long_parts=LONG_PARTS, prepare=lambda s: s, seed=None):
    seed = int(os.environ.get("OATO_TEST_SEED") or seed or random.SystemRandom().randrange(1 << 32))
    print(f"OATO_TEST_SEED={seed}")
    rng = random.Random(seed)
    texts = [prepare(make_text(rng, rng.randint(1, 20), old)) for _ in range(short)]
    texts = [t for t in texts if t] + [prepare(make_text(rng, long_parts, old))]
    files = []
    for i, text in enumerate(texts):
        files.append(os.path.join(work, f"text{i}"))
        with open(files[-1], "wb") as f:
            f.write(text.encode())
    return texts, files


def ours(program, what, name, files):
    r = subprocess.run([program, what, name, *files], capture_output=True, text=True, check=False)
    if r.returncode:
        sys.exit(f"{program} {what} {name}: {r.stderr}")
    return [[int(x) for x in line.split()] for line in r.stdout.splitlines()]


def compare(name, texts, got, wanted, unit):
    """wanted: a function of the text."""
    wrong = total = 0
    for text, a in zip(texts, got, strict=True):
        b = wanted(text)
        total += len(b)
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            if wrong < 3:
                print(f"  {text[:60]!r}: at {at} ours {a[at:at + 5]} theirs {b[at:at + 5]}")
                if unit == "cuts":
                    raw = text.encode()
                    begin = b[at - 1] if at else 0
                    print(f"  ours {raw[begin:a[at]].decode()!r} theirs {raw[begin:b[at]].decode()!r}"
                          f" in {raw[max(0, begin - 30):begin + 30].decode(errors='replace')!r}")
            wrong += 1
    check(not wrong, f"{name}: {total} {unit} of {len(texts)} texts" + (f", {wrong} texts differ" if wrong else ""))


# ------------------------------------------------------------------------------------- tests

def cuts(program, work):
    texts, files = make_texts(work)
    for name, expressions in PUBLISHED.items():
        splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in expressions])

        def theirs(text, splits=splits):
            size = np.cumsum([0] + [len(c.encode()) for c in text])
            return [int(size[end]) for _, (_, end) in splits.pre_tokenize_str(text)]
        compare(name, texts, ours(program, "pre", name, files), theirs, "cuts")


def corpus(texts):
    with open(TEXT, encoding="utf-8") as f:
        return f.read().splitlines() + texts[:SHORT_TEXTS // 2] * 3


def write_model(path, kind, tokens, types, scores=None, merges=None, **more):
    w = GGUFWriter(path, "llama")
    w.add_tokenizer_model(kind)
    w.add_token_list(tokens)
    w.add_token_types(types)
    if scores is not None:
        w.add_token_scores(scores)
    if merges is not None:
        w.add_token_merges(merges)
    for key, value in more.items():
        key = "tokenizer.ggml." + key.replace("__", ".")
        if isinstance(value, bool):
            w.add_bool(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        else:
            w.add_array(key, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def raw(program, work):
    texts, files = make_texts(work)
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(corpus(texts), trainers.BpeTrainer(vocab_size=3000, show_progress=False, limit_alphabet=600))
    learnt = json.loads(learner.to_str())["model"]
    tokens = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    types = [TokenType.UNKNOWN] + [TokenType.BYTE] * 256
    for token in sorted(learnt["vocab"], key=learnt["vocab"].get):
        tokens.append(token)
        types.append(TokenType.NORMAL)
    merges = [tuple(m) for m in learnt["merges"]]
    model = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True,
                                 fuse_unk=True))
    model.normalizer = normalizers.Replace(" ", "▁")
    path = os.path.join(work, "raw.gguf")
    write_model(path, "gemma4", tokens, types, scores=[0.0] * len(tokens), merges=[" ".join(m) for m in merges],
                unknown_token_id=0)
    compare("gemma4", texts, ours(program, "ids", path, files), lambda s: model.encode(s).ids, "tokens")


def wordpiece(program, work):
    # GGUF writes a token ##▁ and the begin of a word alike.
    texts, files = make_texts(work, old=True, prepare=lambda s: s.replace("▁", ""))
    for lowercase, accents in ((True, True), (False, False), (True, False), (False, True)):
        model = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        model.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
        model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # Half of the characters are left without a token.
        model.train_from_iterator(corpus(texts) + texts[-1:], trainers.WordPieceTrainer(
            vocab_size=12000, show_progress=False, special_tokens=["[UNK]"], limit_alphabet=5000))
        vocab = model.get_vocab()
        tokens = sorted(vocab, key=vocab.get)
        types = [TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1)
        tokens = tokens[:1] + [t[2:] if t.startswith("##") else "▁" + t for t in tokens[1:]]
        path = os.path.join(work, "wordpiece.gguf")
        write_model(path, "bert", tokens, types, unknown_token_id=0, normalizer__lowercase=lowercase,
                    normalizer__strip_accents=accents)
        compare(f"bert lowercase={lowercase} strip_accents={accents} ({len(tokens)} tokens)", texts,
                ours(program, "ids", path, files), lambda s, m=model: m.encode(s).ids, "tokens")


def proto_fields(data):
    """(number, bytes) of the fields of a protobuf message that have bytes."""
    def varint(i):
        value = shift = 0
        while True:
            value |= (data[i] & 0x7F) << shift
            shift += 7
            i += 1
            if data[i - 1] < 0x80:
                return value, i
    i = 0
    while i < len(data):
        tag, i = varint(i)
        if tag & 7 == 2:
            size, i = varint(i)
            yield tag >> 3, data[i:i + size]
            i += size
        elif tag & 7 == 0:
            _, i = varint(i)
        else:
            i += 4 if tag & 7 == 5 else 8


def unigram(program, work):
    # Always the same texts: sums of floats round, and about one tie in 100,000 tokens of a text of that
    # length comes out otherwise.
    texts, files = make_texts(work, long_parts=1500, seed=1, prepare=lambda s: s.replace("\0", ""))
    lines = [line for text in corpus(texts) for line in text.splitlines()]
    for rule, prefix, merge, fallback in (("nmt_nfkc", True, True, False), ("nmt_nfkc_cf", True, True, True),
                                          ("nfkc", False, True, False), ("identity", True, False, True),
                                          ("nmt_nfkc", False, False, False)):
        prefix_path = os.path.join(work, "unigram")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=prefix_path, vocab_size=4000, model_type="unigram",
            character_coverage=0.99,
            normalization_rule_name=rule, add_dummy_prefix=prefix, remove_extra_whitespaces=merge,
            byte_fallback=fallback, hard_vocab_limit=False, minloglevel=2, num_threads=1)
        model = sentencepiece.SentencePieceProcessor(model_file=prefix_path + ".model")
        with open(prefix_path + ".model", "rb") as f:
            spec = next(d for n, d in proto_fields(f.read()) if n == 3)
        charsmap = next((d for n, d in proto_fields(spec) if n == 2), b"")
        size = model.vocab_size()
        types = [TokenType.UNKNOWN if model.is_unknown(i) else TokenType.CONTROL if model.is_control(i) else
                 TokenType.BYTE if model.is_byte(i) else TokenType.NORMAL for i in range(size)]
        path = os.path.join(work, "unigram.gguf")
        more = {"precompiled_charsmap": charsmap} if charsmap else {}
        write_model(path, "t5", [model.id_to_piece(i) for i in range(size)], types,
                    scores=[model.get_score(i) for i in range(size)], unknown_token_id=model.unk_id(),
                    add_space_prefix=prefix, remove_extra_whitespaces=merge, **more)
        compare(f"t5 {rule} prefix={prefix} merge={merge} bytes={fallback} ({size} tokens, map of {len(charsmap)} bytes)",
                texts, ours(program, "ids", path, files), model.encode, "tokens")


CASES = {"cuts": cuts, "raw": raw, "wordpiece": wordpiece, "unigram": unigram}


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in CASES:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    if not os.path.exists(TEXT):
        print(f"{TEXT} is missing")
        return 77
    with tempfile.TemporaryDirectory() as work:
        CASES[sys.argv[2]](os.path.abspath(sys.argv[1]), work)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
