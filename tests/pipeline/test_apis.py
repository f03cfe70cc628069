#!/usr/bin/env python3
"""usage: test_apis.py OATO_SERVE OATO_MAKE_MODEL

Anthropic's messages and OpenAI's responses by HTTP, on a tiny random model: grammars say what it answers. A stream has the events that
the makers document, in their order, and in all what the whole answer has; a request becomes the chat that it means; what is kept is
there for its key alone; what is not supported is refused by name.
"""
import json
import pathlib
import sys
import tempfile

import rig
from rig import check, finish, make_model

serve, make = sys.argv[1:3]
TEMPLATE = r"""{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}# Tools
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for m in messages %}{% if m.role != 'system' or not tools %}<|im_start|>{{ m.role }}{{ m.tool_call_id }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"], "additionalProperties": False}
THINKS, SAYS = "Let me see.", "It is hot."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
KEY = {name: {"X-Api-Key": name} for name in ("one", "two", "three")}


class Server(rig.Server):
    headers = KEY["one"]


def grammar(text):
    return "root ::= " + json.dumps(text)


def runs(names):
    """Without what comes several times in a row."""
    return [n for i, n in enumerate(names) if not i or n != names[i - 1]]


# ------------------------------------------------------------------------------------------------ Anthropic

TOOL = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
HELLO = [{"role": "user", "content": "Hello"}]
ALL = {"messages": HELLO, "max_tokens": 400, "tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024},
       "grammar": grammar(f"{THINKS}</think>\n\n{SAYS}\n{CALL}")}


def messages(s):
    status, whole = answer = s.ask("/v1/messages?beta=true", ALL)
    check(status == 200, "a message is answered", whole)
    check([b["type"] for b in whole["content"]] == ["thinking", "text", "tool_use"], "a message has its blocks", whole)
    thinking, text, use = whole["content"]
    check(thinking["thinking"] == THINKS and thinking["signature"] and text["text"] == SAYS, "with their texts", whole)
    check(use["name"] == "weather" and use["input"] == {"city": "Rome"} and use["id"].startswith("toolu_"), "and the call", whole)
    check((whole["type"], whole["role"], whole["stop_reason"], whole["stop_sequence"]) == ("message", "assistant", "tool_use", None), "it says why it ended", whole)
    check(answer.headers["request-id"].startswith("req_"), "requests are numbered", answer.headers)
    events = s.events("/v1/messages", ALL)
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    names = runs([e["type"] + e.get("delta", {}).get("type", "") for e in events])
    check(names == ["message_start", start, "ping", delta + "thinking_delta", delta + "signature_delta", stop, start, delta + "text_delta", stop,
                    start, delta + "input_json_delta", stop, "message_delta", "message_stop"], "events come as documented", names)
    said = [{}, {}, {}]
    for e in events:
        for key, piece in e.get("delta", {}).items() if e["type"] == delta else []:
            said[e["index"]][key] = said[e["index"]].get(key, "") + piece
    check(said[0]["thinking"] == THINKS and said[1]["text"] == SAYS and json.loads(said[2]["partial_json"]) == {"city": "Rome"}, "with the same texts", said)
    check(events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None, "a message begins empty", events[0])
    check(events[-2]["delta"]["stop_reason"] == "tool_use" and events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"], "and ends with its reason", events[-2])
    twice = {**ALL, "thinking": None, "grammar": grammar(CALL + "\n" + CALL)}
    for alone, n in (None, 2), (False, 2), (True, 1):
        said = s.good("/v1/messages", {**twice, "tool_choice": {"type": "auto", "disable_parallel_tool_use": alone}})
        check([b["type"] for b in said["content"]] == ["tool_use"] * n and said["stop_reason"] == "tool_use", f"{n} calls where disable_parallel_tool_use is {alone}", said)
    used = whole["usage"]
    again = s.good("/v1/messages", ALL)["usage"]
    check(again["cache_read_input_tokens"] >= 64 and again["cache_read_input_tokens"] + again["input_tokens"] == used["cache_read_input_tokens"] + used["input_tokens"],
          "tokens that were cached are told apart", [used, again])
    cut = s.good("/v1/messages", {**ALL, "thinking": {"type": "disabled"}, "grammar": grammar(CALL), "max_tokens": 40})
    check(cut["content"] == [] and cut["stop_reason"] == "max_tokens", "a call that is cut is none", cut)
    word = s.good("/v1/messages", {"messages": HELLO, "max_tokens": 50, "grammar": grammar("one STOP two"), "stop_sequences": ["STOP"]})
    check((word["stop_reason"], word["stop_sequence"], word["content"][0]["text"]) == ("stop_sequence", "STOP", "one "), "a stop sequence is told", word)
    shaped = s.good("/v1/messages", {"messages": HELLO, "max_tokens": 200, "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}}})
    check(json.loads(shaped["content"][0]["text"]) == {"city": "Rome"}, "a schema is kept to", shaped)
    for choice in {"type": "any"}, {"type": "tool", "name": "weather"}:
        forced = s.good("/v1/messages", {"messages": HELLO, "max_tokens": 200, "tools": [TOOL], "tool_choice": choice})
        check([b["input"] for b in forced["content"]] == [{"city": "Rome"}], f"a call is forced by {choice}", forced)


CONVERSATION = {
    "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=abcde;"}, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Hot?"}, {"role": "user", "content": [{"type": "text", "text": "In Rome"}]},
                 {"role": "assistant", "content": [{"type": "thinking", "thinking": "hmm", "signature": "x"}, {"type": "thinking", "thinking": "so", "signature": "x"},
                                                   {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "I look."},
                                                   {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
                                              {"type": "text", "text": "And?"}]}],
    "tools": [TOOL]}
FUNCTION = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hot?\nIn Rome"},
                     {"role": "assistant", "content": "I look.", "reasoning_content": "hmm\nso",
                      "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
                     {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"}, {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "function": FUNCTION}]}
OTHERS = [{"type": "function", "function": {"name": "other", "parameters": SCHEMA}},
          {"type": "function", "function": {"name": "broken", "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}}}}]
INPUT = {"instructions": "Be brief.",
         "input": [{"role": "user", "content": "Hot?"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "In Rome"}]},
                   {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]},
                   {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "oato:so"},
                   {"type": "reasoning", "id": "rs_3", "summary": [], "encrypted_content": "another maker's"},
                   {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
                   {"type": "function_call", "call_id": "toolu_1", "name": "weather", "arguments": '{"city": "Rome"}'},
                   {"type": "function_call_output", "call_id": "toolu_1", "output": [{"type": "input_text", "text": "sunny"}]},
                   {"role": "user", "content": "And?"}],
         "tools": [{"type": "function", **FUNCTION, "strict": True}, {"type": "web_search", "external_web_access": False}]}


def conversations(s):
    wanted = s.good("/v1/chat/completions/input_tokens", CHAT)["input_tokens"]
    for path, body in ("/v1/messages/count_tokens", CONVERSATION), ("/v1/responses/input_tokens", INPUT):
        got = s.good(path, body)["input_tokens"]
        check(got == wanted, f"{path} counts what the chat has", [got, wanted])
    tokens = lambda path, body: s.good(path, body)["input_tokens"]
    result = lambda **more: {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
                                          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", **more}]}]}
    for a, b in ({"content": "no", "is_error": True}, {"content": "Error:\nno"}), ({"content": [{"type": "tool_reference", "tool_name": "weather"}]}, {"content": "weather"}):
        check(tokens("/v1/messages/count_tokens", result(**a)) == tokens("/v1/messages/count_tokens", result(**b)), f"a result that is {a}")
    function = {"type": "function", **FUNCTION}
    for a, b in (([HELLO[0], {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}], {}), (HELLO, {})), \
            (([*HELLO, {"type": "additional_tools", "role": "developer", "tools": [function]}], {}), (HELLO, {"tools": [function]})), \
            (([*HELLO, {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}, {"type": "local_shell_call_output", "id": "c", "output": "a"}], {}),
             ([*HELLO, {"type": "function_call", "call_id": "c", "name": "local_shell", "arguments": '{"command": ["ls"]}'}, {"type": "function_call_output", "call_id": "c", "output": "a"}], {})):
        check(tokens("/v1/responses/input_tokens", {"input": a[0], **a[1]}) == tokens("/v1/responses/input_tokens", {"input": b[0], **b[1]}), f"items {[i.get('type') for i in a[0]]}")
    zero = [{"type": "thinking", "thinking": "a\0", "signature": ""}, {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": ["\0"]}}]
    s.good("/v1/messages/count_tokens", {"system": "\0", "messages": [*HELLO, {"role": "assistant", "content": zero}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "\0"}]}]})
    s.good("/v1/responses/input_tokens", {"instructions": "\0", "input": [*HELLO, {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "\0"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "\0"}]})
    chat = s.good("/v1/chat/completions", {**CHAT, "max_tokens": 12})["choices"][0]["message"]["content"]
    check(s.good("/v1/messages", {**CONVERSATION, "max_tokens": 12})["content"][0]["text"] == chat, "a message is what the chat says", chat)
    said = s.good("/v1/responses", {**INPUT, "max_output_tokens": 12})
    check(said["output"][0]["content"][0]["text"] == chat, "so is a response", [said, chat])


# ------------------------------------------------------------------------------------------------ OpenAI

ITEMS = {"input": "Hello", "max_output_tokens": 400, "tools": [{"type": "function", **FUNCTION}], "chat_template_kwargs": {"enable_thinking": True},
         "grammar": ALL["grammar"], "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}


def texts_of(output):
    return [i.get("arguments") or i["content"][0]["text"] for i in output]


def responses(s):
    whole = s.good("/v1/responses", ITEMS)
    check([i["type"] for i in whole["output"]] == ["reasoning", "message", "function_call"], "a response has its items", whole)
    check(texts_of(whole["output"])[:2] == [THINKS, SAYS] and json.loads(whole["output"][2]["arguments"]) == {"city": "Rome"}, "with their texts", whole)
    check(whole["output"][0]["encrypted_content"] == "oato:" + THINKS, "reasoning may be sent back", whole["output"][0])
    check((whole["status"], whole["error"], whole["metadata"], whole["tools"]) == ("completed", None, {"a": "b"}, ITEMS["tools"]), "it repeats its request", whole)
    check(0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"], "tokens of reasoning are counted", whole["usage"])
    events = s.events("/v1/responses", ITEMS)
    check([e["sequence_number"] for e in events] == list(range(len(events))), "events are numbered")
    r = "response."
    added, item_done, part, part_done = r + "output_item.added", r + "output_item.done", r + "content_part.added", r + "content_part.done"
    names = runs([e["type"] for e in events])
    check(names == [r + "created", r + "in_progress", added, part, r + "reasoning_text.delta", r + "reasoning_text.done", part_done, item_done,
                    added, part, r + "output_text.delta", r + "output_text.done", part_done, item_done,
                    added, r + "function_call_arguments.delta", r + "function_call_arguments.done", item_done, r + "completed"], "events come as documented", names)
    last = events[-1]["response"]
    check(texts_of(last["output"]) == texts_of(whole["output"]), "with the same texts", last)
    check([e["item"] for e in events if e["type"] == item_done] == last["output"], "items end as the response has them", last)
    for i, item in enumerate(last["output"]):
        said = "".join(e["delta"] for e in events if e["type"].endswith(".delta") and e["output_index"] == i and e["item_id"] == item["id"])
        check(said == texts_of([item])[0], "pieces are the text", said)
    call = {"input": "Call", "tools": ITEMS["tools"], "grammar": grammar(CALL)}
    n = s.good("/v1/responses", {**call, "max_output_tokens": 200})["usage"]["output_tokens"]
    for most, status in (n + 3, "completed"), (n - 20, "incomplete"): # cut behind the call, and in it
        events = s.events("/v1/responses", {**call, "grammar": grammar(CALL + "\n" * 60), "max_output_tokens": most})
        done = [e["item"] for e in events if e["type"] == item_done]
        check(events[-1]["type"] == r + "incomplete" and [i["status"] for i in done] == [status] and events[-1]["response"]["output"] == done,
              "a call is told the same way once it has ended", events[-3:])
    cut = s.good("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "top_logprobs": 2, "include": ["message.output_text.logprobs"]})
    check((cut["status"], cut["incomplete_details"], cut["output"][0]["status"]) == ("incomplete", {"reason": "max_output_tokens"}, "incomplete"), "a limit is told", cut)
    check([len(l["top_logprobs"]) for l in cut["output"][0]["content"][0]["logprobs"]] == [2, 2, 2], "log probabilities are told", cut)
    own = s.good("/v1/responses", {"input": "Patch", "tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}}], "max_output_tokens": 200,
                                   "grammar": grammar(CALL.replace("weather", "patch").replace('{"city": "Rome"}', '{"input": "a b"}'))})
    check([(i["type"], i["name"], i["input"]) for i in own["output"]] == [("custom_tool_call", "patch", "a b")], "a custom tool has its input as a text", own)
    spaces = s.good("/v1/responses", {"input": "Call", "tools": [{"type": "namespace", "name": "far__", "tools": [{"type": "function", **FUNCTION}]}],
                                      "tool_choice": "required", "max_output_tokens": 200})
    check([(i["name"], i["namespace"]) for i in spaces["output"]] == [("weather", "far__")], "a tool of a namespace is called by both names", spaces)
    shaped = s.good("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"}, "max_output_tokens": 200})
    check(json.loads(texts_of(shaped["output"])[0]) == {"city": "Rome"}, "a schema is kept to", shaped)


def limits(s):
    """Of reasoning, and of conversations that do not fit."""
    ask = {"input": "Hello", "chat_template_kwargs": {"enable_thinking": True}, "reasoning_budget_message": " Enough.", "ignore_eos": True, "max_output_tokens": 40}
    for most in 0, 7:
        said = s.good("/v1/responses", {**ask, "reasoning_budget_tokens": most})["output"]
        check([i["type"] for i in said] == ["reasoning", "message"] and said[0]["content"][0]["text"].endswith(" Enough."[not most:]), f"reasoning ends after {most} tokens", said)
        shaped = s.good("/v1/responses", {**ask, "ignore_eos": False, "reasoning_budget_tokens": most, "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, "max_output_tokens": 99})
        check(json.loads(texts_of(shaped["output"])[-1]) == {"city": "Rome"}, "then a schema is kept to", shaped)
    thought = s.good("/v1/messages", {"messages": HELLO, "max_tokens": 60, "ignore_eos": True, "thinking": {"type": "enabled", "budget_tokens": 9}})
    check([b["type"] for b in thought["content"]] == ["thinking", "text"], "so does that of a message", thought)
    check(s.ask("/v1/messages", {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": "9"}})[1]["error"]["message"].startswith("budget_tokens"), "by name")
    effort = s.good("/apply-template", {"messages": HELLO, "reasoning_effort": "none", "chat_template_kwargs": {}})["prompt"]
    check("<think>" not in effort, "an effort of none is no reasoning", effort)
    long = {"instructions": "Be brief.", "max_output_tokens": 4,
            "input": [{"role": "user", "content": "begin"}, *[{"role": ("assistant", "user")[i % 2], "content": f"{i} " + "word " * 20} for i in range(300)]]}
    status, said = s.ask("/v1/responses", long)
    check(status == 400 and said["error"]["type"] == "exceed_context_size_error", "a conversation does not fit", said)
    cut = s.good("/v1/responses", {**long, "truncation": "auto"})
    check(3000 < cut["usage"]["input_tokens"] < 4096 - 4 and cut["truncation"] == "auto", "the end of it does", cut)


def kept(s):
    first = s.good("/v1/responses", {"input": "Hello", "grammar": grammar("first"), "max_output_tokens": 50})
    at = "/v1/responses/" + first["id"]
    check(s.good(at) == first, "a response is kept")
    goes_on = s.good("/v1/responses", {"input": "Go on", "previous_response_id": first["id"], "max_output_tokens": 4})
    alone = {"input": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "first"}, {"role": "user", "content": "Go on"}], "max_output_tokens": 4}
    check(texts_of(s.good("/v1/responses", alone)["output"]) == texts_of(goes_on["output"]), "and gone on with", goes_on)
    for reference in {"id": first["output"][0]["id"]}, {"type": "item_reference", "id": first["output"][0]["id"]}:
        alone["input"][1] = reference
        check(texts_of(s.good("/v1/responses", alone)["output"]) == texts_of(goes_on["output"]), "also by an item's name")
    items = s.good("/v1/responses/" + goes_on["id"] + "/input_items?order=asc")
    check(texts_of(items["data"]) == ["Hello", "first", "Go on"] and items["first_id"] == items["data"][0]["id"], "its items are told", items)
    check(s.good("/v1/responses/" + goes_on["id"] + "/input_items")["data"] == items["data"][::-1], "the last ones first")
    listed = "/v1/responses/" + goes_on["id"] + "/input_items?"
    names = [i["id"] for i in items["data"]]
    for query, wanted, more in (("order=asc&limit=2", names[:2], True), (f"order=asc&after={names[0]}&limit=2", names[1:], False), (f"limit=1&after={names[2]}", names[1:2], True),
                                (f"order=asc&before={names[2]}&limit=1", names[1:2], True), (f"order=asc&after={names[2]}", [], False)):
        page = s.good(listed + query)
        check([i["id"] for i in page["data"]] == wanted and page["has_more"] == more and page["last_id"] == (wanted[-1] if wanted else None), f"a page: {query}", page)
    for query, word in ("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=none", "after"), ("include[]=x", "include"):
        status, said = s.ask(listed + query)
        check(status == 400 and said["error"]["message"].startswith(word), f"{query} is refused by name", said)
    for query in "stream=true", "starting_after=3", "include=x":
        status, said = s.ask(at + "?" + query)
        check(status == 400 and said["error"]["message"].startswith(query.split("=")[0]), f"{query} is refused by name", said)
    for status, said in s.ask(at, headers=KEY["two"]), s.ask("/v1/responses", {"input": "x", "previous_response_id": first["id"]}, KEY["two"]):
        check(status in (400, 404) and "not found" in said["error"]["message"], "another key does not find it", said)
    check(s.ask(at, method="DELETE", headers=KEY["two"])[0] == 404, "nor deletes it")
    check(s.good(at, method="DELETE") == {"id": first["id"], "object": "response", "deleted": True} and s.ask(at)[0] == 404, "it is deleted")
    not_stored = s.good("/v1/responses", {"input": "Hello", "store": False, "max_output_tokens": 4})
    check(s.ask("/v1/responses/" + not_stored["id"])[0] == 404, "what is not to be stored is not kept")


# ------------------------------------------------------------------------------------------------ what coding agents send

CLAUDE_CODE = {
    **CONVERSATION, "model": "claude-sonnet-4-6", "max_tokens": 12, "metadata": {"user_id": "user_0_account__session_1"}, "temperature": 1,
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": [{**TOOL, "cache_control": {"type": "ephemeral", "ttl": "1h"}, "eager_input_streaming": True}], "tool_choice": {"type": "auto"}}
CODEX = {
    **INPUT, "model": "gpt-5-codex", "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0", "text": {"verbosity": "low"}, "client_metadata": {"x": "y"}, "service_tier": "auto",
    "tools": [*INPUT["tools"], {"type": "local_shell"}, {"type": "image_generation", "output_format": "png"}, {"type": "tool_search", "execution": "client"},
              {"type": "custom", "name": "apply_patch", "description": "Patches", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}}],
    "max_output_tokens": 12}


def agents(s):
    names = [e["type"] for e in s.events("/v1/messages?beta=true", CLAUDE_CODE)]
    check(names[0] == "message_start" and names[-1] == "message_stop", "Claude Code's request is answered", names)
    names = [e["type"] for e in s.events("/v1/responses", CODEX)]
    check(names[0] == "response.created" and names[-1] in ("response.completed", "response.incomplete"), "Codex's request is answered", names)
    first = s.good("/v1/messages", CLAUDE_CODE)["usage"]
    other = s.good("/v1/messages", {**CLAUDE_CODE, "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=12345;"}, *CLAUDE_CODE["system"][1:]]})["usage"]
    check(other["cache_read_input_tokens"] == first["cache_read_input_tokens"] >= other["input_tokens"] == first["input_tokens"], "what differs in each request is not in the prompt", [first, other])


# ------------------------------------------------------------------------------------------------ what is refused

def ask_of(block):
    return {"messages": [{"role": "user", "content": [block]}], "max_tokens": 4}


# Below 1 MiB: what is longer waits until nobody else wants the processor, other tests included.
MANY_THOUGHTS = {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x" * 9, "signature": ""}] * 14000}, *HELLO], "max_tokens": 4}
REFUSED = [
    ("/v1/messages", {"messages": HELLO}, 400, "max_tokens"), ("/v1/messages", {"max_tokens": 4}, 400, "messages"),
    ("/v1/messages", ask_of({"type": "image", "source": {}}), 400, "image"), ("/v1/messages", ask_of({"type": "document", "source": {}}), 400, "document"),
    ("/v1/messages", ask_of({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}), 400, "image"), ("/v1/messages", ask_of(7), 400, "content"),
    ("/v1/messages", {"messages": [{"role": "robot", "content": "x"}], "max_tokens": 4}, 400, "role"),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4, "tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "bash_20250124"),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, 400, "tool_choice"),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4, "mcp_servers": [{"url": "x"}]}, 400, "mcp_servers"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "word " * 4000}], "max_tokens": 4}, 400, "prompt is too long: "),
    ("/v1/messages", MANY_THOUGHTS, 400, "prompt is too long: "),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 4, "output_config": {"effort": "much"}}, 400, "effort"), ("/v1/responses", {"input": "x", "reasoning": {"effort": "much"}}, 400, "effort"),
    ("/v1/responses/resp_1/cancel", {}, 400, "cancel"), ("/v1/responses/compact", {"input": "x"}, 400, "compact"),
    ("/v1/responses", {}, 400, "input"), ("/v1/responses", {"input": [{"type": "computer_call"}]}, 400, "computer_call"),
    ("/v1/responses", {"input": [{"role": "user"}]}, 400, "content"), ("/v1/responses", {"input": [3]}, 400, "input"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input_image"),
    ("/v1/responses", {"input": "x", "tools": [{"type": "file_search", "vector_store_ids": []}]}, 400, "file_search"),
    ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, 400, "web_search"),
    ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, 400, "web_search"), ("/v1/responses", {"input": "x", "truncation": "much"}, 400, "truncation"),
    ("/v1/responses", {"input": "x", "background": True}, 400, "background"), ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1_2"}]}, 400, "not found"),
    ("/v1/chat/completions", {"messages": HELLO, "tools": OTHERS, "tool_choice": "required"}, 400, "the parameters of broken: "),
    ("/v1/completions", {"prompt": [None]}, 400, "prompt "), ("/v1/embeddings", {"input": [None]}, 400, "input "), ("/embeddings", {"content": [["a", None]]}, 400, "content "),
    ("/v1/embeddings", {"model": 3, "input": "x"}, 400, "model wants a text"),
    *(("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x", **odd}, *HELLO]}, 400, word) for odd, word in (
        ({"tool_calls": "x"}, "tool_calls"), ({"tool_calls": [None]}, "tool_calls"), ({"tool_calls": [{"function": {"name": "f", "arguments": 3}}]}, "arguments"),
        ({"reasoning_content": 3}, "reasoning_content"), ({"tool_calls": [{"function": {"name": "f", "arguments": "[" + "{}," * 300000}}]}, "memory"))),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": "x"}]}, 400, "images"),
    ("/v1/completions", {"prompt": "a b " * 200, "echo": True, "logprobs": 100, "n": 50, "max_tokens": 1}, 400, "echo with logprobs"),
    ("/v1/completions", {"prompt": [5] * 800, "echo": True, "logprobs": 100, "n": 10, "max_tokens": 100, "ignore_eos": True}, 400, "log probabilities of so many"),
]


def refused(s):
    for path, body, wanted, word in REFUSED:
        status, said = answer = s.ask(path, body)
        said = said if isinstance(said["error"], dict) else {"error": {"message": said["error"]}} # Ollama's
        check(status == wanted and word in said["error"]["message"], f"{path} refuses by name: {word}", [status, said])
        if "messages" in path:
            check(said["type"] == "error" and said["error"]["type"] == "invalid_request_error" and said["request_id"] == answer.headers["request-id"], "in Anthropic's form", said)
    status, said = s.ask("/v1/messages", ask_of({}), KEY["three"])
    check(status == 401 and said["error"]["type"] == "authentication_error", "a wrong key is told in Anthropic's form", said)
    anthropic = {"anthropic-version": "2023-06-01"}
    status, said = s.ask("/v1/models/other", headers=anthropic)
    check(status == 404 and said["error"]["type"] == "not_found_error", "so is an unknown model", said)
    models = s.good("/v1/models", headers=anthropic)
    check(models["has_more"] is False and models["data"][0]["type"] == "model" and models["first_id"] == models["data"][0]["id"], "models are told as Anthropic has them", models)
    one = s.good("/v1/models/" + models["first_id"], headers=anthropic)
    check(one == models["data"][0], "each by its name", one)
    check(s.good("/v1/models/" + models["first_id"])["object"] == "model", "or as OpenAI has it")
    check(s.ask("/v1/models/other")[0] == 404, "where an unknown one is not found")
    check(s.ask("/v1/responses", method="DELETE")[0] == 405, "another method is refused")


with tempfile.TemporaryDirectory() as folder:
    model, template = make_model(make, folder + "/tiny.gguf", "--context", "4096"), pathlib.Path(folder) / "t.jinja"
    template.write_text(TEMPLATE)
    with Server(serve, model, "--api-key", "one,two", "--chat-template-file", template) as server:
        for test in messages, conversations, responses, limits, kept, agents, refused:
            test(server)
sys.exit(finish())
