#!/usr/bin/env python3
"""usage: test_serve.py OATO_SERVE OATO_RUN OATO_MAKE_MODEL

oato-serve by HTTP, on a tiny random model: what it answers is what oato-run says, whole and as a stream, alone and beside others;
bad requests get one error and change nothing; clients that go free their place; no policy changes an answer; SIGTERM lets answers end.
"""
import functools
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading

import machines
from gguf_file import with_keys
from rig import Server, at_once, check, finish, make_model, norm, side_by_side, until

serve, run, make = sys.argv[1:4]
PROMPT = "The river was"


def completions(s, expected):
    whole = {"prompt": PROMPT, "n_predict": 24, "ignore_eos": True}
    status, a = s.ask("/completion", whole)
    check(status == 200 and norm(a["content"]) == expected, "an answer is what oato-run says")
    check(a["tokens_predicted"] == 24 and a["stop_type"] == "limit" and a["timings"]["predicted_n"] == 24, "its counts")
    events = s.events("/completion", whole)
    check(norm("".join(e["content"] for e in events)) == expected and [e["stop"] for e in events].index(True) == len(events) - 1, "a stream")
    events = s.events("/v1/completions", {**whole, "stream_options": {"include_usage": True}})
    check(events[-1] == "[DONE]" and events[-2]["usage"]["completion_tokens"] == 24, "a stream of OpenAI's ends")
    check(norm("".join(e["choices"][0]["text"] for e in events[:-2])) == expected, "and has the same text")
    a = s.ask("/completion", {**whole, "response_fields": ["stop", "generation_settings/n_predict", "none"]})[1]
    check(a == {"stop": True, "generation_settings/n_predict": 24}, "fields of an answer")
    a = s.ask("/v1/completions", {**whole, "prompt": [PROMPT, PROMPT], "n": 2})[1]
    check([norm(c["text"]) for c in a["choices"]] == [expected] * 4 and a["usage"]["completion_tokens"] == 96, "four answers at once")
    word = re.search(r"\[\d+\]", expected)[0]
    a = s.ask("/completion", {**whole, "stop": ["no such word", word]})[1]
    check(norm(a["content"]) == expected[: expected.index(word)] and a["stop_type"] == "word" and a["stopping_word"] == word, "a stop word")
    a = s.ask("/completion", {**whole, "n_probs": 3})[1]["completion_probabilities"]
    check(len(a) == 24 and all(len(t["top_logprobs"]) == 3 and t["logprob"] == t["top_logprobs"][0]["logprob"] <= 0 for t in a), "log probabilities")
    p = s.ask("/completion", {**whole, "n_probs": 5, "post_sampling_probs": True, "temperature": 2, "top_k": 3, "top_p": 1, "min_p": 0})[1]["completion_probabilities"]
    check(all(len(t["top_probs"]) == 3 and abs(sum(x["prob"] for x in t["top_probs"]) - 1) < 1e-4 for t in p), "probabilities of what top-k left")
    check(all(t["prob"] in [x["prob"] for x in t["top_probs"]] and "logprob" not in t for t in p), "and of the token that was drawn")
    b = s.ask("/completion", {**whole, "n_predict": 60, "return_tokens": True, "dry_multiplier": 100, "dry_allowed_length": 1, "dry_sequence_breakers": [],
                              "dry_penalty_last_n": -1})[1]["tokens"]
    pairs = list(zip(b, b[1:]))
    check(len(b) == 60 and len(set(pairs)) == len(pairs), "DRY: no two tokens follow each other twice")
    b = s.ask("/completion", {**whole, "mirostat": 2, "mirostat_tau": 0, "temperature": 3})[1]
    check(norm(b["content"]) == expected and b["generation_settings"]["mirostat"] == 2, "Mirostat without surprise takes the most likely tokens")
    check(s.ask("/completion", {**whole, "dry_sequence_breakers": [1]})[0] == s.ask("/completion", {**whole, "mirostat": 3})[0] == 400, "400: DRY, Mirostat")
    events = s.events("/completion", {"prompt": PROMPT * 80, "n_predict": 2, "return_progress": True, "timings_per_token": True})
    p = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    check(len(p) > 2 and p[0]["processed"] == p[0]["cache"] and p[-1]["processed"] == p[-1]["total"] > 256, "how far a prompt is")
    check(all(a["processed"] < b["processed"] and a["time_ms"] <= b["time_ms"] for a, b in zip(p, p[1:])) and len(p) < len(events), "grows")
    check(events[0]["timings"]["prompt_n"] == events[0]["timings"]["prompt_ms"] == 0 and events[0]["content"] == "", "from nothing on")
    first = a[0]["id"]
    a = s.ask("/completion", {**whole, "logit_bias": [[first, False]], "n_probs": 1})[1]["completion_probabilities"]
    check(all(t["id"] != first for t in a), "a bias forbids a token")
    a = s.ask("/completion", {"prompt": PROMPT, "grammar": 'root ::= "a" [0-9]{3}'})[1]
    check(re.fullmatch("a[0-9]{3}", a["content"]) and a["stop_type"] == "eos", "a grammar")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}, "ok": {"const": True}}, "required": ["n", "ok"],
              "additionalProperties": False}
    a = json.loads(s.ask("/completion", {"prompt": PROMPT, "json_schema": schema})[1]["content"])
    check(sorted(a) == ["n", "ok"] and 10 <= a["n"] <= 99 and a["ok"] is True, f"a JSON schema: {a}")
    ids = s.ask("/tokenize", {"content": PROMPT})[1]["tokens"]
    check(s.ask("/detokenize", {"tokens": ids})[1]["content"].strip() == PROMPT, "tokens and back")
    check(norm(s.ask("/completion", {**whole, "prompt": ids})[1]["content"]) == expected, "a prompt of tokens")


def chats(s):
    talk = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "max_tokens": 8, "ignore_eos": True}
    prompt = s.ask("/apply-template", talk)[1]["prompt"]
    check(prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a template")
    a = s.ask("/v1/chat/completions", talk)[1]["choices"][0]
    same = s.ask("/completion", {"prompt": prompt, "n_predict": 8, "ignore_eos": True})[1]["content"]
    check(a["message"] == {"role": "assistant", "content": same} and a["finish_reason"] == "length", "a chat")
    for form in ({"type": "json_schema", "json_schema": {"schema": {"const": "foo"}}}, {"type": "json_object", "schema": {"const": "foo"}}):
        a = s.ask("/v1/chat/completions", {**talk, "ignore_eos": False, "response_format": form})[1]["choices"][0]
        check(a["message"]["content"] == '"foo"' and a["finish_reason"] == "stop", f"response_format {form['type']}")
    for form in ({"type": "sound"}, {"type": "json_object", "schema": 123}, {"type": "json_object", "schema": {"type": "hiccup"}}, {"type": "json_schema"}):
        check(s.ask("/v1/chat/completions", {**talk, "ignore_eos": False, "response_format": form})[0] == 400, f"400: response_format {form}")
    events = [e["choices"][0] for e in s.events("/v1/chat/completions", talk)[:-1]]
    check(events[0]["delta"] == {"role": "assistant", "content": None} and events[-1]["delta"] == {}, "a chat's stream begins and ends")
    check("".join(e["delta"].get("content") or "" for e in events) == same, "and has the same text")
    for more, named in (({"functions": [{"name": "f"}]}, "functions"), ({"top_logprobs": 2}, "top_logprobs"), ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
                        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"), ({"stream_options": 1}, "stream_options"), ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
                        ({"guided_choice": ["a", "b"]}, "guided_choice"), ({"min_tokens": 3}, "min_tokens"), ({"stop_token_ids": [1]}, "stop_token_ids")):
        status, a = s.ask("/v1/chat/completions", {**talk, **more})
        check(status == 400 and named in a["error"]["message"], f"400: {a}")
    check(s.ask("/v1/chat/completions", {**talk, "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "functions": [], "min_tokens": 0,
                                         "nobody knows": 1})[0] == 200, "what changes nothing passes")


TEMPLATE = """{%- for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %} {{ c.function.name }}({{ c.function.arguments.city }}){% endfor %}]
{%- endfor %}{% for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}{{ mood }}{% if add_generation_prompt %}<tool_call> {% if not brief %}<think> {% endif %}{% endif -%}"""


def tools(model, folder):
    """What the model says is forced by a grammar; its template sees tools and calls, and its marks are found in the answer."""
    s = Server(serve, with_keys(model, folder + "/template.gguf", {"tokenizer.chat_template": TEMPLATE}))
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    talk = {"messages": [{"role": "user", "content": "Hi"},
                         {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}]},
                         {"role": "tool", "content": "20", "tool_call_id": "1"}],
            "tools": [{"type": "function", "function": {"name": "weather"}}], "chat_template_kwargs": {"mood": "calm"},
            "grammar": "root ::= " + json.dumps("<think>why</think>well" + call)}
    prompt = s.ask("/apply-template", talk)[1]["prompt"]
    check(prompt.startswith("[user:Hi][assistant: f(Rome)][tool:20]<tool>weather</tool>calm"), "a template sees tools, calls and variables: " + prompt)
    a = s.ask("/v1/chat/completions", talk)[1]["choices"][0]
    m = a["message"]
    check(m["content"] == "well" and m["reasoning_content"] == "why" and a["finish_reason"] == "tool_calls", f"parts of an answer: {m}")
    check(m["tool_calls"][0]["function"]["name"] == "weather" and json.loads(m["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}, "a call")
    deltas = [e["choices"][0]["delta"] for e in s.events("/v1/chat/completions", talk)[:-1]]
    calls = [c for d in deltas for c in d.get("tool_calls", [])]
    pieces = "".join(c["function"]["arguments"] for c in calls) # however many
    check({c["index"] for c in calls} == {0} and json.loads(pieces) == {"city": "Paris"} and [c["function"].get("name") for c in calls][0] == "weather"
          and "".join(d.get("reasoning_content", "") for d in deltas) == "why", "and as a stream")
    a = s.ask("/v1/chat/completions", {**talk, "tool_choice": "required"})
    check(a[0] == 400 and "not both" in a[1]["error"]["message"], "a call and a grammar are too much")
    tool = lambda name, **properties: {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}
    ask = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"brief": True}, "max_tokens": 400, "temperature": 1,
           "tools": [tool("add", a={"type": "integer", "minimum": 1, "maximum": 9}, b={"enum": [1, 2]}), tool("stop")]}
    names = set()
    for choice in ["required"] * 6 + [{"type": "function", "function": {"name": "add"}}] * 2:
        a = s.ask("/v1/chat/completions", {**ask, "tool_choice": choice})[1]["choices"][0]
        if "tool_calls" not in a["message"]:
            check(a["finish_reason"] == "length" and a["message"].get("reasoning_content"), f"it may think until it is cut short: {a}")
            continue
        call = a["message"]["tool_calls"][0]["function"]
        args = json.loads(call["arguments"])
        good = args == {} if call["name"] == "stop" else 1 <= args["a"] <= 9 and args["b"] in (1, 2) and len(args) == 2
        check(len(a["message"]["tool_calls"]) == 1 and a["finish_reason"] == "tool_calls" and good, f"a call that must be: {call}")
        names.add(call["name"] if choice == "required" else "named " + call["name"])
    check(names and "named stop" not in names, f"of the function that is named: {names}")
    for bad in ({"tool_choice": "required", "tools": []}, {"tool_choice": {"type": "function", "function": {"name": "none"}}}, {"tool_choice": "some"},
                {"tool_choice": "required", "tools": [tool('a"b')]}, {"tool_choice": "required", "ignore_eos": True},
                {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "hiccup"}}}]}):
        check(s.ask("/v1/chat/completions", {**ask, **bad})[0] == 400, f"400: {bad}")
    a = s.ask("/v1/chat/completions", {"messages": ask["messages"], "max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 7}}}})[1]
    check(a["choices"][0]["finish_reason"] == "length" and len(a["choices"][0]["message"]["reasoning_content"]) > 20, "a schema leaves reasoning alone")
    talk = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]}
    check(s.ask("/apply-template", talk)[1]["prompt"] == "[user:Hi]<tool_call> <think> So", "a begun answer is gone on with")
    check(s.end() == 0, "it ends")
    s = Server(serve, with_keys(model, folder + "/toolless.gguf", {"tokenizer.chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ reasoning_effort }}"}))
    ask = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "tools": [tool("add")]}
    check("<tools>" in s.ask("/apply-template", ask)[1]["prompt"], "tools that the template does not show are told in the generic form")
    check(all(s.ask("/v1/chat/completions", {**ask, **more})[0] == 200 for more in ({"tools": []}, {"tools": None}, {"tool_choice": "none"})), "no tools pass, and those that may not be called")
    check(s.ask("/apply-template", {**ask, "tools": [], "reasoning_effort": "low"})[1]["prompt"].strip() == "[Hi]low", "a template reads the effort")
    check(s.end() == 0, "it ends")


def bad_requests(s):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    good = json.dumps({"prompt": PROMPT, "n_predict": 2, "max_tokens": 2, "stop": ["x"], "logit_bias": {"1": 2}, "seed": 1, "temperature": 0.5, "n": 1}).encode()
    bad = [b"", b"{", b"[" * (1 << 20), b'{"a":' * 3000, b"\xff\xfe", b"[]", b"7", b'{"prompt":{}}', b'{"prompt":[-1]}', b'{"prompt":[99999999]}',
           b'{"prompt":"x","n_predict":1e99}', b'{"prompt":"x","temperature":"hot"}', b'{"prompt":"x","stop":[1]}', b'{"prompt":"x","seed":1.5}',
           b'{"prompt":"x","n":100000}', b'{"prompt":"x","logit_bias":[[1]]}', b'{"prompt":"x","grammar":"root ::= ("}', b'{"prompt":null}']
    for body in bad:
        status, a = s.ask("/completion", body)
        check(status == 400 and a["error"]["type"] == "invalid_request_error" and "\n" not in a["error"]["message"], f"400: {body[:30]}")
    answers = set()
    for _ in range(150):
        damaged = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randrange(3)] = bytes(rng.choices(b'{}[]",:0e-\\\x00\x80', k=rng.randrange(3)))
        answers.add(s.ask("/completion", bytes(damaged))[0])
    check(answers <= {200, 400}, f"damaged requests, seed {seed}: {answers}")
    for messages in (None, "x", [], [1], [{}], [{"role": 1}], [{"role": "user", "content": 1}], [{"role": "user", "content": [{"type": "image_url"}]}]):
        check(s.ask("/v1/chat/completions", {"messages": messages})[0] == 400, f"400: messages {messages}")
    # a zero byte reaches the model, or is refused by the name of its member
    count = lambda text: s.ask("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": text}]})[1]["input_tokens"]
    check(count("a\0b") == count("a") + 2 == count([{"type": "text", "text": "a\0b"}]), "a zero byte in a message reaches the model")
    check(len(s.ask("/tokenize", {"content": "a\0b"})[1]["tokens"]) == len(s.ask("/tokenize", {"content": "a"})[1]["tokens"]) + 2, "a zero byte is a token")
    talk = [{"role": "user", "content": "Hi"}]
    zeros = [("stop", {"stop": "a\0b"}), ("stop[1]", {"stop": ["x", "\0"]}), ("grammar", {"grammar": 'root ::= "a\0b"'}), ("messages[0].role", {"messages": [{"role": "user\0", "content": "Hi"}]}),
             ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "f\0g"}}]}), ("json_schema.const", {"json_schema": {"const": "a\0b"}}),
             ("dry_sequence_breakers[0]", {"dry_sequence_breakers": ["a\0"]}), ("chat_template_kwargs.x", {"chat_template_kwargs": {"x": "\0"}})]
    for name, body in zeros:
        status, a = s.ask("/v1/chat/completions", {"messages": talk, "max_tokens": 1, **body})
        check(status == 400 and a["error"]["message"].startswith(name + " holds a zero byte"), f"400: a zero byte in {name}: {a}")
    status, a = s.ask("/completion", {"prompt": "word " * 40000})
    check(status == 400 and a["error"]["type"] == "exceed_context_size_error" and a["error"]["n_ctx"] > 0, "a prompt beyond the context")
    check(s.ask("/completion", b" " * (5 << 20))[0] == 413, "a body beyond the limit")
    check(s.ask("/nothing")[0] == 404 and s.ask("/completion")[0] == 405 and s.ask("/health")[0] == 200, "404, 405, 200")


def clients(s, expected):
    ask = lambda: norm(s.ask("/completion", {"prompt": PROMPT, "n_predict": 24, "ignore_eos": True})[1]["content"])
    check(at_once([ask] * 6) == [expected] * 6, "six clients get the text of one")
    for stream in (False, True):
        c = s.socket()
        body = json.dumps({"prompt": PROMPT, "n_predict": 1 << 20, "ignore_eos": True, "stream": stream})
        c.sendall(f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        until(s.busy, 60)
        c.close()
        check(until(lambda: not s.busy()), "a client that goes frees its place" + (" (stream)" if stream else ""))
    metrics = s.ask("/metrics")[1]
    check(re.search(r"^llamacpp:answers_cancelled_total 2$", metrics, re.M) and "llamacpp:requests_processing 0" in metrics, "metrics: " + " ".join(re.findall(r"^llamacpp:(?:answers|requests)\S* \S+", metrics, re.M)))


def policies(model, folder):
    """With memory for one whole answer, eight of unknown length get the text that each gets alone, whoever gives way and how."""
    ask = lambda s, i: norm(s.ask("/completion", {"prompt": f"{PROMPT} {i}", "ignore_eos": True})[1]["content"])
    with Server(serve, model, "--deterministic", "-c", "320", "--parallel", "1") as alone:
        expected = [ask(alone, i) for i in range(8)]
    preempted = {}
    for policy in ("adaptive", "recompute", "swap", "fcfs", "vtc"):
        log = folder + "/decisions"
        s = Server(serve, model, "--deterministic", "-c", "320", "--parallel", "8", "--policy", policy, "--decision-log", log)
        for _ in range(3):
            s.ask("/completion", {"prompt": PROMPT, "n_predict": 2})
        got = at_once([functools.partial(ask, s, i) for i in range(8)])
        deciding, predicting = (float(re.search(rf"^oato:{what}_seconds_total (\S+)$", s.ask("/metrics")[1], re.M)[1]) for what in ("scheduler", "predictors"))
        check(s.end() == 0 and got == expected, f"--policy {policy} changes no answer")
        with open(log) as f:
            lines = f.read()
        preempted[policy] = len(re.findall('"swap_out"|"evict"', lines))
        check(deciding > predicting and (predicting > 0 or not preempted[policy]), f"/metrics tells what deciding took: {deciding} s, {predicting} of them predicting")
        again = subprocess.run([serve, "--replay", log], capture_output=True, text=True)
        check(again.returncode == 0 and int(again.stdout.split()[0]) == lines.count("\n"), "its decisions are made again: " + again.stdout.strip())
    check(sum(preempted.values()) > 0, f"there were preemptions: {preempted}")
    with open(log, "w") as f:
        f.write(lines.replace('"run"', '"keep"', 1))
    again = subprocess.run([serve, "--replay", log], capture_output=True, text=True)
    check(again.returncode == 1 and f"{log}:1: decided otherwise" in again.stderr, "a changed one is noticed")
    check(subprocess.run([serve, "--replay", folder + "/none"], capture_output=True).returncode == 6, "status 6: no such log")


def killed(model, expected):
    """SIGKILL in the middle of answers: a server that starts at once at the same port answers as before."""
    whole = {"prompt": PROMPT, "n_predict": 24, "ignore_eos": True}
    s = Server(serve, model, "--deterministic", "-c", "65536")
    lost = [s.connect() for _ in range(4)]
    for c in lost:
        c.request("POST", "/completion", json.dumps({**whole, "n_predict": 10000}))
    check(until(lambda: s.busy() == 4), "four answers run")
    check(s.end(signal.SIGKILL) == -signal.SIGKILL, "a server is killed")
    again = Server(serve, model, "--deterministic", "-c", "65536", "--port", s.port)
    check(again.port == s.port and norm(again.ask("/completion", whole)[1]["content"]) == expected, "the next one answers at the same port")
    for c in lost:
        try:
            c.getresponse().read()
            check(False, "an answer of the killed one went on")
        except (http.client.HTTPException, OSError):
            pass
    check(again.end() == 0, "it ends")


def keys(model):
    s = Server(serve, model, "--api-key", "one,two", "-n", "3", "--max-tokens", "5")
    ask = lambda key, header="Authorization": s.ask("/tokenize", {"content": "x"}, {header: key})[0]
    check(ask("Bearer three") == 401 and ask("Bearer on") == 401 and ask("Bearer onee") == 401 and ask("") == 401, "wrong keys")
    check(ask("Bearer one") == 200 and ask("two", "X-Api-Key") == 200 and s.ask("/health")[0] == 200, "right keys")
    length = lambda more: s.ask("/completion", {"prompt": "x", "ignore_eos": True, **more}, {"X-Api-Key": "one"})[1]["tokens_predicted"]
    check([length({}), length({"n_predict": 4}), length({"n_predict": -1})] == [3, 4, 5], "how long answers are")
    check(s.end() == 0, "it ends")


def interfaces(model):
    """Several addresses, names, sites, and each answer's share of the context."""
    s = Server(serve, model, "--host", "127.0.0.1, 127.0.0.2", "--alias", "tiny,other", "--tags", "a,b", "--cors-origins", "localhost,https://one.example", "-c", "512",
               "--parallel", "4", "--no-kv-unified", "--no-ui", "--no-metrics")
    m = s.ask("/v1/models", host="127.0.0.2")[1]["data"]
    check(len(m) == 1 and m[0]["id"] == "other" and m[0]["aliases"] == ["tiny", "other"] and m[0]["tags"] == ["a", "b"], f"aliases and tags, at a second address: {m}")
    allowed = lambda origin: s.ask("/completion", headers={"Origin": origin}, method="OPTIONS").headers["Access-Control-Allow-Origin"]
    for origin in ("http://localhost", "http://localhost:8080", "http://127.0.0.1:3000", "http://[::1]", "https://one.example"):
        check(allowed(origin) == origin, f"{origin} may ask")
    for origin in ("http://evil.example", "http://localhost.evil.example", "http://notlocalhost", "https://one.example.evil", "localhost", "null"):
        check(allowed(origin) is None, f"{origin} may not")
    check(s.ask("/props")[1]["default_generation_settings"]["n_ctx"] == 128 == s.ask("/slots")[1][3]["n_ctx"], "each answer has its share of the context")
    a = s.ask("/completion", {"prompt": PROMPT, "ignore_eos": True})[1]
    check(a["truncated"] and a["tokens_evaluated"] + a["tokens_predicted"] == 129, "and no more: the last token needs no place")
    check(s.ask("/completion", {"prompt": "word " * 200})[0] == 400, "nor has a prompt")
    check(s.ask("/")[0] == 404 and s.ask("/metrics")[0] == 501, "--no-ui, --no-metrics")
    check(s.end() == 0, "it ends")


def full(model):
    """Whoever comes when all connections are taken waits for the first that closes."""
    s = Server(serve, model, "--connections", "8")
    taken = [s.connect() for _ in range(8)]
    for c in taken:
        c.request("GET", "/health")
        c.getresponse().read()
    ninth = s.socket(0.5)
    ninth.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        ninth.recv(1)
        check(False, "a ninth of eight connections was served or refused")
    except TimeoutError:
        pass
    ninth.settimeout(60)
    taken[0].close()
    check(ninth.recv(12) == b"HTTP/1.1 200", "a ninth of eight connections is served when one closes")
    check(s.end() == 0, "it ends")


def embeds(model):
    s = Server(serve, model, "--embeddings", "-c", "512")
    a = [d["embedding"] for d in s.ask("/v1/embeddings", {"input": ["one", "two", "one"]})[1]["data"]]
    check(a[0] == a[2] != a[1] and abs(sum(x * x for x in a[0]) - 1) < 1e-4, "embeddings have length 1, the same for the same text")
    check(all(s.ask("/v1/embeddings", body)[0] == 400 for body in ({"input": []}, {"input": True}, {"input": "x", "encoding_format": 1}, {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": 65})), "400: embeddings")
    check(s.ask("/v1/embeddings", {"input": "x", "dimensions": len(a[0])})[0] == 200, "the model's own width is no wish")
    check(s.end() == 0, "it ends")


def drains(model):
    process = subprocess.Popen([serve, model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.terminate()
    check(process.communicate()[1].count("\n") <= 1 and process.returncode == 0, "SIGTERM ends it while it loads, too")
    s = Server(serve, model, "-c", "65536")
    got = []
    thread = threading.Thread(target=lambda: got.append(s.ask("/completion", {"prompt": PROMPT, "n_predict": 1000, "ignore_eos": True})))
    thread.start()
    until(lambda: s.busy() or got)
    s.process.terminate()

    def refused():
        try:
            s.socket().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            return False  # it was waiting to be accepted when the port was closed
    check(until(refused), "it takes no more connections")
    again = Server(serve, model, "--port", s.port)
    check(again.port == s.port and again.end() == 0, "the next one starts at its port meanwhile")
    status = s.process.wait(60)
    thread.join()
    check(status == 0 and got[0][0] == 200 and got[0][1]["tokens_predicted"] == 1000, "SIGTERM lets an answer end")


def cut(model, *options, asks):
    """What each request gets from a server that is told to end at once: status and answer, or the events of a stream."""
    s = Server(serve, model, "-c", "65536", "--parallel", "2", "--drain", "0", *options)
    begun = threading.Barrier(len(asks) + 1)

    def one(path, body):
        c = s.connect()
        c.request("POST", path, json.dumps(body))
        begun.wait()
        r = c.getresponse()
        text = r.read().decode()
        return r.status, [data for _, data in machines.sse(text)] if body.get("stream") else json.loads(text)

    def end():
        begun.wait()
        until(lambda: sum(n > 2 or "mbeddings" in asks[0][0] for n in s.decoded()) >= min(2, len(asks)), 20)
        check(s.end() == 0, "a server with --drain 0 ends")
    return at_once([end, *(functools.partial(one, *a) for a in asks)])[1:]


def cuts(model):
    """An answer that the end of the server cuts is an error, not one that looks complete."""
    long = {"prompt": PROMPT, "ignore_eos": True, "max_tokens": 60000}
    talk = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 60000}
    for path, body in (("/completion", long), ("/v1/completions", long), ("/v1/chat/completions", talk), ("/v1/completions", {**long, "n": 2})):
        (status, events), = cut(model, "--chat-template", "chatml", asks=[(path, {**body, "stream": True})])
        last = json.loads(events[-1])
        check(status == 200 and last.get("error", {}).get("code") == 503 and len(events) > 1, f"{path}: a stream that is cut ends with an error: {events[-1]}")
        check(not any(re.search(r'"finish_reason":"|"stop":true|^.DONE', e) for e in events), f"{path}: and nothing says that it is complete")
    # two run, the third waits for them
    for status, a in cut(model, "--chat-template", "chatml", asks=[("/completion", long), ("/v1/chat/completions", talk), ("/v1/completions", long)]):
        check(status == 503 and a["error"]["type"] == "unavailable_error" and "choices" not in a, f"503: an answer that is cut: {a}")
    got = cut(model, "--embeddings", asks=[("/v1/embeddings", {"input": ["word " * 10000] * 20}), ("/embeddings", {"input": ["word " * 10000] * 20})])
    check(all(status == 503 and "error" in a for status, a in got), f"503: embeddings that are cut {[(status, str(a)[:200]) for status, a in got]}")


def ordinary(model, expected):
    with Server(serve, model, "--deterministic", "--chat-template", "chatml", "-c", "65536") as s:
        check("is ready" in s.said[1], "it says when it is ready")
        completions(s, expected)
        chats(s)
        bad_requests(s)
        clients(s, expected)


def refused(model, folder):
    for options, status in ((["--port", "x"], 2), (["--policy", "none"], 2), (["--lora", "x"], 2), (["--host", "192.0.2.1", "--port", "0"], 6),
                            (["--host", "127.0.0.1,192.0.2.1", "--port", "0"], 6), (["--host", ",", "--port", "0"], 2), (["--no-kv-unified"], 2)):
        r = subprocess.run([serve, model, *options], capture_output=True, text=True)
        check(r.returncode == status and r.stderr.count("\n") == 1, f"status {status}: {r.stderr.strip()}")
    r = subprocess.run([serve, folder + "/none.gguf", "--port", "0"], capture_output=True, text=True)
    check(r.returncode in (3, 6) and "none.gguf" in r.stderr.splitlines()[-1], f"status {r.returncode}: {r.stderr.splitlines()[-1]}")


with tempfile.TemporaryDirectory() as folder:
    model = make_model(make, folder + "/tiny.gguf", "--context", "65536")
    expected = subprocess.run([run, model, "-p", PROMPT, "-n", "24", "--ignore-eos", "--temp", "0", "--no-display-prompt", "--deterministic", "-t", "1"],
                              capture_output=True, check=True).stdout.decode(errors="replace").rstrip("\n")
    expected = norm(expected)
    side_by_side(lambda test, *given: test(model, *given), [
        (policies, folder), (ordinary, expected), (cuts,), (killed, expected), (drains,), (full,), (tools, folder), (interfaces,), (keys,), (embeds,), (refused, folder)])
sys.exit(finish())
