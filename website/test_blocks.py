"""Every command and code block of README and docs does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from website.blocks import Block, Failed, blocks, carry_out, run

ROOT = Path(__file__).parent.parent
MADE = {"reference/cli.md"}  # from the code itself
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_page_can_be_followed_to_the_letter(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path.parent / "cache"))
    carry_out(page, tmp_path)


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
