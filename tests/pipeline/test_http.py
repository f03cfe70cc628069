#!/usr/bin/env python3
"""usage: test_http.py OATO_SERVE OATO_MAKE_MODEL

HTTP by raw sockets: each request has one meaning or is refused. What is refused gets one answer, in JSON, and its connection is closed,
be it the first request of a connection or a later one; what stands behind it is no request. Clients that send slowly, send no more, or are
gone are told apart.
"""
import concurrent.futures
import functools
import json
import re
import socket
import struct
import sys
import tempfile
import time

from rig import Server, at_once, check, finish, make_model, until

serve, maker = sys.argv[1:3]
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n"
BODY = b'{"content":"a"}'
CLOSE = b"Connection: close\r\n"
SMUGGLED = GET + b"\r\n"



def read_all(s):
    """What comes until the server closes; None at the end: it does not."""
    out = b""
    try:
        while data := s.recv(65536):
            out += data
    except TimeoutError:
        return out + b"NOT CLOSED"
    except ConnectionError:
        return out + b"RESET"
    return out


def answers(data):
    """The (status, headers, body) of each answer."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        if not re.fullmatch(rb"HTTP/1\.1 \d{3} .+", lines[0]):
            return found + [(0, {}, head)]
        headers = {n.lower().decode(): v.strip().decode() for n, _, v in (line.partition(b":") for line in lines[1:])}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while not data.startswith(b"0\r\n"):
                size, _, data = data.partition(b"\r\n")
                body, data = body + data[:int(size, 16)], data[int(size, 16) + 2:]
            data = data[5:]
        else:
            n = int(headers.get("content-length", 0))
            body, data = data[:n], data[n:]
        found.append((int(lines[0].split()[1]), headers, body))
    return found


def send(s, data, pieces):
    """In as many pieces."""
    size = max(1, (len(data) + pieces - 1) // pieces)
    for i in range(0, len(data), size):
        s.sendall(data[i:i + size])
        if pieces > 1:
            time.sleep(0.002)


def ask(server, data, pieces=1):
    s = server.socket()
    try:
        send(s, data, pieces)
    except ConnectionError:
        pass  # it has been refused meanwhile
    out = answers(read_all(s))
    s.close()
    return out


def head(*fields, line=b"GET /health HTTP/1.1", host=True):
    return b"\r\n".join([line] + [b"Host: x"] * host + list(fields)) + b"\r\n\r\n"


def post(*fields, body=BODY, host=True):
    return head(*fields, line=b"POST /tokenize HTTP/1.1", host=host) + body


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"5;x=\"y\"\r\n" + BODY[:5] + b"\r\n0a\r\n" + BODY[5:] + b"\r\n0\r\n"

# status, name, request: whatever follows them is no request
REFUSED = [
    (400, "two equal lengths", post(LENGTH, LENGTH)),
    (400, "two lengths", post(b"Content-Length: 0", LENGTH)),
    (400, "two lengths in one line", post(b"Content-Length: 15, 15")),
    (400, "length and chunks", post(LENGTH, CHUNKED, body=CHUNKS + b"\r\n")),
    (400, "chunks and length", post(CHUNKED, LENGTH, body=CHUNKS + b"\r\n")),
    (400, "chunks in HTTP/1.0", head(CHUNKED, line=b"POST /tokenize HTTP/1.0") + CHUNKS + b"\r\n"),
    (400, "chunked twice", post(CHUNKED, CHUNKED, body=CHUNKS + b"\r\n")),
    (400, "chunked, chunked", post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS + b"\r\n")),
    (501, "gzip, chunked", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS + b"\r\n")),
    (501, "gzip", post(b"Transfer-Encoding: gzip")),
    (501, "xchunked", post(b"Transfer-Encoding: xchunked", body=CHUNKS + b"\r\n")),
    (400, "a blank before the colon", post(b"Content-Length : 15")),
    (400, "a tab before the colon", post(b"Content-Length\t: 15")),
    (400, "a blank before the name", post(b" Content-Length: 15")),
    (400, "a folded line", head(b"X: a", b" b")),
    (400, "a line folded by a tab", head(b"X: a", b"\tb")),
    (400, "no name", head(b": a")),
    (400, "no colon", head(b"X")),
    (400, "a name in quotes", head(b'"X": a')),
    (400, "a zero byte in a value", head(b"X: a\0b")),
    (400, "a zero byte in a name", head(b"X\0: a")),
    (400, "a zero byte in a length", post(b"Content-Length: 15\0")),
    (400, "a bell in a value", head(b"X: a\ab")),
    (400, "DEL in a value", head(b"X: a\x7fb")),
    (400, "a CR in a value", head(b"X: a\rb")),
    (400, "a line of LF alone", GET + b"X: a\n\r\n"),
    (400, "an empty line of LF alone", GET + b"\n"),
    (400, "a name beyond ASCII", head("Ü: a".encode())),
    (400, "no Host", head(host=False)),
    (400, "two Hosts", head(b"Host: x")),
    (400, "another Host", head(b"Host: y")),
    (400, "a Host with a blank", head(b"Host: x y", host=False)),
    (400, "a Host with a path", head(b"Host: x/y", host=False)),
    (400, "a Host with a comma", head(b"Host: x,y", host=False)),
    (400, "a negative length", post(b"Content-Length: -15")),
    (400, "a length with a plus", post(b"Content-Length: +15")),
    (400, "a hexadecimal length", post(b"Content-Length: 0xf")),
    (400, "an empty length", post(b"Content-Length:")),
    (400, "a length with a point", post(b"Content-Length: 15.0")),
    (400, "a length with a blank", post(b"Content-Length: 1 5")),
    (400, "a length of words", post(b"Content-Length: many")),
    (413, "a length of 30 digits", post(b"Content-Length: " + b"9" * 30)),
    (413, "a length of 2^64", post(b"Content-Length: 18446744073709551616")),
    (413, "a length of 100 MB", post(b"Content-Length: 100000000")),
    (400, "a chunk without a size", post(CHUNKED, body=b"\r\n" + BODY)),
    (400, "a chunk of words", post(CHUNKED, body=b"xyz\r\n" + BODY)),
    (400, "a negative chunk", post(CHUNKED, body=b"-5\r\n" + BODY)),
    (400, "a chunk with 0x", post(CHUNKED, body=b"0xf\r\n" + BODY + b"\r\n0\r\n\r\n")),
    (400, "a blank before a chunk's size", post(CHUNKED, body=b" f\r\n" + BODY + b"\r\n0\r\n\r\n")),
    (400, "a blank behind a chunk's size", post(CHUNKED, body=b"f \r\n" + BODY + b"\r\n0\r\n\r\n")),
    (413, "a chunk of 17 digits", post(CHUNKED, body=b"1000000000000000f\r\n" + BODY)),
    (413, "a chunk of 100 MB", post(CHUNKED, body=b"6000000\r\n" + BODY)),
    (400, "a chunk's size ended by LF alone", post(CHUNKED, body=b"f\n" + BODY + b"\r\n0\r\n\r\n")),
    (400, "a chunk longer than it says", post(CHUNKED, body=b"e\r\n" + BODY + b"\r\n0\r\n\r\n")),
    (400, "a chunk ended by LF alone", post(CHUNKED, body=b"f\r\n" + BODY + b"\n0\r\n\r\n")),
    (400, "a zero byte in a chunk's extension", post(CHUNKED, body=b"f;\0\r\n" + BODY + b"\r\n0\r\n\r\n")),
    (400, "a folded trailer", post(CHUNKED, body=CHUNKS + b"X: a\r\n b\r\n\r\n")),
    (400, "a trailer without a colon", post(CHUNKED, body=CHUNKS + b"X\r\n\r\n")),
    (400, "two blanks in the first line", head(line=b"GET  /health HTTP/1.1")),
    (400, "a tab in the first line", head(line=b"GET\t/health HTTP/1.1")),
    (400, "a blank before the first line", head(line=b" GET /health HTTP/1.1")),
    (400, "a blank behind the first line", head(line=b"GET /health HTTP/1.1 ")),
    (400, "a blank in the target", head(line=b"GET /hea lth HTTP/1.1")),
    (400, "no version", head(line=b"GET /health")),
    (400, "no target", head(line=b"GET HTTP/1.1")),
    (400, "only a method", head(line=b"GET")),
    (400, "a small version", head(line=b"GET /health http/1.1")),
    (400, "another protocol", head(line=b"GET /health SIP/1.1")),
    (400, "a version of two digits", head(line=b"GET /health HTTP/1.10")),
    (505, "HTTP/2.0", head(line=b"PRI * HTTP/2.0")),
    (505, "HTTP/0.9", head(line=b"GET /health HTTP/0.9")),
    (400, "a method with a colon", head(line=b"GE:T /health HTTP/1.1")),
    (400, "a method of 40 letters", head(line=b"G" * 40 + b" /health HTTP/1.1")),
    (400, "a zero byte in the target", head(line=b"GET /health\0 HTTP/1.1")),
    (400, "an escaped zero byte in the target", head(line=b"GET /health%00x HTTP/1.1")),
    (400, "a target beyond ASCII", head(line="GET /hëalth HTTP/1.1".encode())),
    (400, "a fragment in the target", head(line=b"GET /health#x HTTP/1.1")),
    (400, "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n" * 2),
    (400, "another protocol's bytes", b"\0\1\2\3\r\n\r\n"),
    (400, "empty lines only", b"\r\n" * 40),
    (414, "a target of 9000 bytes", head(line=b"GET /" + b"a" * 9000 + b" HTTP/1.1")),
    (414, "a target of 200 parameters", head(line=b"GET /health?" + b"a&" * 200 + b" HTTP/1.1")),
    (431, "a header of 20000 bytes", head(b"X: " + b"a" * 20000)),
    (431, "a name of 20000 bytes", head(b"X" * 20000 + b": a")),
    (431, "200 headers", head(*[b"X: a"] * 200)),
    (431, "a trailer of 20000 bytes", post(CHUNKED, body=CHUNKS + b"X: " + b"a" * 20000 + b"\r\n\r\n")),
]

# status, name, request (which closes its connection)
TAKEN = [
    (200, "a plain request", head(CLOSE[:-2])),
    (200, "a body", post(LENGTH, CLOSE[:-2])),
    (200, "a body in chunks, with extensions", post(CHUNKED, CLOSE[:-2], body=CHUNKS + b"\r\n")),
    (200, "a body in chunks, with trailers", post(CHUNKED, CLOSE[:-2], body=CHUNKS + b"X: a\r\nY: b\r\n\r\n")),
    (200, "a chunk's size with zeros and capitals",
     post(b"TRANSFER-ENCODING:\tCHUNKED  ", CLOSE[:-2], body=b"00000F\r\n" + BODY + b"\r\n000\r\n\r\n")),
    (200, "a length with zeros and blanks", post(b"content-length:   0015 \t", CLOSE[:-2])),
    (200, "no blank behind the colon", post(b"Content-Length:15", CLOSE[:-2])),
    (200, "an empty value and one beyond ASCII", head(b"X:", "Y: ü\ta".encode(), CLOSE[:-2])),
    (200, "a Host with a port", head(b"Host: [::1]:8080", CLOSE[:-2], host=False)),
    (200, "an empty Host", head(b"Host:", CLOSE[:-2], host=False)),
    (200, "an empty line before the request", b"\r\n\r\n" + head(CLOSE[:-2])),
    (200, "HTTP/1.0 without a Host", head(line=b"GET /health HTTP/1.0", host=False)),
    (200, "parameters", head(CLOSE[:-2], line=b"GET /health?a=b&c HTTP/1.1")),
    (200, "the address of a proxy's client", head(CLOSE[:-2], line=b"GET http://x:80/health HTTP/1.1")),
    (404, "that of another", head(CLOSE[:-2], line=b"GET http://x HTTP/1.1").replace(b"//x", b"//x/none")),
    (200, "HEAD", head(CLOSE[:-2], line=b"HEAD /health HTTP/1.1")),
    (200, "OPTIONS *", head(CLOSE[:-2], line=b"OPTIONS * HTTP/1.1")),
    (200, "99 headers", head(*[b"X: a"] * 97, CLOSE[:-2])),
    (200, "headers of 15 KB", head(b"X: " + b"a" * 15000, CLOSE[:-2])),
    (200, "many headers of 15 KB", head(*[b"X: " + b"a" * 150] * 95, CLOSE[:-2])),
    (200, "cookies of 15 KB", head(b"Cookie: " + b"a=b; " * 3000, CLOSE[:-2])),
    (200, "all that is allowed", post(LENGTH, *[b"X: " + b"a" * 160] * 95, CLOSE[:-2])),
    (404, "a target of 8000 bytes", head(CLOSE[:-2], line=b"GET /" + b"a" * 8000 + b" HTTP/1.1")),
    (200, "90 parameters", head(CLOSE[:-2], line=b"GET /health?" + b"a=1&" * 90 + b" HTTP/1.1")),
    (404, "an address that is none", head(CLOSE[:-2], line=b"GET /none HTTP/1.1")),
    (404, "an escape that is none", head(CLOSE[:-2], line=b"GET /health%zz HTTP/1.1")),
    (404, "no address", head(CLOSE[:-2], line=b"GET * HTTP/1.1")),
    (405, "a method that it lacks", head(CLOSE[:-2], line=b"DELETE /health HTTP/1.1")),
    (405, "a method that nobody knows", head(CLOSE[:-2], line=b"get /health HTTP/1.1")),
    (400, "a body that is no JSON", post(b"Content-Length: 1", CLOSE[:-2], body=b"{")),
    (413, "a body of 5 MB", post(b"Content-Length: 5000000", CLOSE[:-2], body=b" " * 5000000)),
]


def is_json(answer):
    status, headers, body = answer
    return headers.get("content-type") == "application/json; charset=utf-8" and (status < 400 or json.loads(body)["error"]["code"] == status)


def refusals(s):
    before = post(LENGTH)

    def is_refused(row):
        status, name, data = row
        for how, got in (("", ask(s, data + SMUGGLED)), ("in pieces", ask(s, data + SMUGGLED, 12)),
                         ("behind another", ask(s, before + data + SMUGGLED)[1:])):
            check(len(got) == 1 and got[0][0] == status and is_json(got[0]) and got[0][1]["connection"] == "close",
                  f"{name} {how}: {status} wanted, not", got)

    def is_taken(row):
        status, name, data = row
        for how, got in (("", ask(s, data + SMUGGLED)), ("in pieces", ask(s, data, 12)), ("behind another", ask(s, before + data)[1:])):
            check(len(got) == 1 and got[0][0] == status, f"{name} {how}: {status} wanted, not", got)
            check(not got or "HEAD" in name or "OPTIONS" in name or is_json(got[0]), f"{name}: in JSON", got)
    # most of the time goes by in waiting between pieces
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(is_refused, REFUSED)), list(pool.map(is_taken, TAKEN))
    got = ask(s, before * 20 + post(LENGTH, CLOSE[:-2]))
    check([a[0] for a in got] == [200] * 21, "21 requests at once", got)


def methods(s):
    for path, allowed, words in (("/health", "GET, HEAD, OPTIONS", "wants GET, not"), ("/tokenize", "POST, OPTIONS", "wants POST, not")):
        for method in ("PUT", "PATCH", "TRACE", "CONNECT", "BREW", "DELETE", "POST" if "GET" in allowed else "GET"):
            status, headers, body = ask(s, head(CLOSE[:-2], line=f"{method} {path} HTTP/1.1".encode()))[0]
            check(status == 405 and headers.get("allow") == allowed and f"{words} {method}" in json.loads(body)["error"]["message"],
                  f"{method} {path}", status, headers, body)


def preflights(s):
    origin = (b"Origin: http://a.example", b"Access-Control-Request-Method: POST", CLOSE[:-2])
    asked = b"authorization,content-type,x-stainless-os"
    status, headers, _ = ask(s, head(*origin, b"Access-Control-Request-Headers: " + asked, line=b"OPTIONS /v1/chat/completions HTTP/1.1"))[0]
    check(status == 200 and headers["access-control-allow-headers"] == asked.decode() and
          headers["access-control-allow-origin"] == "http://a.example" and int(headers["access-control-max-age"]) > 0 and
          "POST" in headers["access-control-allow-methods"], "a preflight has the headers that were asked for", headers)
    check("Access-Control-Request-Headers" in headers["vary"], "and says that it depends on them", headers)
    headers = ask(s, head(*origin, line=b"OPTIONS /v1/chat/completions HTTP/1.1"))[0][1]
    check("Authorization" in headers["access-control-allow-headers"], "one that asks for none has Authorization by name", headers)


def completion(n, more=b""):
    body = json.dumps({"prompt": "A", "n_predict": n, "ignore_eos": True}).encode()
    return head(b"Content-Length: %d" % len(body), *([more] if more else []), line=b"POST /completion HTTP/1.1") + body



def halves(s):
    """Clients that send no more, and clients that are gone."""
    for data in (completion(4), completion(300), head(line=b"GET /health HTTP/1.1"), completion(4).replace(b"HTTP/1.1", b"HTTP/1.0")):
        c = s.socket()
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        got = [a for a in answers(read_all(c)) if a[0] != 100]
        check(len(got) == 1 and got[0][0] == 200, "a client that sends no more gets its answer", got)
        c.close()
    many = [s.socket() for _ in range(40)]  # whose ends arrive at any moment of the work on the request
    for c in many:
        c.sendall(completion(2))
        c.shutdown(socket.SHUT_WR)
    got = [[a[0] for a in answers(read_all(c)) if a[0] != 100] for c in many]
    check(got == [[200]] * len(many), "and so do many of them at a time", got)
    for c in many:
        c.close()
    for linger in (b"", struct.pack("ii", 1, 0)):  # by FIN, by RST
        c = s.socket()
        c.sendall(completion(100000))
        check(until(lambda: s.busy() == 1), "an answer is computed")
        if linger:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        c.close()
        check(until(lambda: not s.busy()), "a client that is gone frees its place", linger)


def drips(s, name, data, begin):
    """Sends what stands behind the beginning byte by byte, every tenth of a second."""
    c, before, closed = s.socket(), time.monotonic(), False
    c.settimeout(0.1)
    c.sendall(data[:begin])
    for i in range(begin, begin + 80):
        try:
            c.sendall(data[i:i + 1])
            if "refused" in name:  # its answer is read by nobody
                time.sleep(0.1)
            elif not c.recv(65536):
                closed = True
        except TimeoutError:
            pass
        except ConnectionError:
            closed = True
        if closed:
            break
    took = time.monotonic() - before
    check(closed and took < 6, f"{name} that drips is closed, after {took:.1f} s")
    c.close()


def slow(s):
    """With --idle 1: who sends nothing, or a byte now and then, is closed; one that vanished, too."""
    parts = [("a head", GET + b"X: " + b"x" * 99, 0), ("a body", post(b"Content-Length: 999", body=b" " * 99), len(POST) + 23),
             ("a chunk's size", post(CHUNKED, body=b"0" * 99), len(post(CHUNKED, body=b""))),
             ("empty lines", b"\r\n" * 50, 0), ("what was refused", b"x y z\r\n" + b"x" * 99, 7)]
    at_once([functools.partial(drips, s, *p) for p in parts])
    c = s.socket()
    c.sendall(completion(1000000))
    check(until(lambda: s.busy() == 1), "an answer is computed")
    TCP_REPAIR = 19
    try:
        c.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        c.close()  # nothing is sent: as if its machine had lost power
        check(until(lambda: not s.busy()), "a client that vanished frees its place")
    except PermissionError:
        c.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(maker, f"{folder}/tiny.gguf", "--layers", "2", "--context", "200000")
        with Server(serve, model, "-c", "100000") as s, Server(serve, model, "--idle", "1", "-c", "100000") as impatient:
            def others():
                for test in refusals, methods, preflights, halves:
                    test(s)
            at_once([others, lambda: slow(impatient)])
    sys.exit(finish())


main()
