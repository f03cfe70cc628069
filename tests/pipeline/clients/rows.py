"""What the tables of calls share: rows that are run one behind another.

A row is (name, what is asked, what must be true of the result). The first takes the client's Context and may put away for later rows
what it needs in `context.kept`; the second takes the result and says what is wrong, or nothing (True counts as nothing, False as
'not so'). A row whose second part is made by refused() must be refused with that exception and name the member.
"""
import dataclasses
import time
import traceback
import types

MODEL = "any"
CAPITAL = "What is the capital of France?"
ASK = [{"role": "user", "content": CAPITAL}]
PLACE = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"],
         "additionalProperties": False}
ANSWER = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}}, "required": ["capital", "sure"],
          "additionalProperties": False}


def is_place(value):
    return isinstance(value, dict) and sorted(value) == ["city", "days"] and value["city"] in ("Paris", "Rome") and 1 <= value["days"] <= 9


def is_answer(value):
    return isinstance(value, dict) and sorted(value) == ["capital", "sure"] and isinstance(value["capital"], str) and isinstance(value["sure"], bool)


@dataclasses.dataclass
class Context:
    url: str # of the server with a chat model
    embedding_url: str
    thinking_url: str # of a server whose template begins in reasoning
    infill_url: str
    kept: types.SimpleNamespace = dataclasses.field(default_factory=types.SimpleNamespace)


class Refused:
    def __init__(self, kind, word):
        self.kind, self.word = kind, word


def refused(kind, word):
    """The result is this exception, whose text has the word: a request is refused by name."""
    return Refused(kind, word)


def wrong(must, ask, context):
    """What is wrong with a row, or None."""
    try:
        result = ask(context)
    except Exception as error: # whatever a client raises
        if isinstance(must, Refused):
            if isinstance(error, must.kind):
                return None if must.word in str(error) else f"the refusal does not name {must.word}: {error}"
        return f"{type(error).__name__}: {str(error)[:600] or traceback.format_exc()[-600:]}"
    if isinstance(must, Refused):
        return f"is not refused: {str(result)[:300]}"
    try:
        said = must(result)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]} in {str(result)[:500]}"
    if said is True or said is None:
        return None
    return f"not so: {str(result)[:600]}" if said is False else said


def run(rows, context, only=""):
    """(right, wrong) of the rows."""
    counts = [0, 0]
    for name, ask, must in rows:
        if only and only not in name:
            continue
        began = time.monotonic()
        why = wrong(must, ask, context)
        counts[why is not None] += 1
        print(f"{'WRONG' if why else 'ok   '} {name} ({time.monotonic() - began:.1f} s)" + (f": {why}" if why else ""), flush=True)
    return counts
