"""Files from strangers are data: no pickle, no code without trust, no way out of a folder, no
markup in a page.
"""

from __future__ import annotations

import ast
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import feddraw
from feddraw.cli import app
from feddraw.data.dataset_by_name import read_training_labels
from feddraw.data.datasets.nih import read_nih_table as read_nih
from feddraw.data.imaging import BadImage, decode
from feddraw.data.npz_archive import NpzArchive
from feddraw.data.own_tables import path_inside_folder, read_own_tables
from feddraw.data.scenarios.index_list import IndexList
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.results.run_collection import collect_runs
from feddraw.study.plan import read_study
from feddraw.system.file_reading import read_json, read_text
from feddraw.system.file_writing import toml_values
from run_folders import make_run

SOURCE = Path(feddraw.__file__).parent
unhurried = settings(deadline=None, max_examples=200)


PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MAY_RUN_CODE = re.compile("|".join([*PICKLES, "load", "eval", "exec"]))


# ---------------------------------------------------------------------------------------- no pickle


def test_nothing_in_the_package_unpickles() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if MAY_RUN_CODE.search(text) else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & PICKLES, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given_names = {keyword.arg: keyword.value for keyword in node.keywords}
                owner = getattr(node.func.value, "id", "")
                if (owner, node.func.attr) == ("np", "load"):
                    assert ast.unparse(given_names["allow_pickle"]) == "False", path
                if (owner, node.func.attr) == ("torch", "load"):
                    assert ast.unparse(given_names["weights_only"]) == "True", path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return (Path.touch, (Path("exploded"),))  # type: ignore[return-value]


def test_a_pickle_in_the_place_of_an_archive_or_of_weights_is_not_run(in_tmp: Path) -> None:
    for name in ("train_labels", "val_labels", "test_labels"):
        np.save(f"{name}.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile("a.npz", "w") as archive:
        for name in ("train_labels", "val_labels", "test_labels"):
            archive.write(f"{name}.npy")
    with pytest.raises(UserError, match="is no plain array"):
        NpzArchive.open(Path("a.npz"))
    Path("w.pth").write_bytes(pickle.dumps({"features": Bomb()}))
    with pytest.raises(UserError, match="holds more than tensors"):
        read_saved_parameters(Path("w.pth"))
    assert not Path("exploded").exists()


# ------------------------------------------------------------------------------------------ no code

CODE = "from pathlib import Path\nPath('imported').touch()\n"


@pytest.mark.parametrize("section", ["data", "scenario", "model", "method"])
def test_code_that_a_file_names_is_not_imported_without_trust(in_tmp: Path, section: str) -> None:
    Path("evil.py").write_text(CODE)
    for content in (
        f"{section} = 'evil:f'\n",
        f"[{section}]\nname = 'evil:f'\n",
        f"{section} = ['evil:f']\n",
    ):
        Path("e.toml").write_text(content)
        with pytest.raises(UserError, match=r"names code to import|must be a name"):
            Experiment.read(Path("e.toml"))
        with pytest.raises(UserError, match="names code to import"):
            read_study(Path("e.toml"))
    assert not Path("imported").exists()


def test_half_of_a_mixture_is_code_too(in_tmp: Path) -> None:
    Path("e.toml").write_text("method = 'fedavg+evil:f'\n")
    with pytest.raises(UserError, match="names code to import"):
        Experiment.read(Path("e.toml"))


@pytest.mark.parametrize("command", ["report", "explain", "verify"])
def test_commands_that_read_runs_import_nothing_that_they_name(in_tmp: Path, command: str) -> None:
    Path("evil.py").write_text(CODE)
    make_run(Path("run"), method="evil:f")
    done = CliRunner().invoke(app, [command, "run"])
    assert done.exception is None or isinstance(done.exception, UserError | SystemExit)
    assert not Path("imported").exists()


# --------------------------------------------------------------------------------------- no way out


@unhurried
@given(st.text(alphabet="ab./\\:~\0 C", max_size=12))
def test_a_path_from_a_table_stays_in_its_folder(text: str) -> None:
    found = path_inside_folder(text, None)
    if found is not None:
        assert (Path("/home/folder") / found).resolve().is_relative_to("/home/folder")


def test_paths_that_lead_out_of_the_folder_are_problems(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "path,a\n../x.png,1\n/etc/passwd,0\nC:\\x.png,1\nok.png,0\na/../../b.png,1\n"
    )
    table = read_own_tables([tmp_path / "t.csv"], root=tmp_path)
    assert table.paths == ("ok.png",)
    assert len(table.problems) == 4


def test_a_path_through_a_link_to_the_folder_is_inside_it(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "link").symlink_to("scans")
    for folder in ("scans", "link"):
        assert path_inside_folder(str(tmp_path / folder / "a.png"), tmp_path / "link") == "a.png"
    assert path_inside_folder(str(tmp_path / "a.png"), tmp_path / "link") is None


def test_a_name_from_the_lists_of_chestxray14_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("Image Index,Finding Labels\n../../secret.png,No Finding\n")
    assert read_nih(tmp_path / "t.csv", {"../../secret.png": 0}, "paper", {}).paths == (
        "secret.png",
    )


# ------------------------------------------------------------------------------------------- limits


def test_files_that_are_no_files_or_too_large_are_refused_before_they_are_read(
    tmp_path: Path,
) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(UserError, match="it is not a file"):
            read_text(path, 10)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(UserError, match="is larger than 64 MB"):
        read_json(large)


@pytest.mark.parametrize("content", ["[" * 100_000, "1" * 5000, "[]", "{", '"text"'])
def test_json_that_is_no_table_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match="is not valid JSON"):
        read_json(tmp_path / "x.json")


# ---------------------------------------------------------------------------------------- no markup

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$\\frac{",
    "a_b",
    "C1\n2",
    "&amp;",
)


def test_names_are_only_names_in_a_report(in_tmp: Path) -> None:
    make_run(Path("run"), clients=NASTY[:4], settings={"scenario.note": NASTY[1]})
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0
    (page,) = Path().rglob("*.html")
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_folder_of_nasty_names_can_be_collected(tmp_path: Path) -> None:
    make_run(tmp_path / "run", clients=NASTY[:4])
    assert collect_runs([tmp_path]).runs[0].ledger.clients == NASTY[:4]


def test_pages_that_people_send_on_hold_no_path_of_the_machine(tmp_path: Path) -> None:
    home = tmp_path / "home" / "dr-mueller" / "klinikum"
    data = {
        "data": {"name": "folder", "path": "/srv/klinikum-nord/xrays", "size": 28},
        "model.weights": "/srv/w.pth",
    }
    make_run(home / "study" / "a", settings=data)
    make_run(home / "study" / "b", method="fedavg", settings=data)
    make_run(home / "study" / "copy of b", method="fedavg", settings=data)
    make_run(home / "study" / "c", method="uniform", finished=False)
    for words in (
        [str(home / "study")],
        [str(home / "study" / "a"), str(home / "study"), "--out", str(home / "page")],
    ):
        assert CliRunner().invoke(app, ["report", *words]).exit_code == 0
    pages = [
        path for path in home.rglob("*") if path.suffix in (".html", ".md", ".tex", ".svg", ".png")
    ]
    assert len(pages) > 20
    for page in pages:
        content = page.read_bytes()
        for word in (b"mueller", b"klinikum", b"/srv", str(tmp_path).encode()):
            assert word not in content, (page, word)
    assert "study/a/experiment.toml" in (home / "study" / "report.md").read_text().replace("\\", "")


# ----------------------------------------------------------------------------------------- settings

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.sampled_from(
    ["data", "scenario", "model", "method", "training", "gate", "rounds", "seed", "engine", "x"]
)


def test_a_list_with_none_in_it_is_refused_before_a_run_begins() -> None:
    with pytest.raises(UserError, match="data has a list with None in it"):
        Experiment.of({"data": {"name": "phantom", "columns": [None]}})


@unhurried
@given(st.dictionaries(names, values | st.fixed_dictionaries({"name": values}), max_size=4))
def test_any_table_is_an_experiment_or_one_line(table: dict[str, object]) -> None:
    with suppress(UserError):
        experiment = Experiment.of(toml_values(table))
        assert Experiment.of(experiment.table()).table() == experiment.table() or "nan" in repr(
            experiment
        )
        assert tomli_w.dumps(toml_values(experiment.table()))


@pytest.mark.parametrize(
    "read",
    [
        Experiment.read,
        read_study,
        read_json,
        lambda path: read_own_tables([path]),
        read_training_labels,
        NpzArchive.open,
        IndexList.read,
        decode,
        read_saved_parameters,
    ],
)
def test_a_pipe_is_no_file_and_nobody_waits_for_its_end(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((UserError, BadImage)):
        read(tmp_path / "pipe")
