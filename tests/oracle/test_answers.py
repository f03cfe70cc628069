#!/usr/bin/env python3
"""Holds the parts of answers to the makers' chat templates; run by ctest (label oracle).

  test_answers.py ANSWER_PARTS   every template that llama.cpp keeps renders answers with reasoning,
                                 text and calls, as its model writes them; cutting what it renders
                                 must give back what it rendered

Exit status 77 (skipped) without the templates (scripts/fetch-peer --sources).
"""
import glob
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_jinja  # noqa: E402

THOUGHT, SAID = "Let me think: <b>1 < 2</b>.", "I look \u2014 now."
ARGUMENTS = {"city": "Z\u00fcrich \"old\" {town}\nand more", "days": 2, "units": ["C", None], "x": {"y": 1.5, "z": True}}


def call(name, arguments, number):
    return {"id": f"call1234{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER, CLOCK = call("weather", ARGUMENTS, 5), call("clock", {}, 6)
QUESTION = test_jinja.message("user", "Weather?")
ANSWERS = {
    "says": {"content": SAID},
    "thinks": {"content": SAID, "reasoning_content": THOUGHT},
    "calls": {"content": SAID, "reasoning_content": THOUGHT, "tool_calls": [WEATHER]},
    "calls only": {"content": "", "thinking": THOUGHT, "tool_calls": [WEATHER]},
    "calls twice": {"content": "", "tool_calls": [WEATHER, CLOCK]},
}
# What ends a turn: the engine stops there and does not hand it on.
ENDS = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|call|>", "<|return|>", "</s>", "<end_of_turn>", "<|end_of_text|>",
        "<|endoftext|>", "<turn|>", "<|tool_response>", "<|assistant_end|>", "[e~[", "<end_of_sentence>", "<|role_end|>",
        "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<|end_of_msg|>", "<seed:eos>", "<sep>", "<SPECIAL_12>", "<|message_sep|>", "</assistant>", "<|eot|>", "<|end|>",
        "<\uff5chy_eos:opensource\uff5c>", "<|user|>", "<|observation|>"]
# Formats that are not recognised yet, and templates that cannot say how their models answer.
LEFT_OUT = {
    "MiniMax-M3.jinja": "calls are nested tags",
    "muse-glimmer.jinja": "the addressee of a call stands in front of it",
    "GigaChat3-10B-A1.8B.jinja": "a call is a turn of its own",
    "Apriel-1.6-15b-Thinker-fixed.jinja": "earlier answers lack the mark at the end of the prompt",
    "NVIDIA-Nemotron-Nano-v2.jinja": "earlier answers leave the reasoning open",
    "meetkai-functionary-medium-v3.2.jinja": "what is said has an addressee",
    "fireworks-ai-llama-3-firefunction-v2.jinja": "does not render without a variable of its own",
}


def render(template, answer):
    """The prompt and the answer; None where the template refuses."""
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tools": test_jinja.TOOLS, "enable_thinking": True}
    try:
        prompt = template.render(messages=[QUESTION], add_generation_prompt=True, **settings)
        whole = template.render(messages=[QUESTION, dict(answer, role="assistant")], add_generation_prompt=False, **settings)
    except Exception:  # some take one call a turn, or none
        return None
    same = len(os.path.commonprefix([prompt, whole]))
    if same < len(prompt):  # not in the middle of a mark
        same = max(i for i in range(same + 1) if not re.search(r"<[^>]*$|\[[^\]]*$", prompt[max(0, i - 40):i]))
    text = whole[same:].rstrip().replace("<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cAssistant\uff5c>", "")
    while any(text.endswith(e) for e in ENDS):
        text = next(text[:-len(e)].rstrip() for e in ENDS if text.endswith(e))
    return prompt[:same], text


def wanted(answer, text):
    """What of an answer the template has rendered."""
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in answer.get("tool_calls", [])
             if c["function"]["name"] in text]
    thought = answer.get("reasoning_content", answer.get("thinking", ""))
    if "analysis<|message|>" + SAID in text:  # an answer with calls says nothing in Harmony
        return {"thinks": SAID, "says": "", "calls": calls}
    return {"thinks": thought if thought and thought in text else "", "says": answer["content"] if answer["content"] in text else "",
            "calls": calls}


def escaped(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def cut(program, path, pairs):
    text = "".join(f"{escaped(prompt)}\n{escaped(answer)}\n" for prompt, answer in pairs)
    r = subprocess.run([program, path], input=text.encode(), capture_output=True, check=True)
    return [json.loads(line) for line in r.stdout.decode().splitlines()]


def main():
    paths = sorted(glob.glob(os.path.join(test_jinja.TEMPLATES, "*.jinja")))
    if not paths:
        print(f"no templates in {test_jinja.TEMPLATES}: run scripts/fetch-peer --sources")
        sys.exit(77)
    env, bad, counts = test_jinja.environment(), 0, {"thinks": 0, "says": 0, "calls": 0}
    for path in paths:
        name = os.path.basename(path)
        if name in LEFT_OUT:
            continue
        with open(path, encoding="utf-8", newline="") as f:
            template = env.from_string(f.read())
        rendered = [(kind, a, render(template, a)) for kind, a in ANSWERS.items()]
        rendered = [r for r in rendered if r[2]]
        for (kind, answer, pair), got in zip(rendered, cut(sys.argv[1], path, [r[2] for r in rendered])):
            want = wanted(answer, pair[1])
            for part in counts:
                counts[part] += bool(want[part])
            if got != want:
                bad += 1
                print(f"WRONG {name} {kind}:\n  answer {pair[1]!r}\n  want {want}\n  got  {got}")
    print(f"{len(paths) - len(LEFT_OUT)} templates, {len(LEFT_OUT)} left out; {counts['thinks']} answers think, {counts['says']} "
          f"say, {counts['calls']} call; {bad} wrong")
    sys.exit(bad != 0)


main()
