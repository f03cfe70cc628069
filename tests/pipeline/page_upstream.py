"""What stands between the browser and oato-serve in the page's test: everything goes through to the server, but chats
whose last message begins with a word of `scripts` get an answer that is written here, so that reasoning, calls of tools
and answers that take long need no model that makes them."""
import http.server
import json
import threading
import time
import urllib.error
import urllib.request

CODE = "Here it is:\n\n```python\ndef twice(x):\n    return 2 * x  # <b>not bold</b>\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n- one\n- **two**\n"
CALL = {"id": "call_1", "type": "function"}
WEATHER = '{"city": "Mainz"}'


def words(text):
    return [{"content": piece} for piece in text.replace(" ", " \0").split("\0")]


def tool_answer(body):
    if body["messages"][-1]["role"] == "tool":
        return words(f"It is {body['messages'][-1]['content']} there.")
    return [{"tool_calls": [{"index": 0, **CALL, "function": {"name": "weather", "arguments": ""}}]},
            *({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in (WEATHER[:5], WEATHER[5:]))]


# by the first word of the last message of the person: the deltas of the answer
scripts = {
    "code": lambda body: words(CODE),
    "think": lambda body: [{"reasoning_content": "Let me "}, {"reasoning_content": "see."}, *words("It is 4.")],
    "tool": tool_answer,
    "slow": lambda body: words("word " * 2000),
    "cut": lambda body: words("This is all"),
    "say": lambda body: words(body["messages"][-1]["content"].removeprefix("say ")),
}


class Upstream(http.server.ThreadingHTTPServer):
    """`bodies` are the chats that were asked, `aborted` how many of their clients went, `models` what /v1/models lists
    besides the server's own, `plan` what /plan answers in place of it."""
    daemon_threads = True

    def __init__(self, server):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.bodies, self.aborted, self.models, self.plan = server, [], 0, [], None
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a browser that goes


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def forward(self, data=None):
        request = urllib.request.Request(self.server.target + self.path, data=data, method=self.command, headers={
            k: v for k, v in self.headers.items() if k.lower() in ("content-type", "if-none-match", "authorization")})
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        stream = "event-stream" in answer.headers.get("Content-Type", "")
        body = None if stream else answer.read()
        if self.path == "/plan" and self.server.plan:
            body = json.dumps(self.server.plan).encode()
        if self.path == "/v1/models" and self.server.models:
            listed = json.loads(body)
            listed["data"] += self.server.models
            body = json.dumps(listed).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("date", "server", "content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if not stream:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return self.wfile.write(body)
        self.begin_stream(headers=False)
        while piece := answer.read1(1 << 16):
            self.chunk(piece)
        self.chunk(b"")

    def begin_stream(self, headers=True):
        if headers:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def do_GET(self):
        self.forward()

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(data)
        if self.path != "/v1/chat/completions":
            return self.forward(data)
        self.server.bodies.append(body)
        asked = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
        script = scripts.get((asked.split("\n")[-1] if asked.startswith("File ") else asked).split()[0])
        if not script:
            return self.forward(data)
        self.begin_stream()
        try:
            deltas = script(body)
            for delta in ({"role": "assistant", "content": None}, *deltas):
                self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                if asked.startswith("slow"):
                    time.sleep(0.02)
            if asked.startswith("cut"):  # as a server that is killed
                time.sleep(0.1)  # a browser drops what it has not handed on yet
                self.close_connection = True
                return
            calls = any("tool_calls" in d for d in deltas)
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
            self.event({"choices": [], "usage": {"completion_tokens": len(deltas)}, "timings": {
                "cache_n": 0, "prompt_n": 20, "prompt_per_second": 321.5, "predicted_n": len(deltas), "predicted_per_second": 54.3}})
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")
        except OSError:
            self.server.aborted += 1

    def event(self, event):
        self.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
