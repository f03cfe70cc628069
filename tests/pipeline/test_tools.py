#!/usr/bin/env python3
"""usage: test_tools.py OATO_SERVE OATO_MAKE_MODEL

Tools with templates that know none, and with models whose calls are no JSON, on a tiny random model: a call that must be made is
valid by its schema, whole and as a stream in pieces; wherever the limit cuts it nothing of it is said; the history becomes texts.
"""
import json
import re
import sys
import tempfile

import rig
from rig import check, finish, make_model, side_by_side

serve, make = sys.argv[1:3]
n_pieces = []  # of the arguments of each call that was streamed
# Refuses the system, and turns that do not alternate.
STRICT = """{%- for m in messages %}{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{%- endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{%- endif %}
{{- '<' ~ m.role ~ '>' ~ (m.content | trim) ~ '</s>' }}{%- endfor %}{%- if add_generation_prompt %}<assistant>{% endif %}"""
# As Qwen3-Coder: a tag around each argument.
TAGGED = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}>
<parameter=x></parameter></function></tool_call>{% endfor %}{% endfor %}{% for t in tools or [] %}<own>{{ t.function.name }}</own>{% endfor %}"""
# As the above, and drops the system's message without a word.
SILENT = "{%- for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
NUMBER = {"type": "integer", "minimum": 1, "maximum": 9}


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties,
                                                                          "required": list(properties), "additionalProperties": False}}}


TOOLS = [tool("add", a=NUMBER, b={"enum": ["x", "y"]}, s={"type": "string", "maxLength": 12}, at={"type": "string", "format": "uri", "maxLength": 9}),
         tool("stop"), {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
TALK = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                                                                      {"id": "2", "type": "function", "function": {"name": "now", "arguments": ""}}]},
        {"role": "tool", "content": "20", "tool_call_id": "1"}, {"role": "tool", "content": "noon", "tool_call_id": "2"}, {"role": "user", "content": "And?"}]


class Server(rig.Server):
    def chat(self, body):
        return self.ask("/v1/chat/completions", body)[1]["choices"][0]

    def prompt(self, body):
        return self.ask("/apply-template", body)[1].get("prompt")

    def stream(self, body):
        """Text, calls as [name, arguments], how many pieces the arguments came in, and why it ended."""
        says, calls, pieces, finish = "", [], 0, None
        for event in self.events("/v1/chat/completions", body)[:-1]:
            choice = event["choices"][0]
            finish = choice["finish_reason"] or finish
            says += choice["delta"].get("content") or ""
            for c in choice["delta"].get("tool_calls", []):
                if "id" in c:
                    check(c["index"] == len(calls) and c["type"] == "function" and c["id"], f"the first piece of a call: {c}")
                    calls.append([c["function"]["name"], ""])
                check(c["index"] == len(calls) - 1, f"pieces of the last call: {c}")
                calls[-1][1] += c["function"]["arguments"]
                pieces += bool(c["function"]["arguments"])
        return says, calls, pieces, finish


def valid(call):
    name, arguments = call
    a = json.loads(arguments)
    if name in ("stop", "now"):
        return a == {}
    return (name == "add" and sorted(a) == ["a", "at", "b", "s"] and isinstance(a["a"], int) and 1 <= a["a"] <= 9 and a["b"] in ("x", "y")
            and all(isinstance(a[k], str) and len(a[k]) <= most for k, most in (("s", 12), ("at", 9))))


def calls(s, name):

    ask = {"messages": HELLO, "tools": TOOLS, "temperature": 1, "max_tokens": 300}
    named = {"type": "function", "function": {"name": "add"}}
    for seed, choice in enumerate(["required", "required", named]):
        a = s.chat({**ask, "tool_choice": choice, "seed": seed})
        got = [[c["function"]["name"], c["function"]["arguments"]] for c in a["message"].get("tool_calls", [])]
        check(a["message"]["content"] is None and a["finish_reason"] == "tool_calls" and len(got) == 1 and valid(got[0])
              and (choice == "required" or got[0][0] == "add"), f"{name}: a call that must be: {a}")
        says, streamed, pieces, finish = s.stream({**ask, "tool_choice": choice, "seed": seed})
        check(not says and streamed == got and finish == "tool_calls", f"{name}: as a stream: {says!r} {streamed} {pieces} {finish}")
        whole = got[0][1]
        n_pieces.append(pieces)
    for n in range(1, 41):
        says, cut, _, finish = s.stream({**ask, "tool_choice": named, "seed": 2, "max_tokens": n})
        check(not says and len(cut) < 2 and all(c[0] == "add" and whole.startswith(c[1]) for c in cut) and finish in ("length", "tool_calls")
              and (finish == "length" or cut == got), f"{name}: cut at {n}: {says!r} {cut} {finish}")
    check(n > 20 and cut and cut[0][1], f"{name}: some are cut within the arguments")
    several = s.chat({**ask, "tool_choice": "required", "parallel_tool_calls": True, "seed": 1})
    check(all(valid([c["function"]["name"], c["function"]["arguments"]]) for c in several["message"]["tool_calls"][:-1]), f"{name}: several: {several}")
    # arguments are an object, whatever else a schema would let through
    odd = lambda parameters: {**ask, "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}], "tool_choice": "required"}
    a = s.chat(odd({"type": ["null", "object"], "properties": {}}))
    check([c["function"] for c in a["message"].get("tool_calls", [])] == [{"name": "f", "arguments": "{}"}], f"{name}: an object or nothing: {a}")
    for parameters in ({"type": "string"}, {"enum": [1]}, {"type": ["string", "null"]}):
        told = s.ask("/v1/chat/completions", odd(parameters))[1].get("error", {})
        check(told.get("code") == 400 and "an object" in told["message"], f"{name}: {parameters}: {told}")
    # what is called without being forced to is read, and is one call where that is asked for
    both = "".join(f'<tool_call>\n{{"name": "{f}", "arguments": {{"a": [1]}}}}\n</tool_call>' for f in "fg")
    free = {**ask, "grammar": "root ::= " + json.dumps("So. " + both), "max_tokens": 400}
    a = s.chat(free)
    check(a["message"]["content"] == "So." and [c["function"]["name"] for c in a["message"]["tool_calls"]] == ["f", "g"] and a["finish_reason"] == "tool_calls", f"{name}: auto: {a}")
    a = s.chat({**free, "parallel_tool_calls": False})
    check([c["function"] for c in a["message"]["tool_calls"]] == [{"name": "f", "arguments": '{"a":[1]}'}] and a["finish_reason"] == "tool_calls", f"{name}: one call: {a}")
    a = s.chat({**free, "messages": HELLO[1:], "tool_choice": "none", "max_tokens": 3})
    check("tool_calls" not in a["message"], f"{name}: none")


def prompts(s, name, system, shows_calls=False):
    ask = {"messages": TALK, "tools": TOOLS}
    with_tools, none, plain = s.prompt(ask), s.prompt({**ask, "tool_choice": "none"}) if system else "", s.prompt({"messages": TALK[1:], "tools": TOOLS})
    check(all(f'"name": "{t["function"]["name"]}"' in with_tools for t in TOOLS) and "<tools>" not in none and with_tools.count("<tools>") == 1
          and with_tools.index("Be brief.") < with_tools.index("Hi") and plain.count("<tools>") == 1, f"{name}: tools in the prompt: {with_tools}")
    for prompt in (with_tools, plain, none) if system else (with_tools, plain):
        told = re.sub(r"\s", "", prompt[prompt.index("Hi"):])
        check('<tool_call>{"name":"add","arguments":{"a":1}}</tool_call><tool_call>{"name":"now","arguments":{}}</tool_call>' in told
              and "<tool_response>20</tool_response><tool_response>noon</tool_response>And?" in told, f"{name}: calls and results in the prompt: {prompt}")


def own(s):
    """auto: as the template shows tools; a call that must be made: in the generic form, as no grammar is known for its own."""
    ask = {"messages": HELLO, "tools": TOOLS}
    check("<own>add</own>" in s.prompt(ask) and "<tools>" not in s.prompt(ask), "a template's own tools")
    prompt = s.prompt({**ask, "messages": TALK, "tool_choice": "required"})
    check("<own>" not in prompt and "<tools>" in prompt and "<tool_response>" in prompt and "<function=" not in prompt, f"a call that must be made: {prompt}")
    a = s.chat({**ask, "max_tokens": 400, "grammar": 'root ::= "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"'})
    check(a["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}, f"its own form: {a}")
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        a = s.chat({**ask, "temperature": 1, "seed": 3, "max_tokens": 300, "tool_choice": choice})
        check(valid([a["message"]["tool_calls"][0]["function"][k] for k in ("name", "arguments")]) and a["finish_reason"] == "tool_calls", f"a call that must be: {a}")


def old(s):
    """Messages of the older interface, and ways to leave out what there is not."""
    prompt = lambda *messages: s.prompt({"messages": list(messages)})
    user = {"role": "user", "content": "Hi"}
    check(prompt({"role": "developer", "content": "S"}, user) == prompt({"role": "system", "content": "S"}, user), "the developer is the system")
    check(prompt(user, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, {"role": "function", "name": "f", "content": "7"})
          == prompt(user, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content": "7"}), "functions are tools")
    check(prompt(user, {"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_calls": []}, user)
          == prompt(user, {"role": "assistant", "content": "x", "tool_calls": None}, user) == prompt(user, {"role": "assistant", "content": "x"}, user), "no calls")
    check(prompt(user, {"role": "assistant", "content": None, "reasoning_content": "Hm."}, user) == prompt(user, {"role": "assistant", "content": ""}, user), "reasoning alone")
    check(prompt(user, {"role": "assistant", "content": None}, user) is None, "an assistant that says nothing")


with tempfile.TemporaryDirectory() as folder:
    model = make_model(make, folder + "/tiny.gguf", "--layers", "2", "--context", "2048")

    def all_of(name, template):
        with Server(serve, model, "--chat-template", template) as s:
            if name == "tagged":
                own(s)
            else:
                prompts(s, name, name not in ("strict", "silent"))
                calls(s, name) if name != "silent" else None
            if name == "chatml":
                old(s)
    side_by_side(all_of, [*((name, name) for name in ("chatml", "llama2", "gemma", "zephyr")), ("strict", STRICT), ("silent", SILENT), ("tagged", TAGGED)])
check(sum(n_pieces) > 2 * len(n_pieces), f"arguments come in pieces: {sum(n_pieces)} of {len(n_pieces)} calls")
sys.exit(finish())
