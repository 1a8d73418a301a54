"""docs/compatibility.md from docs/data/compatibility.json: the table that `make matrix` makes.

python tests/matrix/page.py     the page again from the results that are there
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from combinations import ROOT, Combination, Matrix, read

RESULTS = ROOT / "docs" / "data" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
SIGNS = {"works": "yes", "partly": "partly", "no": "no", "fails": "**fails**"}

HEAD = """# What it runs with

`make matrix` makes this page: it installs each combination into an environment of its own, runs the tests behind each
column, and writes the results to `docs/data/compatibility.json`. "yes" means that all tests of the column passed,
"partly" or "no" that some or all of them need another version, which the note names. The list of combinations is
`tests/matrix/matrix.toml`. `make matrix MATRIX='--only flare-2.8'` tries one of them again.
"""

Results = Mapping[str, Mapping[str, Any]]


def read_results() -> dict[str, Any]:
    """The results so far, by the combination's name."""
    if not RESULTS.is_file():
        return {}
    return {one["name"]: one for one in json.loads(RESULTS.read_text(encoding="utf-8"))}


def write(matrix: Matrix, results: Results) -> None:
    """Results of combinations that are still in the matrix, in its order, and the page."""
    kept = [results[one.name] for one in matrix.combinations if one.name in results]
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(matrix, results), encoding="utf-8")


def page(matrix: Matrix, results: Results) -> str:
    parts = [HEAD]
    for framework in dict.fromkeys(one.framework for one in matrix.combinations):
        rows = [one for one in matrix.combinations if one.framework == framework]
        parts += [f"## {framework}", "", *_table(matrix, rows, results), ""]
    return "\n".join(parts)


def _table(matrix: Matrix, rows: Sequence[Combination], results: Results) -> list[str]:
    columns = list(dict.fromkeys(what for one in rows for what in matrix.tried(one)))
    notes: list[str] = []
    lines = [
        _row(["version", "Python", *columns, "installed", "with", "tried"]),
        "|---" * (len(columns) + 5) + "|",
    ]
    for one in rows:
        result = results.get(one.name, {"untested": "not run yet"})
        if "untested" in result:
            cells = [f"untested{_note(result['untested'], notes)}", *[""] * (len(columns) - 1)]
            lines.append(_row([one.version, one.python, *cells, "", "", result.get("date", "")]))
            continue
        cells = [_cell(result["works"].get(what), notes) for what in columns]
        found = result["versions"]
        beside = ", ".join(
            f"{name} {found[name]}" for name in found if name not in ("feddraw", "python")
        )
        lines.append(
            _row([one.version, found["python"], *cells, _cost(result), beside, result["date"]])
        )
    return [
        *lines,
        *([""] if notes else []),
        *(f"{number}. {note}" for number, note in enumerate(notes, 1)),
    ]


def _cost(result: Mapping[str, Any]) -> str:
    return (
        f"{result['megabytes']} MB in {result['install_seconds']} s"
        if "megabytes" in result
        else ""
    )


def _cell(found: Mapping[str, Any] | None, notes: list[str]) -> str:
    if found is None:
        return "–"
    return SIGNS[found["result"]] + (_note(found["why"], notes) if found["why"] else "")


def _note(why: str, notes: list[str]) -> str:
    """A number in the cell; the reason stands below the table."""
    if why not in notes:
        notes.append(why)
    return f" ({notes.index(why) + 1})"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    write(read(), read_results())
