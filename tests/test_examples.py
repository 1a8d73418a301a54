"""The examples run as they are."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))
BY_ITSELF = "quickstart"


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    "script",
    [path for path in EXAMPLES if path.stem != BY_ITSELF],
    ids=lambda path: path.stem,
)
def test_the_example_runs(
    script: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python runs a script, but in this process, which has torch already."""
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    out, err = capfd.readouterr()
    assert out
    assert "Traceback" not in err


def test_an_example_runs_by_itself(tmp_path: Path) -> None:
    words = [sys.executable, PROJECT / "examples" / f"{BY_ITSELF}.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


def test_a_rule_of_ones_own_is_a_file_of_under_forty_lines() -> None:
    script = next(path for path in EXAMPLES if path.stem == "own_method")
    rule = script.read_text().partition('if __name__ == "__main__"')[0]
    assert len(rule.splitlines()) < 40


def test_no_script_has_the_name_of_a_module_that_others_import() -> None:
    """A script's folder comes first on its path, so `benchmarks/signal.py` would stand for Python's
    own `signal`.
    """
    scripts = [*EXAMPLES, *(PROJECT / "benchmarks").glob("*.py")]
    assert not {path.stem for path in scripts} & sys.stdlib_module_names


def test_the_snippets_in_docstrings_give_what_they_say() -> None:
    import doctest

    from feddraw.core import schedules

    assert doctest.testmod(schedules) == doctest.TestResults(failed=0, attempted=2)
