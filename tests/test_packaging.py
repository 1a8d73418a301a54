"""What is shipped is whole: the wheel works on its own, with its data files, and the sdist can be
built from.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def built(kind: str, folder: Path, source: Path = ROOT) -> Path:
    pytest.importorskip("hatchling")
    code = f"import sys; from hatchling import build; print(build.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_the_wheel_built_from_the_sdist_holds_every_file_of_the_package_and_runs_alone(
    tmp_path: Path,
) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(path for path in tmp_path.iterdir() if path.is_dir())
    for name in (
        "tests/test_golden.py",
        "docs/index.md",
        "mkdocs.yml",
        "examples/quickstart.py",
        "benchmarks/peers/with_flower.py",
        "Makefile",
        "LICENSE",
    ):
        assert (source / name).is_file(), name

    wheel = built("wheel", tmp_path, source)
    (tmp_path / "direct").mkdir()
    assert (
        built("wheel", tmp_path / "direct").read_bytes() == wheel.read_bytes()
    )  # wherever it is built
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "alone")
    here, there = ROOT / "src" / "feddraw", tmp_path / "alone" / "feddraw"
    own = {
        path.relative_to(here)
        for path in here.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert own == {path.relative_to(there) for path in there.rglob("*") if path.is_file()}

    code = (
        "import feddraw, feddraw.explorer as e, feddraw.paper.published_tables\nassert"
        f" feddraw.__file__.startswith({str(there)!r})\nassert 'CHX-1' in e.explorer_page()\nfrom"
        " feddraw.cli import main; import sys; sys.argv = ['feddraw', 'paper', '--json']; main()"
    )
    alone = os.environ | {"PYTHONPATH": str(tmp_path / "alone")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=alone, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


IMPORT_ALL = """
import importlib, os, pkgutil, signal, sys, threading, unittest.mock
import psutil, torch, feddraw
for name in ("flwr.simulation", "flwr.server", "ray", "nvflare"):  # what these do themselves is not ours
    try:
        importlib.import_module(name)
    except ImportError:
        pass
before = dict(os.environ), list(sys.argv), threading.active_count(), signal.getsignal(signal.SIGINT)
optional = {"flwr", "nvflare", "ray", "tensorboard", "mlflow", "wandb", "monai", "pydicom", "onnx", "onnxruntime", "fire"}
for module in pkgutil.walk_packages(feddraw.__path__, "feddraw.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in optional, error
    except feddraw.UserError as error:
        assert "pip install" in str(error), error
children = psutil.Process().children(recursive=True)  # asks of every process of the machine: once
assert not children, children
mocks = [name for name, one in sys.modules.items() if isinstance(one, unittest.mock.NonCallableMock)]
assert not mocks, mocks
assert (dict(os.environ), sys.argv, threading.active_count(), signal.getsignal(signal.SIGINT)) == before
"""


def test_importing_any_module_of_the_package_does_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("we", "weights"), ("run --me", "--method"), ("run --method fedp", "fedprox")],
)
def test_the_tab_key_completes_commands_options_and_names(typed: str, offered: str) -> None:
    code = "import sys; sys.argv = ['feddraw']; from feddraw.cli import main; main()"
    words = f"feddraw {typed}"
    shell = {
        "_FEDDRAW_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | shell,
        capture_output=True,
        text=True,
        check=False,
    )
    assert offered in done.stdout.split()
