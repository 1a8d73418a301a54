"""Whatever goes wrong is one line: options that a message names exist, absurd values are refused,
output may go.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import feddraw
from feddraw import cli
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import prepare
from run_folders import make_run
from small import small

SOURCE = Path(feddraw.__file__).parent

# ------------------------------------------------------------------------------------------ options

# Below the command line a module's messages reach the user through these commands; all of them must
# have the option.
PRINTED_BY = {
    "analysis/site_heterogeneity.py": ("heterogeneity",),
    "analysis/statistics.py": ("stats",),
    "analysis/statistics_in_words.py": ("stats",),
    "analysis/tidy_results.py": ("stats",),
    "doctor/study_start.py": ("study", "compare"),
    "doctor/examination.py": ("doctor",),
    "experiment/settings.py": ("run", "study"),
    "study/preflight.py": ("study",),
    "experiment/running.py": ("run", "study", "verify"),
    "study/method_comparison.py": ("compare",),
    "study/plan.py": ("study",),
    "experiment/heterogeneity.py": ("heterogeneity",),
    "experiment/contribution.py": ("contribution",),
    "experiment/recombination.py": ("contribution",),
    "experiment/inspect_own_data.py": ("init",),
    "experiment/init_own_data.py": ("run",),  # in the file that `feddraw init` writes for it
    "experiment/prediction.py": ("predict",),
    "experiment/task_of_table.py": ("init",),
    "experiment/trained_model.py": ("predict", "export"),
    "experiment/verify.py": ("verify",),
    "export/run_export.py": ("export",),
    "explorer/page.py": ("explore",),
    "flower/app_signatures.py": ("operator invite",),
    "flower/node_supervision.py": ("site start",),
    "flower/reconnection.py": ("site start",),
    "flower/supernode.py": ("site start",),
    "flower/operator_folder.py": ("operator init",),
    "flower/site_folder.py": ("site start",),
    "report/files.py": ("report",),
    "report/patients.py": ("report",),
    "results/run_folder.py": ("run", "demo"),
    "data/scenarios/scenario_by_name.py": ("scenario show",),
    "watch/server.py": ("watch",),
}
OF_OTHERS = {"--node-config", "--ink", "--muted", "--print"}  # Flower's, and a style sheet's
OTHER_PROGRAMS = {"export/monai_bundle.py"}  # its texts show the command of MONAI
OF_ALL = {"--help", "--version"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
COMMAND = re.compile(r"(?:`?feddraw |`)([a-z]+(?: [a-z]+)?)\b")


def commands() -> dict[str, click.Command]:
    """Every command by its full name."""
    found: dict[str, click.Command] = {}
    group = typer.main.get_command(cli.app)
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        inner = command.commands.items() if isinstance(command, click.Group) else []
        found |= {f"{name} {word}": one for word, one in inner} or {name: command}
    return found


COMMANDS = commands()


def options(command: str) -> set[str]:
    return {
        name
        for parameter in COMMANDS[command].params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(outermost function or constant, text) of every text that is not a docstring; an f-string is
    one text.
    """
    for top in tree.body:
        nodes, inside = list(ast.walk(top)), set()
        assigned = [
            target.id for target in getattr(top, "targets", ()) if isinstance(target, ast.Name)
        ]
        name = getattr(top, "name", "") or "".join(assigned)
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in ast.walk(node) if part is not node}
            if isinstance(node, ast.Expr):
                inside.add(id(node.value))
        for node in nodes:
            if id(node) in inside or not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts]
            text = "".join(words)
            if " " in text:  # one word alone declares an option, or is passed to another program
                yield name, text


def reaching(tree: ast.Module, function: str) -> set[str]:
    """The functions of a file that use this function or constant, directly or through others."""
    uses = {
        top.name: {node.id for node in ast.walk(top) if isinstance(node, ast.Name)}
        for top in tree.body
        if isinstance(top, ast.FunctionDef)
    }
    found = {function}
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


def printers(path: Path, tree: ast.Module, function: str, text: str) -> set[str]:
    """The commands that can print a text."""
    typed = {name for words in COMMAND.findall(text) for name in (words, words.partition(" ")[0])}
    if named := typed & COMMANDS.keys():
        return named
    where = str(path.relative_to(SOURCE))
    if path.parent.name != "cli":
        assert where in PRINTED_BY, (
            f"{where} names an option in '{text}': say a setting, or add it to PRINTED_BY"
        )
        return set(PRINTED_BY[where])
    own = {
        n: c.callback.__name__
        for n, c in COMMANDS.items()
        if c.callback.__module__ == f"feddraw.cli.{path.stem}"
    }
    callers = {function} if function in own.values() else reaching(tree, function)
    return {name for name, callback in own.items() if callback in callers} or set(own)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_and_option_has_a_help_text(command: str) -> None:
    hints = get_type_hints(COMMANDS[command].callback, include_extras=True)
    named = {name: hint.__metadata__[-1] for name, hint in hints.items() if name != "return"}
    assert [name for name, info in named.items() if not (info.help or info.hidden)] == []


def test_every_option_that_a_message_names_is_one_of_the_command_that_prints_it() -> None:
    checked = 0
    for path in sorted(SOURCE.rglob("*.py")):
        if (path.parent.name == "cli" and path.name == "__init__.py") or str(
            path.relative_to(SOURCE)
        ) in OTHER_PROGRAMS:
            continue  # the first is tested below
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function, text in texts(tree):
            if text.startswith("flwr "):
                continue  # a command of Flower's
            wanted = set(OPTION.findall(text)) - OF_OTHERS - OF_ALL
            for command in printers(path, tree, function, text) if wanted else ():
                assert wanted <= options(command), (
                    f"{path}: `{command}` has no {wanted - options(command)}: {text}"
                )
                checked += 1
    assert checked > 30


def test_after_ctrl_c_a_command_names_its_own_options_only() -> None:
    for command, text in cli.AFTER_CTRL_C.items():
        assert set(OPTION.findall(text)) <= options(command)
    assert "--resume" in cli.AFTER_CTRL_C["run"]
    assert cli._typed_command(["data", "--x", "prepare", "nih"]) == "data prepare"
    assert cli._typed_command(["study", "--workers", "2"]) == "study"
    assert cli._typed_command([]) == ""


# ------------------------------------------------------------------------------------------- Ctrl-C

AT_AN_IMPORT = """
import os, signal, sys
import feddraw.__main__

class Impatient:
    def find_spec(self, name, *_):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted, *sys.argv[1:] = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Impatient())
feddraw.__main__.main()
"""


@pytest.mark.parametrize("module", ["click", "torch", "feddraw.experiment"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", AT_AN_IMPORT, module, "run", "--out", "r"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 130
    assert re.fullmatch(
        r"feddraw: stopped(; any finished rounds are kept: continue with --resume)?\n", done.stderr
    )


def test_the_command_starts_without_anything_heavy() -> None:
    code = (
        "import sys, feddraw.__main__; print(*{'numpy', 'typer', 'rich', 'feddraw.errors'} &"
        " set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# ------------------------------------------------------------------------------------------- output


FULL = "feddraw: cannot use the output: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "ending", "code", "said"),
    [
        ("weights --sizes 2,1", "> /dev/full", 1, FULL),
        ("weights --sizes 2,1", ">&-", 0, ""),
        ("list methods --json", "> /dev/full", 1, FULL),
        ("list methods --json", "| head -c0", 1, ""),
        ("--help", "> /dev/full", 1, FULL),
        ("--help", ">&- 2>&-", 0, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(
    command: str, ending: str, code: int, said: str
) -> None:
    shell = f"set -o pipefail; {sys.executable} -m feddraw {command} {ending}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == said
    assert done.returncode == code or ending.startswith("|")  # the reader may leave before or after


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[Any, str]:
    """A command's exit code and what it wrote to standard error, in this process."""
    monkeypatch.setattr(sys, "argv", ["feddraw", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", LONG),
        ("demo", "--out", LONG),
        ("report", LONG),
        ("explain", LONG),
        ("verify", LONG),
    ],
)
def test_a_name_that_is_too_long_is_one_line(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_tmp: Path,
) -> None:
    code, text = said(capsys, monkeypatch, *words)
    assert (code, len(text.splitlines())) == (2, 1)
    assert not list(in_tmp.iterdir())


def test_a_folder_that_may_not_be_looked_into_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    assert said(capsys, monkeypatch, "run", "--out", "/locked/run") == (
        2,
        "feddraw: cannot use /locked/run: Permission denied\n",
    )


def test_a_table_in_the_place_of_an_experiment_is_pointed_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_tmp: Path
) -> None:
    (in_tmp / "table.csv").write_text("path,Edema\nx.png,1\n")
    code, text = said(capsys, monkeypatch, "run", "table.csv")
    assert (code, text) == (
        2,
        "feddraw: table.csv holds data, not an experiment: feddraw init table.csv writes one\n",
    )
    code, text = said(capsys, monkeypatch, "compare", "table.csv")
    assert (code, text) == (
        2,
        "feddraw: table.csv holds data, not an experiment: feddraw init table.csv writes one\n",
    )


def test_a_comparison_does_not_go_into_the_folder_of_a_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_tmp: Path
) -> None:
    (in_tmp / "mine.toml").write_text("rounds = 1\n")
    (in_tmp / "runs/mine").mkdir(parents=True)
    (in_tmp / "runs/mine/experiment.toml").write_text("rounds = 1\n")
    code, text = said(capsys, monkeypatch, "compare", "mine.toml")
    assert code == 2
    assert text.startswith("feddraw: runs/mine is the folder of a run, and a comparison has many")


def test_findings_that_nobody_labels_are_named_and_no_client_is_blamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_tmp: Path
) -> None:
    rows = []
    for number in range(40):
        Image.new("L", (16, 16), number).save(in_tmp / f"{number}.png")
        rows.append(f"{number}.png,{'AB'[number % 2]},{number // 2 % 2},")
    (in_tmp / "t.csv").write_text("\n".join(["path,site,Edema,Mass", *rows]) + "\n")
    words = "run --data t.csv --scenario by_site --set data.findings=Mass --engine serial --size 16"
    code, text = said(capsys, monkeypatch, *words.split())
    assert code == 2
    assert "no training image has a known label of Mass: choose other findings" in text


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("words", ["run", "study", "stats", "init", "scenario show iid --labels"])
def test_a_table_in_another_encoding_is_one_line(
    words: str,
    encoding: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_tmp: Path,
) -> None:
    (in_tmp / "table.txt").write_text("scénario,méthode\n1,2\n", encoding=encoding)
    code, text = said(capsys, monkeypatch, *words.split(), "table.txt")
    assert (code, len(text.splitlines())) == (2, 1)


def test_a_report_on_a_path_that_is_not_text_is_written(in_tmp: Path) -> None:
    folder = Path(os.fsdecode(b"caf\xe9"))
    make_run(folder)
    done = subprocess.run(
        [sys.executable, "-m", "feddraw", "report", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\udce9" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_report_on_a_full_disk_is_one_line(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(Path("run"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((RunFailed, UserError), match="No space left on device"):
        CliRunner().invoke(cli.app, ["report", "run"], catch_exceptions=False)


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("scenario.scale", 1e300),
        ("scenario.scale", 10**30),
        ("data.train", 10**12),
        ("data.test", 2**63),
        ("model.growth", 10**6),
        ("model.growth", -1),
        ("rounds", 10**9),
        ("seed", 10**30),
    ],
)
def test_a_number_out_of_all_proportion_is_refused_at_once(setting: str, value: float) -> None:
    with pytest.raises(
        UserError, match=setting.rpartition(".")[2] if "data" not in setting else "do not fit"
    ):
        prepare(small(**{setting: value}))


@pytest.mark.parametrize("value", [1e300, -1, float("nan"), float("inf"), 0, 2**63, 10**30])
def test_any_number_for_any_setting_is_taken_or_refused(value: float) -> None:
    table = complete_settings(small()).table()
    numbers = {name: one for name, one in table.items() if isinstance(one, int | float)}
    for section in (name for name, one in table.items() if isinstance(one, dict)):
        numbers |= {
            f"{section}.{key}": one
            for key, one in table[section].items()
            if isinstance(one, int | float)
        }
    lines = {}
    for name, usual in numbers.items():
        if isinstance(usual, bool) or name in ("data.train", "data.validation", "data.test"):
            continue
        try:
            complete_settings(small().with_settings({name: value}))
        except UserError as refused:
            lines[name] = len(str(refused).splitlines())
    assert set(lines.values()) == {1}
