"""Every command and code block of README and docs does what its page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from website.blocks import Block, Failed, blocks, carry_out, run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the whole tutorial, whose pages go on where the one before them ended."""
    return tmp_path_factory.mktemp("tutorial")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_page_can_be_followed_to_the_letter(
    page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = desk if page.parent.name == "tutorial" else tmp_path
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("FEDDRAW_CACHE", str(desk.parent / "cache"))
    carry_out(page, folder)


def test_the_messages_that_are_explained_are_those_of_the_code() -> None:
    texts = [text for path in (ROOT / "src").rglob("*.py") for text in texts_in_code(path)]
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `(.+?)` \|", page, flags=re.MULTILINE)
    assert messages
    pieces = [piece for message in messages for piece in message.split("…") if piece.strip()]
    assert not [piece for piece in pieces if not any(piece in text for text in texts)]


def texts_in_code(path: Path) -> list[str]:
    """The texts of a module, each as one where it is written on several lines."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


PAGE = """
<!-- docs-test: add `-n`: no new line -->
```console
$ echo one  two
one ... three
```
<!-- docs-test: skip -->
```sh
rm -rf /
```
"""


def test_a_wrong_output_and_a_skip_without_a_reason_are_failures(tmp_path: Path) -> None:
    first, second = blocks(PAGE)
    with pytest.raises(Failed, match="printed"):
        run(first, tmp_path, {})
    with pytest.raises(Failed, match="needs a reason"):
        run(second, tmp_path, {})
    with pytest.raises(Failed, match="language"):
        run(Block(1, "", "feddraw"), tmp_path, {})
    assert run(Block(1, "console", "$ echo one two three\none ... three\n"), tmp_path, {})
