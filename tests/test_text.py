"""Names are only names, wherever they are shown: in a terminal, a page, a figure, a file's name, a
table's cell.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.cli.run import round_line
from feddraw.cli.terminal import console, plain_words, table
from feddraw.data.csv_sheet import CsvSheet
from feddraw.errors import UserError
from feddraw.report import ReportSettings, write_report
from feddraw.results.metrics import MacroMetric, RunMetrics, SplitMetrics
from feddraw.results.run_folder import RunFolder
from feddraw.server.ledger import LedgerEntry
from feddraw.system import csv_cells
from feddraw.system.file_reading import read_csv, read_json
from feddraw.system.markdown import escape_markdown, markdown_table
from feddraw.text import distinct_ends, distinct_slugs, folder_name, parse_pairs, safe_line, slug
from run_folders import make_run

NASTY = [
    "[/x]",
    "[bold]North[/bold]",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;owned\x07",
    "a\rb",
    "two\nlines",
    "\x00",
    "\x9b31m",
    "=cmd|'/c calc'!A1",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "'=quoted",
    "''=twice",
    "\t=tab",
    "北",
    "南",
    "",
    " ",
    ".",
    "..",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "a]]>b",
    "$\\frac{1}{2}$",
    "\u202egnp.exe",
    "%s{0}",
    ":smile:",
    "x" * 300,
    "é" * 200,
    "\\x1b",
    "C1",
    "-5",
    "1e5",
    "|`*_#",
    "\\input{/etc/passwd}",
    "\ufffe",
]
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(NASTY)
unhurried = settings(deadline=None, max_examples=300)
ACTIVE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printed(*what: object) -> str:
    """What a command's console writes to a terminal, without rich's own styles."""
    out = console()
    out.file, out.no_color = io.StringIO(), True
    out.print(*what)
    return out.file.getvalue()


# ----------------------------------------------------------------------------------------- terminal


@unhurried
@given(anything)
def test_no_name_reaches_a_terminal_as_a_command_or_as_markup(name: str) -> None:
    entry = LedgerEntry(0, name, 10, 2, 0.5, status=f"refused: {name}")
    result = type(
        "Result",
        (),
        {
            "weights": {name: 0.5},
            "diverged": "",
            "metrics": RunMetrics(validation=SplitMetrics(auc=MacroMetric(macro=0.5))),
        },
    )()
    result.ledger, result.loss, result.round = [entry], 0.1, 0
    shown = (
        printed(round_line(result))
        + printed(f"client {name}")
        + printed(table([name, "b"], [[name, name]]))
    )
    assert not ACTIVE.search(shown)
    assert round_line(result).count("\n") == 0
    Console(file=io.StringIO()).print(plain_words(name))
    assert "[bold]x[/y]" in printed(table(["[bold]x[/y]"], []))
    assert "[bold]x[/y]" in printed("[bold]x[/y]")


@pytest.mark.parametrize("name", NASTY)
def test_an_error_about_a_name_is_one_line_of_plain_text(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from feddraw.cli import _print_error

    _print_error(f"no '{name}' among the sites", 2)
    assert not ACTIVE.search(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------- tables


@unhurried
@given(st.lists(st.tuples(anything, anything), min_size=1, max_size=4))
def test_names_come_back_from_a_ledger_and_none_is_a_formula(tmp_path_factory, pairs) -> None:  # type: ignore[no-untyped-def]
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.forget_from(0)
    folder.add_to_ledger(
        [LedgerEntry(0, name, 10, 2, 0.5, status=status) for name, status in pairs]
    )
    assert [(row["client"], row["status"]) for row in read_csv(folder.ledger)] == pairs
    folder.forget_from(1)  # written again from what was read
    assert [(row["client"], row["status"]) for row in read_csv(folder.ledger)] == pairs
    for row in csv.reader(io.StringIO(folder.ledger.read_text(), newline="")):
        for cell in row:
            assert not re.match(r"[=+\-@\t\r]", cell) or csv_cells._NUMBER.fullmatch(cell), cell


def test_a_table_of_results_can_be_read_by_stats(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        csv_cells.csv_text([["scenario", "=m"], ["=a", "-b"], ["c", 0.5]])
    )
    sheet = CsvSheet.of(tmp_path / "t.csv")
    assert sheet.header == ("scenario", "=m")
    assert [fields for _, fields in sheet.rows()] == [["=a", "-b"], ["c", "0.5"]]


def test_half_a_character_in_a_json_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"\\ud800": 1}')
    with pytest.raises(Exception, match="is not valid JSON"):
        read_json(tmp_path / "m.json")
    (tmp_path / "m.json").write_text('{"\\ud83d\\ude00": 1}')
    assert read_json(tmp_path / "m.json") == {"😀": 1}


# --------------------------------------------------------------------------------------- file names


@unhurried
@given(anything)
@example("CON/../x")
def test_a_slug_is_a_plain_file_name(name: str) -> None:
    found = slug(name)
    assert re.fullmatch(r"[a-z0-9.+-]{1,80}", found)
    assert not found.startswith((".", "-"))
    assert "/" not in folder_name(name)
    assert len(folder_name(name)) <= 60


def test_ends_of_paths_are_as_long_as_it_takes_to_tell_them_apart():
    paths = {path: Path(path).parts for path in ("/a/x/t", "/b/x/t", "/b/y/t")}
    assert list(distinct_ends(paths).values()) == ["a/x/t", "b/x/t", "b/y/t"]
    assert distinct_ends({"/a/x/t": ("/", "a", "x", "t")}) == {"/a/x/t": "t"}
    same_parts = {"x.csv": ("x",), "x.csv.gz": ("x",)}
    assert distinct_ends(same_parts) == {"x.csv": "x.csv", "x.csv.gz": "x.csv.gz"}


def test_scripts_other_than_latin_do_not_share_a_file(tmp_path: Path) -> None:
    assert slug("北") != slug("南")
    assert slug("CHM-2") == "chm-2"
    assert list(distinct_slugs(["a", "a-2", "a", "a"])) == ["a", "a-2", "a-3", "a-4"]
    for scenario, sizes in {
        "北": (100, 200),
        "南": (300, 400),
        "a b": (500, 600),
        "A-B": (700, 800),
    }.items():
        make_run(tmp_path / "runs" / scenario, scenario=scenario, sizes=sizes)
    write_report([tmp_path / "runs"], tmp_path / "page", settings=ReportSettings(replicates=0))
    text = (tmp_path / "page" / "report.md").read_text()
    figures = dict(
        re.findall(r"!\[Images at each client: (.*?)\]\((figures/\S+-sizes\S*\.svg)\)", text)
    )
    assert len(set(figures.values())) == len(figures) == 4
    for caption, file in figures.items():
        drawn = (tmp_path / "page" / file).read_text()
        for size in re.findall(r"C\d (\d+)", caption):
            assert size in drawn


# -------------------------------------------------------------------------------------------- pages


@settings(deadline=None, max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(anything, min_size=4, max_size=4, unique=True))
@example(["[/x]", "\x1b[31mred", "=cmd|'/c calc'!A1", "\x00"])
@example(["\ufffe", "\x9b31m", "a]]>b", "<script>alert(1)</script>"])
def test_any_names_give_whole_pages_figures_and_explanations(
    tmp_path_factory, names: list[str]
) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("nasty")
    run = make_run(folder / "run", clients=names, scenario="x", rounds=2)
    ledger = RunFolder(run).ledger
    rows = list(csv.reader(io.StringIO(ledger.read_text(), newline="")))
    ledger.write_text(csv_cells.csv_text(rows), newline="")
    out = folder / "page"
    write_report([run], out, settings=ReportSettings(replicates=0))
    for figure in (out / "figures").glob("*.svg"):
        ElementTree.fromstring(figure.read_bytes())
    for page in ("report.html", "report.md", "tables.tex"):
        assert not ACTIVE.search((out / page).read_text())
    assert "<script>alert" not in (out / "report.html").read_text()
    said = CliRunner().invoke(app, ["explain", str(run)])
    assert said.exit_code == 0, said.exception
    assert not ACTIVE.search(said.output)


def split_anyhow(labels, seed, scale):  # type: ignore[no-untyped-def]
    """A scenario whose clients have hostile names."""
    rows = np.arange(len(labels))
    return {"[/x]": rows[::3], "\x1b[31mred": rows[1::3], "=cmd|'/c calc'!A1": rows[2::3]}


def test_a_run_with_hostile_sites_and_findings_goes_through_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(["[/finding]", "\x1b[2Jwiped"])}
    for part, size in (("train", 60), ("val", 24), ("test", 24)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 2, (size, 2), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", **arrays)
    words = [
        "run",
        "--data",
        str(tmp_path / "d.npz"),
        "--size",
        "28",
        "--scenario",
        "test_text:split_anyhow",
    ]
    words += [
        "--method",
        "fedavg",
        "--set",
        "data.findings=all",
        "--rounds",
        "1",
        "--engine",
        "serial",
        "--out",
        str(tmp_path / "run"),
    ]
    for command in (words, ["report", str(tmp_path / "run")], ["explain", str(tmp_path / "run")]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.exception
        assert not ACTIVE.search(done.output)
        assert "[/x]" in done.output or command[0] == "report"
    assert [row["client"] for row in read_csv(tmp_path / "run" / "weights.csv")] == [
        *split_anyhow(range(9), 0, 1)
    ]


def test_pairs_of_a_name_and_a_value_are_read_in_their_order():
    pairs = parse_pairs(" b = 2,a=1.5,, ", float, setting="x", example="'a=1'")
    assert list(pairs.items()) == [("b", 2.0), ("a", 1.5)]
    assert parse_pairs("", float, setting="x", example="'a=1'") == {}
    assert parse_pairs("a=b=c", str, setting="x", example="'a=1'") == {"a=b": "c"}


@pytest.mark.parametrize("written", ["a", "=1", "a=", "a=one", "a=1, a=2"])
def test_what_is_no_pair_or_names_something_twice_is_refused_with_an_example(written):
    with pytest.raises(UserError, match=r"x\.y must read like 'a=1' \(name = number\), not"):
        parse_pairs(written, float, setting="x.y", example="'a=1' (name = number)")


def test_a_name_can_neither_end_a_cell_of_a_markdown_table_nor_begin_markup():
    name = "a|b\n*c* <i> `d` $e$"
    lines = markdown_table(["client", "AUC"], [[escape_markdown(name), "0.8"]], numbers=True)
    assert lines == [
        "| client | AUC |",
        "|---|---:|",
        r"| a\|b \*c\* &lt;i&gt; \`d\` \$e\$ | 0.8 |",
    ]
    assert markdown_table(["a", "b"], [])[1] == "|---|---|"


@pytest.mark.parametrize("name", [*NASTY, "- a", "+ a", "1. a", "2) a", "===", "---", "&lt;b&gt;"])
def test_a_name_is_one_paragraph_of_markdown_that_shows_its_characters(name: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"before\n{escape_markdown(name)}")
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    inline = tokens[1].children or []
    assert {token.type for token in inline} <= {"text", "softbreak", "text_special"}
    shown = "".join(token.content for token in inline)
    assert shown == "before" + safe_line(" ".join(name.split()))
