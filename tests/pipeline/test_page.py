#!/usr/bin/env python3
"""usage: test_page.py FOLDER   (has oato-serve, oato-make-model, oato-profile, oato-plan)

What the page at / is made of, without a browser: its files with their types, policy and hashes, that all it names is there
and nothing of it elsewhere, and /plan with and without a plan. page.py drives it in Chromium."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import rig
from rig import at_once, check, finish, make_model

BIN = pathlib.Path(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent / "server/page"


class Server(rig.Server):
    def get(self, path, method="GET", headers={}):
        a = self.ask(path, headers=headers, method=method)
        return a[0], a.headers, a.data


KEY = {"Authorization": "Bearer secret"}


def files(s):
    status, headers, page = s.get("/")
    check(status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", "the page is there, also without a key")
    policy = headers["Content-Security-Policy"]
    check("default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy,
          "its policy allows no inline script")
    check(headers["X-DNS-Prefetch-Control"] == "off" and headers["Referrer-Policy"] == "no-referrer", "links tell nobody anything")
    check(not re.search(rb"<script(?![^>]*\bsrc=)|<style|\son[a-z]+=|\sstyle=", page), "nothing of it is inline")
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', page.decode()))
    scripts = sorted(ROOT.glob("*.js"))
    for script in scripts:
        text = script.read_text()
        named |= set(re.findall(r'(?:from|import) "\./([^"]+)"', text))
        check(not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text),
              f"{script.name} makes no markup of text")
        check(len(text.splitlines()) <= 600, f"{script.name} is short")
    named.add("highlighter.js")
    missing = [name for name in sorted(named) if s.get(f"/page/{name}")[0] != 200]
    check(len(named) >= 15 and not missing, f"all {len(named)} files that it names are there: {missing}")
    mine = [f.name for f in ROOT.iterdir() if f.name != "page.html" and f.name not in named]
    check(not mine, f"no file of it is there for nothing: {mine}")
    outside = [m for f in ROOT.iterdir() for m in re.findall(r"https?://(?!www\.w3\.org)[\w.]+", f.read_text())]
    check(not outside, f"no file of it names another machine: {outside}")
    types = {"app.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml", "licences.txt": "text/plain"}
    check(all(s.get(f"/page/{name}")[1]["Content-Type"].startswith(kind) for name, kind in types.items()), "files have their types")
    check(s.get("/page/app.js")[2] == (ROOT / "app.js").read_bytes(), "a file is what it was when it was built")
    licences = s.get("/page/licences.txt")[2].decode()
    check(all(word in licences for word in ("marked.js of", "highlight.js of", "purify.js of", "Permission is hereby granted")),
          "the libraries' licences come with them")
    status, headers, _ = s.get("/page/marked.js")
    again = s.get("/page/marked.js", headers={"If-None-Match": headers["ETag"]})
    check(again[0] == 304 and not again[2] and s.get("/page/marked.js", headers={"If-None-Match": '"other"'})[0] == 200,
          "a file that a browser has is not sent again")
    head = s.get("/page/marked.js", "HEAD")
    check(head[0] == 200 and head[1]["Content-Length"] == headers["Content-Length"] and not head[2], "HEAD tells what GET would")
    check([s.get(p, headers=KEY)[0] for p in ("/page/", "/page/none.js", "/page/../page.html", "/page/app.js/x", "/page/%2e%2e/a")] == [404] * 5,
          "there are no other files")
    check(s.get("/page/app.js", "POST", KEY)[0] == 405, "files are only read")
    check(s.get("/plan")[0] == 401, "/plan wants the key")


def plan_without(s):
    plan = s.ask("/plan", headers=KEY)[1]
    device = plan["devices"][0]
    check(plan["planned"] is False and "predicted" not in plan and len(plan["devices"]) == 1, "without a plan /plan says so")
    check(device["id"] == "cpu:0" and device["weight_bytes"] > 100000 and device["kv_bytes"] > 1000 and
          device["memory_bytes"] >= device["weight_bytes"] + device["kv_bytes"], "and what the host has")
    kinds = {o["kind"]: o["n"] for o in device["operators"]}
    check(kinds["attention"] == 4 and kinds["kv_store"] == 4 and (device["first_layer"], device["last_layer"]) == (0, 3), "and what it computes")


def plan_with(folder, model):
    sim = "cpu,sim:vram=1GiB,read=900GB/s,flops=80T,link=25GB/s,latency=1us"
    profile, path = f"{folder}/machine.yaml", f"{folder}/x.plan"
    subprocess.run([BIN / "oato-profile", model, "-o", profile, "--quick", "--devices", sim], check=True, capture_output=True)
    subprocess.run([BIN / "oato-plan", model, "-p", profile, "-o", path, "--prompt", "96", "--generate", "24", "--context", "512",
                    "--ubatch", "32", "--solver", "layers", "--budget", "sim:0=400KiB"], check=True, capture_output=True)
    shown = json.loads(subprocess.run([BIN / "oato-plan", "show", path, "--json"], check=True, capture_output=True).stdout)
    with Server(BIN / "oato-serve", model, "--plan", path) as s:
        plan = s.ask("/plan")[1]
    check([d["id"] for d in plan["devices"]] == ["cpu:0", "sim:0"], "/plan lists the devices of a plan")
    for told, planned in zip(plan["devices"], shown["devices"]):
        same = sum(o["n"] for o in told["operators"]) == planned["operators"] and told["kv_layers"] == planned["kv_layers"] and \
            sum(o["decode_ns"] for o in told["operators"]) == planned["decode_ns"] and told["budget_bytes"] == planned["budget_bytes"]
        check(same and told["weight_bytes"] > 0, f"{told['id']} has what oato-plan show says")
    p, q = plan["predicted"][0], shown["predicted"]
    check((p["prompt_n"], p["predicted_n"]) == (96, 24) and abs(p["predicted_per_second"] / q["decode_tokens_per_s"] - 1) < 1e-3 and
          abs(p["prompt_per_second"] / q["prefill_tokens_per_s"] - 1) < 1e-3 and
          abs(p["first_token_ms"] * 1e6 / q["prefill_ns"] - 1) < 1e-3, "and predicts what that predicts")


def page_and_plan_without(model):
    with Server(BIN / "oato-serve", model, "--api-key", "secret", "-c", "512") as server:
        files(server)
        plan_without(server)
    with Server(BIN / "oato-serve", model, "--no-ui") as server:
        check([server.get(p)[0] for p in ("/", "/page/app.js")] == [404, 404], "--no-ui takes all of it away")


with tempfile.TemporaryDirectory() as place:
    tiny = make_model(BIN / "oato-make-model", f"{place}/tiny.gguf", "--layers", "4", "--context", "512")
    at_once([lambda: plan_with(place, tiny), lambda: page_and_plan_without(tiny)])
sys.exit(finish())
