"""In which order the events of a stream may come, as the makers of each interface document it: state machines that read a stream,
raise Disorder at the first event that does not fit, and return what the stream says altogether. Python's own library only.

  OpenAI      /v1/chat/completions: platform.openai.com/docs/api-reference/chat-streaming
              /v1/responses: developers.openai.com/api/reference/resources/responses/streaming-events
  Anthropic   /v1/messages: platform.claude.com/docs/en/build-with-claude/streaming
  Ollama      /api/chat, /api/generate: docs/api.md of ollama/ollama
"""
import datetime
import json
import re


class Disorder(Exception):
    pass


def need(good, why, event=None):
    if not good:
        raise Disorder(why + (f": {json.dumps(event)[:400]}" if event is not None else ""))


def sse(text):
    """(name or None, data) of each event; comments are passed over."""
    for block in re.split(r"\r?\n\r?\n", text):
        name, data = None, []
        for line in block.splitlines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
        if name or data:
            yield name, "\n".join(data)


def named(text):
    """The events of a stream in which each has a name, which its data repeats. OpenAI's and Anthropic's end without [DONE]."""
    for name, data in sse(text):
        event = json.loads(data)
        need(name == event["type"], f"an event called {name}", event)
        yield event


def chunks(text):
    """The events of a stream of /v1/chat/completions, which ends in [DONE]."""
    events = list(sse(text))
    need(events and events[-1][1] == "[DONE]", "the stream does not end in [DONE]")
    need(all(name is None for name, _ in events), "events of chat completions have no name")
    return [json.loads(data) for _, data in events[:-1]]


def is_object(text):
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except json.JSONDecodeError:
        return False


def messages(events):
    """Anthropic's: the message, with its blocks as a request without a stream would have them."""
    message, open_at, deltas, ended, stopped = None, None, 0, False, False
    for e in events:
        kind = e["type"]
        need(not stopped, "an event behind message_stop", e)
        if kind == "error":
            need(isinstance(e["error"]["type"], str) and e["error"]["message"], "an error has a type and a message", e)
            return {"type": "error", "error": e["error"]}
        if kind == "message_start":
            need(message is None, "a second message_start", e)
            message = e["message"]
            need(message["type"] == "message" and message["role"] == "assistant" and message["content"] == [] and message["id"] and message["model"], "the message at first", e)
            need(message["stop_reason"] is None and message["stop_sequence"] is None, "null until the end", e)
            need(message["usage"]["input_tokens"] >= 0 and message["usage"]["output_tokens"] >= 0, "usage", e)
            continue
        need(message is not None, "message_start comes first", e)
        if kind == "ping":
            continue
        if kind == "content_block_start":
            block = e["content_block"]
            need(open_at is None and not ended, "a block while another is open, or behind message_delta", e)
            need(e["index"] == len(message["content"]), "indices count from 0", e)
            empty = {"text": ("text", ""), "thinking": ("thinking", ""), "tool_use": ("input", {})}[block["type"]]
            need(block[empty[0]] == empty[1], "a block begins empty", e)
            need(block["type"] != "tool_use" or block["id"] and block["name"], "a call has an id and a name", e)
            open_at, deltas, partial, signed = e["index"], 0, "", False
            message["content"].append(dict(block))
        elif kind == "content_block_delta":
            need(e["index"] == open_at, "a delta of a block that is not open", e)
            delta, block = e["delta"], message["content"][open_at]
            deltas += 1
            fits = {"text": ("text_delta",), "thinking": ("thinking_delta", "signature_delta"), "tool_use": ("input_json_delta",)}[block["type"]]
            need(delta["type"] in fits, f"a delta of a {block['type']} block", e)
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                need(not signed, "thinking behind its signature", e)
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                need(not signed, "one signature", e)
                signed, block["signature"] = True, delta["signature"]
            else:
                partial += delta["partial_json"]
        elif kind == "content_block_stop":
            need(e["index"] == open_at, "the end of a block that is not open", e)
            block = message["content"][open_at]
            need(deltas > 0, "a block has at least one delta", e)
            need(block["type"] != "thinking" or signed, "a signature comes before a thinking block ends", e)
            if block["type"] == "tool_use":
                block["partial_json"] = partial
                block["input"] = json.loads(partial or "{}") if is_object(partial) else None
            open_at = None
        elif kind == "message_delta":
            need(open_at is None, "message_delta comes behind all blocks", e)
            need(e["usage"]["output_tokens"] >= 0, "usage", e)
            ended = True
            message.update(e["delta"])
            message["usage"].update(e["usage"])
        elif kind == "message_stop":
            need(ended and open_at is None, "message_stop comes behind message_delta", e)
            stopped = True
        else:
            raise Disorder(f"an unknown event {kind}")
    need(stopped, "the stream ends without message_stop")
    need(message["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"), "a reason to stop", message)
    calls = [b for b in message["content"] if b["type"] == "tool_use"]
    need(message["stop_reason"] != "tool_use" or calls and all(b["input"] is not None for b in calls), "tool_use has calls, whose input is an object", message)
    need((message["stop_reason"] == "stop_sequence") == (message["stop_sequence"] is not None), "which stop sequence", message)
    return message


class Items:
    """The output of a response while it is streamed."""
    PARTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text", "summary_text": "response.reasoning_summary_text", "refusal": "response.refusal"}

    def __init__(self):
        self.done, self.item, self.part, self.text, self.text_done = [], None, None, "", None

    def added(self, e):
        need(self.item is None, "an item while another is open", e)
        need(e["output_index"] == len(self.done), "output indices count from 0", e)
        item = e["item"]
        need(item["id"], "an item has an id", e)
        need(item["type"] == "reasoning" or item["status"] == "in_progress", "an item begins in progress", e)
        need(item["type"] != "message" or item["content"] == [] and item["role"] == "assistant", "a message begins empty", e)
        need(item["type"] != "function_call" or item["arguments"] == "" and item["name"] and item["call_id"], "a call begins empty, with name and call_id", e)
        self.item, self.parts, self.text, self.text_done = item, [], "", None

    def of_item(self, e):
        need(self.item is not None and e["item_id"] == self.item["id"] and e["output_index"] == len(self.done), "an event of an item that is not open", e)

    def part_added(self, e):
        self.of_item(e)
        index = e.get("content_index", e.get("summary_index"))
        need(self.part is None and index == len(self.parts), "a part while another is open", e)
        need(e["part"]["text"] == "", "a part begins empty", e)
        self.part, self.text, self.text_done = e["part"]["type"], "", None

    def delta(self, e, kind):
        self.of_item(e)
        if kind == "response.function_call_arguments":
            need(self.item["type"] == "function_call" and self.text_done is None, "arguments of a call", e)
        else:
            # Reasoning has parts by name only where its server announces them.
            need(self.part is not None and self.PARTS[self.part] == kind or self.part is None and self.item["type"] == "reasoning" and "reasoning" in kind, "a delta of a part that is not open", e)
            need(self.text_done is None, "a delta behind its end", e)
        self.text += e["delta"]

    def ended(self, e, kind):
        self.of_item(e)
        whole = e["arguments"] if kind == "response.function_call_arguments" else e["text"]
        need(whole == self.text and self.text_done is None, f"the whole is not the sum of the deltas, '{self.text}'", e)
        self.text_done = whole

    def part_done(self, e):
        self.of_item(e)
        need(self.part == e["part"]["type"] and self.text_done == e["part"]["text"], "a part ends as its text did", e)
        self.parts.append(e["part"])
        self.part = None

    def item_done(self, e):
        item = e["item"]
        need(self.item is not None and item["id"] == self.item["id"] and e["output_index"] == len(self.done), "the end of an item that is not open", e)
        need(self.part is None and item["type"] == self.item["type"], "an item ends while a part is open", e)
        need(item["type"] == "reasoning" or item["status"] in ("completed", "incomplete"), "the status of an item that ended", e)
        if item["type"] == "message":
            need([p["text"] for p in item["content"]] == [p["text"] for p in self.parts] and self.parts, "the parts of a message", e)
        if item["type"] == "function_call":
            need(item["arguments"] == self.text_done and item["call_id"] == self.item["call_id"] and item["name"] == self.item["name"], "a call ends as its arguments did", e)
        if item["type"] == "reasoning":
            need("".join(c["text"] for c in [*(item.get("content") or []), *item["summary"]]) == (self.text_done or "".join(p["text"] for p in self.parts)), "reasoning ends as its text did", e)
        self.done.append(item)
        self.item = None


def responses(events):
    """OpenAI's /v1/responses: the response of the last event."""
    items, number, last, begun = Items(), 0, None, None
    for e in events:
        kind = e["type"]
        need(last is None, "an event behind the last one", e)
        need(e["sequence_number"] == number, f"sequence number {number} is expected", e)
        number += 1
        if kind == "error":
            need(e["message"], "an error has a message", e)
            last = {"status": "error", **e}
        elif kind == "response.created":
            need(begun is None and number == 1, "response.created comes first, once", e)
            begun = e["response"]
            need(begun["object"] == "response" and begun["status"] in ("in_progress", "queued") and begun["output"] == [], "a response at first", e)
        elif kind == "response.in_progress":
            need(begun is not None and not items.done and items.item is None and e["response"]["id"] == begun["id"], "response.in_progress comes before the items", e)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            last = e["response"]
            need(begun is not None and last["id"] == begun["id"] and last["status"] == kind[9:], "the response at last", e)
            need(items.item is None or kind == "response.failed", "an item is left open", e)
            need(kind == "response.failed" or last["output"] == items.done, f"its output is not the items that ended, {json.dumps(items.done)[:300]}", e)
            need((kind == "response.incomplete") == bool(last["incomplete_details"]) and (kind == "response.failed") == bool(last["error"]), "details", e)
            need(kind == "response.failed" or last["usage"]["total_tokens"] == last["usage"]["input_tokens"] + last["usage"]["output_tokens"], "usage", e)
        elif kind == "response.output_item.added":
            need(begun is not None, "response.created comes first", e)
            items.added(e)
        elif kind == "response.output_item.done":
            items.item_done(e)
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            items.part_added(e)
        elif kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
            items.part_done(e)
        elif kind.endswith(".delta"):
            items.delta(e, kind[:-6])
        elif kind.endswith(".done"):
            items.ended(e, kind[:-5])
        else:
            raise Disorder(f"an unknown event {kind}")
    need(last is not None, "the stream ends without response.completed, incomplete or failed")
    return last


def chat(events, usage=False):
    """OpenAI's /v1/chat/completions with one answer: its text, reasoning, calls, reason and usage. usage: that was asked for."""
    answer, ids, calls = {"content": "", "reasoning": "", "finish_reason": None, "usage": None}, set(), []
    for i, e in enumerate(events):
        need(e["object"] == "chat.completion.chunk", "the object of a chunk", e)
        ids.add(e["id"])
        if not e["choices"]:
            need(usage and i == len(events) - 1 and answer["finish_reason"], "usage comes last, and only when it was asked for", e)
            answer["usage"] = e["usage"]
            continue
        (choice,) = e["choices"]
        delta = choice["delta"]
        need(answer["finish_reason"] is None, "a delta behind finish_reason", e)
        need((delta.get("role") == "assistant") == (i == 0), "the role comes first, once", e)
        answer["content"] += delta.get("content") or ""
        answer["reasoning"] += delta.get("reasoning_content") or ""
        for t in delta.get("tool_calls") or []:
            if t["index"] == len(calls):
                need(t["id"] and t["type"] == "function" and t["function"]["name"], "a call begins with id, type and name", e)
                calls.append({"id": t["id"], "name": t["function"]["name"], "arguments": t["function"].get("arguments") or ""})
            else:
                need(t["index"] == len(calls) - 1 and not t.get("id") and not t["function"].get("name"), "the pieces of a call follow its beginning", e)
                calls[-1]["arguments"] += t["function"]["arguments"]
        answer["finish_reason"] = choice["finish_reason"]
    need(len(ids) == 1, "one id")
    need(answer["finish_reason"] in ("stop", "length", "tool_calls"), "finish_reason", answer)
    need(not usage or answer["usage"], "usage was asked for")
    need(answer["finish_reason"] != "tool_calls" or calls and all(is_object(c["arguments"]) for c in calls), "calls whose arguments are objects", calls)
    return {**answer, "calls": calls}


def ollama(events, text=lambda e: e["message"]["content"]):
    """Ollama's streams: the last object, with all text in 'text', all calls in 'calls', all thinking in 'thinking'. text: of an object;
    lambda e: e["response"] for /api/generate."""
    said, calls, thinking, last = "", [], "", None
    for e in events:
        need(last is None, "an object behind the last one", e)
        if "error" in e:
            return e
        need(e["model"] and datetime.datetime.fromisoformat(re.sub(r"(\.\d{1,6})\d*", r"\1", e["created_at"])).tzinfo, "model and created_at", e)
        need(isinstance(e["done"], bool), "done", e)
        message = e.get("message", {})
        need("message" not in e or message["role"] == "assistant", "the role", e)
        said += text(e)
        thinking += message.get("thinking") or e.get("thinking") or ""
        for call in message.get("tool_calls") or []:
            need(call["function"]["name"] and isinstance(call["function"]["arguments"], dict), "a call's arguments are an object", e)
            calls.append(call["function"])
        if e["done"]:
            last = e
    need(last is not None, "no object is done")
    need(last["done_reason"] in ("stop", "length", "load", "unload"), "done_reason", last)
    if last["done_reason"] in ("stop", "length"):
        for name in ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"):
            need(type(last[name]) is int and last[name] >= 0, name, last)
        need(last["total_duration"] >= last["eval_duration"] and last["eval_count"] > 0, "durations are nanoseconds", last)
    return {**last, "text": said, "calls": calls, "thinking": thinking}
