"""openai: responses (/v1/responses)."""
import json

import openai
import pydantic

import machines
from client_openai import Capital, client, valid
from rows import ANSWER, CAPITAL, MODEL, PLACE, is_answer, is_place, refused

VISIT = {"type": "function", "name": "visit", "description": "plans a visit", "parameters": PLACE, "strict": True}
LEAVE = {"type": "function", "name": "leave", "description": "leaves", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": False}
MANY = [*({"role": ("user", "assistant")[i % 2], "content": "one " * 30} for i in range(40)), {"role": "user", "content": CAPITAL}]
EVENT = pydantic.TypeAdapter(openai.types.responses.ResponseStreamEvent)


def ask(c, url=None, **more):
    return client(c, url).responses.create(**{"model": MODEL, "input": CAPITAL, "temperature": 0, "max_output_tokens": 60, **more})


def whole(c, **more):
    return valid(ask(c, **more), openai.types.responses.Response)


def stream(c, **more):
    events = [e.to_dict() for e in ask(c, stream=True, **more)]
    for e in events:
        EVENT.validate_python(e)
    return {**machines.responses(events), "kinds": [e["type"] for e in events]}


def helper(c):
    """The package's own reading of a stream."""
    with client(c).responses.stream(model=MODEL, input=CAPITAL, temperature=0, max_output_tokens=60) as s:
        return "".join(e.delta for e in s if e.type == "response.output_text.delta"), s.get_final_response()


def keep(c, **more):
    c.kept.response = whole(c, **more)
    return c.kept.response


def keep_call(c):
    c.kept.calling = whole(c, tools=[VISIT], tool_choice={"type": "function", "name": "visit"})
    return c.kept.calling


def call_of(a):
    (call,) = [i for i in a.output if i.type == "function_call"]
    return call


def result_of(c, **more):
    return {"type": "function_call_output", "call_id": call_of(c.kept.calling).call_id, "output": "go by train", **more}


def deleted(c):
    client(c).responses.delete(c.kept.response.id)
    return client(c).responses.retrieve(c.kept.response.id)


def right_or(word, how, must):
    """The result of a request that is right, or refused by a name."""
    def asked(c):
        try:
            return must(how(c))
        except openai.BadRequestError as e:
            return word in str(e) or f"the refusal does not name {word}: {e}"
    return asked


ROWS = [
    ("responses: a question", keep, lambda a: "Paris" in a.output_text and a.status == "completed" and a.output[0].id.startswith("msg_") and a.id.startswith("resp_")
     and a.usage.input_tokens > 0 and a.usage.total_tokens == a.usage.input_tokens + a.usage.output_tokens),
    ("responses: instructions are a system message", lambda c: (ask(c), ask(c, instructions="Answer in as few words as you can."))[1], lambda a: a.instructions is not None and a.usage.input_tokens > 0 and bool(a.output_text)),
    ("responses: input of items", lambda c: whole(c, input=[{"role": "developer", "content": "Be brief."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": CAPITAL}]}]),
     lambda a: "Paris" in a.output_text),
    ("responses: earlier answers as items", lambda c: whole(c, input=[{"role": "user", "content": CAPITAL}, c.kept.response.output[0].to_dict(), {"role": "user", "content": "And of Italy?"}]),
     lambda a: "Rome" in a.output_text),
    ("responses: retrieve", lambda c: client(c).responses.retrieve(c.kept.response.id), lambda a: "Paris" in a.output_text and a.status == "completed"),
    ("responses: previous_response_id", lambda c: whole(c, input="And of Italy?", previous_response_id=c.kept.response.id), lambda a: "Rome" in a.output_text and a.previous_response_id is not None),
    ("responses: delete, then it is not there", deleted, refused(openai.NotFoundError, "resp_")),
    ("responses: previous_response_id that is not there", lambda c: ask(c, previous_response_id=c.kept.response.id), refused(openai.APIStatusError, "resp_")),
    ("responses: store false keeps nothing", lambda c: client(c).responses.retrieve(ask(c, store=False).id), refused(openai.NotFoundError, "resp_")),
    ("responses: a stream", lambda c: stream(c), lambda a: a["status"] == "completed" and "Paris" in a["output"][0]["content"][0]["text"]
     and a["kinds"][:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
     and a["kinds"][-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]),
    ("responses: a stream by the package's helper", helper, lambda a: "Paris" in a[0] and a[0] == a[1].output_text),
    ("responses: cut short is incomplete", lambda c: whole(c, max_output_tokens=3), lambda a: a.status == "incomplete" and a.incomplete_details.reason == "max_output_tokens"),
    ("responses: a stream that is cut short", lambda c: stream(c, max_output_tokens=3), lambda a: a["status"] == "incomplete" and a["kinds"][-1] == "response.incomplete"),
    ("responses: text.format json_schema", lambda c: whole(c, text={"format": {"type": "json_schema", "name": "capital", "schema": ANSWER, "strict": True}}),
     lambda a: is_answer(json.loads(a.output_text)) and a.text.format.type == "json_schema"),
    ("responses: text_format, parsed", lambda c: client(c).responses.parse(model=MODEL, input=CAPITAL, temperature=0, text_format=Capital), lambda a: isinstance(a.output_parsed, Capital)),
    ("responses: a required call", lambda c: whole(c, tools=[VISIT, LEAVE], tool_choice="required"),
     lambda a: call_of(a).name in ("visit", "leave") and (call_of(a).name == "leave" or is_place(json.loads(call_of(a).arguments))) and a.status == "completed"),
    ("responses: a call by name", keep_call, lambda a: is_place(json.loads(call_of(a).arguments)) and call_of(a).status == "completed" and bool(call_of(a).call_id) and not a.output_text),
    ("responses: a call as a stream, in pieces", lambda c: stream(c, tools=[VISIT], tool_choice="required"),
     lambda a: is_place(json.loads(a["output"][-1]["arguments"])) and a["kinds"].count("response.function_call_arguments.delta") > 1),
    ("responses: function_call_output behind previous_response_id", lambda c: whole(c, input=[result_of(c)], previous_response_id=c.kept.calling.id, tools=[VISIT]),
     lambda a: bool(a.output_text)),
    ("responses: function_call and its output as items", lambda c: whole(c, input=[{"role": "user", "content": CAPITAL}, call_of(c.kept.calling).to_dict(), result_of(c)], tools=[VISIT]),
     lambda a: bool(a.output_text)),
    ("responses: reasoning is an item", lambda c: whole(c, url=c.thinking_url, reasoning={"effort": "low"}, max_output_tokens=100),
     lambda a: [i.type for i in a.output] == ["reasoning", "message"] and "Paris" in a.output_text),
    ("responses: reasoning as a stream", lambda c: stream(c, url=c.thinking_url, max_output_tokens=100), lambda a: [i["type"] for i in a["output"]] == ["reasoning", "message"]),
    ("responses: truncation disabled, input too long", lambda c: ask(c, input="one " * 20000, truncation="disabled"), refused(openai.BadRequestError, "tokens")),
    ("responses: truncation auto drops items from the beginning, or is refused", right_or("truncation", lambda c: ask(c, url=c.kept.keyed_url, input=MANY, truncation="auto"), lambda a: "Paris" in a.output_text), lambda a: a is True or a),
    ("responses: metadata comes back", lambda c: whole(c, metadata={"a": "b"}), lambda a: a.metadata == {"a": "b"}),
    ("responses: tools of OpenAI's own are refused", lambda c: ask(c, tools=[{"type": "web_search"}]), refused(openai.BadRequestError, "web_search")),
    ("responses: background is refused", lambda c: ask(c, background=True), refused(openai.BadRequestError, "background")),
    ("responses: an image is refused", lambda c: ask(c, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aaaa", "detail": "auto"}]}]),
     refused(openai.BadRequestError, "input_image")),
    ("responses: no input", lambda c: client(c).responses.create(model=MODEL), refused(openai.BadRequestError, "input")),
]
