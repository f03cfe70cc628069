#!/usr/bin/env python3
"""Holds the Jinja interpreter to jinja2, set up as transformers does; run by ctest (label oracle).

  test_jinja.py JINJA_RENDER     every template that llama.cpp keeps, on every conversation below:
                                 the same text, or the same reason for refusing

Exit status 77 (skipped) without the templates (scripts/fetch-peer --sources).
"""
import datetime
import glob
import json
import os
import re
import subprocess
import sys

REQUIRED = os.environ.get("OATO_REQUIRE_MODEL") == "1"
try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    print("no jinja2: run scripts/setup")
    sys.exit(1 if REQUIRED else 77)

CACHE = os.environ.get("OATO_CACHE") or os.path.expanduser("~/.cache/oato")
TEMPLATES = os.path.join(CACHE, "peers", "llama.cpp", "models", "templates")
NOW = 1795521600  # 24 November 2026, noon UTC


def message(role, content):
    return {"role": role, "content": content}


ODD = "Gr\u00fc\u00dfe \u2014 \u4f60\u597d \U0001f600 \u201cquoted\u201d 'single' \"double\"\n\n  two lines\t\\n {{ x }} <think>a</think>\u3000"
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call12345", "type": "function",
     "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2, "units": ["C", None], "x": {"y": 1.5}}}}]}
ANSWER = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "{\"sun\": true}"}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Tells the weather \u2600.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Where"}, "days": {"type": "integer", "default": 1},
        "units": {"type": "array", "items": {"type": "string", "enum": ["C", "F"]}},
        "x": {"type": "object", "properties": {"y": {"type": ["number", "null"]}}}}}}},
         {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CONVERSATIONS = {
    "user": [message("user", "Hello")],
    "system": [message("system", "Be brief."), message("user", "Hello")],
    "turns": [message("user", "Hello"), message("assistant", "Hi there."), message("user", " And you? ")],
    "long": [message("system", "Be brief."), message("user", "1"), message("assistant", "2"),
             message("user", "3"), message("assistant", " 4\n"), message("user", "5")],
    "odd": [message("system", ODD), message("user", ODD), message("assistant", ODD + "\n"), message("user", ODD)],
    "thought": [message("user", "Why?"), message("assistant", "<think>\nhm\n</think>\n\nBecause."),
                message("user", "No.")],
    "answered": [message("user", "Hello"), message("assistant", "Hi.")],
    "twice": [message("user", "a"), message("user", "b"), message("system", "late")],
    "alone": [message("system", "Only the system speaks.")],
    "tool": [message("user", "Weather?"), CALL, ANSWER, message("assistant", "Sunny."), message("user", "And now?")],
    "reasoned": [message("user", "Why?"), dict(message("assistant", "So."), reasoning_content="Let me think."),
                 message("user", "And?"), CALL, ANSWER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}],
    "empty": [message("user", "")],
    "none": [],
}
# Where ours differs on purpose, both with tools: generators are lists, so they have JSON; and `safe`
# changes nothing, where jinja2 escapes what is later added to its text.
LENIENT = {"llama-cpp-deepseek-r1.jinja", "meetkai-functionary-medium-v3.1.jinja"}
SETTINGS = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"tools": TOOLS}]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def _generation(self, caller):
        return caller()


def raise_exception(text):
    raise jinja2.exceptions.TemplateError(text)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj, attr, value):
        # templates of Kimi K2 need them; ours has them
        return attr in ("append", "pop") or super().is_safe_attribute(obj, attr, value)


def environment():
    env = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads  # DeepSeek's
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda text: datetime.datetime.fromtimestamp(NOW).strftime(text)
    return env


def jobs():
    for name, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            for settings in SETTINGS:
                yield name, dict(messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>", **settings)


def ours(program, path, variables):
    text = "".join(json.dumps(v) + "\n" for v in variables).encode()
    r = subprocess.run([program, path, str(NOW)], input=text, capture_output=True, check=True)
    out, at, answers = r.stdout, 0, []
    for _ in variables:
        end = out.index(b"\n", at)
        kind, n = out[at:end].split()
        at = end + 1 + int(n)
        answers.append((kind.decode(), out[end + 1:at].decode(errors="surrogateescape")))
    return answers, r.stderr.decode()


def theirs(template, variables):
    try:
        return "text", template.render(**variables)
    except jinja2.exceptions.TemplateError as e:
        return "error", re.sub(r"[\n\r\t]", " ", e.message)
    except Exception as e:  # what Python itself refuses has a message of its own
        return "python", f"{type(e).__name__}: {e}"


def same(a, b):
    if a[0] == "python":
        return b[0] == "error"
    return a[0] == b[0] and (a[1] == b[1] if a[0] == "text" else b[1].endswith(": " + a[1]))


def main():
    paths = sorted(glob.glob(os.path.join(TEMPLATES, "*.jinja")))
    if not paths:
        print(f"no templates in {TEMPLATES}: run scripts/fetch-peer --sources")
        sys.exit(77)
    env, work = environment(), list(jobs())
    equal = texts = errors = left_out = 0
    for path in paths:
        with open(path, encoding="utf-8", newline="") as f:
            template = env.from_string(f.read())
        answers, stats = ours(sys.argv[1], path, [v for _, v in work])
        bad = 0
        for (name, variables), got in zip(work, answers):
            if os.path.basename(path) in LENIENT and "tools" in variables:
                left_out += 1
                continue
            want = theirs(template, variables)
            texts += want[0] == "text"
            errors += want[0] != "text"
            if not same(want, got):
                bad += 1
                if bad == 1:
                    print(f"WRONG {os.path.basename(path)} {name}:\n  want {want}\n  got  {got}")
        equal += bad == 0
        if bad:
            print(f"WRONG {os.path.basename(path)}: {bad} of {len(work)} differ")
    print(f"{equal} of {len(paths)} templates equal on {len(work)} conversations each: {texts} texts, {errors} refusals, "
          f"{left_out} left out")
    sys.exit(equal != len(paths))


if __name__ == "__main__":
    main()
