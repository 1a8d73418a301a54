"""Sizes are looked at before files are read, unpacked bytes and lines included, as docs/safety.md
says.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import feddraw
from feddraw.data import csv_sheet, dataset_by_name, imaging, npz_archive
from feddraw.data.datasets import nih
from feddraw.data.imaging import BadImage, decode
from feddraw.data.scenarios import index_list
from feddraw.errors import UserError
from feddraw.experiment.settings import Experiment
from feddraw.models import _saved_parameters, densenet121
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.report import ReportSettings, write_report
from feddraw.results import predictions
from feddraw.results.recorded_run import read_run
from feddraw.results.run_folder import RunFolder
from feddraw.study.plan import read_study
from feddraw.study.results_table import ResultTable
from feddraw.system import file_reading
from feddraw.system.file_reading import read_csv, read_json, read_jsonl
from run_folders import make_run

GUIDE = Path(feddraw.__file__).parents[2] / "docs" / "safety.md"


def sparse(path: Path, size: int = 30 << 30) -> Path:
    """A file that is large and takes no room."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "e.toml": Experiment.read,
    "study.toml": read_study,
    "metrics.json": read_json,
    "rounds.jsonl": read_jsonl,
    "weights.csv": read_csv,
    "runs.csv": ResultTable,
    "list.json": index_list.IndexList.read,
    "labels.csv": dataset_by_name.read_training_labels,
    "sheet.csv": lambda path: list(csv_sheet.CsvSheet(path, ("a", "b"), ",").rows()),
    "data.npz": npz_archive.NpzArchive.open,
    "x.dcm": decode,
    "w.pth": read_saved_parameters,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_thirty_gigabytes_is_refused_in_a_moment(tmp_path: Path, name: str) -> None:
    began = time.process_time()
    with pytest.raises((UserError, BadImage, ValueError)):
        READERS[name](sparse(tmp_path / name))
    assert time.process_time() - began < 5


def test_scores_and_an_old_page_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=40)
    assert read_run(run).predictions() is not None
    sparse(RunFolder(run).predictions)
    assert read_run(run).predictions() is None
    sparse(run / "report.md")
    assert (
        write_report([run], settings=ReportSettings(replicates=0)).markdown.stat().st_size < 1 << 20
    )


AMPLIFIED: dict[str, tuple[Callable[[Path], object], str, bytes]] = {
    "a table of one column": (read_csv, "weights.csv", b"a\n" + b"b\n" * (1 << 22)),
    "a table of many": (read_csv, "weights.csv", (b"," * 4000 + b"\n") * 2100),
    "a log of empty lines": (read_jsonl, "rounds.jsonl", b"{}\n" * (9 << 20)),
    "one line of a log": (read_jsonl, "rounds.jsonl", b'{"a": [' + b"[]," * (9 << 20) + b"0]}\n"),
    "a document": (read_json, "metrics.json", b'{"a": [' + b"{}," * (9 << 20) + b"0]}"),
}


@pytest.mark.parametrize("kind", AMPLIFIED)
def test_a_file_of_few_bytes_cannot_become_gigabytes_of_values(tmp_path: Path, kind: str) -> None:
    read, name, content = AMPLIFIED[kind]
    (tmp_path / name).write_bytes(content)
    grown = grown_memory(read, tmp_path / name)
    assert grown < 700 << 20, f"{grown >> 20} MB for a file of {len(content) >> 20} MB"


def grown_memory(read: Callable[[Path], object], path: Path) -> int:
    """Bytes that a process takes at its most to find out that it does not read a file."""
    code = (
        f"from pathlib import Path; from {read.__module__} import {read.__name__} as read\n"
        "from feddraw.errors import UserError; from feddraw.system.machine import peak_memory\n"
        "before = peak_memory()\n"
        "try: read(Path({path!r}))\n"
        "except UserError as error: assert 'more than 8,388,608 values' in str(error), error\n"
        "else: raise SystemExit('read')\n"
        "print(peak_memory() - before)\n"
    ).replace("{path!r}", repr(str(path)))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_values_are_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "MAX_VALUES", 100)
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 16)
    assert len(read_csv(tmp_path / "a.csv")) == 16
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 17)
    with pytest.raises(UserError, match=r"holds more than 100 values"):
        read_csv(tmp_path / "a.csv")
    (tmp_path / "a.json").write_text('{"a": [' + "1," * 95 + "1]}")
    assert len(read_json(tmp_path / "a.json")["a"]) == 96


def test_a_table_with_thousands_of_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path" + ",x" * csv_sheet.MAX_COLUMNS + "\n")
    with pytest.raises(UserError, match=r"not a table of labels: it has 1,025 columns"):
        csv_sheet.CsvSheet.of(tmp_path / "t.csv")


@pytest.mark.parametrize("line", [b"\n", b"a,b\n" * 2])
def test_a_small_gz_that_unpacks_to_millions_of_lines_is_refused(
    tmp_path: Path, line: bytes
) -> None:
    with gzip.open(tmp_path / "t.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"a,b\n" + line * ((3 << 21) // len(line)))
    began = time.process_time()
    with pytest.raises(UserError, match="is not a table: a line or the whole file is too long"):
        list(csv_sheet.CsvSheet.of(tmp_path / "t.csv.gz").rows())
    assert time.process_time() - began < 15


def test_the_table_in_the_guide_says_the_limits_of_the_code() -> None:
    table = (
        GUIDE.read_text(encoding="utf-8")
        .partition("| what is read | at most |")[2]
        .partition("\n\n")[0]
    )
    said = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.M))
    limits = {
        "settings, studies (TOML)": file_reading.MAX_SETTINGS,
        "`metrics.json` and other JSON": file_reading.MAX_JSON,
        "ledgers, logs, tables of studies": file_reading.MAX_LOG,
        "index lists": index_list.MAX_INDEX_LIST,
        "lists of ChestX-ray14": nih.MAX_NIH_LIST,
        "label tables, unpacked": csv_sheet.MAX_TEXT,
        "a line of them": csv_sheet.MAX_LINE,
        "predictions": predictions.MAX_PREDICTIONS,
        "weights of DenseNet121, unpacked": densenet121.MAX_DENSENET121_FILE,
        "other weights, unpacked": _saved_parameters.MAX_PARAMETER_FILE,
        "DICOM files": imaging.MAX_FILE,
        "labels or names in an `.npz`": npz_archive.MAX_ARCHIVE_TABLE,
        "images in an `.npz`": npz_archive.MAX_ARCHIVE_IMAGES,
    }
    for what, limit in limits.items():
        assert said[what] == (f"{limit >> 30} GB" if limit >= 1 << 30 else f"{limit >> 20} MB"), (
            what
        )
    assert said["lines of a label table, blank ones too"] == f"{csv_sheet.MAX_LINES:,}"
    assert said["columns of a label table"] == f"{csv_sheet.MAX_COLUMNS:,}"
    values = "values of a JSON file, a log, a ledger or a table of studies"
    assert said[values] == f"{file_reading.MAX_VALUES:,}"
