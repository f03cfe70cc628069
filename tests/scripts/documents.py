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


def command_of(folder, page):
    """What a manual page is about: a program, or oato-VERB, a verb of oato."""
    program = folder / page.stem
    return [program] if program.exists() else [folder / "oato", page.stem.removeprefix("oato-")]


def help_of(command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def verbs_of(text, name):
    return re.findall(r"^  ([a-z][a-z-]*)  +[a-z]", text, re.M) + \
        re.findall(rf"^ +{name} ([a-z][a-z-]*) ", text, re.M)


def options_of(command):
    """The options that --help of a program, or of a verb of it, and of all its verbs lists."""
    text = help_of(command)
    texts = [text, *(help_of([*command, verb]) for verb in verbs_of(text, pathlib.Path(command[-1]).name))]
    return {name for t in texts for name in re.findall(r"^  (?:-.,|   ) --([a-z-]+)", t, re.M)}
