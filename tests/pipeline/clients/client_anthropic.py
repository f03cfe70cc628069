"""anthropic: messages, streams, tools, thinking, tokens counted, errors as its exceptions."""
import asyncio
import json

import anthropic
import pydantic

import machines
from rows import ANSWER, ASK, MODEL, PLACE, is_answer, is_place, refused

VISIT = {"name": "visit", "description": "plans a visit", "input_schema": PLACE}
LEAVE = {"name": "leave", "input_schema": {"type": "object", "properties": {}}}
EVENT = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
LONG = "The city of Paris lies on the river Seine. " * 40


def client(c, url=None, **how):
    return anthropic.Anthropic(**{"base_url": url or c.url, "api_key": "none", "max_retries": 0, "timeout": 120, **how})


def arguments(**more):
    """Of create() and stream(): what the package no longer has arguments for goes into extra_body."""
    body = {name: more.pop(name) for name in ("temperature", "top_k", "top_p") if name in more}
    return {"model": MODEL, "max_tokens": 60, "messages": ASK, "extra_body": {"temperature": 0, **body}, **more}


def ask(c, url=None, **more):
    return client(c, url).messages.create(**arguments(**more))


def whole(c, **more):
    a = ask(c, **more)
    anthropic.types.Message.model_validate(a.to_dict())
    return a


def stream(c, **more):
    events = [e.to_dict() for e in ask(c, stream=True, **more)]
    for e in events:
        if e["type"] != "ping":
            EVENT.validate_python(e)
    return {**machines.messages(events), "pieces": sum(e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta" and e["delta"]["partial_json"] != "" for e in events)}


def helper(c, **more):
    with client(c).messages.stream(**arguments(**more)) as s:
        return "".join(s.text_stream), s.get_final_message()


async def together(c):
    async with anthropic.AsyncAnthropic(base_url=c.url, api_key="none", max_retries=0) as a:
        return [m.content[0].text for m in await asyncio.gather(*(a.messages.create(**arguments()) for _ in range(6)))]


def text(a):
    return "".join(b.text for b in a.content if b.type == "text")


def call_of(a):
    (call,) = [b for b in a.content if b.type == "tool_use"]
    return call


def keep_call(c):
    c.kept.use = whole(c, tools=[VISIT, LEAVE], tool_choice={"type": "tool", "name": "visit"})
    return c.kept.use


def with_result(c, content, **more):
    use = c.kept.use
    result = {"type": "tool_result", "tool_use_id": call_of(use).id, "content": content, **more}
    return whole(c, tools=[VISIT], messages=[*ASK, {"role": "assistant", "content": [b.to_dict() for b in use.content]}, {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]}])


def think(c, how=whole, **more):
    a = how(c, url=c.thinking_url, **{"max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1, "top_k": 1, **more})
    c.kept.thought = a
    return a


def thought_again(c):
    blocks = [b.to_dict() for b in think(c).content]
    return whole(c, url=c.thinking_url, max_tokens=80, messages=[*ASK, {"role": "assistant", "content": blocks}, {"role": "user", "content": "And of Italy?"}])


def counted(c, **more):
    n = client(c).messages.count_tokens(**{"model": MODEL, "messages": ASK, **more})
    usage = ask(c, max_tokens=40, **more).usage
    return n.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def error_of(c, **more):
    try:
        ask(c, **more)
    except anthropic.APIStatusError as e:
        return e.body
    return None


def cached(c):
    return [ask(c, system=[{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]).usage for _ in range(2)]


def format_or_refusal(c):
    try:
        return is_answer(json.loads(text(ask(c, output_config={"format": {"type": "json_schema", "schema": ANSWER}}))))
    except anthropic.BadRequestError as e:
        return "output_config" in str(e)


ROWS = [
    ("messages: a question", whole, lambda a: "Paris" in text(a) and a.stop_reason == "end_turn" and a.stop_sequence is None and a.type == "message" and a.id.startswith("msg_")
     and a.usage.input_tokens > 0 and a.usage.output_tokens > 0),
    ("messages: system as text", lambda c: whole(c, system="Be brief."), lambda a: "Paris" in text(a)),
    ("messages: system as blocks is the same", lambda c: counted(c, system=[{"type": "text", "text": "Be brief."}]) + counted(c, system="Be brief."), lambda a: len(set(a)) == 1),
    ("messages: content as blocks", lambda c: whole(c, messages=[{"role": "user", "content": [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": " of France?"}]}]), lambda a: "Paris" in text(a)),
    ("messages: a conversation", lambda c: whole(c, messages=[*ASK, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]), lambda a: "Rome" in text(a)),
    ("messages: a stream", stream, lambda a: a["content"][0]["type"] == "text" and "Paris" in a["content"][0]["text"] and a["stop_reason"] == "end_turn" and a["usage"]["output_tokens"] > 0),
    ("messages: a stream by the package's helper", helper, lambda a: "Paris" in a[0] and a[0] == text(a[1]) and a[1].stop_reason == "end_turn"),
    ("messages: six at once", lambda c: asyncio.run(together(c)), lambda a: len(set(a)) == 1 and "Paris" in a[0]),
    ("messages: cut by max_tokens", lambda c: whole(c, max_tokens=2), lambda a: a.stop_reason == "max_tokens" and a.usage.output_tokens == 2),
    ("messages: a stream cut by max_tokens", lambda c: stream(c, max_tokens=2), lambda a: a["stop_reason"] == "max_tokens"),
    ("messages: stop_sequences", lambda c: whole(c, stop_sequences=["zzz", " Paris"]), lambda a: a.stop_reason == "stop_sequence" and a.stop_sequence == " Paris" and text(a) == "The capital of France is"),
    ("messages: stop_sequences in a stream", lambda c: stream(c, stop_sequences=[" Paris"]), lambda a: a["stop_reason"] == "stop_sequence" and a["stop_sequence"] == " Paris"),
    ("messages: top_k, top_p, metadata, service_tier", lambda c: whole(c, top_k=1, top_p=0.9, metadata={"user_id": "u"}, service_tier="auto"), lambda a: "Paris" in text(a)),
    ("messages: an assistant's beginning is gone on with", lambda c: whole(c, messages=[*ASK, {"role": "assistant", "content": "The capital of France is"}]), lambda a: text(a).lstrip().startswith("Paris")),
    ("messages: tool_choice any", lambda c: whole(c, tools=[VISIT, LEAVE], tool_choice={"type": "any"}),
     lambda a: a.stop_reason == "tool_use" and (call_of(a).name == "leave" or is_place(call_of(a).input))),
    ("messages: a tool by name", keep_call, lambda a: a.stop_reason == "tool_use" and call_of(a).name == "visit" and is_place(call_of(a).input) and call_of(a).id.startswith("toolu_")),
    ("messages: a call as a stream, in pieces", lambda c: stream(c, tools=[VISIT], tool_choice={"type": "any"}), lambda a: a["stop_reason"] == "tool_use" and is_place(a["content"][-1]["input"]) and a["pieces"] > 1),
    ("messages: a call by the package's helper", lambda c: helper(c, tools=[VISIT], tool_choice={"type": "any"}), lambda a: is_place(call_of(a[1]).input)),
    ("messages: a call that max_tokens cuts is no text", lambda c: stream(c, tools=[VISIT], tool_choice={"type": "any"}, max_tokens=6),
     lambda a: a["stop_reason"] == "max_tokens" and not any("visit" in b.get("text", "") or "{" in b.get("text", "") for b in a["content"])),
    ("messages: tool_choice none", lambda c: whole(c, tools=[VISIT], tool_choice={"type": "none"}), lambda a: bool(text(a)) and a.stop_reason != "tool_use"),
    ("messages: disable_parallel_tool_use", lambda c: whole(c, tools=[VISIT], tool_choice={"type": "any", "disable_parallel_tool_use": True}), lambda a: is_place(call_of(a).input)),
    ("messages: tool_result", lambda c: with_result(c, "Go by train."), lambda a: bool(text(a)) and a.stop_reason in ("end_turn", "max_tokens")),
    ("messages: tool_result as blocks, an error", lambda c: with_result(c, [{"type": "text", "text": "no train"}], is_error=True), lambda a: bool(text(a))),
    ("messages: thinking", think, lambda a: [b.type for b in a.content] == ["thinking", "text"] and "Paris" in text(a) and isinstance(a.content[0].signature, str)),
    ("messages: thinking as a stream", lambda c: think(c, stream), lambda a: [b["type"] for b in a["content"]] == ["thinking", "text"] and a["content"][0]["thinking"] != ""),
    ("messages: thinking goes back with its signature", thought_again, lambda a: "Rome" in text(a)),
    ("messages: count_tokens is what a request takes", lambda c: counted(c), lambda a: a[0] == a[1] > 0),
    ("messages: count_tokens with tools", lambda c: (counted(c)[0], counted(c, tools=[VISIT], tool_choice={"type": "any"})), lambda a: a[1][0] == a[1][1] > a[0]),
    ("messages: cache_control, and what came from the cache", cached, lambda a: (a[1].cache_read_input_tokens or 0) >= 256 and a[1].input_tokens < 100),
    ("messages: output_config.format is right or refused", format_or_refusal, lambda a: a is True),
    ("messages: an image is refused", lambda c: ask(c, messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}]}]),
     refused(anthropic.BadRequestError, "image")),
    ("messages: Anthropic's own tools are refused", lambda c: ask(c, tools=[{"type": "web_search_20250305", "name": "web_search"}]), refused(anthropic.BadRequestError, "web_search")),
    ("messages: no max_tokens", lambda c: client(c).post("/v1/messages", cast_to=object, body={"model": MODEL, "messages": ASK}), refused(anthropic.BadRequestError, "max_tokens")),
    ("messages: a role that is not there", lambda c: ask(c, messages=[{"role": "king", "content": "x"}]), refused(anthropic.BadRequestError, "role")),
    ("messages: an error's form", lambda c: error_of(c, messages=[]), lambda a: a["type"] == "error" and a["error"]["type"] == "invalid_request_error" and "messages" in a["error"]["message"]),
    ("messages: a prompt that is too long", lambda c: ask(c, messages=[{"role": "user", "content": "one " * 20000}]), refused(anthropic.BadRequestError, "tokens")),
    ("messages: a wrong key", lambda c: client(c, c.kept.keyed_url, api_key="guess").messages.create(**arguments()), refused(anthropic.AuthenticationError, "API Key")),
    ("messages: the right key, as x-api-key", lambda c: client(c, c.kept.keyed_url, api_key="secret").messages.create(**arguments()), lambda a: "Paris" in text(a)),
    ("messages: the models", lambda c: [m.id for m in client(c).models.list()], lambda a: len(a) == 1 and bool(a[0])),
]
