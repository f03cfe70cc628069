"""Headless Chromium, driven through its debugging pipe (DevTools protocol on file descriptors 3 and 4, messages of JSON
ended by a zero byte)."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = os.environ.get("CHROMIUM", "chromium")


def is_there():
    return shutil.which(PROGRAM) is not None


class Browser:
    """One page. `requests` are the addresses of all requests that it made, `dialogs` the texts of its dialogs, `console`
    what went wrong in its scripts."""

    def __init__(self):
        ours, theirs = os.pipe(), os.pipe()  # what we write it reads from 3; what it writes to 4 we read
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        moved = [os.dup(fd) for fd in (ours[0], theirs[1])]

        def set_up():
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=set_up, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (*moved, ours[0], theirs[1]):
            os.close(fd)
        self.to, self.answers = ours[1], theirs[0]
        self.held, self.n, self.session = b"", 0, None
        self.requests, self.dialogs, self.console = [], [], []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def send(self, method, params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        return self.n

    def event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            self.send("Page.handleJavaScriptDialog", {"accept": True, "promptText": "Renamed"})
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def call(self, method, **params):
        wanted, end = self.send(method, params), time.monotonic() + 20
        while True:
            while b"\0" not in self.held:
                if not select.select([self.answers], [], [], max(0, end - time.monotonic()))[0]:
                    raise RuntimeError(f"{method}: no answer")
                piece = os.read(self.answers, 1 << 16)
                if not piece:
                    raise RuntimeError(f"{method}: Chromium has ended")
                self.held += piece
            one, self.held = self.held.split(b"\0", 1)
            answer = json.loads(one)
            if "method" in answer:
                self.event(answer["method"], answer["params"])
            elif answer.get("id") == wanted:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script):
        """The value of an expression, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, what, seconds=10):
        end = time.monotonic() + seconds
        while True:
            value = self.run(f"(async () => {{ const v = await ({script}); return v instanceof Node ? true : v; }})()")
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"{what}: did not come within {seconds} s; the page says "
                                     f"{self.run('document.body.innerText.slice(-600)')!r}; errors: {self.console}")
            time.sleep(0.02)

    def open(self, url, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.body.dataset.ready === 'yes'", "the page")

    def key(self, key, **more):
        """A key that is pressed and released: Enter, Escape, a letter."""
        code = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowRight": 39, "Tab": 9}.get(key, ord(key[0].upper()))
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, **more)

    def write(self, text):
        """As a person types into what has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector):
        """With the mouse, in the middle of the element: it must be there and in sight."""
        at = self.wait(f"""(() => {{ const e = {selector if selector.startswith('[...') else f'document.querySelector({json.dumps(selector)})'};
            if (!e) return null; e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();
            const x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y);
            return r.width && (e.contains(top) || top?.contains(e)) ? [x, y] : null; }})()""", f"{selector} to click")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def drop(self, selector, files):
        """Drags files (their paths) from outside onto an element."""
        x, y = self.run(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                        " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        data = {"items": [], "files": files, "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()
