"""A MONAI bundle as a client under Flower: `MonaiAlgo` trains, FedDRAW weighs."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("monai", reason="MONAI is not installed")
pytest.importorskip("ignite", reason="pytorch-ignite is not installed")
if "FEDDRAW_MATRIX" not in os.environ:
    pytest.skip("`make matrix` runs it", allow_module_level=True)

from flwr.app import Context, RecordDict

from feddraw.flower.in_process_grid import InProcessGrid

EXAMPLE = Path(__file__).parent.parent / "examples" / "monai"


def test_a_monai_bundle_trains_at_three_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import flower_app

    grid = InProcessGrid(flower_app.client, [{"partition-id": number} for number in range(3)])
    flower_app.server(grid, Context(1, 0, {}, RecordDict(), {"folder": str(tmp_path / "run")}))
    with (tmp_path / "run" / "weights.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["status"] for line in lines] == ["weighted"] * 9
    assert [line["size"] for line in lines[:3]] == ["160", "40", "40"]
    assert [line["steps"] for line in lines[:3]] == ["8", "2", "2"]
    assert sum(float(line["weight"]) for line in lines[:3]) == pytest.approx(1)
