"""Sizes are looked at before files are read, unpacked bytes and lines included, as docs/safety.md
says.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import feddraw
from feddraw.core import Layout
from feddraw.data import csv_sheet, image_cache, imaging, npz_archive
from feddraw.data.datasets import nih
from feddraw.data.imaging import BadImage, decode
from feddraw.data.scenarios import index_list
from feddraw.errors import UserError
from feddraw.experiment import dataset_by_name
from feddraw.experiment.settings import Experiment
from feddraw.models import densenet121
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.report import write_report
from feddraw.results import checkpoint, predictions
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
    "list.json": index_list._parse_index_list,
    "labels.csv": dataset_by_name.read_training_labels,
    "sheet.csv": lambda path: list(csv_sheet.CsvSheet(path, ("a", "b"), ",").rows()),
    "data.npz": npz_archive.NpzArchive.open,
    "x.dcm": decode,
    "w.pth": read_saved_parameters,
    "state.safetensors": lambda path: checkpoint.read_checkpoint(path, Layout((), "")),
    "progress.jsonl": image_cache.read_cache_log,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_thirty_gigabytes_is_refused_in_a_moment(tmp_path: Path, name: str) -> None:
    began = time.process_time()
    if name == "progress.jsonl":
        assert READERS[name](sparse(tmp_path / name)) == {}
    else:
        with pytest.raises((UserError, BadImage, ValueError)):
            READERS[name](sparse(tmp_path / name))
    assert time.process_time() - began < 5


def test_scores_and_an_old_page_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", images=40)
    assert read_run(run).predictions() is not None
    sparse(RunFolder(run).predictions)
    assert read_run(run).predictions() is None
    sparse(run / "report.md")
    assert write_report([run], replicates=0).markdown.stat().st_size < 1 << 20


@pytest.mark.parametrize("line", [b"\n", b",\n", b"a,b\n" * 2])
def test_a_small_gz_that_unpacks_to_millions_of_lines_is_refused(
    tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if line != b"\n":  # blank lines are the cheapest to read: with them the limit is the real one
        monkeypatch.setattr(csv_sheet, "MAX_CSV_LINES", 1 << 18)
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
        "label tables, unpacked": csv_sheet.MAX_CSV_TEXT,
        "a line of them": csv_sheet.MAX_CSV_LINE,
        "predictions": predictions.MAX_PREDICTIONS,
        "checkpoints": checkpoint.MAX_CHECKPOINT,
        "weights files": densenet121.MAX_DENSENET121_FILE,
        "DICOM files": imaging.MAX_FILE,
        "labels or names in an `.npz`": npz_archive.MAX_ARCHIVE_TABLE,
        "images in an `.npz`": npz_archive.MAX_ARCHIVE_IMAGES,
    }
    for what, limit in limits.items():
        assert said[what] == (f"{limit >> 30} GB" if limit >= 1 << 30 else f"{limit >> 20} MB"), (
            what
        )
    assert said["lines of a label table, blank ones too"] == f"{csv_sheet.MAX_CSV_LINES:,}"
