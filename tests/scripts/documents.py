"""What tests of documents share: links, and what a program's --help lists."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")


def markdown(folder):
    """The documents of a tree, without what is built or fetched."""
    return [path for path in folder.rglob("*.md")
            if not {"build", ".git", ".cache", "node_modules"} & set(path.relative_to(folder).parts)]


def without_code(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"`([^`\n]*)`", lambda code: re.sub(r"[\[\]()]", "", code[1]), text)


def anchors(path):
    """The names that headings of a document have in links to it."""
    heads = re.findall(r"^#+ +(.*)$", without_code(path), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(folder):
    """DOCUMENT: TARGET of each link that leads nowhere; those of the web are not followed."""
    dead = []
    for page in markdown(folder):
        for target in LINK.findall(without_code(page)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (page.parent / name) if name else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                dead.append(f"{page.relative_to(folder)}: {target}")
    return dead


def help_of(program, *verbs):
    return subprocess.run([program, *verbs, "--help"], capture_output=True, text=True, check=True).stdout


def verbs_of(text, name):
    return re.findall(r"^  ([a-z][a-z-]*)  +[a-z]", text, re.M) + \
        re.findall(rf"^ +{name} ([a-z][a-z-]*) ", text, re.M)


def options_of(program):
    """The options that --help of a program and of its verbs lists."""
    text = help_of(program)
    texts = [text, *(help_of(program, verb) for verb in verbs_of(text, program.name))]
    return {name for t in texts for name in re.findall(r"^  (?:-.,|   ) --([a-z-]+)", t, re.M)}
