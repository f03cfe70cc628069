"""litellm, langchain-openai, pydantic-ai, instructor, llm: what builds on the makers' interfaces."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.update({"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"})

import anthropic # noqa: E402
import instructor # noqa: E402
import langchain_openai # noqa: E402
import litellm # noqa: E402
import openai # noqa: E402
import pydantic # noqa: E402
import pydantic_ai # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider # noqa: E402

from client_openai import TOOLS, Capital, call_is # noqa: E402
from rows import ASK, CAPITAL, MODEL, PLACE, is_place, refused # noqa: E402

litellm.telemetry = False
litellm.suppress_debug_info = True
ZERO = {"temperature": 0, "max_tokens": 60}


class Place(pydantic.BaseModel):
    """A place to visit."""
    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)


def lite(c, model, base, **more):
    return litellm.completion(**{"model": model, "api_base": c.url + base, "api_key": "none", "messages": ASK, "num_retries": 0, **ZERO, **more})


def lite_stream(c, model, base, **more):
    return "".join(k.choices[0].delta.content or "" for k in lite(c, model, base, stream=True, **more))


def chain(c, **more):
    return langchain_openai.ChatOpenAI(model=MODEL, base_url=c.url + "/v1", api_key="none", max_retries=0, temperature=0, max_tokens=60, **more)


def agent(model, **more):
    return pydantic_ai.Agent(model, retries=0, model_settings={"temperature": 0, "max_tokens": 120}, **more)


def models(c):
    provider = OpenAIProvider(base_url=c.url + "/v1", api_key="none")
    return {"chat": OpenAIChatModel(MODEL, provider=provider), "responses": OpenAIResponsesModel(MODEL, provider=provider),
            "anthropic": AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=c.url, api_key="none", max_retries=0)))}


def ran(c, which, **more):
    return agent(models(c)[which], **more).run_sync(CAPITAL).output


def ran_stream(c, which):
    with agent(models(c)[which]).run_stream_sync(CAPITAL) as r:
        return "".join(r.stream_text(delta=True))


def instructed(c, mode, kind=Place):
    return instructor.from_openai(openai.OpenAI(base_url=c.url + "/v1", api_key="none", max_retries=0), mode=mode).chat.completions.create(
        model=MODEL, messages=ASK, response_model=kind, max_retries=0, **ZERO)


def instructed_anthropic(c):
    return instructor.from_anthropic(anthropic.Anthropic(base_url=c.url, api_key="none", max_retries=0), mode=instructor.Mode.ANTHROPIC_TOOLS).messages.create(
        model=MODEL, messages=ASK, response_model=Place, max_retries=0, max_tokens=60)


def llm(c, *options):
    """The command line of llm, with a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "extra-openai-models.yaml").write_text(f"- model_id: here\n  model_name: any\n  api_base: {c.url}/v1\n  supports_schema: true\n")
        r = subprocess.run([pathlib.Path(sys.executable).parent / "llm", "-m", "here", "--key", "none", *options, CAPITAL], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "LLM_USER_PATH": folder})
        return r.stdout if r.returncode == 0 else f"status {r.returncode}: {r.stderr[-500:]}"


ROWS = [
    ("litellm: openai/", lambda c: lite(c, "openai/any", "/v1"), lambda a: "Paris" in a.choices[0].message.content and a.usage.completion_tokens > 0),
    ("litellm: openai/ as a stream", lambda c: lite_stream(c, "openai/any", "/v1"), lambda a: "Paris" in a),
    ("litellm: openai/, a tool", lambda c: lite(c, "openai/any", "/v1", tools=TOOLS, tool_choice="required"), lambda a: call_is(a.choices[0].message)),
    ("litellm: anthropic/", lambda c: lite(c, "anthropic/any", ""), lambda a: "Paris" in a.choices[0].message.content),
    ("litellm: anthropic/ as a stream", lambda c: lite_stream(c, "anthropic/any", ""), lambda a: "Paris" in a),
    ("litellm: anthropic/, a tool", lambda c: lite(c, "anthropic/any", "", tools=TOOLS, tool_choice="required"), lambda a: call_is(a.choices[0].message)),
    ("litellm: ollama_chat/", lambda c: lite(c, "ollama_chat/any", ""), lambda a: "Paris" in a.choices[0].message.content),
    ("litellm: ollama_chat/ as a stream", lambda c: lite_stream(c, "ollama_chat/any", ""), lambda a: "Paris" in a),
    ("litellm: responses", lambda c: litellm.responses(model="openai/any", api_base=c.url + "/v1", api_key="none", input=CAPITAL, temperature=0, max_output_tokens=60),
     lambda a: "Paris" in a.output[0].content[0].text),
    ("litellm: embedding", lambda c: litellm.embedding("openai/any", input=["One", "Two"], api_base=c.embedding_url + "/v1", api_key="none", encoding_format="float"), lambda a: len(a.data) == 2 and len(a.data[0]["embedding"]) > 0),
    ("litellm: rerank", lambda c: litellm.rerank(model="jina_ai/any", query="One", documents=["Two", "One"], api_base=c.embedding_url + "/v1/rerank", api_key="none"), lambda a: sorted(r["index"] for r in a.results) == [0, 1]),
    ("litellm: an error", lambda c: lite(c, "openai/any", "/v1", messages=[{"role": "user", "content": "one " * 20000}]), refused((litellm.BadRequestError, litellm.ContextWindowExceededError), "tokens")),
    ("langchain: a question", lambda c: chain(c).invoke(CAPITAL), lambda a: "Paris" in a.content and a.usage_metadata["output_tokens"] > 0),
    ("langchain: a stream", lambda c: "".join(k.content for k in chain(c).stream(CAPITAL)), lambda a: "Paris" in a),
    ("langchain: a batch", lambda c: [m.content for m in chain(c).batch([CAPITAL] * 4)], lambda a: len(a) == 4 and len(set(a)) == 1),
    ("langchain: bound tools", lambda c: chain(c).bind_tools([{"name": "visit", "description": "plans a visit", "parameters": PLACE}], tool_choice="any").invoke(CAPITAL),
     lambda a: is_place(a.tool_calls[0]["args"])),
    ("langchain: structured output", lambda c: chain(c).with_structured_output(Capital).invoke(CAPITAL), lambda a: isinstance(a, Capital)),
    ("langchain: responses", lambda c: chain(c, use_responses_api=True).invoke(CAPITAL), lambda a: "Paris" in a.text),
    ("langchain: responses as a stream", lambda c: "".join(k.text for k in chain(c, use_responses_api=True).stream(CAPITAL)), lambda a: "Paris" in a),
    ("langchain: embeddings", lambda c: langchain_openai.OpenAIEmbeddings(model=MODEL, base_url=c.embedding_url + "/v1", api_key="none", check_embedding_ctx_length=False).embed_documents(["One", "Two"]), lambda a: len(a) == 2 and len(a[0]) > 0),
    ("pydantic-ai: a question", lambda c: ran(c, "chat"), lambda a: "Paris" in a),
    ("pydantic-ai: output by a tool", lambda c: ran(c, "chat", output_type=Place), lambda a: isinstance(a, Place)),
    ("pydantic-ai: output by a schema", lambda c: ran(c, "chat", output_type=pydantic_ai.NativeOutput(Place)), lambda a: isinstance(a, Place)),
    ("pydantic-ai: a stream", lambda c: ran_stream(c, "chat"), lambda a: "Paris" in a),
    ("pydantic-ai: responses", lambda c: ran(c, "responses"), lambda a: "Paris" in a),
    ("pydantic-ai: responses, output by a tool", lambda c: ran(c, "responses", output_type=Place), lambda a: isinstance(a, Place)),
    ("pydantic-ai: anthropic", lambda c: ran(c, "anthropic"), lambda a: "Paris" in a),
    ("pydantic-ai: anthropic, output by a tool", lambda c: ran(c, "anthropic", output_type=Place), lambda a: isinstance(a, Place)),
    ("pydantic-ai: anthropic as a stream", lambda c: ran_stream(c, "anthropic"), lambda a: "Paris" in a),
    ("instructor: tools", lambda c: instructed(c, instructor.Mode.TOOLS), lambda a: isinstance(a, Place)),
    ("instructor: a JSON schema", lambda c: instructed(c, instructor.Mode.JSON_SCHEMA), lambda a: isinstance(a, Place)),
    ("instructor: anthropic", instructed_anthropic, lambda a: isinstance(a, Place)),
    ("llm: a question", lambda c: llm(c, "--no-stream", "-o", "temperature", "0"), lambda a: "Paris" in a),
    ("llm: a stream", lambda c: llm(c, "-o", "temperature", "0", "-o", "max_tokens", "40"), lambda a: "Paris" in a),
    ("llm: a schema", lambda c: llm(c, "--no-stream", "--schema", json.dumps(PLACE), "-o", "temperature", "0"), lambda a: is_place(json.loads(a))),
]
