"""openai: chats, texts, embeddings, models."""
import json

import openai
import pydantic

import machines
from rows import ASK, MODEL, PLACE, is_place, refused

TOOLS = [{"type": "function", "function": {"name": "visit", "description": "plans a visit", "parameters": PLACE}},
         {"type": "function", "function": {"name": "leave", "parameters": {"type": "object", "properties": {}}}}]
VISIT = {"type": "function", "function": {"name": "visit"}}
ZERO = {"model": MODEL, "temperature": 0, "max_tokens": 40}


class Capital(pydantic.BaseModel):
    capital: str = pydantic.Field(max_length=12)
    sure: bool


def client(c, url=None):
    return openai.OpenAI(base_url=(url or c.url) + "/v1", api_key="secret", # which one of the servers wants
                          max_retries=0, timeout=120)


def chat(c, **more):
    return client(c).chat.completions.create(**{**ZERO, "messages": ASK, **more})


def valid(answer, kind):
    """The answer's own JSON is what the maker's types say, all of it: the client itself does not look."""
    pydantic.TypeAdapter(kind).validate_python(answer.to_dict())
    return answer


def chat_stream(c, **more):
    events = [valid(k, openai.types.chat.ChatCompletionChunk).to_dict() for k in chat(c, stream=True, **more)]
    kept = machines.chat(events, usage="stream_options" in more)
    pieces = [t for e in events if e["choices"] for t in e["choices"][0]["delta"].get("tool_calls") or [] if t["function"].get("arguments")]
    return {**kept, "pieces": len(pieces)}


def keep_call(c):
    a = chat(c, tools=TOOLS, tool_choice=VISIT)
    c.kept.call = a.choices[0].message
    return a


def call_is(message, names=("visit", "leave")):
    (call,) = message.tool_calls
    got = json.loads(call.function.arguments)
    return bool(call.id) and call.type == "function" and call.function.name in names and (is_place(got) if call.function.name == "visit" else isinstance(got, dict))


def with_result(c):
    call = c.kept.call
    return chat(c, tools=TOOLS, messages=[*ASK, call.to_dict(), {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": '{"plan": "go by train"}'}])


def text_stream(c):
    events = list(client(c).completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, stream=True))
    return "".join(e.choices[0].text for e in events), events[-1].choices[0].finish_reason


def embed(c, **more):
    return client(c, c.embedding_url).embeddings.create(**{"model": MODEL, "input": ["One", "Two", "One"], **more})


ROWS = [
    ("chat: a question", lambda c: valid(chat(c), openai.types.chat.ChatCompletion),
     lambda a: "Paris" in a.choices[0].message.content and a.choices[0].finish_reason == "stop" and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens),
    ("chat: a stream with usage", lambda c: chat_stream(c, stream_options={"include_usage": True}), lambda a: "Paris" in a["content"] and a["usage"]["completion_tokens"] > 0),
    ("chat: three answers", lambda c: chat(c, n=3), lambda a: [k.index for k in a.choices] == [0, 1, 2] and len({k.message.content for k in a.choices}) == 1),
    ("chat: cut by max_completion_tokens", lambda c: client(c).chat.completions.create(model=MODEL, messages=ASK, max_completion_tokens=2),
     lambda a: a.choices[0].finish_reason == "length" and a.usage.completion_tokens == 2),
    ("chat: a stop word", lambda c: chat(c, stop=[" Paris"]), lambda a: a.choices[0].message.content == "The capital of France is" and a.choices[0].finish_reason == "stop"),
    ("chat: log probabilities", lambda c: chat(c, logprobs=True, top_logprobs=2),
     lambda a: len(a.choices[0].logprobs.content) == a.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in a.choices[0].logprobs.content)),
    ("chat: a seed repeats a draw", lambda c: {chat(c, temperature=1, seed=7).choices[0].message.content for _ in range(2)}, lambda a: len(a) == 1),
    ("chat: roles developer and parts of a content", lambda c: chat(c, messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": ASK[0]["content"]}]}]),
     lambda a: "Paris" in a.choices[0].message.content),
    ("chat: response_format json_schema, parsed", lambda c: client(c).chat.completions.parse(**{**ZERO, "messages": ASK, "response_format": Capital}),
     lambda a: isinstance(a.choices[0].message.parsed, Capital)),
    ("chat: response_format json_object", lambda c: chat(c, max_tokens=400, response_format={"type": "json_object"}),
     lambda a: a.choices[0].finish_reason == "length" or isinstance(json.loads(a.choices[0].message.content), dict)),
    ("chat: tool_choice required", lambda c: valid(chat(c, tools=TOOLS, tool_choice="required"), openai.types.chat.ChatCompletion),
     lambda a: a.choices[0].finish_reason == "tool_calls" and call_is(a.choices[0].message)),
    ("chat: a tool by name", keep_call, lambda a: call_is(a.choices[0].message, ("visit",))),
    ("chat: a call as a stream, in pieces", lambda c: chat_stream(c, tools=TOOLS, tool_choice=VISIT),
     lambda a: a["finish_reason"] == "tool_calls" and is_place(json.loads(a["calls"][0]["arguments"])) and a["pieces"] > 1 and not a["content"]),
    ("chat: a tool's result", with_result, lambda a: bool(a.choices[0].message.content) and not a.choices[0].message.tool_calls),
    ("chat: tool_choice none", lambda c: chat(c, tools=TOOLS, tool_choice="none"), lambda a: not a.choices[0].message.tool_calls and bool(a.choices[0].message.content)),
    ("chat: a call that max_tokens cuts is no text", lambda c: chat_stream(c, tools=TOOLS, tool_choice=VISIT, max_tokens=6),
     lambda a: a["finish_reason"] == "length" and "visit" not in a["content"] and "{" not in a["content"]),
    ("chat: reasoning comes apart", lambda c: client(c, c.thinking_url).chat.completions.create(**{**ZERO, "messages": ASK, "max_tokens": 80}),
     lambda a: "Paris" in a.choices[0].message.content and "capital" in a.choices[0].message.reasoning_content),
    ("chat: sound is refused", lambda c: chat(c, modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}), refused(openai.BadRequestError, "audio")),
    ("chat: an image is refused", lambda c: chat(c, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}]}]),
     refused(openai.BadRequestError, "only text")),
    ("chat: no messages", lambda c: chat(c, messages=[]), refused(openai.BadRequestError, "messages")),
    ("texts: two prompts", lambda c: client(c).completions.create(model=MODEL, prompt=["One, two,", "A, b,"], max_tokens=3, temperature=0),
     lambda a: [k.index for k in a.choices] == [0, 1] and all(k.text and k.finish_reason == "length" for k in a.choices)),
    ("texts: a stream", text_stream, lambda a: a[0] != "" and a[1] == "length"),
    ("texts: echo with log probabilities", lambda c: client(c).completions.create(model=MODEL, prompt="One, two,", max_tokens=1, echo=True, logprobs=1),
     lambda a: a.choices[0].text.startswith("One, two,") and a.choices[0].logprobs.token_logprobs[0] is None and len(a.choices[0].logprobs.tokens) == 5),
    ("embeddings: in base64, as the package asks", lambda c: embed(c),
     lambda a: a.data[0].embedding == a.data[2].embedding != a.data[1].embedding and abs(sum(x * x for x in a.data[0].embedding) - 1) < 1e-3),
    ("embeddings: as figures", lambda c: embed(c, encoding_format="float"), lambda a: [d.index for d in a.data] == [0, 1, 2] and a.usage.prompt_tokens > 0),
    ("embeddings: dimensions", lambda c: embed(c, dimensions=16), lambda a: len(a.data[0].embedding) == 16 and abs(sum(x * x for x in a.data[0].embedding) - 1) < 1e-3),
    ("embeddings: 2,048 inputs", lambda c: embed(c, input=[f"{i}" for i in range(2048)]), lambda a: len(a.data) == 2048 and [d.index for d in a.data] == list(range(2048))),
    ("embeddings: too many inputs", lambda c: embed(c, input=["a"] * 2049), refused(openai.BadRequestError, "2048")),
    ("embeddings: beside answers, on one server", lambda c: client(c).embeddings.create(model=MODEL, input="One"), lambda a: len(a.data[0].embedding) > 0),
    ("models: the list", lambda c: client(c).models.list(), lambda a: len(a.data) == 1 and a.data[0].object == "model" and bool(a.data[0].id)),
    ("models: one by its id", lambda c: client(c).models.retrieve(client(c).models.list().data[0].id), lambda a: a.object == "model" and bool(a.id)),
    ("models: one that is not there", lambda c: client(c).models.retrieve("no-such-model"), refused(openai.NotFoundError, "no-such-model")),
    ("keys: a wrong one", lambda c: openai.OpenAI(base_url=c.kept.keyed_url + "/v1", api_key="guess", max_retries=0).chat.completions.create(model=MODEL, messages=ASK), refused(openai.AuthenticationError, "API Key")),
]
