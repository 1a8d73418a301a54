"""Fenced blocks of a Markdown page, carried out in order in an empty folder, as a reader would who
types them.

`console` blocks hold commands after `$ ` and what they print, which is compared (`...` stands for
anything); `sh` blocks hold commands alone; `python` blocks of a page share one namespace; `toml`
and `json` must parse. A comment before a block says where a test departs from the page, and why:

    <!-- docs-test: skip: it needs a GPU --> <!-- docs-test: add `--rounds 2`: the whole run takes
    minutes -->           to every line that starts with feddraw <!-- docs-test: replace `make demo`
    by `feddraw demo`: make is running --> <!-- docs-test: file `own.py` -->
    the block is that file's content <!-- docs-test: with `chexpert` -->
    a miniature archive of that name <!-- docs-test: output: numbers differ between machines -->
    the output is not compared
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from website import miniatures

BLOCK = re.compile(
    r"(?P<notes>(?:^ *<!-- docs-test: [^\n]+? -->\n+)*)"
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>\S*)[^\n]*\n(?P<text>.*?)^ *(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
NOTE = re.compile(r"<!-- docs-test: (\w+)(?: `([^`]+)`)?(?: by `([^`]*)`)?(?:: (.+?))? -->")
SHOWN = (
    "text",
    "math",
    "csv",
    "html",
    "yaml",
    "diff",
    "bibtex",
)  # languages that are looked at, not run
TIMEOUT = 600
EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Note:
    """A departure of the test from the page."""

    what: str
    first: str
    second: str
    reason: str


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    line: int
    language: str
    text: str
    notes: tuple[Note, ...] = ()

    def note(self, what: str) -> Note | None:
        return next((note for note in self.notes if note.what == what), None)


class Failed(AssertionError):
    """A block that does not do what its page says."""


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        line = page.count("\n", 0, found.start("fence")) + 1
        indent = len(found["indent"])
        text = "".join(
            row[indent:] if row.strip() else row for row in found["text"].splitlines(keepends=True)
        )
        notes = tuple(Note(*(part or "" for part in note)) for note in NOTE.findall(found["notes"]))
        yield Block(line, found["language"], text, notes)


def carry_out(page: Path, folder: Path) -> int:
    """Every block of a page; how many were run."""
    module = ModuleType("page")  # dataclasses look for the module that they are written in
    sys.modules["page"] = module
    done = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        try:
            done += run(block, folder, vars(module))
        except Exception as error:
            raise Failed(f"{page.name}:{block.line}: {type(error).__name__}: {error}") from error
    return done


def run(block: Block, folder: Path, names: dict[str, Any]) -> bool:
    """One block; whether there was something to run."""
    for note in block.notes:
        if note.what in ("skip", "add", "replace", "output") and not note.reason:
            raise Failed(f"'{note.what}' needs a reason")
        if note.what == "with":
            getattr(miniatures, note.first.replace("-", "_"))(folder)
    if (file := block.note("file")) is not None:
        (folder / file.first).write_text(replaced(block.text, block), encoding="utf-8")
        return True
    if block.note("skip") is not None or block.language in SHOWN:
        return False
    if block.language == "python":
        python(block, names)
    elif block.language in ("toml", "json"):
        (tomllib if block.language == "toml" else json).loads(block.text)
    elif block.language in ("console", "sh"):
        for command, output in commands(block):
            compare(command, output, shell(command, folder), block)
    else:
        raise Failed(f"a block of language '{block.language}': name one that can be run, or text")
    return True


def python(block: Block, names: dict[str, Any]) -> None:
    """A script, or a session with `>>>` whose answers are compared."""
    text = replaced(block.text, block)
    if ">>> " not in text:
        exec(compile("\n" * block.line + text, "page", "exec"), names)
        return
    session = doctest.DocTestParser().get_doctest(text, names, "page", "page", block.line)
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=flags).run(session, out=said.append, clear_globs=False)
    names.update(session.globs)
    if said:
        raise Failed("".join(said))


def replaced(text: str, block: Block) -> str:
    for note in block.notes:
        if note.what == "replace":
            text = text.replace(note.first, note.second)
    return text


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command, and what the page says it prints."""
    text = replaced(block.text, block)
    if block.language == "sh":
        pairs = [(line, "") for line in joined(text) if line and not line.startswith("#")]
    else:
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        pairs = [((lines := joined(part))[0], "\n".join(lines[1:]).strip("\n")) for part in parts]
    added = " ".join(note.first for note in block.notes if note.what == "add")
    for command, output in pairs:
        yield (f"{command} {added}" if added and command.startswith("feddraw") else command), output


def joined(text: str) -> list[str]:
    """Lines, with a backslash at the end of one joining it to the next."""
    return re.sub(r"\\\n\s*", "", text).splitlines()


def shell(command: str, folder: Path) -> str:
    """What a command prints; it must succeed, unless the page shows that it fails."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": search, "FEDDRAW_EXAMPLES": str(EXAMPLES), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT,
        check=False,
    )
    if (
        done.returncode and done.returncode != 2
    ):  # a mistake that the page shows exits with 2, and its line is compared
        raise Failed(f"'{command}' ended with {done.returncode}: {done.stderr[-2000:]}")
    if done.returncode == 2 and "feddraw: " not in done.stderr:
        raise Failed(f"'{command}': {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def compare(command: str, shown: str, printed: str, block: Block) -> None:
    """The page's output must be in what was printed, blank space aside."""
    if re.search(r"^feddraw: ", printed, re.MULTILINE) and "feddraw: " not in shown:
        raise Failed(f"'{command}' says {printed[-500:]}")
    if block.note("output") is not None or not shown:
        return
    wanted = [re.escape(piece) for piece in re.split(r"\.\.\.|…", even(shown))]
    if not re.search(".*?".join(wanted), even(printed)):
        raise Failed(f"'{command}' printed\n{printed}\nand the page shows\n{shown}")


def even(text: str) -> str:
    """Without the rules of tables, and with single blanks."""
    return " ".join(text.replace("─", "").split())
