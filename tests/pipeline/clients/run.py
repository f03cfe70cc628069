#!/usr/bin/env python3
"""usage: run.py OATO_SERVE OATO_MAKE_MODEL MODEL [--only WORD] [--clients NAME,..] [--infill FILE] [--lm-eval PYTHON]

The calls of the packages that people use, each right or refused by name: the tables in client_*.py, run against oato-serve with MODEL
(SmolLM2-135M-Instruct). Prints a line for each and, last, how many were right; status 1 when one was not.
  --only WORD      calls with this word in their name
  --clients NAMES  default: openai,responses,anthropic,ollama,others,raw,lm_eval
  --infill FILE    a model with fill-in tokens; default: a tiny random one
  --lm-eval PYTHON of an environment with lm-eval; without it its calls are left out
"""
import argparse
import importlib
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import gguf_file # noqa: E402
import rig # noqa: E402
import rows # noqa: E402


class Server(rig.Server):
    always = () # as people start it


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("serve")
    p.add_argument("make")
    p.add_argument("model")
    p.add_argument("--only", default="")
    p.add_argument("--clients", default="openai,responses,anthropic,ollama,others,raw,lm_eval")
    p.add_argument("--infill")
    p.add_argument("--lm-eval")
    a = p.parse_args()
    total = [0, 0]
    with tempfile.TemporaryDirectory() as folder:
        small = rig.make_model(a.make, folder + "/embed.gguf")
        infill = a.infill or gguf_file.with_keys(small, folder + "/infill.gguf", gguf_file.FILL_IN)
        servers = {
            "url": Server(a.serve, a.model, "-c", "16384", "--parallel", "8"),
            "thinking_url": Server(a.serve, a.model, "-c", "4096", "--chat-template-file", HERE / "thinking.jinja"),
            "embedding_url": Server(a.serve, small, "--embeddings", "-c", "16384"),
            "infill_url": Server(a.serve, infill, "-c", "4096"),
            "keyed": Server(a.serve, a.model, "-c", "1024", "--api-key", "secret"),
        }
        context = rows.Context(**{name: s.url for name, s in servers.items() if name != "keyed"})
        context.kept.keyed_url = servers["keyed"].url
        context.kept.lm_eval = a.lm_eval
        for name in a.clients.split(","):
            if name == "lm_eval" and not a.lm_eval:
                continue
            total = [x + y for x, y in zip(total, rows.run(importlib.import_module("client_" + name).ROWS, context, a.only))]
        for name, server in servers.items():
            if status := server.end():
                print(f"WRONG {name}: the server ends with {status}: {''.join(server.said[-9:])}")
                total[1] += 1
    print(f"{total[0]} right, {total[1]} wrong")
    return total[1] > 0


sys.exit(main())
