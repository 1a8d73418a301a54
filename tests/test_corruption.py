"""Sites with worse or other data: what is altered and what is not, the test images as a site has
them, and mistakes.
"""

from __future__ import annotations

import numpy as np
import pytest

from feddraw.data.corruption import Alteration, Corruption, corrupt_dataset
from feddraw.data.dataset import Dataset, Labels
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import open_experiment_data, prepare, prepare_client_data
from feddraw.experiment.running import run
from feddraw.system.file_reading import read_jsonl, read_toml
from small import small

RNG = np.random.default_rng(0)


def dataset(known: np.ndarray | None = None) -> Dataset:
    images = np.random.default_rng(1).integers(0, 256, (60, 12, 12)).astype(np.uint8)
    values = np.zeros((60, 2), np.uint8)
    labels = Labels(values, ("a", "b"), np.array([f"{n:02d}" for n in range(60)]), known=known)
    rows = {"train": np.arange(40), "validation": np.arange(40, 50), "test": np.arange(50, 60)}
    return Dataset("random", images, labels, rows)


ROWS = {"C1": np.arange(0, 20), "C2": np.arange(20, 40)}


def altered(data: Dataset, trained_on: dict[str, np.ndarray] = ROWS, seed: int = 0, **kinds: str):
    return corrupt_dataset(
        data, Corruption(**kinds).alterations(list(ROWS)), ROWS, trained_on, seed
    )


def test_nothing_asked_for_gives_the_data_set_itself():
    data = dataset()
    found = altered(data)
    assert found.dataset is data
    assert not found.views


def test_labels_are_turned_at_the_named_site_at_the_rate_and_only_in_training():
    data = dataset()
    found = altered(data, trained_on=ROWS | {"C2": np.arange(20, 35)}, flip="C2=0.5")
    values = found.dataset.labels.values
    assert not values[:20].any()
    assert not values[35:].any()
    assert 5 <= values[20:35].sum() <= 25
    assert not data.labels.values.any()  # the data of other runs are left alone
    everything = altered(data, flip="C2=1").dataset.labels.values
    assert everything[20:40].all()
    assert not everything[:20].any()
    assert found.dataset.images is not data.images
    assert (found.dataset.images == data.images).all()
    assert not found.views  # its images are like the others'


def test_unknown_labels_stay_unknown():
    known = np.ones((60, 2), bool)
    known[25:30, 1] = False
    labels = altered(dataset(known), flip="C2=1").dataset.labels
    assert not labels.values[25:30, 1].any()
    assert labels.values[25:30, 0].all()


def test_what_is_left_to_chance_follows_the_seed():
    one, again, other = (
        altered(dataset(), seed=seed, flip="C1=0.5", noise="C1=0.1") for seed in (0, 0, 1)
    )
    assert (one.dataset.labels.values == again.dataset.labels.values).all()
    assert (one.dataset.images == again.dataset.images).all()
    assert (one.dataset.labels.values != other.dataset.labels.values).any()
    assert (one.dataset.images != other.dataset.images).any()


def test_images_of_the_named_site_are_altered_those_it_keeps_back_too_and_no_others():
    data = dataset()
    found = altered(data, trained_on=ROWS | {"C1": np.arange(0, 10)}, blur="C1=1").dataset
    changed = (found.images[:60] != data.images).any(axis=(1, 2))
    assert changed[:20].all()
    assert not changed[20:].any()


def test_the_test_images_are_there_as_each_altered_site_has_them():
    data = dataset()
    found = altered(data, gamma="C2=2", flip="C1=0.3")
    assert list(found.views) == ["C2"]
    expected = np.rint((data.images[50:60] / 255.0) ** 2 * 255)
    assert np.abs(found.dataset.images[found.views["C2"]] - expected).max() <= 1
    assert (found.dataset.images[50:60] == data.images[50:60]).all()
    assert len(np.unique(found.dataset.labels.names)) == len(found.dataset.labels) == 70
    assert found.dataset.rows["test"].tolist() == list(range(50, 60))


def test_each_alteration_does_what_it_says():
    grey = np.full((1, 8, 8), 128, np.uint8)
    grey[0, 2:6, 2:6] = 255
    assert (Alteration(contrast=0.0).altered_images(grey, RNG) == 128).all()
    assert Alteration(gamma=2.0).altered_images(grey, RNG)[0, 0, 0] == 64
    assert (
        Alteration(crop=0.4).altered_images(grey, RNG) == 255
    ).all()  # only the bright middle is left
    assert Alteration(crop=0.0, blur=2.0).altered_images(grey, RNG).std() < grey.std()
    noisy = Alteration(noise=0.1).altered_images(np.full((40, 20, 20), 128, np.uint8), RNG)
    assert noisy.std() / 255 == pytest.approx(0.1, rel=0.05)
    ramp = np.tile(np.arange(0, 240, 30, dtype=np.uint8), (1, 8, 1))
    assert Alteration(crop=1 / 7).altered_images(ramp, RNG)[0, 3].tolist() == pytest.approx(
        np.linspace(30, 180, 8), abs=1
    )


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ({"flip": "C2"}, r"corruption\.flip must read like 'C4=0.3, C2=1'"),
        ({"flip": "C2=1.5"}, r"corruption\.flip must be from 0 to 1, not 1\.5"),
        ({"gamma": "C1=0"}, r"corruption\.gamma must be from 0\.01 to 100"),
        ({"blur": "C1=-1"}, "must read like"),
        ({"crop": "C1=0.5"}, r"corruption\.crop must be from 0 to 0\.45"),
        ({"noise": "C7=0.1"}, "no 'C7' among the sites"),
    ],
)
def test_mistakes_are_said_in_a_line(kinds, why):
    with pytest.raises(UserError, match=why):
        altered(dataset(), **kinds)


def test_a_number_that_cannot_be_read_is_refused_before_data_are_opened():
    with pytest.raises(UserError, match="must read like"):
        complete_settings(small(**{"corruption.blur": "C1=x"}))


def test_a_run_records_the_alteration_and_the_test_auc_as_the_site_sees_it(tmp_path):
    settings = {
        "corruption.blur": "C1=3",
        "corruption.flip": "C2=0.3",
        "rounds": 2,
        "test_every_round": True,
    }
    found = run(small(**settings), tmp_path / "run")
    lines = read_jsonl(tmp_path / "run" / "rounds.jsonl")
    assert [list(line["test"]["sites"]) for line in lines] == [["C1"], ["C1"]]
    assert lines[-1]["test"]["sites"]["C1"] == pytest.approx(found.metrics.test.sites["C1"])
    assert found.metrics.test.sites["C1"] != found.metrics.test.auc.macro
    assert read_toml(tmp_path / "run" / "experiment.toml")["corruption"]["blur"] == "C1=3"


def test_the_partition_does_not_depend_on_the_alteration_and_the_other_sites_train_alike():
    plain, blurred = small(), small(**{"corruption.blur": "C3=1"})
    one, other = (
        prepare_client_data(experiment, open_experiment_data(experiment))
        for experiment in (plain, blurred)
    )
    assert one.partition.sha256 == other.partition.sha256
    for before, after, alike in zip(
        one.training_rows, other.training_rows, (True, True, False), strict=True
    ):
        assert (before == after).all()
        assert (one.dataset.images[before] == other.dataset.images[after]).all() == alike


def test_phantoms_may_follow_the_experiments_seed():
    drawn = [prepare(small(**{"data.seed": -1, "seed": seed})) for seed in (3, 4)]
    assert [dict(setup.experiment.data)["seed"] for setup in drawn] == [3, 4]
    assert (drawn[0].dataset.images != drawn[1].dataset.images).any()


def test_sites_with_folders_of_their_own_are_not_altered():
    pytest.importorskip("flwr")
    from feddraw.flower.settings import read_run_config

    with pytest.raises(UserError, match="remove the corruption settings"):
        read_run_config(
            {"data.name": "folder", "data.findings": "Edema", "corruption.blur": "C1=1"}
        )
