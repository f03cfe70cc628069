#!/usr/bin/env python3
"""usage: test_openai.py OATO_SERVE OATO_MAKE_MODEL

oato-serve through the openai package, on a tiny random model: chats, streams, tools, JSON schemas, log probabilities, embeddings,
keys and errors are what its types expect. Skipped (77) where the environment of scripts/peer-server-tests, which has it, is not.
"""
import asyncio
import json
import os
import pathlib
import sys
import tempfile

import rig
from rig import check, finish, make_model, norm

CACHE = pathlib.Path(os.environ.get("OATO_CACHE", pathlib.Path.home() / ".cache/oato"))
PYTHON = CACHE / "venv-peer-server-tests/bin/python"
try:
    import openai
except ImportError:
    if sys.executable == str(PYTHON) or not PYTHON.exists():
        print("skipped: the openai package is missing; scripts/peer-server-tests installs it in", PYTHON.parent.parent)
        sys.exit(77)
    os.execv(PYTHON, [str(PYTHON), "-Es", *sys.argv])

serve, make = sys.argv[1:3]
TEMPLATE = """{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %} {{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}]{% endfor %}
{%- for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}{% if false %}<tool_call>{% endif %}"""
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
NUMBER = {"type": "integer", "minimum": 1, "maximum": 9}
SCHEMA = {"type": "object", "properties": {"a": NUMBER, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("add", "take")]


class Server(rig.Server):
    always = (*rig.Server.always, "--api-key", "secret")

    def client(self):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="secret", max_retries=0, timeout=120)


def refused(kind, ask, **arguments):
    try:
        ask(**arguments)
    except kind as e:
        return bool(e.message)
    return False


def chats(c, model):
    ask = {"model": model, "messages": HELLO, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    a = c.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    choice = a.choices[0]
    text = norm(choice.message.content)
    check(a.object == "chat.completion" and choice.finish_reason == "length" and choice.message.role == "assistant" and text, "a chat")
    check(a.usage.completion_tokens == 12 and a.usage.total_tokens == 12 + a.usage.prompt_tokens, "its usage")
    probs = choice.logprobs.content
    check(len(probs) == 12 and all(len(p.top_logprobs) == 3 and p.logprob == p.top_logprobs[0].logprob <= 0 for p in probs), "log probabilities")
    chunks = list(c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    deltas = [k.choices[0] for k in chunks if k.choices]
    check(norm("".join(d.delta.content or "" for d in deltas)) == text and deltas[0].delta.role == "assistant", "a stream has the same text")
    check(deltas[-1].finish_reason == "length" and chunks[-1].usage.completion_tokens == 12 and len({k.id for k in chunks}) == 1, "and ends")
    with c.chat.completions.create(**{**ask, "max_tokens": 4000}, stream=True) as stream:
        next(iter(stream))
    a = c.chat.completions.create(**{**ask, "max_tokens": 4}, n=3)
    check(len({k.message.content for k in a.choices}) == 1 and [k.index for k in a.choices] == [0, 1, 2], "three answers; one that was left goes")
    a = c.completions.create(model=model, prompt=["one", "two"], max_tokens=3, extra_body={"ignore_eos": True})
    check(len(a.choices) == 2 and a.usage.completion_tokens == 6, "completions")


def schemas(c, model):
    form = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        a = c.chat.completions.create(model=model, messages=HELLO, temperature=1, seed=seed, response_format=form).choices[0]
        got = json.loads(a.message.content)
        check(a.finish_reason == "stop" and sorted(got) == ["a", "b"] and 1 <= got["a"] <= 9 and got["b"] in "xy", f"a JSON schema: {got}")


def tools(c, model):
    name = {"type": "function", "function": {"name": "take"}}
    for choice in ("required", name):
        ask = {"model": model, "messages": HELLO, "tools": TOOLS, "tool_choice": choice, "temperature": 1, "seed": 1}
        a = c.chat.completions.create(**ask).choices[0]
        call = a.message.tool_calls[0]
        got = json.loads(call.function.arguments)
        check(a.finish_reason == "tool_calls" and len(a.message.tool_calls) == 1 and sorted(got) == ["a", "b"] and call.id, f"a call: {call.function}")
        check(call.function.name in (["take"] if choice is name else ["add", "take"]), "of a function that was asked for")
        calls = [t for k in c.chat.completions.create(**ask, stream=True) if k.choices for t in k.choices[0].delta.tool_calls or []]
        check(calls[0].function.name == call.function.name and "".join(t.function.arguments or "" for t in calls) == call.function.arguments, "and as a stream")
    talk = [*HELLO, a.message, {"role": "tool", "content": "7", "tool_call_id": call.id}]
    a = c.chat.completions.create(model=model, messages=talk, tools=TOOLS, max_tokens=3)
    check(a.usage.prompt_tokens > 0, "the answer of a tool is taken")


def company(url, model):
    """Clients at once get what one gets alone."""
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as c:
            ask = lambda i: c.chat.completions.create(model=model, messages=[{"role": "user", "content": f"Hi {i % 3}"}], max_tokens=16, extra_body={"ignore_eos": True})
            alone = [(await ask(i)).choices[0].message.content for i in range(3)]
            return alone, [a.choices[0].message.content for a in await asyncio.gather(*(ask(i) for i in range(9)))]
    alone, beside = asyncio.run(all_of_them())
    check(beside == alone * 3, "nine clients at once")


def embeddings(c, model):
    a = c.embeddings.create(model=model, input=["one", "two", "one"]) # in base64, as the package asks for it
    b = c.embeddings.create(model=model, input=["one"], encoding_format="float")
    e = [d.embedding for d in a.data]
    check(e[0] == e[2] != e[1] and abs(sum(x * x for x in e[0]) - 1) < 1e-4, "embeddings have length 1, the same for the same text")
    check(max(abs(x - y) for x, y in zip(e[0], b.data[0].embedding)) < 1e-6 and len(e[0]) == len(b.data[0].embedding), "in base64 as in figures")
    check(a.usage.prompt_tokens == a.usage.total_tokens > 0, "their usage")


with tempfile.TemporaryDirectory() as folder:
    path = make_model(make, folder + "/tiny.gguf", "--context", "65536")
    with Server(serve, path, "--chat-template", TEMPLATE) as server:
        c = server.client()
        (listed,) = c.models.list().data
        chats(c, listed.id)
        schemas(c, listed.id)
        tools(c, listed.id)
        company(server.url + "/v1", listed.id)
        check(refused(openai.BadRequestError, c.chat.completions.create, model=listed.id, messages=[]), "400 is a BadRequestError")
        check(refused(openai.AuthenticationError, c.with_options(api_key="guess").chat.completions.create, model=listed.id, messages=HELLO), "401 an AuthenticationError")
    with Server(serve, path, "--embeddings", "-c", "512") as server:
        embeddings(server.client(), server.client().models.list().data[0].id)
sys.exit(finish())
