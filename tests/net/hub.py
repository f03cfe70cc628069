"""A hub for tests: a server that speaks the part of Hugging Face's interface that pulls use, by HTTPS with a certificate of
its own, and a second one, at another port, to which files are redirected. Both do wrong what a test asks for.
"""
import hashlib
import http.server
import json
import re
import ssl
import subprocess
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def certificate(folder):
    """A self-signed one of localhost; its path and that of the key."""
    cert, key = folder + "/cert.pem", folder + "/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout", key, "-out",
                    cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, stderr=subprocess.DEVNULL)
    return cert, key


class Hub:
    """repos: {"owner/repo": {path: bytes}}. Every answer is decided by attributes, which tests set."""

    def __init__(self, folder):
        self.repos = {}
        self.reset()
        self.cert, key = certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, key)
        self.servers = []
        for role in ("hub", "cdn"):
            server = Server(("127.0.0.1", 0), Handler)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            server.hub, server.role = self, role
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self.servers.append(server)
        self.url, self.cdn = (f"https://localhost:{s.server_port}" for s in self.servers)

    def reset(self):
        self.requests = []       # (role, path, {header: value})
        self.served = 0          # bytes of files
        self.token = None        # that the hub wants
        self.status = {}         # {path prefix: [(status, headers)...]}: the first answers
        self.sums = {}           # {path: sum} that the list tells in place of the real one
        self.plain = set()       # files that the list shows as git has them, not as large ones
        self.linked = None       # X-Linked-Etag, if not that sum
        self.extra = []          # members that the list has, too
        self.ranges = True
        self.cut = lambda: None  # after how many bytes an answer is cut; None: never
        self.pause = 0           # seconds after each block
        self.link = 0            # number of the CDN's links that are valid
        self.running = self.most_running = 0
        self.on_bytes = lambda served: None
        self.page = 1000         # files of a page of the list

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def asked(self, role):
        return [r for r in self.requests if r[0] == role]


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that go away


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *args):
        pass

    def answer(self, status, headers={}, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub, path = self.server.hub, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append((self.server.role, self.path, dict(self.headers)))
        for prefix, answers in hub.status.items():
            if path.startswith(prefix) and answers:
                status, headers = answers.pop(0) if len(answers) < 100 else answers[0]
                return self.answer(status, headers)
        if self.server.role == "cdn":
            return self.give(path)
        if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
            return self.answer(401)
        api = re.fullmatch("/api/models/([^/]+/[^/]+)/tree/[^/]+", path)
        file = re.fullmatch("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api and api[1] in hub.repos:
            return self.list(api[1])
        if file and hub.repos.get(file[1], {}).get(file[3]) is not None:
            data = hub.repos[file[1]][file[3]]
            headers = {"Location": f"{hub.cdn}/{file[1]}/{urllib.parse.quote(file[3])}?link={hub.link}", "X-Repo-Commit": COMMIT}
            if file[3] not in hub.plain or not hub.sums.get(file[3], "x"):
                linked = hub.linked if hub.linked is not None else hub.sums.get(file[3], hashlib.sha256(data).hexdigest())
                headers.update({"X-Linked-Size": len(data), "X-Linked-Etag": f'"{linked}"'})
            return self.answer(302, headers)
        self.answer(404)

    def list(self, repo):
        hub = self.server.hub
        members = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for path, data in sorted(hub.repos[repo].items()):
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            members.append({"type": "file", "path": path, "size": len(data), "oid": hub.sums.get(path, blob)})
            if path not in hub.plain:
                sum = hub.sums.get(path, hashlib.sha256(data).hexdigest())
                members[-1].update({"oid": "1" * 40, "lfs": {"oid": sum, "size": len(data), "pointerSize": 134}})
        members += hub.extra
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        begin = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}
        if begin + hub.page < len(members):
            headers["Link"] = f'<{hub.url}/api/models/{repo}/tree/main?recursive=true&cursor={begin + hub.page}>; rel="next"'
        self.answer(200, headers, json.dumps(members[begin:begin + hub.page]).encode())

    def give(self, path):
        hub = self.server.hub
        owner, repo, file = path[1:].split("/", 2)
        data = hub.repos[f"{owner}/{repo}"][file]
        if f"link={hub.link}" not in self.path:
            return self.answer(403)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, len(data) - 1
        if asked and hub.ranges:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        self.send_response(206 if asked and hub.ranges else 200)
        if asked and hub.ranges:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"' + hashlib.md5(data).hexdigest() + '"')
        self.end_headers()
        cut = hub.cut() if last > first else None
        hub.running += 1
        hub.most_running = max(hub.most_running, hub.running)
        try:
            for at in range(first, last + 1, 1 << 16):
                block = data[at:min(at + (1 << 16), last + 1)]
                if cut is not None and at - first + len(block) > cut:
                    self.wfile.write(block[:cut - (at - first)])
                    self.close_connection = True
                    self.connection.close()
                    return
                self.wfile.write(block)
                hub.served += len(block)
                hub.on_bytes(hub.served)
                if hub.pause:
                    time.sleep(hub.pause)
        finally:
            hub.running -= 1
