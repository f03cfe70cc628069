#!/usr/bin/env python3
"""usage: page.py URL [SCREENSHOT.png] | page.py --start OATO-SERVE MODEL.gguf
Opens the page at / in headless Chromium, asks a question as a person does, and checks that the
answer, its speed, the KV map and the request appear. Chromium is driven through its debugging pipe
(file descriptors 3 and 4, messages of JSON ended by a zero byte). Status 77: there is no Chromium,
or no model. $CHROMIUM names another program."""
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time


class Browser:
    def __init__(self, program):
        ours, theirs = os.pipe(), os.pipe()  # what we write it reads from 3; what it writes to 4 we read
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        moved = [os.dup(fd) for fd in (ours[0], theirs[1])]

        def set_up():
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,760",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=set_up, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (*moved, ours[0], theirs[1]):
            os.close(fd)
        self.to, self.answers = ours[1], os.fdopen(theirs[0], "rb")
        self.held, self.n, self.session = b"", 0, None
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                self.held += self.answers.read1(1 << 16)
            one, self.held = self.held.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self.n:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, script, seconds, what):
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                raise SystemExit(f"page.py: {what} did not appear within {seconds} s; the page says: "
                                 + repr(self.run("document.body.innerText")))
            time.sleep(0.1)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def look(url, picture):
    browser = Browser(os.environ.get("CHROMIUM", "chromium"))
    try:
        browser.call("Page.enable")
        browser.call("Page.navigate", url=url)
        browser.wait("document.readyState === 'complete' && $('model').textContent.length > 1", 20, "the model's name")
        # a second request beside the chat, so that the map has two
        browser.run("fetch('v1/completions', {method: 'POST', headers: {'Content-Type': 'application/json'}, body:"
                    " JSON.stringify({prompt: 'One day', max_tokens: 400, ignore_eos: true, stream: true})}); 0")
        browser.run("$('most').value = 400; $('text').value = 'Explain what a cache is, and give an example in C.';"
                    "$('send').click()")
        browser.wait("document.querySelector('.turn.assistant span') !== null", 20, "the answer")
        browser.wait("document.querySelectorAll('#slots tr').length >= 1 && document.querySelectorAll('#map i').length >= 1"
                     " && Number($('decode').textContent) > 0", 20, "speed, map and request")
        if picture:
            time.sleep(1.2)
            data = browser.call("Page.captureScreenshot")["data"]
            with open(picture, "wb") as f:
                f.write(base64.b64decode(data))
        browser.wait("document.body.dataset.done === 'yes'", 60, "the end of the answer")
        note = browser.run("document.querySelector('.turn.assistant small').textContent")
        if "tokens/s" not in note or browser.run("document.querySelector('.turn.error') !== null"):
            raise SystemExit(f"page.py: the answer ended with '{note}'")
        print(f"page.py: {note}")
    finally:
        browser.close()


def main():
    if not shutil.which(os.environ.get("CHROMIUM", "chromium")):
        print("page.py: there is no Chromium here", file=sys.stderr)
        return 77
    if sys.argv[1] != "--start":
        return look(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    if not os.path.exists(sys.argv[3]):
        print(f"page.py: {sys.argv[3]} is missing; scripts/fetch-model fetches it", file=sys.stderr)
        return 77
    server = subprocess.Popen([sys.argv[2], sys.argv[3], "--port", "0", "-c", "2048"],
                              stderr=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[0-9.:]+", server.stderr.readline()).group(0) + "/"
        server.stderr.readline()  # the model is ready
        return look(url, None)
    finally:
        server.terminate()
        server.wait()


sys.exit(main())
