"""What may be imported: what was typed here, or what --trust allows.

Nothing that a file or another machine names.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.completion import complete_settings
from feddraw.results.outcome_settings import dotted_settings
from feddraw.study.plan import read_study
from feddraw.system.machine import installed
from run_folders import make_run
from small import small

CANARY = "from pathlib import Path\nPath('imported').touch()\ndef f(*_, **__): return None\n"
PLANTED = [
    ("data", "canary:f"),
    ("scenario", "canary:f"),
    ("model", "canary:f"),
    ("method", "canary:f"),
    ("method", "canary:f+fedavg"),
    ("method", "fedavg+canary:f"),
    ("engine", "canary:f"),
]


@pytest.fixture
def canary(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that leaves a file behind when it is imported, in the current folder and on the
    path.
    """
    Path("canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(str(in_tmp))
    monkeypatch.delitem(sys.modules, "canary", raising=False)


def invoke(*words: str) -> str:
    """A command's one line of refusal, or nothing if it went through."""
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(
        done.exception, UserError | RunFailed | SystemExit
    ), done.exception
    return str(done.exception or "")


def by_run(section: str, name: str) -> str:
    key = section if section == "engine" else f"{section}.name"
    Path("e.toml").write_text(f"{key} = '{name}'\n")
    return invoke("run", "e.toml", "--rounds", "1", "--out", "out")


def by_resume(section: str, name: str) -> str:
    make_run(Path("run"), settings={section: name}, finished=False)
    return invoke("run", "--resume", "--out", "run")


def by_study(section: str, name: str) -> str:
    Path("s.toml").write_text(f"seed = [0, 1]\nrounds = 1\n{section} = ['{name}']\n")
    return invoke("study", "s.toml", "--out", "out", "--workers", "1")


def by_study_case(section: str, name: str) -> str:
    Path("s.toml").write_text(f"rounds = 1\n[[case]]\n{section} = '{name}'\n")
    return invoke("study", "s.toml", "--out", "out", "--workers", "1")


def of_a_run(*command: str) -> Callable[[str, str], str]:
    def attempt(section: str, name: str) -> str:
        make_run(Path("run"), settings={section: {"name": name} if section != "engine" else name})
        return invoke(*command)

    return attempt


def by_init(section: str, name: str) -> str:
    Path("table.csv").write_text(f"path,{name},site\n{name},1,{name}\nb.png,0,{name}\n")
    return invoke("init", "table.csv")


def run_config(section: str, name: str) -> dict[str, Any]:
    settings = {
        key: value
        for key, value in dotted_settings(small(rounds=1).table()).items()
        if not isinstance(value, list)
    }
    settings = {key: value for key, value in settings.items() if not key.startswith(f"{section}.")}
    return settings | {section if section == "engine" else f"{section}.name": name}


def by_flower_server(section: str, name: str) -> str:
    from feddraw.flower.client_app import app as client
    from feddraw.flower.in_process_grid import InProcessGrid
    from feddraw.flower.server_app import serve_flower_run

    settings = run_config(section, name)
    return refused(
        lambda: serve_flower_run(InProcessGrid(client, [{"partition-id": 0}], settings), settings)
    )


def by_flower_set(section: str, name: str) -> str:
    from feddraw.flower.settings import read_run_config

    return refused(lambda: read_run_config({"set": f"{section}={name}"}))


def by_flower_client(section: str, name: str) -> str:
    from feddraw.flower.client_app import open_site

    context = SimpleNamespace(
        node_config={"partition-id": 0}, run_config=run_config(section, name), node_id=7
    )
    return refused(lambda: open_site(context))  # type: ignore[arg-type]


def by_flower_site(section: str, name: str) -> str:
    from feddraw.flower.client_app import open_site

    node = {"data": "xrays", "client": name}
    context = SimpleNamespace(node_config=node, run_config=run_config(section, name), node_id=7)
    return refused(lambda: open_site(context))  # type: ignore[arg-type]


def by_flare(section: str, name: str) -> str:
    flare = pytest.importorskip("feddraw.nvflare", exc_type=UserError)
    return refused(lambda: flare.FedDRAW(rounds=2, reading=name, classifier=name, size_key=name))


def refused(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (UserError, RunFailed) as error:
        return str(error)
    return ""


WAYS_IN = {
    "run": by_run,
    "run --resume": by_resume,
    "study": by_study,
    "study's case": by_study_case,
    "verify": of_a_run("verify", "run"),
    "explain": of_a_run("explain", "run"),
    "init": by_init,
    "Flower's server": by_flower_server,
    "Flower's set": by_flower_set,
    "Flower's client": by_flower_client,
    "Flower's site": by_flower_site,
    "FLARE": by_flare,
}
MUST_REFUSE = (
    "run",
    "run --resume",
    "study",
    "study's case",
    "verify",
    "Flower's server",
    "Flower's set",
)
MUST_REFUSE += ("Flower's client", "Flower's site")


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize(("section", "name"), PLANTED, ids=lambda word: word)
@pytest.mark.parametrize("way", WAYS_IN)
def test_no_way_in_imports_what_a_stranger_names(way: str, section: str, name: str) -> None:
    said = WAYS_IN[way](section, name)
    assert not Path("imported").exists()
    assert "canary" not in sys.modules
    if way in MUST_REFUSE:
        assert said if section == "engine" else "code to import" in said


@pytest.mark.usefixtures("canary")
def test_a_report_imports_nothing_that_its_run_names() -> None:
    code = {section: {"name": name} for section, name in PLANTED if section != "engine"}
    make_run(Path("run"), settings=code | {"engine": "canary:f"})
    invoke("report", "run")
    assert not Path("imported").exists()
    assert "canary" not in sys.modules


@pytest.mark.usefixtures("canary")
def test_what_is_typed_is_imported_and_a_study_may_be_given_code_on_the_command_line() -> None:
    Path("s.toml").write_text("seed = [0, 1]\n")
    (planned, _) = read_study(Path("s.toml"), {"method": "canary:f"})
    assert planned.experiment.section("method")[0] == "canary:f"
    assert "'canary:f' must return a feddraw.core.Method" in invoke(
        "run", "--method", "canary:f", "--out", "out"
    )
    assert Path("imported").exists()


@pytest.mark.usefixtures("canary")
def test_settings_that_come_over_flower_cannot_trust_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from feddraw.flower import settings

    with pytest.raises(
        UserError,
        match="a run's settings cannot ask for trust: start the server with FEDDRAW_TRUST=1",
    ):
        settings.read_run_config(run_config("model", "canary:f") | {"trust": True})
    assert not settings.trusted_here()
    monkeypatch.setenv("FEDDRAW_TRUST", "1")
    experiment, _ = settings.read_run_config(
        run_config("model", "canary:f"), trust=settings.trusted_here()
    )
    assert experiment.section("model")[0] == "canary:f"


# -------------------------------------------------------------------------------------- this folder


def test_making_an_experiment_imports_nothing(in_tmp: Path) -> None:
    before = list(sys.path)
    for section in ("data", "scenario", "model", "method"):
        small(**{section: "nowhere:f"})
    assert sys.path == before
    with suppress(UserError):
        complete_settings(small(method="nowhere:f"))
    assert sys.path == [*before, str(in_tmp)]
    sys.path.remove(str(in_tmp))


def test_an_installed_package_is_not_looked_for_in_the_current_folder(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_tmp / "surely_not_installed").mkdir()
    (in_tmp / "surely_not_installed" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(in_tmp))
    assert not installed("surely_not_installed")
    monkeypatch.syspath_prepend("")
    assert not installed("surely_not_installed")
    assert installed("numpy")


IMPORTED_BY_WORKERS = ("ray", "multiprocessing", "selectors", "tensorboard", "flwr", "yaml")


# as the installed script does, for several commands: torch is loaded once
AS_INSTALLED = """
import sys
sys.path = [place for place in sys.path if place]
from feddraw.cli import main
for engine in sys.argv[1:]:
    sys.argv = ["feddraw", "run", "e.toml", "--engine", engine, "--out", engine]
    try:
        main()
    except SystemExit as left:
        assert not left.code, engine
"""


def test_modules_in_a_strangers_folder_are_not_taken_for_installed_ones(tmp_path: Path) -> None:
    table = {"rounds": 1, "workers": 1, "model": {"name": "compact", "growth": 4}}
    table |= {"data": {"name": "phantom", "size": 28, "train": 60, "validation": 20, "test": 20}}
    table |= {"scenario": {"name": "iid", "clients": 2}}
    (tmp_path / "e.toml").write_text(
        "".join(f"{key} = {toml(value)}\n" for key, value in table.items())
    )
    for name in IMPORTED_BY_WORKERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n"
        )
    words = [sys.executable, "-c", AS_INSTALLED, "processes", "flower"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
    assert done.returncode == 0, done.stderr


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
