"""Phantoms: same seed, same bits; findings as common as in Table 1; each shows where it belongs."""

from __future__ import annotations

import numpy as np
import pytest

from feddraw.data.contact_sheet import contact_sheet, varied_examples
from feddraw.data.datasets._phantom_anatomy import draw_chests
from feddraw.data.datasets.phantom import (
    PHANTOM_BLOCK,
    PHANTOM_MEAN,
    PHANTOM_STD,
    draw_phantom_findings,
    phantom,
)
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.errors import UserError

# Table 1 of the paper: share of images with each finding, then with none.
SHARES = {
    "chestmnist": (0.101901, 0.021537, 0.118023, 0.024851, 0.041584, 0.757481),
    "chexpert": (0.311909, 0.321907, 0.402556, 0.122417, 0.067964, 0.267250),
}


def small(**settings):
    return phantom(**{"size": 28, "train": 40, "validation": 8, "test": 20, **settings})


def patients(size=64, images=64, **severity):
    """The same patients, each with the findings named, at this severity."""
    grades = np.zeros((images, len(PAPER_FINDINGS)), np.float32)
    for name, grade in severity.items():
        grades[:, PAPER_FINDINGS.index(name.replace("_", " "))] = grade
    return draw_chests(grades, size, np.random.default_rng(7)).astype(float)


def test_same_seed_gives_same_bits_and_another_seed_does_not():
    one, again, other = small(seed=3), small(seed=3), small(seed=4)
    assert np.array_equal(one.images, again.images)
    assert np.array_equal(one.labels.values, again.labels.values)
    assert not np.array_equal(one.images, other.images)


def test_no_image_is_drawn_twice():
    images = small(train=100, validation=100, test=100).images
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 300


def test_a_longer_part_begins_with_the_shorter_one():
    short, long = small(train=PHANTOM_BLOCK + 3, test=5), small(train=3 * PHANTOM_BLOCK, test=50)
    for part in ("train", "test"):
        rows, more = short.rows[part], long.rows[part][: len(short.rows[part])]
        assert np.array_equal(short.images[rows], long.images[more])
        assert np.array_equal(short.labels.values[rows], long.labels.values[more])


def test_a_dataset_says_what_it_is():
    calls = []
    data = small(progress=lambda *call: calls.append(call))
    assert calls[-1] == ("drawing phantoms", 68, 68)
    assert len(data.images) == len(data.labels) == 68
    assert (data.name, data.synthetic, data.findings) == ("phantom", True, PAPER_FINDINGS)
    assert [len(data.rows[part]) for part in ("train", "validation", "test")] == [40, 8, 20]
    assert sorted(np.concatenate(list(data.rows.values()))) == list(range(68))
    assert data.labels.names[12] == "phantom-000012"
    assert len(set(data.labels.names)) == 68


@pytest.mark.parametrize("size", [28, 32, 64, 224])
def test_every_size_fills_the_grey_scale(size):
    data = phantom(size=size, train=8, validation=0, test=0)
    assert data.images.shape == (8, size, size)
    assert data.images.dtype == np.uint8
    assert data.images.min() < 40
    assert data.images.max() > 200


@pytest.mark.parametrize("mix", SHARES)
def test_mean_and_spread_are_those_of_the_images(mix):
    grey = phantom(mix=mix, train=600, validation=0, test=0).images / 255
    assert grey.mean() == pytest.approx(PHANTOM_MEAN, abs=0.03)
    assert grey.std() == pytest.approx(PHANTOM_STD, abs=0.03)


@pytest.mark.parametrize("mix", SHARES)
def test_findings_are_as_common_as_in_table_1(mix):
    seen = draw_phantom_findings(20_000, mix, np.random.default_rng(0))
    shares = [*seen.mean(axis=0), (~seen.any(axis=1)).mean()]
    assert shares == pytest.approx(SHARES[mix], abs=0.011)  # three standard errors of the largest


@pytest.mark.parametrize("mix", SHARES)
def test_findings_come_together_more_often_than_by_chance(mix):
    seen = draw_phantom_findings(200_000, mix, np.random.default_rng(0)).astype(float)
    correlation = np.corrcoef(seen.T)[np.triu_indices(len(PAPER_FINDINGS), 1)]
    assert correlation.min() > 0
    assert correlation.max() < 0.5


def test_label_noise_changes_that_share_of_rows_and_no_image():
    clean, noisy = (small(mix="chexpert", train=4000, label_noise=noise) for noise in (0.0, 0.3))
    changed = (clean.labels.values != noisy.labels.values).any(axis=1).mean()
    assert 0.2 < changed < 0.3  # some patients have the labels of the other
    assert np.array_equal(clean.images, noisy.images)
    assert noisy.labels.values.mean(axis=0) == pytest.approx(
        clean.labels.values.mean(axis=0), abs=0.03
    )


# Rows and columns, as shares of the image, where the finding must show most.
PLACES = {
    "Atelectasis": ((0.45, 0.80), (0.15, 0.85)),
    "Edema": ((0.35, 0.65), (0.25, 0.75)),
    "Pleural Effusion": ((0.55, 0.85), (0.10, 0.90)),
    "Cardiomegaly": ((0.50, 0.80), (0.35, 0.80)),
    "Consolidation": ((0.25, 0.75), (0.15, 0.85)),
}


@pytest.mark.parametrize("finding", PAPER_FINDINGS)
def test_a_finding_brightens_its_place_and_more_so_when_severe(finding):
    severe, mild, normal = (patients(**{finding.replace(" ", "_"): grade}) for grade in (1, 0.3, 0))
    change = np.abs(severe - normal).mean(axis=0)
    (top, bottom), (left, right) = ((np.array(PLACES[finding]) * 64).round().astype(int)).tolist()
    inside = np.zeros_like(change, dtype=bool)
    inside[top:bottom, left:right] = True
    assert change[inside].mean() > 4 * change[~inside].mean()
    assert (severe - normal)[:, inside].mean() > (mild - normal)[:, inside].mean() > 0
    assert np.abs(severe - normal).mean(axis=(1, 2)).min() > 0  # in every patient


def test_volume_loss_lifts_the_diaphragm_on_the_side_of_the_plates():
    change = patients(Atelectasis=1) - patients()
    right, left = (
        change[:, 40:52, 12:28].mean(axis=(1, 2)),
        change[:, 40:52, 36:52].mean(axis=(1, 2)),
    )
    assert (np.maximum(right, left) > 5).mean() > 0.9


def test_several_findings_at_once_show_more_than_one():
    normal, one, two = patients(), patients(Edema=0.8), patients(Edema=0.8, Pleural_Effusion=0.8)
    assert np.abs(two - normal).mean() > np.abs(one - normal).mean()


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 27},
        {"size": 225},
        {"size": 32.0},
        {"mix": "chestminst"},
        {"mix": 5},
        {"train": -1},
        {"test": 2.5},
        {"validation": True},
        {"label_noise": -0.1},
        {"label_noise": 0.5},
        {"label_noise": float("nan")},
        {"label_noise": "much"},
        {"seed": -1},
    ],
)
def test_a_bad_value_is_one_line(settings):
    with pytest.raises(UserError) as caught:
        small(**settings)
    assert "\n" not in str(caught.value)


def test_an_unknown_mix_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean chestmnist"):
        small(mix="chestminst")


def test_a_contact_sheet_names_the_findings_and_says_synthetic():
    data = small(train=200)
    figure = contact_sheet(data, 2, 4)
    written = {axes.get_title() for axes in figure.axes if axes.images}
    assert len([axes for axes in figure.axes if axes.images]) == 8
    assert {"no finding"} < written
    assert "synthetic" in figure.get_suptitle()


def test_a_contact_sheet_shows_every_finding_once_before_any_twice():
    values = np.array([[0, 0], [0, 0], [0, 0], [1, 0], [1, 1], [0, 1]], np.uint8)
    assert varied_examples(values, 3) == [0, 3, 4]
    assert sorted(varied_examples(values, 9)) == [0, 1, 2, 3, 4, 5]


def test_an_empty_contact_sheet_is_an_error():
    with pytest.raises(UserError):
        contact_sheet(small(), 0, 4)
