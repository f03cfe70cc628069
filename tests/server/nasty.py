#!/usr/bin/env python3
"""JSON schemas and grammars that are made to be expensive: deep, wide, doubling, ambiguous, huge.

    import nasty
    for name, schema in nasty.schemas(): ...    # JSON text of each schema
    for name, gbnf in nasty.grammars(): ...     # GBNF text of each grammar
    nasty.bodies()                              # members of a request that ask for them

Every one is to be refused (400, one line that says why) or answered. As a program it writes them
into a folder, NAME.json and NAME.gbnf: tests/server/nasty.py FOLDER
"""
import json
import os
import sys


def _nested(n, wrap, inner):
    """inner in n wrappings; json.dumps cannot write what is nested this deeply."""
    before, after = wrap
    return before * n + inner + after * n


def _doubling(n, keyword):
    """Each definition names the one before it twice."""
    defs = {"a0": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    for i in range(1, n):
        ref = {"$ref": f"#/$defs/a{i - 1}"}
        defs[f"a{i}"] = {keyword: [ref, dict(ref)], "required": [f"r{i}"]}
    return {"$ref": f"#/$defs/a{n - 1}", "$defs": defs}


def _doubling_properties(n):
    """Both properties of each level are what two schemas of the next demand together."""
    defs = {}
    for side in "ab":
        for i in range(n):
            ref = {"$ref": f"#/$defs/{side}{i + 1}"}
            defs[f"{side}{i}"] = {"type": "object", "properties": {"p": ref, "q": dict(ref)}}
        defs[f"{side}{n}"] = {"type": "integer", "minimum": 1 if side == "a" else 2}
    return {"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": defs}


def _patterns():
    yield "pattern_repeats", "((a{1,100}){1,100}){1,100}"
    yield "pattern_repeats_deep", "(" * 60 + "a" + "{1,9})" * 60
    yield "pattern_stars", "^" + "(" * 40 + "a" + "*)*" * 40 + "$"
    yield "pattern_any", ".*" * 2000 + "x"
    yield "pattern_maybe", "(a?){5000}a{5000}"
    yield "pattern_huge", "a{100000}" * 12
    yield "pattern_parentheses", "(" * 50000 + ")" * 50000
    yield "pattern_alternatives", "|".join(f"x{i}" for i in range(50000))
    yield "pattern_class", "[" + "".join(chr(0x100 + 2 * i) for i in range(20000)) + "]{9}"
    yield "pattern_long", "abc" * 100000


def schemas():
    """Pairs of a name and a schema's text."""
    one = {"type": "integer"}
    yield "long_key", json.dumps({"type": "object", "properties": {"k" * 50000: one},
                                  "additionalProperties": one})
    yield "long_keys", json.dumps({"type": "object", "additionalProperties": one,
                                   "properties": {"k" * i: one for i in range(1, 1000)}})
    yield "long_words", json.dumps({"type": "object", "properties": {"k" * 1000000: one}})
    yield "long_type", json.dumps({"type": "t" * 1000000})
    yield "long_ref", json.dumps({"$ref": "#/" + "r/" * 500000})
    for keyword in ("allOf", "oneOf", "anyOf"):
        yield f"doubling_{keyword}", json.dumps(_doubling(30, keyword))
        yield f"doubling_{keyword}_long", json.dumps(_doubling(150, keyword))
        yield f"nested_{keyword}", _nested(1900, ('{"%s":[' % keyword, "]}"), "{}")
        yield f"wide_{keyword}", json.dumps({keyword: [{"title": str(i)} for i in range(20000)]})
        yield f"wide_{keyword}_properties", json.dumps(
            {keyword: [{"properties": {"x": {"title": str(i)}}} for i in range(10000)]})
        yield f"wide_{keyword}_required", json.dumps(
            {keyword: [{"required": [f"k{i}"]} for i in range(10000)]})
    yield "doubling_properties", json.dumps(_doubling_properties(30))
    yield "any_of_times_one_of", json.dumps({"anyOf": [{"title": str(i)} for i in range(2000)],
                                             "oneOf": [{"title": str(i)} for i in range(2000)]})
    yield "nested_arrays", _nested(1900, ('{"items":', "}"), "{}")
    yield "nested_brackets", _nested(500000, ("[", "]"), "")
    yield "nested_properties", _nested(1000, ('{"properties":{"a":', "}}"), "{}")
    yield "nested_const", json.dumps({"const": 0}).replace("0", _nested(2000, ("[", "]"), "0"))
    yield "ref_chain", json.dumps({"$ref": "#/$defs/a0", "$defs": {
        **{f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}, "a5000": one}})
    yield "ref_circle", json.dumps({"allOf": [{"$ref": "#"}, {"$ref": "#"}]})
    yield "ref_product", json.dumps({
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {side: {"properties": {"x": {"$ref": f"#/$defs/{side}"}, "y": {"title": side}}}
                  for side in "ab"}})
    names = [f"property_{i}" for i in range(15000)]
    yield "required", json.dumps({"type": "object", "properties": {n: {} for n in names[:14000]},
                                  "required": names[:14000]})
    yield "required_only", json.dumps({"type": "object", "required": names})
    yield "required_twice", json.dumps({"type": "object", "required": ["a"] * 100000})
    yield "optional_many", json.dumps({"type": "object", "properties": {n: one for n in names}})
    yield "enum_many", json.dumps({"enum": [f"value {i}" for i in range(40000)]})
    yield "enum_numbers", json.dumps({"enum": list(range(100000))})
    yield "enum_property", json.dumps({"properties": {"a": {"enum": list(range(20000))}},
                                       "required": ["a"]})
    yield "enum_const", json.dumps({"enum": [[i] * 10 for i in range(10000)], "const": [9999] * 10})
    yield "const_long", json.dumps({"const": "x" * 900000})
    yield "types_many", json.dumps({"type": ["string"] * 100000})
    yield "prefix_many", json.dumps({"prefixItems": [True] * 100000})
    yield "empty_arrays", '{"examples":[' + ",".join(["[]"] * 300000) + "]}"
    yield "length_huge", json.dumps({"type": "string", "minLength": 1000000000})
    yield "length_10000", json.dumps({"type": "string", "minLength": 10000, "maxLength": 10000})
    yield "items_huge", json.dumps({"type": "array", "minItems": 1000000000})
    yield "items_nested", json.dumps({"items": {"items": {"items": {"maxItems": 10000},
                                                          "maxItems": 10000}, "maxItems": 10000}})
    yield "strings_sized", json.dumps({"properties": {
        f"s{i}": {"type": "string", "minLength": 9000} for i in range(200)}})
    for name, pattern in _patterns():
        yield name, json.dumps({"type": "string", "pattern": pattern})


def _classes(ranges, classes):
    """Classes of so many ranges, each with other characters."""
    lines = []
    for c in range(classes):
        text = "".join(chr(0x3000 + 3 * i + c % 3) for i in range(ranges))
        lines.append(f"c{c} ::= [{text}]")
    return "root ::= " + " ".join(f"c{c}" for c in range(classes)) + "\n" + "\n".join(lines)


def grammars():
    """Pairs of a name and a grammar's text."""
    yield "ambiguous", "root ::= a{0,300}\na ::= [x]? [x]? b*\nb ::= [x] c*\nc ::= [x]{1,3}"
    yield "ambiguous_any", "root ::= a a a a a a\na ::= b*\nb ::= .{0,40}"
    yield "ambiguous_words", "root ::= (w | w w | w w w)* \nw ::= [a-z ]{1,30} | [^0-9]{1,20}"
    yield "ambiguous_nest", "root ::= s\ns ::= . s s | . s | ."
    yield "repeats", "root ::= (((. {1,100}){1,100}){1,100}){1,100}"
    yield "repeats_of_repeats", "root ::= " + "(" * 150 + "[a-z]" + "{1,9})" * 150
    yield "alternatives", "root ::= " + " | ".join(f'"{i:x}"' for i in range(3900)) + ' | "0" root'
    yield "alternatives_many", "root ::= " + " | ".join(f'"w{i}"' for i in range(60000))
    yield "alternatives_of_any", "root ::= (" + " | ".join(
        f'.{{1,{i}}} "{i}"' for i in range(1, 350)) + ")*"
    # every text of letters has thousands of readings, and every set of them is another
    yield "readings", "root ::= (" + " | ".join(
        f"[a-z ]{{{i}}} x{i}" for i in range(1, 200)) + ")+\n" + "\n".join(
            f"x{i} ::= [a-z]{{1,{i}}} root?" for i in range(1, 200))
    yield "rules", "\n".join(["root ::= r0"] + [f"r{i} ::= [a-z] r{i + 1} | r{i + 1} r{i + 1}"
                                                for i in range(6000)] + ["r6000 ::= [a-z]"])
    yield "rule_chain", "\n".join(["root ::= r0"] + [f"r{i} ::= r{i + 1}" for i in range(30000)]
                                  + ['r30000 ::= "x"'])
    yield "rule_tree", "\n".join(["root ::= r0"] + [
        f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)] + ['r60 ::= "x" | ""'])
    yield "left_recursion", "root ::= a\na ::= (b? a)+ [x] | [y]\nb ::= [z]"
    yield "parentheses", "root ::= " + "(" * 400000
    yield "parentheses_closed", "root ::= " + "(" * 190 + '"x"' + ")*" * 190
    yield "long_name", "root ::= " + "n" * 1000000
    yield "long_literal", 'root ::= "' + "l" * 1000000 + '"'
    yield "long_comment", "#" * 1000000 + '\nroot ::= "x"'
    yield "long_class", "root ::= [" + "a" * 1000000 + "]"
    yield "characters", 'root ::= "' + "".join(chr(0x4e00 + i) for i in range(20000)) + '"'
    yield "classes", _classes(6500, 20)
    yield "classes_negated", _classes(6500, 6).replace("[", "[^")
    yield "many_names", "root ::= " + " ".join(f"n{i}" for i in range(100000))
    yield "million_symbols", "root ::= " + " ".join(['"x"{100000}'] * 10)
    yield "optional_symbols", "root ::= " + " ".join(['"y"{0,100000}'] * 10)


def bodies():
    """Pairs of a name and the members of a request that ask for one of them."""
    for name, text in schemas():
        try:
            schema = json.loads(text)
        except RecursionError:
            continue  # Python's client cannot send it; a file can
        yield f"schema {name}", {"response_format": {
            "type": "json_schema", "json_schema": {"name": "nasty", "schema": schema}}}
    for name, text in grammars():
        yield f"grammar {name}", {"grammar": text}


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for kind, texts in (("json", schemas()), ("gbnf", grammars())):
        for name, text in texts:
            with open(os.path.join(folder, f"{name}.{kind}"), "w", encoding="utf-8") as out:
                out.write(text)


if __name__ == "__main__":
    main()
