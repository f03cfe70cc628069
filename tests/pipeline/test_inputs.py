#!/usr/bin/env python3
"""usage: test_inputs.py BIN
What the programs make of bad and odd inputs: a table of mistakes with their exit statuses, keys of
wrong types, texts with marks and other ends of lines, BOS that is written by hand, and ways out
that errors name, each of which is taken. BIN: the folder of the programs."""
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile

from gguf_file import ARRAY, BOOL, F32, I32, STRING, U32, U64, Gguf
from rig import Server, check, finish, make_model, side_by_side

BIN = sys.argv[1]
SERVE = os.path.join(BIN, "oato-serve")


def run(program, *args, stdin=b"", env=None):
    return subprocess.run([os.path.join(BIN, program), *args], input=stdin, capture_output=True, timeout=60,
                          env={**os.environ, **(env or {})})


def lines(p):
    return [x for x in p.stderr.decode(errors="replace").splitlines() if "listening at" not in x]


def wants(status, says, program, *args, **how):
    p = run(program, *args, **how)
    said = lines(p)
    check(p.returncode == status and len(said) == 1 and says in said[0],
          f"{program} {' '.join(args)}: status {p.returncode}, expected {status} with '{says}': {said}")


# ----------------------------------------------------------------------------------- GGUF files

def keys_of_wrong_types(tiny):
    """Every key that is read, with each of some types that nobody wants there."""
    unread = {"general.type", "general.file_type", "general.quantization_version", "tokenizer.ggml.padding_token_id",
              "llama.vocab_size"}
    names = {U32: "a UINT32", F32: "a FLOAT32", BOOL: "a BOOL", STRING: "a STRING", ARRAY: "an ARRAY of STRING"}
    wrong = {F32: 1.5, BOOL: True, STRING: b"four", ARRAY: (STRING, [b"a", b"b"])}
    rows = []

    def file(key, v):
        tiny.save(f"{len(rows)}.wrong.gguf", {key: v})
        return f"{len(rows)}.wrong.gguf"
    for key, (kind, raw) in tiny.keys.items():
        if key in unread:
            continue
        strings = kind == ARRAY and struct.unpack_from("<I", raw)[0] == STRING
        for other, v in wrong.items():
            if other == kind and not (kind == ARRAY and not strings):
                continue
            rows.append((3, f"wrong.gguf: key {key} is {names[other]}, wanted ", "oato-run", file(key, (other, v)), "-p", "x", "-n", "1",
                         *(["--chat"] if "template" in key else [])))
    for key, kind, v, says in (("llama.block_count", I32, -2, "key llama.block_count is -2; allowed: 1 to "),
                               ("llama.block_count", U64, 1 << 63, "key llama.block_count is above "),
                               ("llama.attention.head_count", ARRAY, (U32, [4]), "head_count"),
                               ("general.alignment", U64, 32, "key general.alignment is a UINT64, wanted a UINT32"),
                               ("split.tensors.count", STRING, b"1", "key split.tensors.count is a STRING")):
        name = file(key, (kind, v))
        rows += (3, says, "oato-run", name, "-p", "x", "-n", "1"), (3, says, "oato-plan", name, "--hardware", "h200", "-o", "x.plan")
    side_by_side(wants, rows)


# ---------------------------------------------------------------------------------------- texts

def odd(s):
    """The ways in which editors write the same text."""
    lf = s.encode()
    return {"LF": lf, "CR LF": lf.replace(b"\n", b"\r\n"), "CR": lf.replace(b"\n", b"\r"),
            "a mark": b"\xef\xbb\xbf" + lf, "both": b"\xef\xbb\xbf" + lf.replace(b"\n", b"\r\n")}


def answer(*args, stdin=b""):
    p = run("oato-run", *args, stdin=stdin)
    return p.returncode, p.stdout, [x for x in lines(p) if not x.startswith("load ")]


def texts_mean_the_same():
    profile = run("oato-plan", "tiny.gguf", "--hardware", "h200", "-o", "x.plan")
    check(profile.returncode == 0, f"a plan: {lines(profile)}")
    short = ["tiny.gguf", "-n", "4", "--temp", "0", "-t", "1", "-c", "256", "--json"]
    files = {
        "a prompt": ("one\ntwo\n\nthree\n", lambda f: answer(*short, "-f", f)),
        "a prompt by a pipe": ("one\ntwo\n", lambda f: answer(*short, stdin=open(f, "rb").read())),
        "a chat": ("Hello\nyou\n", lambda f: answer("chat", *short[:-1], stdin=open(f, "rb").read())),
        "a grammar": ('root ::= "a" b # all\nb ::= [x-z]\n', lambda f: answer(*short, "-p", "x", "--grammar-file", f)),
        "a schema": ('{"type":\n"integer"}\n', lambda f: answer(*short, "-p", "x", "--json-schema-file", f)),
        "a template": ("{% for m in messages %}\n[{{ m.content }}]\n{% endfor %}\nA:",
                       lambda f: answer(*short, "-p", "x", "--chat", "--chat-template-file", f)),
        "a workload": ("points:\n- {prompt: 8, generate: 4}\n- {prompt: 16, generate: 2}\n", lambda f: (
            run("oato-plan", "tiny.gguf", "--hardware", "h200", "--workload", f, "-o", "w.plan").returncode,
            open("w.plan", "rb").read())),
    }

    def same(i, what, content, made):
        results, name = {}, f"text{i}.yaml"
        for how, data in odd(content).items():
            open(name, "wb").write(data)
            results[how] = made(name)
        check(results["LF"][0] == 0, f"{what}: {results['LF']}")
        for how, result in results.items():
            check(result == results["LF"], f"{what} with {how}: {result}, not {results['LF']}")
        open(name, "wb").write(b"\xff\xfe" + content.encode("utf-16-le"))
        status, *rest = made(name)
        check(status == 3 and (what == "a workload" or "UTF-16" in rest[-1][0]), f"{what} in UTF-16: {status} {rest}")
    side_by_side(same, [(i, what, *row) for i, (what, row) in enumerate(files.items())])
    # what is scored or shown token for token keeps its bytes, but for the mark
    ids = {how: run("oato-run", "tokenize", "tiny.gguf", "-f", f"{i}.txt", "--ids").stdout
           for i, (how, data) in enumerate(odd("one\ntwo\n").items()) if open(f"{i}.txt", "wb").write(data)}
    check(ids["LF"] == ids["a mark"] and ids["CR LF"] == ids["both"] and len(set(ids.values())) == 3,
          f"tokenize keeps ends of lines: {ids}")


def templates_are_named():
    open("bad.jinja", "w").write("{{ 1 }}\n{{ 2..x }}\n")
    for args, says, status in ((["--chat-template-file", "bad.jinja"], "bad.jinja, line 2: ", 3),
                               (["--chat-template", "{{ 1 +"], "--chat-template, line 1: ", 2),
                               (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs is no JSON object", 2)):
        wants(status, says, "oato-run", "tiny.gguf", "-p", "x", "-n", "1", "--chat", *args)
    open("raises.jinja", "w").write("\n{{ raise_exception('not so') }}\n")
    p = run("oato-run", "tiny.gguf", "-p", "x", "-n", "1", "--chat", "--chat-template-file", "raises.jinja")
    check(p.returncode == 3 and "raises.jinja, line 2: not so" in lines(p)[-1] and "tiny.gguf" not in lines(p)[-1],
          f"a template that raises: {lines(p)}")


# ------------------------------------------------------------------------------------------ BOS

def one_bos(tiny):
    tiny.save("bos.gguf", {"tokenizer.ggml.add_bos_token": (BOOL, True)})

    def ids(*args):
        p = run("oato-run", "tokenize", "bos.gguf", "--ids", *args)
        return p.stdout.split(), lines(p)
    bos = ids("-p", "")[0]
    piece = run("oato-run", "tokenize", "bos.gguf", "-p", "").stdout.decode().split('"')[1]
    plain, said = ids("-p", "hello")
    check(bos == plain[:1] and not said, f"BOS in front: {plain} {said}")
    open("bos.txt", "w").write(piece + "hello\n")
    open("plain.txt", "w").write("hello\n")
    for args in (["-p", piece + "hello"], ["-f", "bos.txt"]):
        own, said = ids(*args)
        check(own[:len(plain)] == plain and len(said) == 1 and "is taken once" in said[0], f"{args}: {own} {said}")
    for args in (["-p", "hello"], ["-p", piece + "hello"], ["-f", "plain.txt"], ["-f", "bos.txt"]):
        p = run("oato-run", "bos.gguf", "-n", "1", "-c", "64", "--json", *args)
        check(json.loads(p.stdout)["prompt_tokens"] == len(plain), f"{args}: {p.stdout}")
        check(any("is taken once" in x for x in lines(p)) == (piece in args[1] or args[1] == "bos.txt"), f"{args}: {lines(p)}")
    for name in (piece + "{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        p = run("oato-run", "bos.gguf", "-n", "1", "-c", "64", "--json", "--chat", "--chat-template", name, "-p", "hello")
        check(json.loads(p.stdout)["prompt_tokens"] == len(plain) and not any("taken once" in x for x in lines(p)),
              f"template {name}: {p.stdout} {lines(p)}")
    with Server(SERVE, "bos.gguf", "-c", "64") as s:
        tokens = s.ask("/tokenize", {"content": piece + "hello", "add_special": True})[1]["tokens"]
        check([str(x).encode() for x in tokens] == plain, f"/tokenize: {tokens}")
        for prompt in ("hello", piece + "hello"):
            said = s.ask("/completion", {"prompt": prompt, "n_predict": 1})[1]
            check(said["tokens_evaluated"] == len(plain), f"/completion of {prompt}: {said}")
        mark = s.ask("/completion", b"\xef\xbb\xbf" + json.dumps({"prompt": "hello", "n_predict": 1}).encode())
        check(mark[0] == 200, f"a body with a mark: {mark}")
        wide = s.ask("/completion", '{"prompt": "hello"}'.encode("utf-16"))
        check(wide[0] == 400 and "UTF-16" in str(wide[1]), f"a body in UTF-16: {wide}")


# ------------------------------------------------------------------------------------- ways out

WAYS = ((r"--budget (\S+=\d+KiB)", "--budget"), (r"lower --context to (\d+)", "--context"),
        (r"use -c (\d+) or more", "-c"), (r"at most (\d+) slots fit", "--expert-cache"))


def ways_out(program, *args, least=1):
    """Each way that the error of status 4 names is taken instead of what was asked for."""
    p = run(program, *args)
    said = " ".join(lines(p))
    check(p.returncode == 4, f"{program} {args}: status {p.returncode}: {said}")
    ways = [(option, v) for pattern, option in WAYS for v in re.findall(pattern, said)]
    check(len(ways) >= least, f"{program} {args}: no way out in: {said}")
    for option, v in ways:
        taken, device = list(args), v.split("=")[0] + "="
        at = next((i for i, x in enumerate(taken)
                   if x == option and ("=" not in v or taken[i + 1].startswith(device))), None)
        if at is None:
            taken += [option, v]
        else:
            taken[at + 1] = v
        q = run(program, *taken)
        check(q.returncode == 0, f"{program} {' '.join(args)} said '{said}', but {option} {v}: {lines(q)}")


def errors_name_ways_that_work():
    plan = ["oato-plan", "tiny.gguf", "-o", "way.plan", "--hardware", "rtx3060-laptop"]
    ways_out(*plan, "--devices", "cpu", "--budget", "cpu:0=1KiB")
    ways_out(*plan, "--devices", "cpu", "--budget", "cpu:0=3MiB", "--context", "60000", least=2)
    ways_out(*plan, "--devices", "cpu", "--budget", "cpu:0=2200KiB", "--context", "4096", "--prompt", "8", "--generate", "4")
    ways_out(*plan, "--budget", "cuda:0=1KiB")
    open("long.txt", "w").write("many words " * 60)
    ways_out("oato-run", "tiny.gguf", "-f", "long.txt", "-n", "1", "-c", "100")
    open("longer.txt", "w").write("many words " * 400)
    ways_out("oato-run", "tiny.gguf", "-f", "longer.txt", "-n", "1", "-c", "100")
    with Server(SERVE, "tiny.gguf", "-c", "64") as s:
        status, said = s.ask("/completion", {"prompt": "many words " * 60, "n_predict": 4})
        n = re.search(r"-c (\d+) or more", str(said))
        check(status == 400 and n, f"a prompt too long: {status} {said}")
    with Server(SERVE, "tiny.gguf", "-c", n[1]) as s:
        status, said = s.ask("/completion", {"prompt": "many words " * 60, "n_predict": 4})
        check(status == 200, f"a server with -c {n[1]}: {said}")


# ------------------------------------------------------------------------------------- mistakes

MISTAKES = [line.split("|") for line in """
2|no model given|oato-run
2|unknown option '--frob'|oato-run --frob
2|did you mean '--temp'?|oato-run tiny.gguf -p x --temprature 1
2|'chatt' is neither a verb nor a file; did you mean 'chat'?|oato-run chatt tiny.gguf
2|'pul' is neither a verb nor a file; did you mean 'pull'?|oato pul x/y
6|gone.gguf: No such file|oato gone.gguf
2|more than one model|oato-run tiny.gguf tiny.gguf
6|missing.gguf|oato-run missing.gguf -p x
6|dir: not a regular file|oato-run dir -p x
3|empty: does not begin|oato-run empty -p x
3|cut.gguf: byte|oato-run cut.gguf -p x
3|text: not a plan|oato-run tiny.gguf -p x --plan text
6|missing|oato-run tiny.gguf -p x --plan missing
6|dir: Is a directory|oato-run tiny.gguf -f dir
2|--grammar: grammar line 1|oato-run tiny.gguf -p x --grammar hello
3|text: grammar line 1|oato-run tiny.gguf -p x --grammar-file text
3|text: JSON schema|oato-run tiny.gguf -p x --json-schema-file text
2|--json-schema: JSON schema|oato-run tiny.gguf -p x --json-schema {
2|--logit-bias wants|oato-run tiny.gguf -p x --logit-bias zz
2|-c wants a whole number|oato-run tiny.gguf -p x -c 999999999999
2|unknown device kind|oato-run tiny.gguf -p x --devices frob
2|use a longer text|oato-run perplexity tiny.gguf -f text
6|is a directory|oato-run logits tiny.gguf --ids 1 -o dir
6|/nowhere/x|oato-run logits tiny.gguf --ids 1 -o /nowhere/x
2|is not overwritten|oato-run logits tiny.gguf --ids 1 -o tiny.gguf
2|unknown activation|oato-run tiny.gguf -p x --ffn-activation frob
4|the context holds only|oato-run tiny.gguf -f words.txt -c 64
2|MODEL.gguf or --shape NAME, and -p PROFILE|oato-plan
2|'shwo' is neither a verb nor a file; did you mean 'show'?|oato-plan shwo x.plan
6|missing|oato-plan tiny.gguf -p missing -o x.plan
3|not a profile|oato-plan tiny.gguf -p text -o x.plan
3|empty: not a profile|oato-plan tiny.gguf -p empty -o x.plan
3|cut.gguf|oato-plan cut.gguf --hardware h200 -o x.plan
6|/nowhere/x|oato-plan tiny.gguf --hardware h200 -o /nowhere/x
2|is not overwritten|oato-plan tiny.gguf --hardware h200 -o tiny.gguf
2|--budget|oato-plan tiny.gguf --hardware h200 -o x.plan --budget cpu:0=zz
2|unknown solver|oato-plan tiny.gguf --hardware h200 -o x.plan --solver frob
2|did you mean 'rtx3060-laptop'|oato-plan tiny.gguf --hardware rtx3060-laptp -o x.plan
3|text.yaml|oato-plan tiny.gguf --hardware h200 -o x.plan --workload bad/text.yaml
6|missing.yaml|oato-plan tiny.gguf --hardware h200 -o x.plan --workload missing.yaml
3|text: not a plan|oato-plan show text
6|missing|oato-plan show missing
4|do not fit|oato-plan tiny.gguf --hardware h200 --devices cpu -o x.plan --budget cpu:0=1KiB
2|no model given|oato-profile
6|missing.gguf|oato-profile missing.gguf
3|text: does not begin|oato-profile text
6|/nowhere/x|oato-profile tiny.gguf -o /nowhere/x
3|text:1:1|oato-profile tiny.gguf -o text
3|text: not a plan|oato-profile tiny.gguf --restores --plan text -o x.yaml
2|unknown option 'vrm'|oato-profile tiny.gguf -d sim:vrm=1 -o x.yaml
6|missing|oato-profile tiny.gguf --calibrate missing -o n.gguf
3|empty: is empty|oato-profile tiny.gguf --calibrate empty -o n.gguf
2|did you mean '--quick'?|oato-profile tiny.gguf --quik
3|text: does not begin|oato-profile neurons show text
2|no model given|oato-serve
6|missing.gguf|oato-serve missing.gguf --port 0
3|text: does not begin|oato-serve text --port 0
2|--port wants|oato-serve tiny.gguf --port 99999
6|cannot listen|oato-serve tiny.gguf --host 203.0.113.7 --port 0
6|missing|oato-serve tiny.gguf --api-key-file missing --port 0
3|empty: has no key|oato-serve tiny.gguf --api-key-file empty --port 0
2|did you mean '--policy'?|oato-serve tiny.gguf --polcy x
3|text:1: not a line|oato-serve --replay text
3|bad.jinja, line 2|oato-serve tiny.gguf --chat-template-file bad.jinja --port 0
3|text: not a plan|oato-serve tiny.gguf --plan text --port 0
2|--plan: an empty word is no file's name|oato-run tiny.gguf -p x --plan ''
2|operand: an empty word is no file's name|oato-serve '' --port 0
2|did you mean '--prepared-cache'?|oato-serve tiny.gguf --prepared-cach x
2|is not overwritten|oato-serve tiny.gguf --decision-log tiny.gguf --port 0
2|is not overwritten|oato-plan tiny.gguf --hardware h200 --workload points.yaml -o points.yaml
6|cannot write in text: Not a directory|oato-serve tiny.gguf --slot-save-path text --port 0
6|cannot write in text: Not a directory|oato-serve tiny.gguf --prompt-cache text --port 0
3|tiny.gguf: has a control character|oato-serve tiny.gguf --api-key-file tiny.gguf --port 0
3|empty: is empty|oato-serve tiny.gguf --chat-template-file empty --port 0
3|made for another model|oato-profile tiny.gguf --restores --plan other.plan -o x.yaml
""".strip().splitlines()]


def every_mistake_has_its_status():
    os.makedirs("dir")
    os.makedirs("bad")
    open("empty", "w").close()
    for name in ("text", "bad/text.yaml"):
        open(name, "w").write("hello\n")
    open("words.txt", "w").write("many words " * 60)
    open("points.yaml", "w").write("points:\n- {prompt: 8, generate: 4}\n")
    make_model(os.path.join(BIN, "oato-make-model"), "other.gguf")
    for model, plan in (("other.gguf", ["other.plan"]), ("tiny.gguf", ["x.plan", "--prompt", "0"])):
        p = run("oato-plan", model, "--hardware", "h200", "-o", *plan)
        check(p.returncode == 0, f"a plan of {model}: {lines(p)}")
    open("cut.gguf", "wb").write(open("tiny.gguf", "rb").read()[:3000])
    side_by_side(wants, [(int(status), says, *shlex.split(command)) for status, says, command in MISTAKES])
    for level in ("frob", "neon" if os.uname().machine == "x86_64" else "avx2"):
        wants(2, "this build has ref", "oato-run", "tiny.gguf", "-p", "x", env={"OATO_CPU_ISA": level})
    best = re.search(r"use (\S+) \(it has", " ".join(lines(run("oato-run", "tiny.gguf", "-p", "x", "-n", "1",
                                                               env={"OATO_CPU_ISA": "amx"}))))
    if best:  # this processor has no AMX
        p = run("oato-run", "tiny.gguf", "-p", "x", "-n", "1", env={"OATO_CPU_ISA": best[1]})
        check(p.returncode == 0 and (best[1] != "ref" or "avx2" not in open("/proc/cpuinfo").read()), f"use {best[1]}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = folder
        for name in ("OATO_CPU_ISA",):
            os.environ.pop(name, None)
        make_model(os.path.join(BIN, "oato-make-model"), "tiny.gguf", "--layers", "2", "--context", "8192")
        tiny = Gguf("tiny.gguf")
        keys_of_wrong_types(tiny)
        texts_mean_the_same()
        templates_are_named()
        one_bos(tiny)
        errors_name_ways_that_work()
        every_mistake_has_its_status()
        os.chdir("/")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
