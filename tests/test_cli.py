"""The command line as typed: output, exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner

import feddraw
from feddraw import catalog
from feddraw.cli import app
from feddraw.errors import RunFailed, UserError
from typed import typed

SMALL = (
    "--scenario",
    "quantity",
    "--set",
    "scenario.clients=3",
    "--size",
    "28",
    "--set",
    "data.train=240",
    "--set",
    "data.validation=80",
    "--set",
    "data.test=80",
    "--set",
    "model.growth=8",
    "--rounds",
    "2",
    "--epochs",
    "1",
    "--batch-size",
    "32",
    "--engine",
    "serial",
)


def test_the_package_can_be_run_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "feddraw", "weights", "--sizes", "1,x"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "feddraw: --sizes takes numbers separated by commas, not '1,x'\n"


def test_weights_prints_every_round_and_part(tmp_path: Path) -> None:
    done = typed("weights", "--sizes", "20000,5000,5000,5000", folder=tmp_path)
    assert done.returncode == 0
    for expected in ("0.5714", "prior", "reputation xi", "weight = softmax(beta xi)", "0.2500"):
        assert expected in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["1,2", "--similarity", ".9,.99", "--rounds", "2"],
            "In these rounds similarity moves noth",
        ),
        (["1"], "One client has all the weight"),
        (["1,2", "--rounds", "3"], "All similarities are equal and move nothing."),
    ],
)
def test_weights_say_what_similarity_can_move(words: list[str], said: str) -> None:
    out = CliRunner().invoke(app, ["weights", "--sizes", *words]).output
    assert out.splitlines()[-1].startswith(said)


def test_weights_as_json_are_those_of_the_python_function(tmp_path: Path) -> None:
    done = typed(
        "weights",
        "--sizes",
        "20000,5000,5000",
        "--similarity",
        ".9,.95,1",
        "--rounds",
        "6",
        "--json",
        folder=tmp_path,
    )
    rows = feddraw.schedule(rounds=6, sizes=[20000, 5000, 5000], similarities=[0.9, 0.95, 1.0])
    assert json.loads(done.stdout) == rows
    assert rows[0]["beta"] is None
    assert set(rows[0]["clients"][0]) == {
        "client",
        "size",
        "prior",
        "similarity",
        "reputation",
        "weight",
    }


def test_weights_take_similarities_from_a_table_with_a_row_a_round(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("C1,C2\n1,1\n.5,1\n.2,1\n")
    done = typed(
        "weights",
        "--sizes",
        "2,1",
        "--similarity",
        "s.csv",
        "--rounds",
        "3",
        "--json",
        folder=tmp_path,
    )
    assert [row["clients"][0]["similarity"] for row in json.loads(done.stdout)] == [1, 0.5, 0.2]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_weights_are_drawn(tmp_path: Path, ending: str) -> None:
    assert (
        typed("weights", "--sizes", "2,1", "--plot", f"w.{ending}", folder=tmp_path).returncode == 0
    )
    assert (tmp_path / f"w.{ending}").stat().st_size > 5000


def test_a_run_prints_a_line_a_round_and_the_test_metrics(tmp_path: Path) -> None:
    done = typed(
        "run",
        *SMALL,
        "--method",
        "feddraw+fedprox",
        "--set",
        "method.mu=.5",
        "--out",
        "r",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "round   0  loss" in done.stdout
    assert "round   1  loss" in done.stdout
    assert "Cardiomegaly" in done.stdout
    assert "synthetic" in done.stdout
    assert "mu = 0.5" in (tmp_path / "r" / "experiment.toml").read_text()

    again = typed("run", *SMALL, "--out", "r", folder=tmp_path)
    assert again.returncode == 2
    assert (
        again.stderr.strip()
        == "feddraw: r is already used: choose another folder with --out, or continue with --resume"
    )
    assert "nothing to resume" not in done.stdout
    finished = typed("run", "--out", "r", "--resume", folder=tmp_path)
    assert finished.returncode == 0
    assert "r is already finished" in finished.stdout
    other = typed("run", "--out", "r", "--resume", "--rounds", "3", folder=tmp_path)
    assert other.returncode == 2
    assert "was run with rounds = 2, not 3" in other.stderr

    redone = typed("run", "r/experiment.toml", "--out", "copy", "--resume", folder=tmp_path)
    assert redone.returncode == 0, redone.stderr
    assert redone.stdout.startswith("nothing to resume in copy: a new run starts")
    model = "model.safetensors"
    assert (tmp_path / "copy" / model).read_bytes() == (tmp_path / "r" / model).read_bytes()


def test_terminal_ledger_explain_and_verify_count_rounds_alike(tmp_path: Path) -> None:
    typed("run", *SMALL, "--rounds", "2", "--method", "feddraw", "--out", "r", folder=tmp_path)
    said = typed(
        "run", *SMALL, "--rounds", "2", "--method", "feddraw", "--out", "s", folder=tmp_path
    ).stdout
    ledger = (tmp_path / "r" / "weights.csv").read_text().splitlines()[1:]
    counted = sorted({int(line.split(",")[0]) for line in ledger})
    assert counted == [0, 1]
    assert "rounds 0 to 1, seed" in said
    assert [
        int(line.split()[1]) for line in said.splitlines() if line.startswith("round ")
    ] == counted
    assert "exactly equal in round 1" in typed("explain", "r", folder=tmp_path).stdout
    with (tmp_path / "r" / "weights.csv").open("a") as file:
        file.write(ledger[-1] + "\n")
    assert "weights.csv of round 1" in "".join(
        vars(typed("verify", "r", folder=tmp_path))[s] for s in ("stdout", "stderr")
    )


def test_without_out_a_run_finds_a_free_folder_under_runs(tmp_path: Path) -> None:
    for name in ("quantity-fedavg-0", "quantity-fedavg-0-2"):
        assert (
            typed("run", *SMALL, "--rounds", "1", "--method", "fedavg", folder=tmp_path).returncode
            == 0
        )
        assert (tmp_path / "runs" / name / "metrics.json").is_file()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_workers_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    words = [
        sys.executable,
        "-m",
        "feddraw",
        "run",
        *SMALL,
        "--rounds",
        "500",
        "--engine",
        "processes",
        "--out",
        "r",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's `&` makes all below it ignore Ctrl-C
    with subprocess.Popen(words, cwd=tmp_path, start_new_session=True, **pipes) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        while "round   1  loss" not in process.stdout.readline():
            pass
        workers = psutil.Process(process.pid).children(recursive=True)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert said.strip() == "feddraw: stopped; any finished rounds are kept: continue with --resume"
    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_a_run_that_fails_before_it_has_a_folder_does_not_speak_of_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunFailed("a worker that prepared images was killed")

    monkeypatch.setattr("feddraw.experiment.running.prepare", fail)
    failed = typed("run", *SMALL, "--out", "r", folder=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr == "feddraw: a worker that prepared images was killed\n"
    assert not (tmp_path / "r").exists()


def test_a_run_that_fails_in_its_first_round_has_none_that_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunFailed("a worker was killed")

    monkeypatch.setattr("feddraw.experiment.running.federate", fail)
    failed = typed("run", *SMALL, "--out", "r", folder=tmp_path)
    assert failed.stderr.splitlines()[-1] == (
        "feddraw: a worker was killed; no round is finished: continue with --resume"
    )


MISTAKES = {
    ("rnu",): "feddraw: No such command 'rnu'. Did you mean 'run'?\n",
    ("run", "--method", "fedporx"): "no 'fedporx' among the methods: did you mean fedprox?",
    ("run", "--rounds", "0"): "rounds must be at least 1, not 0",
    ("run", "--rounds", "x"): "Invalid value for '--rounds'",
    ("run", "--lr", "nan"): "training.lr must be a positive number, not nan",
    ("run", "--set", "method.eta"): "--set takes KEY=VALUE, not 'method.eta'",
    ("weights", "--sizes", "1,2", "--clients", "A,A"): "one name to two clients",
    ("run", "--set", "methd.eta=1"): "no 'methd.eta' among the settings: did you mean method?",
    ("run", "--preset", "papr"): "no 'papr' among the presets: did you mean paper?",
    ("run", "nothere.toml"): "cannot read nothere.toml: No such file or directory",
    ("run", "--scale", "-1"): "scale must be a positive number",
    ("runn",): "No such command 'runn'",
    (
        "compare",
        "a.toml",
        "--size",
        "28",
    ): "it is a setting, --set data.size=28.",
    ("run", "--set", "name=x"): "no 'name' among the settings: write ",
    ("run", "--nope"): "run --help shows all options.",
    ("data", "show", "--nope"): "data show --help shows all options.",
    ("list", "method"): "no 'method' among the lists: did you mean methods?",
    ("list",): "say what to list: feddraw list methods|models|data|scenarios",
    ("run", "--scenario", "CHM-9"): "did you mean one of CHM-1, CHM-2, CHM-3, CHM-4, CHM-5?",
    ("weights", "--sizes", "1,x"): "--sizes takes numbers separated by commas, not '1,x'",
    ("weights", "--sizes", "0,1"): "sizes must be positive numbers",
    ("weights", "--sizes", "nan,1"): "sizes must be positive numbers",
    ("weights", "--sizes", "1,1", "--similarity", "1"): "1 similarities for 2 clients",
    (
        "weights",
        "--sizes",
        "1,1",
        "--similarity",
        "1,2",
    ): "similarities are cosines, between -1 and 1",
    ("weights", "--sizes", "1", "--similarity", "no.csv"): "no file no.csv",
    ("weights", "--sizes", "1", "--eta", "0"): "eta must be a positive number",
    ("weights", "--sizes", "1", "--plot", "w.gif"): "cannot draw to w.gif",
    ("weights", "--sizes", "1", "--plot", "no/w.png"): "cannot write no/w.png",
}


@pytest.mark.parametrize(
    ("words", "message"), MISTAKES.items(), ids=[" ".join(words) for words in MISTAKES]
)
def test_a_mistake_is_one_line_with_exit_code_two_and_nothing_is_written(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = typed(*words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_run_of_a_studys_file_names_the_command_for_it(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('method = ["feddraw", "fedavg"]\n')
    with pytest.raises(UserError, match=r"is a study: feddraw study .*study\.toml"):
        CliRunner().invoke(app, ["run", str(study)], catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("kind", ["methods", "models", "data", "scenarios"])
def test_lists_are_printed_as_tables_and_as_json(kind: str, tmp_path: Path) -> None:
    rows = json.loads(typed("list", kind, "--json", folder=tmp_path).stdout)
    table = typed("list", kind, folder=tmp_path).stdout
    assert rows
    assert all(row["name"] in table and row["what"] for row in rows)


def test_the_group_of_scenarios_lists_them_as_the_list_does() -> None:
    for options in ([], ["--wide"], ["--json"]):
        here = CliRunner().invoke(app, ["scenario", "list", *options]).output
        there = CliRunner().invoke(app, ["list", "scenarios", *options]).output
        assert here == there
    assert json.loads(there)[0]["name"] == "CHX-1"


def test_a_list_of_methods_is_short_and_wide_has_all_columns() -> None:
    narrow = CliRunner().invoke(app, ["list", "methods"]).output
    assert narrow.split()[:2] == ["name", "what"]
    assert "`feddraw list methods --wide` adds: needs, cost" in narrow
    wide = CliRunner().invoke(app, ["list", "methods", "--wide"]).output
    assert "depends on the other" in wide
    assert "beta_max=3.0" in wide


def test_paragraphs_of_the_help_are_wrapped_by_the_terminal_alone() -> None:
    for command in typer.main.get_command(app).commands.values():
        members = getattr(command, "commands", {"": command}).values()
        for member in members:
            paragraphs = (member.help or "").split("\n\n")
            assert all("\n" not in paragraph for paragraph in paragraphs), member.name


def test_methods_say_what_they_need_what_they_cost_and_whether_they_stream(tmp_path: Path) -> None:
    rows = {
        row["name"]: row
        for row in json.loads(typed("list", "methods", "--json", folder=tmp_path).stdout)
    }
    assert rows["feddraw"]["streams"] is True
    assert rows["fedadp"]["streams"] is False
    assert rows["moon"]["client keeps"] == "last"
    assert rows["feddraw"]["settings"]["beta_max"] == 3.0


def test_the_mathematics_and_the_help_start_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['feddraw', 'weights', '--sizes', '2,1']\nfrom feddraw.cli import"
        " main\ntry: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules and 'scipy'"
        " not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_the_first_sentence_of_every_command_and_of_everything_listed_is_one_line():
    """A line break in it would stand in the middle of the help."""
    commands = typer.main.get_command(app).commands.values()
    first_lines = [(command.help or "").partition("\n")[0] for command in commands]
    assert first_lines
    assert all(line.endswith((".", "?")) for line in first_lines), first_lines
    for kind in ("methods", "models", "datasets", "scenarios", "engines"):
        for name in catalog.functions_of_kind(kind):
            assert catalog.first_doc_line(kind, name).endswith((".", ")", "?")), (kind, name)
