#!/usr/bin/env python3
"""usage: page.py [--pictures FOLDER] OATO-SERVE OATO-MAKE-MODEL
       page.py --pictures FOLDER URL
The page at / in headless Chromium, at the width of a desktop and of a phone: what people do with it works as they
expect, texts that attack it do nothing, and no request leaves the machine. The first form starts a server with a tiny
random model, and answers some chats itself (page_upstream.py). The second asks a server that runs, and only makes
pictures. Status 77: there is no Chromium; $CHROMIUM names another program."""
import json
import pathlib
import re
import sys
import tempfile
import time

from browser import Browser, is_there
from page_attacks import ATTACKS, AWAY, DRAW, HEAVY, faults
from page_upstream import CODE, Upstream
from rig import Server, make_model, side_by_side

SIZES = [("desktop", 1280, 800, False), ("phone", 390, 844, True)]
BUSY, IDLE = "document.querySelector('#send').textContent === 'Stop'", "document.querySelector('#send').textContent === 'Send'"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

# Two devices, and two kinds of requests, of which the first is the one like the chats here.
PLAN = {"planned": True, "model": "tiny", "kv": "F16", "context": 4096, "solver": "ilp", "predicted": [
    {"prompt_n": 32, "cache_n": 0, "predicted_n": 128, "at_once": 1, "prompt_per_second": 410, "predicted_per_second": 88.2, "first_token_ms": 120},
    {"prompt_n": 3000, "cache_n": 0, "predicted_n": 9, "at_once": 1, "prompt_per_second": 99, "predicted_per_second": 9, "first_token_ms": 9999}],
    "devices": [
        {"id": "cpu:0", "kind": "cpu", "model": "a processor", "memory_bytes": 3 << 28, "weight_bytes": 1 << 28, "kv_bytes": 1 << 27,
         "budget_bytes": 16 << 30, "kv_layers": 2, "streamed": 0, "first_layer": 0, "last_layer": 1,
         "operators": [{"kind": "embed", "n": 1, "prefill_ns": 9, "decode_ns": 4000}, {"kind": "mul_mat", "n": 8, "prefill_ns": 9, "decode_ns": 2500000}]},
        {"id": "cuda:0", "kind": "cuda", "model": "an accelerator", "memory_bytes": 2 << 30, "weight_bytes": 1 << 30, "kv_bytes": 1 << 29,
         "budget_bytes": 8 << 30, "kv_layers": 28, "streamed": 3, "first_layer": 2, "last_layer": 29,
         "operators": [{"kind": "mul_mat", "n": 112, "prefill_ns": 9, "decode_ns": 4500000}, {"kind": "attention", "n": 28, "prefill_ns": 9, "decode_ns": 900000}]}]}


class Page:
    """What a person does with the page, and what they see."""

    def __init__(self, browser, upstream, name, phone, pictures):
        self.b, self.up, self.name, self.phone, self.pictures = browser, upstream, name, phone, pictures

    def shot(self, what):
        if self.pictures:
            self.b.picture(self.pictures / f"{self.name}-{what}.png")

    def side(self, which, on=True):
        if bool(self.b.run(f"document.body.classList.contains('show-{which}')")) == on:
            return
        if on:
            self.b.click(f"#show-{which}")
        else:
            self.b.click(f"#{which} .close" if self.phone else f"#show-{which}")

    def tab(self, name):
        if self.phone:
            self.side("left", False)
        self.side("right")
        self.b.click(f"#tab-{name}")

    def say(self, text, end=True):
        if self.phone:
            self.side("left", False)
            self.side("right", False)
        self.b.wait(IDLE, "the last answer's end")
        self.b.click("#text")
        self.b.write(text)
        self.b.key("Enter")
        if end:
            self.done()

    def done(self):
        self.b.wait(f"{IDLE} && !document.querySelector('.message.live')", "the end of the answer", 30)

    def messages(self):
        """[role, text] of all that are shown."""
        return self.b.run("[...document.querySelectorAll('.message')].map(m => [m.classList[1], m.querySelector('.text').innerText.trim()])")

    def act(self, nth, label):
        """Clicks what one may do with a message, counted from the end."""
        message = f"[...document.querySelectorAll('.message')].at({nth})"
        self.b.run(f"{message}.querySelector('.actions').scrollIntoView({{block: 'center'}})")
        self.b.click(f"[...{message}.querySelectorAll('.actions button')].find(b => b.textContent === {json.dumps(label)})")

    def conversations(self):
        return self.b.run("[...document.querySelectorAll('#conversations .title')].map(t => t.textContent)")

    def new(self):
        self.side("left")
        self.b.click("#new")

    def set(self, name, value):
        self.b.run(f"(() => {{ const e = document.querySelector('#set-{name}'); e.value = {json.dumps(value)};"
                   " e.dispatchEvent(new Event('change')); })()")


# Each action is a function of the page whose name says what must hold; they build on each other, in this order.

def settings_show_the_servers_values(p):
    p.tab("settings")
    shown = p.b.wait("document.querySelector('#set-temperature').placeholder.length > 1 && "
                     "[...document.querySelectorAll('#settings input')].map(i => [i.value, i.placeholder])", "placeholders")
    assert all(value == "" for value, _ in shown), shown
    assert p.b.run("document.querySelector('#set-temperature').placeholder") == "0.3", shown  # --temp of the server
    assert p.b.run("document.querySelector('#set-max_tokens').placeholder") == "40", shown
    p.shot("settings")


def sends_and_shows_an_answer(p):
    p.say("Hello there")
    roles = [role for role, _ in p.messages()]
    assert roles == ["user", "assistant"], roles
    body = p.up.bodies[-1]
    assert not {"temperature", "max_tokens", "top_p", "seed"} & set(body), body  # the server's own hold
    assert re.search(r"\d+ tokens, first after \d+ ms", p.b.run("document.querySelector('.message.assistant .note').textContent"))


def streams_markdown_and_code(p):
    p.say("code please")
    p.b.wait("document.querySelector('.code .hljs-keyword')", "colours")
    assert p.b.run("[...document.querySelectorAll('.message')].at(-1).querySelectorAll('table, li strong, figure.code').length") == 3
    assert p.b.run("document.querySelector('.code figcaption span').textContent") == "python"
    p.shot("code")


def copies_code(p):
    p.b.click(".code .copy")
    p.b.wait("!document.querySelector('#toast').hidden", "the word that it is copied")
    assert p.b.run("navigator.clipboard.readText()") == re.search("```python\n(.*)\n```", CODE, re.S)[1]


def stops_an_answer(p):
    p.say("slow one", end=False)
    p.b.wait(f"{BUSY} && document.querySelector('.message.live .text').innerText.length > 20", "text that grows")
    p.b.click("#send")
    p.done()
    assert "stopped" in p.b.run("[...document.querySelectorAll('.note')].at(-1).textContent")
    deadline = time.monotonic() + 5
    while not p.up.aborted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert p.up.aborted, "the server was not told"


def deletes_a_message_and_takes_it_back(p):
    before = p.messages()
    p.act(-1, "Delete")
    assert p.messages() == before[:-1]
    p.b.click("#toast button")
    p.b.wait(f"document.querySelectorAll('.message').length === {len(before)}", "the message")
    p.act(-1, "Delete")
    p.act(-1, "Delete")
    assert p.messages() == before[:-2]


def regenerates(p):
    before = p.messages()
    p.act(-1, "Regenerate")
    p.done()
    assert [m["content"] for m in p.up.bodies[-1]["messages"]][-1] == "code please"
    assert len(p.messages()) == len(before)


def edits_a_message_and_asks_again(p):
    p.act(-2, "Edit")
    p.b.run("document.querySelector('.edit textarea').select()")
    p.b.write("say twice")
    p.b.click(".edit button[type=submit]")
    p.done()
    assert p.messages()[-2:] == [["user", "say twice"], ["assistant", "twice"]], p.messages()
    p.act(-1, "Edit")
    p.b.run("document.querySelector('.edit textarea').select()")
    p.b.write("mine")
    p.b.click(".edit button[type=submit]")
    p.say("say on")
    assert [m["content"] for m in p.up.bodies[-1]["messages"]][-2] == "mine"


def a_new_chat_leaves_a_stream_alone(p):
    p.say("slow again", end=False)
    p.b.wait(BUSY, "the stream")
    old = p.messages()
    p.new()
    assert p.messages() == [] and p.b.run(IDLE)
    p.say("say second")
    assert p.messages() == [["user", "say second"], ["assistant", "second"]], p.messages()
    assert [m["content"] for m in p.up.bodies[-1]["messages"]] == ["say second"]
    p.side("left")
    assert p.b.run("document.querySelectorAll('#conversations .dot').length") == 1  # it goes on
    p.shot("list")
    p.b.click("#conversations li:has(.dot) .title")
    p.b.wait(BUSY, "the stream again")
    assert len(p.messages()) == len(old) and len(p.messages()[-1][1]) > len(old[-1][1])
    p.b.key("Escape")
    p.done()


def switches_renames_and_deletes_conversations(p):
    p.side("left")
    assert len(p.conversations()) == 2, p.conversations()
    p.b.click("[...document.querySelectorAll('#conversations .title')].find(t => t.textContent === 'say second')")
    p.b.wait("document.querySelectorAll('.message').length === 2", "the other conversation")
    p.side("left")
    p.b.wait("document.querySelector('#conversations .ours .title').textContent === 'say second'", "the list")
    p.b.click("#conversations .ours button[title^=Rename]")
    p.b.wait("document.querySelector('#conversations .ours .title').textContent === 'Renamed'", "its new title")
    p.b.click("#conversations .ours .delete")
    p.b.wait("document.querySelectorAll('#conversations .title').length === 1", "the list")
    assert p.messages() == []
    p.b.click("#toast button")
    p.b.wait("document.querySelectorAll('.message').length === 2", "what was deleted")


def a_reload_keeps_all(p):
    p.set("temperature", "0.5")
    p.say("say kept")
    before = p.messages()
    assert p.up.bodies[-1]["temperature"] == 0.5
    p.b.open(p.up.url, *p.size)
    assert p.b.run("document.querySelector('#set-temperature').value") == "0.5"
    assert p.messages() == before
    p.side("left")
    assert sorted(p.conversations()) == ["Hello there", "Renamed"], p.conversations()
    p.tab("settings")
    p.b.click("#clear")
    p.say("say again")
    assert "temperature" not in p.up.bodies[-1]


def takes_text_files(p):
    p.new()
    with tempfile.TemporaryDirectory() as folder:
        good, bad = pathlib.Path(folder, "<img src=x onerror=hit()>.c"), pathlib.Path(folder, "binary.o")
        good.write_text("int x; /* ``` */\n")
        bad.write_bytes(b"\x7fELF\0\xff")
        p.side("left", not p.phone)
        p.b.drop("#talk", [str(good), str(bad)])
        p.b.wait("document.querySelectorAll('#files .chip').length === 1", "the file")
        assert "no text file" in p.b.wait("document.querySelector('#toast').textContent", "why the other one is refused")
    p.say("say what it does")
    sent = p.up.bodies[-1]["messages"][-1]["content"]
    assert sent.startswith("File <img src=x onerror=hit()>.c:\n````\nint x; /* ``` */\n````\n") and sent.endswith("say what it does"), sent
    assert p.b.run("document.querySelectorAll('.message.user .file').length") == 1
    assert p.b.run("document.querySelectorAll('#files .chip').length") == 0
    p.shot("file")


def shows_reasoning(p):
    p.new()
    p.say("think hard")
    assert p.b.run("[...document.querySelectorAll('.thought')].at(-1).querySelector('.plain').textContent") == "Let me see."
    assert not p.b.run("[...document.querySelectorAll('.thought')].at(-1).open")
    assert p.messages()[-1][1] == "It is 4."
    p.b.click(".thought:not([hidden]) summary")
    p.shot("reasoning")


def shows_calls_and_takes_results(p):
    p.set("tools", json.dumps(TOOLS))
    p.say("tool call")
    assert p.up.bodies[-1]["tools"] == TOOLS
    assert json.loads(p.b.run("document.querySelector('.call pre').textContent")) == {"city": "Mainz"}
    p.shot("call")
    p.b.click(".call textarea")
    p.b.write("<b>17</b> degrees")
    p.b.click(".call button[type=submit]")
    p.done()
    assert p.messages()[-1] == ["assistant", "It is 17 degrees there."], p.messages()
    assert p.up.bodies[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "<b>17</b> degrees"}
    assert p.up.bodies[-1]["messages"][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Mainz"}'}
    p.set("tools", "")


def a_message_too_long_is_no_end(p):
    p.new()
    p.say("say before")
    p.b.run("document.querySelector('#text').value = 'far too long '.repeat(1500)")
    p.b.click("#send")
    p.b.wait("document.querySelector('.message.failed')", "the fault")
    assert "Too long for the model" in p.b.run("document.querySelector('.message.failed .error').textContent")
    p.b.run("document.querySelector('.message.failed').scrollIntoView({block: 'end'})")
    p.shot("long")
    p.say("Go on")
    assert [m["content"] for m in p.up.bodies[-1]["messages"]] == ["say before", "before", "Go on"]
    assert p.b.run("document.querySelectorAll('.message.failed').length") == 1
    p.b.run("[...document.querySelectorAll('.message.failed .actions button')].find(b => b.textContent === 'Delete').click()")
    p.b.wait("!document.querySelector('.message.failed')", "its end")


def a_lost_server_is_told(p):
    p.say("cut")
    assert p.messages()[-1] == ["assistant", "This is all"], p.messages()
    assert "connection to it was lost" in p.b.run("[...document.querySelectorAll('.error')].at(-1).textContent")
    p.say("say שלום עולם")
    assert p.b.run("getComputedStyle([...document.querySelectorAll('.block')].at(-1)).direction") == "rtl"


def an_answer_in_another_tab_is_left_alone(p):
    p.new()
    p.say("say shared")
    change = """(async () => {
        const done = r => new Promise(resolve => { r.onsuccess = () => resolve(r.result); });
        const id = JSON.parse(sessionStorage.getItem("oato.current")), store = (await done(indexedDB.open("oato"))).transaction(
            "conversations", "readwrite").objectStore("conversations"), there = await done(store.get(id));
        there.messages[2] = {id: "there", role: "assistant", text: "from there", thought: "", calls: [], end: "%s"};
        await done(store.put(there));
        new BroadcastChannel("oato").postMessage(id); })()"""
    p.b.run(change % "arrives")
    p.b.wait("document.querySelectorAll('.message').length === 3", "the other tab's answer")
    assert "arriving in another tab" in p.b.run("[...document.querySelectorAll('.note')].at(-1).textContent")
    p.b.click("#text")
    p.b.write("say mine")
    p.b.key("Enter")
    p.b.wait("document.querySelector('#toast').textContent.includes('another tab')", "why nothing is sent")
    assert p.b.run("document.querySelector('#text').value") == "say mine" and len(p.messages()) == 3
    p.b.run(change % "stop")
    p.b.wait("!document.querySelector('#talk').innerText.includes('arriving')", "its end")
    p.b.key("Enter")
    p.done()
    assert p.messages()[2:] == [["assistant", "from there"], ["user", "say mine"], ["assistant", "mine"]], p.messages()


def a_full_browser_is_told(p):
    # As a disk without room ends it; DevTools' quota holds only some seconds after it is set.
    p.b.run("""window.put = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = function(...a) { const r = put.apply(this, a); this.transaction.abort(); return r; }; 0""")
    p.say("say full")
    p.b.wait("document.querySelector('#banner').textContent.includes('no room')", "the warning")
    assert p.messages()[-1] == ["assistant", "full"]
    p.shot("full")
    p.b.run("IDBObjectStore.prototype.put = put; 0")
    p.say("say there is room")
    p.b.wait("document.querySelector('#banner').hidden", "the end of the warning")


def shows_the_plan(p):
    p.tab("plan")
    p.b.wait("document.querySelector('.device h3')", "the plan")
    text = p.b.run("document.querySelector('#plan').innerText")
    assert "There is no plan" in text and "cpu:0" in text and "weights" in text and "layers 0 to 1" in text, text
    assert "54.3" in text, text  # measured in the last answer
    p.up.plan = PLAN
    p.b.open(p.up.url, *p.size)
    p.say("say measure")
    p.tab("plan")
    p.b.wait("document.querySelector('#plan').innerText.includes('321.5')", "what was measured")
    cells = p.b.run("[...document.querySelectorAll('.against tbody td')].map(c => c.textContent)")
    assert cells[:2] == ["410", "321.5"] and cells[3:5] == ["88.2", "54.3"] and cells[6] == "120 ms", cells
    text = p.b.run("document.querySelector('#plan').innerText")
    for said in ("cuda:0", "layers 2 to 29", "weights 1.0 GiB", "2.0 GiB of the 8.0 GiB", "mul mat", "4.5 ms", "3 operators streamed"):
        assert said in text, text
    p.shot("plan")
    p.up.plan = None
    p.tab("activity")
    p.b.wait("document.querySelector('#pages').textContent.includes('pages of 64 tokens')", "the map of the KV cache")
    p.shot("activity")


def several_models_are_a_choice(p):
    p.up.models = [{"id": "other", "object": "model", "status": {"value": "unloaded"}}]
    p.b.open(p.up.url, *p.size)
    assert p.b.run("[...document.querySelector('#model').options].map(o => o.textContent)")[1] == "other (unloaded)"
    p.b.run("(() => { const m = document.querySelector('#model'); m.value = 'other'; m.dispatchEvent(new Event('change')); })()")
    p.say("say model")
    assert p.up.bodies[-1]["model"] == "other"
    p.up.models = []
    p.b.open(p.up.url, *p.size)
    p.say("say model")
    assert "model" not in p.up.bodies[-1]


def keys_are_enough(p):
    if p.phone:
        p.side("left")
        assert p.b.run("document.querySelector('main').inert && document.querySelector('#left').contains(document.activeElement)")
        p.b.key("Escape")
        assert not p.b.run("document.querySelector('main').inert || document.body.classList.contains('show-left')")
        return
    p.b.run("document.querySelector('#tab-plan').focus()")
    p.side("right")
    p.b.run("document.querySelector('#tab-plan').focus()")
    p.b.key("ArrowRight")
    assert p.b.run("document.activeElement.id") == "tab-activity" and p.b.run("!document.querySelector('#activity').hidden")
    p.b.key("o", modifiers=10)  # Ctrl+Shift
    assert p.messages() == [] and p.b.run("document.activeElement.id") == "text"
    p.b.write("say first line")
    p.b.key("Enter")
    p.done()
    p.b.key("ArrowUp")
    assert p.b.run("document.activeElement.closest('.edit') !== null")
    p.b.key("Escape")
    unnamed = p.b.run("""[...document.querySelectorAll('button, input, select, textarea')].filter(e => e.checkVisibility()
        && !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.title)).map(e => e.outerHTML)""")
    assert not unnamed, unnamed


def attacks_do_nothing(p):
    p.new()
    p.b.run("window.hits = 0; window.hit = () => { window.hits++; }")
    wrong = [fault for text in ATTACKS for fault in faults(text, p.b.run(f"{DRAW}({json.dumps(text)})"))]
    assert not wrong, "\n".join(wrong)
    for text in HEAVY:  # 2 s on a quiet machine; what grows without limit takes minutes
        took = p.b.run("""(async text => {
            const {drawer} = await import(new URL("page/markdown.js", location.href)), begin = performance.now();
            drawer(document.createElement("div"))(text, true);
            return performance.now() - begin; })""" + f"({json.dumps(text)})")
        assert took < 15000, f"{text[:9]!r} takes {took} ms"
    all_at_once = "\n\n".join(ATTACKS)
    p.say("say " + all_at_once)  # as a message, an answer and a title
    p.b.run("""(async () => { // and as what a conversation that was kept has in its other places
      const store = await import(new URL("page/store.js", location.href)), chat = await import(new URL("page/chat.js", location.href));
      const text = %s, conversation = {id: "attack", title: text, changed: Date.now(), messages: [
        {id: "1", role: "user", text, files: [{name: text, text}], failed: text},
        {id: "2", role: "assistant", text, thought: text, error: text, end: "error",
         calls: [{id: "3", name: text, arguments: text}]}, {id: "4", role: "tool", callId: "3", text}]};
      await store.save(conversation);
      await chat.show("attack");
    })()""" % json.dumps(all_at_once))
    p.b.wait("document.querySelectorAll('.message').length === 3", "the conversation")
    assert p.b.run("document.querySelectorAll('#talk :is(img, script, iframe, svg, style, link, object, form[id], video)').length") == 0
    assert p.b.run("window.hits") == 0, "a text was run"
    p.shot("attacks")


ACTIONS = [settings_show_the_servers_values, sends_and_shows_an_answer, streams_markdown_and_code, copies_code, stops_an_answer,
           deletes_a_message_and_takes_it_back, regenerates, edits_a_message_and_asks_again, a_new_chat_leaves_a_stream_alone,
           switches_renames_and_deletes_conversations, a_reload_keeps_all, takes_text_files, shows_reasoning,
           shows_calls_and_takes_results, a_lost_server_is_told, an_answer_in_another_tab_is_left_alone, a_message_too_long_is_no_end,
           a_full_browser_is_told, shows_the_plan, several_models_are_a_choice, keys_are_enough, attacks_do_nothing]


def drive(upstream, name, width, height, phone, pictures):
    """All actions at one width; returns how many did not hold."""
    browser, failed = Browser(), 0
    page = Page(browser, upstream, name, phone, pictures)
    page.size = (width, height, phone)
    upstream.aborted = 0
    try:
        browser.open(upstream.url, *page.size)
        for action in ACTIONS:
            begin = time.monotonic()
            try:
                action(page)
                assert page.b.run("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
                result = "ok    "
            except (AssertionError, RuntimeError) as fault:
                result, failed = "WRONG ", failed + 1
                print(f"{fault}", file=sys.stderr)
                page.shot("wrong-" + action.__name__)
            print(f"{result} {name}: {action.__name__.replace('_', ' ')} ({time.monotonic() - begin:.1f} s)")
        outside = [url for url in browser.requests if not url.startswith((upstream.url, "data:", "blob:", "about:"))]
        allowed = ("400", "Bad Request", "ERR_INCOMPLETE_CHUNKED")  # the message that is too long, the server that is lost
        faults_told = [line for line in browser.console if not any(word in line for word in allowed)]
        if outside or any(AWAY in url for url in browser.requests):
            print("WRONG ", name, "requests that leave the machine:", outside)
            failed += 1
        if faults_told:
            print("WRONG ", name, "faults on the console:", faults_told)
            failed += 1
    finally:
        browser.close()
    return failed


def pictures_of(url, folder):
    """Of a server with a model that has something to say."""
    browser = Browser()
    page = Page(browser, None, "serve", False, folder)
    try:
        browser.open(url, 1280, 800)
        page.say("Write a short Python function that counts the words of a text.")
        page.tab("plan")
        page.shot("desktop")
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.shot("dark")
    finally:
        browser.close()
    return 0


def main():
    arguments, pictures = sys.argv[1:], None
    if arguments[0] == "--pictures":
        pictures, arguments = pathlib.Path(arguments[1]), arguments[2:]
        pictures.mkdir(parents=True, exist_ok=True)
    if not is_there():
        print("page.py: there is no Chromium here", file=sys.stderr)
        return 77
    if len(arguments) == 1:
        return pictures_of(arguments[0], pictures)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(arguments[1], f"{folder}/tiny.gguf", "--layers", "2", "--context", "512")
        server = Server(arguments[0], model, "-c", "512", "--chat-template", "chatml", "--temp", "0.3", "-n", "40")
        failed = sum(side_by_side(lambda *size: drive(Upstream(server.url), *size, pictures), SIZES))
        failed += server.end() != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
