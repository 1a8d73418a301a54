"""The list of combinations can be read, and the page is the one that its results give."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "matrix"))

import combinations
import page
import run

ROOT = Path(__file__).parent.parent


def test_every_combination_names_tests_that_are_there() -> None:
    matrix = combinations.read()
    for tests in (several for one in matrix.combinations for several in matrix.tried(one).values()):
        for test in tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), test
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(
                encoding="utf-8"
            ), test


def test_the_page_is_made_from_the_results() -> None:
    matrix, results = combinations.read(), page.read_results()
    assert page.PAGE.read_text(encoding="utf-8") == page.page(matrix, results)


OUTCOMES = [
    {"file": "tests/test_a.py", "name": "test_one[x]", "result": "passed", "why": ""},
    {
        "file": "tests/test_a.py",
        "name": "test_two",
        "result": "skipped",
        "why": "needs Flower 1.34",
    },
    {"file": "tests/test_b.py", "name": "test_three", "result": "failure", "why": "assert 1 == 2"},
    {"file": "tests/test_d.py", "name": "test_four", "result": "passed", "why": ""},
    {
        "file": "tests/test_d.py",
        "name": "test_five",
        "result": "skipped",
        "why": run.OF_THE_MACHINE[0],
    },
]


@pytest.mark.parametrize(
    ("tests", "result", "why"),
    [
        (["tests/test_a.py::test_one"], "works", ""),
        (["tests/test_a.py"], "partly", "needs Flower 1.34"),
        (["tests/test_a.py::test_two"], "no", "needs Flower 1.34"),
        (["tests/test_a.py", "tests/test_b.py"], "fails", "test_three: assert 1 == 2"),
        (["tests/test_c.py"], "fails", "tests/test_c.py did not run"),
        (["tests/test_d.py"], "works", ""),
    ],
)
def test_a_thing_works_only_if_every_test_of_it_ran_and_passed(
    tests: list[str], result: str, why: str
) -> None:
    judged: dict[str, Any] = run.judge(tests, OUTCOMES)
    assert (judged["result"], judged["why"]) == (result, why)


def test_the_lowest_versions_are_those_that_the_package_claims() -> None:
    assert "numpy==1.26" in combinations.lowest()
    assert not [line for line in combinations.lowest() if "," in line or "<" in line]
