"""What a tree produced, as documents: a run's files decoded, and documents kept with their arrays.

A document is nested dicts and lists of numbers, words and arrays; its first keys are its sections
(model, ledger, metrics, checkpoint, …). On disk it is a JSON file in which an array stands as its
type, shape and SHA-256, and an npz file with the arrays, opened only where a hash differs.

Files are decoded with the libraries of their formats, never with the package's own readers.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from renames import Renames
from safetensors import safe_open

Document = dict[str, Any]
CLOCKS = ("seconds", "client_seconds", "time")  # what differs when the same is run again
DIGESTS = ("blake2",)  # of a file's own names and numbers, which are compared themselves
MODEL_SECTIONS = ("model", "model-best", "model-tail", "next_model")


@dataclass(frozen=True)
class ArrayMark:
    """What stands for an array in a document on disk."""

    key: str  # in the npz file
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    def same_as(self, other: ArrayMark) -> bool:
        """Whether type, shape and every bit are the same."""
        return (self.dtype, self.shape, self.sha256) == (other.dtype, other.shape, other.sha256)


def write_document(folder: Path, case: str, document: Document) -> None:
    """Keep a case's document."""
    path = folder / f"{case}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {}
    path.write_text(json.dumps(_marked(document, arrays)), encoding="utf-8")
    if arrays:
        np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]


def _marked(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _marked(one, arrays) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(one, arrays) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        return value
    key, array = f"a{len(arrays)}", np.ascontiguousarray(value)
    arrays[key] = array
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"array": [key, str(value.dtype), list(value.shape), digest]}


def read_document(folder: Path, case: str) -> Document:
    """A case's document, with an `ArrayMark` for every array."""

    def restored(found: Document) -> Any:
        if found.keys() != {"array"}:
            return found
        key, dtype, shape, digest = found["array"]
        return ArrayMark(key, dtype, tuple(shape), digest)

    text = (folder / f"{case}.json").read_text(encoding="utf-8")
    document: Document = json.loads(text, object_hook=restored)
    return document


def read_arrays(folder: Path, case: str) -> Mapping[str, NDArray[Any]]:
    """A case's arrays by their marks' keys."""
    with np.load(folder / f"{case}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def cases_in(folder: Path) -> list[str]:
    """Every case that is kept there."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))
    return sorted(path.removesuffix(".json") for path in paths)


# ------------------------------------------------------------ a run's files


def decode_run(folder: Path, names: Renames) -> Document:
    """All that a run wrote, but for clocks and what it says about the machine."""
    found: Document = {}
    for name in ("model", "model-best", "model-tail", "predictions"):
        if (path := names.file(folder, f"{name}.safetensors")).is_file():
            found[name] = decode_safetensors(path)
    for section, name in {"ledger": "weights.csv", "pieces": "pieces.csv"}.items():
        if (path := names.file(folder, name)).is_file():
            found[section] = decode_table(path)
    if (path := names.file(folder, "rounds.jsonl")).is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        found["rounds"] = [without_clocks(json.loads(line)) for line in lines]
    if (path := names.file(folder, "metrics.json")).is_file():
        found["metrics"] = without_clocks(json.loads(path.read_text(encoding="utf-8")))
    if (path := names.file(folder, "experiment.toml")).is_file():
        found["settings"] = tomllib.loads(path.read_text(encoding="utf-8"))
    for section, name in {"checkpoint": "state.safetensors", "kept": "kept.safetensors"}.items():
        if (path := names.file(folder, f"checkpoint/{name}")).is_file():
            found[section] = decode_safetensors(path)
    return found


def without_clocks(value: Any) -> Any:
    """Without the times that a run took."""
    if isinstance(value, dict):
        return {key: without_clocks(one) for key, one in value.items() if key not in CLOCKS}
    return [without_clocks(one) for one in value] if isinstance(value, list) else value


def decode_safetensors(path: Path) -> Document:
    """Arrays by name, and the metadata's JSON, with each array in the place that names it."""
    with safe_open(path, "np") as file:
        arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        texts = (file.metadata() or {}).values()
    placed: set[str] = set()

    def with_arrays(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.keys() == {"array"} and value["array"] in arrays:
            placed.add(value["array"])
            return arrays[value["array"]]
        return {key: with_arrays(one) for key, one in value.items() if key not in DIGESTS}

    told: Document = {}
    for text in texts:
        told |= with_arrays(json.loads(text))
    return told | {name: array for name, array in arrays.items() if name not in placed}


def decode_table(path: Path) -> Document:
    """A CSV file's rows, by round, client and piece where it has such columns."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            {key: decode_cell(cell) for key, cell in row.items()} for row in csv.DictReader(file)
        ]
    return rows_by_client(rows)


def rows_by_client(rows: list[dict[str, Any]]) -> Document:
    """Rows by what tells them apart; by their number where nothing does."""
    found: Document = {}
    for number, row in enumerate(rows):
        known = [str(row[key]) for key in ("round", "client", "piece") if key in row]
        found[" ".join(known) or str(number)] = row
    return found if len(found) == len(rows) else {str(n): row for n, row in enumerate(rows)}


def decode_cell(cell: str | None) -> Any:
    """A number where the text is one."""
    text = (cell or "").strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# ------------------------------------------------------------ a report

NUMBER = re.compile(r"(?<![\w.])[-−+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def decode_report(markdown: str) -> Document:
    """The numbers of a report by heading: the cells of its tables, and those in sentences."""
    found: Document = {}
    for heading, lines in _report_sections(markdown):
        tables = list(_markdown_tables(lines))
        prose = " ".join(line for line in lines if not line.startswith(("|", "!")))
        numbers = [
            decode_cell(one.replace("−", "-").replace(",", "")) for one in NUMBER.findall(prose)
        ]
        found[heading] = {"tables": tables, "numbers": numbers}
    return found


def _report_sections(markdown: str) -> Iterator[tuple[str, list[str]]]:
    seen: dict[str, int] = {}
    for part in re.split(r"^#+ ", markdown, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        seen[heading] = seen.get(heading, 0) + 1
        yield (heading if seen[heading] == 1 else f"{heading} ({seen[heading]})"), lines


def _markdown_tables(lines: list[str]) -> Iterator[Document]:
    """Rows by their first cell, or by their number where that does not tell them apart."""
    blocks = re.split(r"\n(?!\|)", "\n" + "\n".join(lines))
    for block in blocks:
        rows = [
            line.strip().strip("|").split("|")
            for line in block.splitlines()
            if line.startswith("|")
        ]
        if len(rows) < 3:
            continue
        columns = [cell.strip() or f"column {number}" for number, cell in enumerate(rows[0])]
        cells = [[decode_cell(cell.replace("−", "-")) for cell in row] for row in rows[2:]]
        named = {str(row[0]): dict(zip(columns, row, strict=False)) for row in cells}
        numbered = {str(n): dict(zip(columns, row, strict=False)) for n, row in enumerate(cells)}
        yield named if len(named) == len(cells) else numbered
