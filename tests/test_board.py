"""TensorBoard by one setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddraw.errors import UserError
from feddraw.experiment.running import run
from feddraw.results import tensorboard
from small import small


def test_one_setting_shows_loss_metrics_and_every_clients_weight_to_tensorboard(
    tmp_path: Path,
) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    results = list(run(small(tensorboard=True, rounds=2), tmp_path / "run"))
    seen = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"loss", "validation/AUC", "test/AUC", "weight/C1", "similarity/C3"} <= set(
        seen.Tags()["scalars"]
    )
    shown = [(event.step, event.value) for event in seen.Scalars("weight/C1")]
    assert shown == [(r.round, pytest.approx(r.weights["C1"])) for r in results]


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    list(run(small(rounds=1), tmp_path / "run"))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_without_tensorboard_the_setting_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "installed", lambda name: False)
    with pytest.raises(UserError, match=r"pip install 'feddraw\[tensorboard\]'"):
        list(run(small(tensorboard=True), tmp_path / "run"))
    assert not (tmp_path / "run").exists()
