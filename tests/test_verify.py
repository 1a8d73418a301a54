"""The same result twice: `verify` runs a run again and compares, and thread settings change
no bit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from feddraw.errors import UserError
from feddraw.experiment.running import iterate, run
from feddraw.experiment.verify import verify
from small import small


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    list(run(small(method="feddyn"), folder))
    return folder


def test_a_run_comes_out_the_same(finished: Path) -> None:
    before = {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()}
    seen = []
    found = verify(finished, on_round=lambda result: seen.append(result.round))
    assert found.same
    assert found.finished
    assert seen == [0, 1, 2]
    assert {"model.safetensors", "metrics.json", "the clients' images"} <= dict(found.equal).keys()
    assert {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()} == before


def test_the_first_rounds_of_an_unfinished_run_can_be_verified(tmp_path: Path) -> None:
    list(islice(iterate(small(), tmp_path / "run"), 2))
    found = verify(tmp_path / "run", 1)
    assert found.same
    assert not found.finished
    with pytest.raises(UserError, match="is not finished: verify its first 2 rounds with --rounds"):
        verify(tmp_path / "run")


@pytest.mark.parametrize("file", ["weights.csv", "rounds.jsonl", "model.safetensors"])
def test_what_was_changed_is_named(finished: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(finished, tmp_path / "run")
    target = tmp_path / "run" / file
    content = bytearray(target.read_bytes())
    marks = {
        "weights.csv": b"0.",
        "rounds.jsonl": b'"loss": 0.',
    }  # a digit behind the last of these
    place = (
        content.rindex(marks[file]) + len(marks[file]) + 1 if file in marks else len(content) - 5
    )
    content[place] ^= 1
    target.write_bytes(content)
    found = verify(tmp_path / "run")
    assert [what.split(" of ")[0] for what in found.different] == [file]


def test_another_environment_is_told(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    environment = tmp_path / "run" / "environment.json"
    told = json.loads(environment.read_text())
    told["packages"]["torch"] = "1.0"
    told["devices"] = [{"device": "cuda:1", "type": "cuda", "name": "A GPU"}]
    environment.write_text(json.dumps(told))
    version, device = verify(tmp_path / "run", 1).other_environment
    assert version.startswith("torch 1.0, now ")
    assert device == "trained on A GPU, now cpu"


def test_mistakes_are_one_line(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--rounds must be from 1 to 3, not 4"):
        verify(finished, 4)
    with pytest.raises(UserError, match="is not the folder of a run"):
        verify(tmp_path)


def test_code_that_a_run_names_is_not_imported_without_trust(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    settings = tmp_path / "run" / "experiment.toml"
    settings.write_text(settings.read_text().replace('"feddyn"', '"antigravity:fly"'))
    with pytest.raises(
        UserError, match=r"names code to import \(method = antigravity:fly\): add --trust"
    ):
        verify(tmp_path / "run")
    assert "antigravity" not in sys.modules


def test_the_command_compares_under_other_thread_settings(finished: Path) -> None:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")
    done = subprocess.run(
        [sys.executable, "-m", "feddraw", "verify", str(finished)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **threads},
    )
    assert done.returncode == 0, done.stderr
    assert f"verified: all 3 rounds of {finished} are the same, bit for bit" in done.stdout
