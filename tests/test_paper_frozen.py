"""The seventh of studies/paper-frozen.toml on made-up features, in miniature."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from archives import chestmnist_archive, chexpert_archive
from benchmarks import paper_frozen
from feddraw.data.image_settings import ImagePreparation
from feddraw.errors import UserError
from feddraw.study.plan import read_study, shard_of

SCALE = 0.003


@pytest.fixture
def label_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = chexpert_archive(tmp_path, SCALE)
    chestmnist_archive(tmp_path, SCALE).rename(tmp_path / "chestmnist_labels.npz")
    monkeypatch.setenv("FEDDRAW_CHEXPERT_LABELS", str(release / "train.csv"))
    monkeypatch.setenv("FEDDRAW_DATA", str(tmp_path))
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))


def test_the_training_labels_are_those_of_the_table_and_others_are_borrowed(
    label_tables: None,
) -> None:
    dataset = paper_frozen.chexpert_labels(ImagePreparation(size=8))
    training, validation, test = dataset.rows.values()
    assert (len(validation), len(test)) == (202, 518)
    assert len(set(dataset.labels.names)) == len(dataset.labels)
    assert np.array_equal(dataset.labels.values[validation], dataset.labels.values[training[:202]])
    assert not set(dataset.labels.patients[training]) & set(dataset.labels.patients[test])
    assert len(paper_frozen.chestmnist_labels(ImagePreparation(size=8)).rows["train"]) > 0


def test_features_are_the_same_for_every_seed_and_the_classifier_is_not() -> None:
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(paper_frozen.made_up_features(5).state_dict())
    assert torch.equal(networks[0]["0.0.weight"], networks[1]["0.0.weight"])
    assert not torch.equal(networks[0]["1.weight"], networks[1]["1.weight"])


def test_a_missing_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDDRAW_CHEXPERT_LABELS", raising=False)
    with pytest.raises(UserError, match="FEDDRAW_CHEXPERT_LABELS does not say"):
        paper_frozen.chexpert_labels(ImagePreparation(size=8))


def test_what_the_worker_used_is_compared_with_what_was_predicted(
    label_tables: None, fresh_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = {"scenario.scale": SCALE, "rounds": 1, "training.epochs": 1}
    whole = read_study(paper_frozen.STUDY, paper_frozen.MADE_UP | smaller, trust=True)
    assert len(whole) == 660
    seventh = shard_of(whole, paper_frozen.SHARD)
    assert len(seventh) == 95
    assert len({run.label["scenario"] for run in seventh}) == 12
    assert len({run.label["method"] for run in seventh}) == 11
    predictions = iter([1.0, 3.0])  # before and after

    def predicted(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(seconds=next(predictions), obstacles=())

    monkeypatch.setattr(paper_frozen, "preflight", predicted)
    comparison = paper_frozen.compare(shard_of(whole, "1/660"), tmp_path / "runs")
    assert comparison.runs == 1
    assert comparison.predicted == 2
    assert comparison.used > 0.5  # a process that has imported torch
    assert comparison.ratio == comparison.used / 2
    assert (tmp_path / "runs" / "runs.csv").read_text().count("\n") == 2
