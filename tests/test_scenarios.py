"""Scenarios: exact sizes and quotas, the same images on every machine, clear refusals, measures of
a partition.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from typer.testing import CliRunner

from feddraw.data.dataset import Labels
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.data.scenarios import index_list
from feddraw.data.scenarios.client_sizes import apportion, scaled_count
from feddraw.data.scenarios.constructions import self_information
from feddraw.data.scenarios.image_pool import shuffled_pool
from feddraw.data.scenarios.paper_scenarios import paper_dataset_of, paper_scenario_images
from feddraw.data.scenarios.partition import Partition, Shard
from feddraw.data.scenarios.scenario_by_name import (
    describe_scenario,
    make_partition,
    scenario_names,
    scenario_options,
)
from feddraw.data.scenarios.skew_measures import (
    earth_movers,
    gini,
    jensen_shannon,
    label_counts,
    measure_sizes,
    measure_skew,
)
from feddraw.errors import UserError

# Tables 2 and 3 of the paper.
SIZES = {
    "CHX-1": [20000, 5000, 5000, 5000],
    "CHX-2": [20000, 20000, 5000, 5000],
    "CHX-3": [10000, 10000, 10000, 2500],
    "CHX-4": [10000] * 9 + [2500],
    "CHX-5": [5000, 10000, 10000],
    "CHX-6": [5000, 10000, 10000],
    "CHX-7": [47756, 47757, 47757, 47757],
    "CHM-1": [18000, 60468],
    "CHM-2": [9500, 9500, 9500, 49968],
    "CHM-3": [14000] * 5 + [8468],
    "CHM-4": [7000, 15000, 15000, 15000],
    "CHM-5": [19617] * 4,
}
SMALL = {
    "CHX-1": [1, 2, 3],
    "CHX-2": [2, 3],
    "CHX-3": [3],
    "CHX-4": [9],
    "CHM-1": [0],
    "CHM-2": [0, 1, 2],
    "CHM-3": [5],
}
TABLE_1 = {
    "chexpert": ([59583, 61493, 76899, 23385, 12983], 51052, 191027),
    "chestmnist": ([7996, 1690, 9261, 1950, 3263], 59438, 78468),
}
RARE = {"chexpert": [3, 4], "chestmnist": [1, 3, 4]}


def table_1(dataset: str) -> Labels:
    """Labels with exactly the paper's counts, and patients with one image or several."""
    positives, none, total = TABLE_1[dataset]
    rng = np.random.default_rng(7)
    values = np.zeros((total, 5), np.uint8)
    place = 0
    for column, count in enumerate(positives):  # around and around the images that have a finding
        values[(place + np.arange(count)) % (total - none), column] = 1
        place += count
    values = values[rng.permutation(total)]
    patients = np.repeat(np.arange(total), rng.geometric(0.45, total))[:total]
    uncertain = (rng.random(total) < 0.3).astype(np.uint8)
    image_names = np.array([f"image{number:06d}.png" for number in range(total)])
    return Labels(values, PAPER_FINDINGS, image_names, patients.astype(np.str_), None, uncertain)


@pytest.fixture(scope="module")
def tables() -> dict[str, Labels]:
    return {dataset: table_1(dataset) for dataset in TABLE_1}


@pytest.fixture(scope="module")
def twelve(tables: dict[str, Labels]) -> dict[str, Partition]:
    return {
        name: make_partition(name, tables[paper_dataset_of(name) or ""], seed=0) for name in SIZES
    }


@pytest.fixture(scope="module")
def small(tables: dict[str, Labels]) -> Labels:
    """1,000 images of ChestMNIST's kind at three sites."""
    labels = tables["chestmnist"].take(np.arange(1000))
    sites = np.array(["north", "south", "east"])[np.arange(1000) % 3]
    return Labels(
        labels.values, labels.findings, labels.names, labels.patients, sites, labels.uncertain
    )


def sizes(partition: Partition) -> list[int]:
    return [len(shard) for shard in partition.shards]


def positives(partition: Partition, labels: Labels, columns: list[int]) -> list[int]:
    """Images of each client with any of the classes."""
    return [
        int(labels.values[shard.rows][:, columns].any(axis=1).sum()) for shard in partition.shards
    ]


def shared_patients(partition: Partition, labels: Labels) -> int:
    assert labels.patients is not None
    own = [set(labels.patients[shard.rows]) for shard in partition.shards]
    return sum(map(len, own)) - len(set().union(*own))


def random_labels(images: int, seed: int = 0, **columns: NDArray[np.str_]) -> Labels:
    values = (np.random.default_rng(seed).random((images, 5)) < 0.2).astype(np.uint8)
    return Labels(
        values, PAPER_FINDINGS, np.array([f"{number:05d}" for number in range(images)]), **columns
    )


# --------------------------------------------------------------------------------------- the twelve


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_exact_and_clients_disjoint(name: str, twelve: dict[str, Partition]) -> None:
    partition = twelve[name]
    rows = np.concatenate([shard.rows for shard in partition.shards])
    assert sizes(partition) == SIZES[name]
    assert [shard.client for shard in partition.shards] == [
        f"C{k}" for k in range(1, len(SIZES[name]) + 1)
    ]
    assert len(np.unique(rows)) == len(rows)
    assert all((np.diff(shard.rows) > 0).all() for shard in partition.shards)


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("CHX-5", 0, [3500, 950, 950]),
        ("CHX-6", 1, [3500, 950, 950]),
        ("CHM-4", 0, [4000, 839, 839, 839]),
    ],
)
def test_enriched_scenarios_have_the_printed_positives(
    name: str,
    column: int,
    expected: list[int],
    twelve: dict[str, Partition],
    tables: dict[str, Labels],
) -> None:
    assert positives(twelve[name], tables[paper_dataset_of(name) or ""], [column]) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CHX-1", [1324, 2500, 2500, 2500]),
        ("CHX-2", [1346, 1346, 2500, 2500]),
        ("CHX-3", [224, 225, 224, 1250]),
        ("CHX-4", [75, 75, 74, 75, 75, 75, 74, 75, 75, 1250]),
    ],
)
def test_rare_classes_of_chexpert_are_dealt_by_quota(
    name: str, expected: list[int], twelve: dict[str, Partition], tables: dict[str, Labels]
) -> None:
    assert positives(twelve[name], tables["chexpert"], RARE["chexpert"]) == expected


@pytest.mark.parametrize("name", ["CHM-1", "CHM-2", "CHM-3"])
def test_small_clients_of_chestmnist_hold_65_percent_of_rare_positives(
    name: str, twelve: dict[str, Partition], tables: dict[str, Labels]
) -> None:
    rare = np.array(positives(twelve[name], tables["chestmnist"], RARE["chestmnist"]))
    assert rare[SMALL[name]].sum() == math.floor(rare.sum() * 0.65 + 0.5)
    assert np.ptp(rare[SMALL[name]]) <= 1


def test_share_sets_how_much_small_clients_hold(tables: dict[str, Labels]) -> None:
    half = make_partition("CHM-1", tables["chestmnist"], seed=0, options={"share": 0.5})
    everything = make_partition("CHM-1", tables["chestmnist"], seed=0, options={"share": 1.0})
    first, second = positives(half, tables["chestmnist"], RARE["chestmnist"])
    assert abs(first - second) <= 1
    assert positives(everything, tables["chestmnist"], RARE["chestmnist"])[1] == 0


def information_after_tilt(name: str, labels: Labels, tilt: float) -> tuple[float, float]:
    """Mean self-information of the small clients' images and of the large ones'."""
    partition = make_partition(name, labels, seed=0, options={"construction": "tilt", "tilt": tilt})
    assert sizes(partition) == SIZES[name]
    own = [self_information(labels)[shard.rows] for shard in partition.shards]
    few = [mine for client, mine in enumerate(own) if client in SMALL[name]]
    many = [mine for client, mine in enumerate(own) if client not in SMALL[name]]
    return float(np.concatenate(few).mean()), float(np.concatenate(many).mean())


# Nats at small and large clients with tilt 1, computed for labels with the paper's counts.
TILTED = {
    "CHX-1": (3.21, 2.03),
    "CHX-4": (4.52, 2.49),
    "CHM-1": (2.57, 0.64),
    "CHM-2": (2.07, 0.52),
    "CHM-3": (3.46, 0.80),
}


@pytest.mark.parametrize("name", ["CHX-1", "CHM-1", "CHM-2", "CHM-3"])
def test_tilt_gives_small_clients_the_informative_images(
    name: str, tables: dict[str, Labels]
) -> None:
    labels = tables[paper_dataset_of(name) or ""]
    assert information_after_tilt(name, labels, 1) == pytest.approx(TILTED[name], abs=0.3)


@pytest.mark.parametrize("name", ["CHX-4", "CHM-2"])
def test_tilt_zero_is_a_random_split(name: str, tables: dict[str, Labels]) -> None:
    labels = tables[paper_dataset_of(name) or ""]
    average = float(self_information(labels).mean())
    assert information_after_tilt(name, labels, 0) == pytest.approx((average, average), abs=0.07)


def test_certain_gives_small_clients_no_uncertain_label(tables: dict[str, Labels]) -> None:
    labels = tables["chexpert"]
    options = {"construction": "certain", "uncertain_fraction": 0.4}
    partition = make_partition("CHX-2", labels, seed=0, options=options)
    assert labels.uncertain is not None
    assert [int((labels.uncertain[shard.rows] > 0).sum()) for shard in partition.shards] == [
        8000,
        8000,
        0,
        0,
    ]


def shares_of(
    partition: Partition, labels: Labels, small: set[int], columns: list[int]
) -> tuple[float, float]:
    """The share of images with one of the classes at the small and at the large clients."""
    own = np.array(positives(partition, labels, columns))
    few = np.array([client in small for client in range(len(own))])
    return (
        float(own[few].sum() / partition.sizes[few].sum()),
        float(own[~few].sum() / partition.sizes[~few].sum()),
    )


@pytest.mark.parametrize(("name", "prevalence"), [("CHX-4", 0.5), ("CHM-2", 0.15)])
def test_enriched_small_clients_leave_the_large_ones_a_natural_draw(
    name: str, prevalence: float, tables: dict[str, Labels]
) -> None:
    source = paper_dataset_of(name) or ""
    labels, rare = tables[source], RARE[source]
    partition = make_partition(name, labels, seed=0, options={"construction": "enriched"})
    assert sizes(partition) == SIZES[name]
    few, many = shares_of(partition, labels, set(SMALL[name]), rare)
    marked = labels.values[:, rare].any(axis=1)
    small = sum(SIZES[name][client] for client in SMALL[name])
    assert few == pytest.approx(prevalence, abs=1e-3)
    assert many == pytest.approx(
        (marked.sum() - prevalence * small) / (len(labels) - small), abs=1e-3
    )
    depleted = shares_of(make_partition(name, labels, seed=0), labels, set(SMALL[name]), rare)[1]
    assert depleted < many


def test_small_clients_may_hold_findings_only_or_a_random_sample(tables: dict[str, Labels]) -> None:
    labels = tables["chexpert"]
    everything = list(range(len(labels.findings)))
    only = make_partition("CHX-4", labels, seed=0, options={"construction": "findings"})
    few, many = shares_of(only, labels, set(SMALL["CHX-4"]), everything)
    natural = float((labels.values.max(axis=1) > 0).mean())
    assert few == 1.0
    assert many == pytest.approx(natural, abs=0.01)
    random = make_partition("CHX-4", labels, seed=0, options={"construction": "random"})
    assert shares_of(random, labels, set(SMALL["CHX-4"]), everything)[0] == pytest.approx(
        natural, abs=0.03
    )


# ------------------------------------------------------------------------------------------ scale


def test_halves_are_rounded_up_in_decimal() -> None:
    assert [
        scaled_count(9500, 0.045),
        scaled_count(3, 0.5),
        scaled_count(950, 0.01),
        scaled_count(2500, 0.0001),
    ] == [
        428,
        2,
        10,
        0,
    ]


@pytest.mark.parametrize("name", SIZES)
def test_scale_keeps_sizes_and_quotas_in_proportion(name: str, tables: dict[str, Labels]) -> None:
    labels = tables[paper_dataset_of(name) or ""]
    partition = make_partition(name, labels, seed=1, scale=0.045)
    assert sizes(partition) == [scaled_count(size, 0.045) for size in SIZES[name]]
    if name in ("CHX-5", "CHX-6"):
        assert positives(partition, labels, [int(name == "CHX-6")]) == [158, 43, 43]


@pytest.mark.parametrize("name", SIZES)
def test_data_of_the_wanted_number_suffices(name: str, tables: dict[str, Labels]) -> None:
    number = paper_scenario_images(name, 0.045)
    assert number is not None
    labels = tables[paper_dataset_of(name) or ""].take(np.arange(number))
    assert sizes(make_partition(name, labels, seed=0, scale=0.045)) == [
        scaled_count(size, 0.045) for size in SIZES[name]
    ]


@pytest.mark.parametrize("construction", ["enriched", "findings"])
def test_large_clients_that_take_all_that_is_left_get_shares_that_add_up(
    construction: str, tables: dict[str, Labels]
) -> None:
    number = paper_scenario_images("CHM-3", 0.01)
    assert number is not None
    for start in range(0, 3500, 700):
        labels = tables["chestmnist"].take(np.arange(start, start + number))
        partition = make_partition(
            "CHM-3", labels, seed=start, scale=0.01, options={"construction": construction}
        )
        assert sizes(partition) == [scaled_count(size, 0.01) for size in SIZES["CHM-3"]]


def test_wanted_is_the_paper_s_number_scaled() -> None:
    assert [
        paper_scenario_images("chx-1", 1),
        paper_scenario_images("CHM-4", 1),
        paper_scenario_images("CHM-1", 0.045),
    ] == [
        191027,
        78468,
        3531,
    ]
    assert (
        paper_scenario_images("CHM-2", 0.045) == 3533
    )  # its clients, each rounded up, are two more
    assert paper_scenario_images("iid", 1) is None


def test_data_that_is_too_small_names_the_scale_that_fits(small: Labels) -> None:
    with pytest.raises(
        UserError,
        match=r"CHM-2 at scale 1 needs 78,468 images, the data has 1,000: use a scale of 0\.0127",
    ) as refused:
        make_partition("CHM-2", small, seed=0)
    fitting = float(str(refused.value).split("a scale of ")[1].split()[0])
    assert sum(sizes(make_partition("CHM-2", small, seed=0, scale=fitting))) <= 1000


# ------------------------------------------------------------------------------ the same everywhere


@pytest.mark.parametrize(
    ("name", "options", "sha256"),
    [
        ("CHM-2", {}, "5eb3719e499bd677"),
        ("CHM-2", {"construction": "tilt"}, "146977347387c6c2"),
        ("CHM-2", {"patient_disjoint": True}, "7ff71f7a821a9bd8"),
        ("dirichlet", {}, "93956bb8217f64e4"),
        ("shards", {}, "0e77bdda567123c2"),
    ],
)
def test_partition_is_the_one_of_other_machines(
    name: str, options: dict[str, object], sha256: str
) -> None:
    number = np.arange(1000)
    values = np.stack([number % prime == 0 for prime in (3, 5, 7, 11, 13)], axis=1).astype(np.uint8)
    labels = Labels(
        values,
        PAPER_FINDINGS,
        np.array([f"{k:04d}" for k in number]),
        (number // 2).astype(np.str_),
    )
    assert (
        make_partition(
            name, labels, seed=0, scale=0.01 if name == "CHM-2" else 1.0, options=options
        ).sha256[:16]
        == sha256
    )


@pytest.mark.parametrize(
    "options", [{}, {"construction": "tilt"}, {"patient_disjoint": True, "share": 0.3}]
)
def test_order_of_the_table_does_not_matter(options: dict[str, object], small: Labels) -> None:
    shuffled = small.take(np.random.default_rng(3).permutation(len(small)))
    one, other = (
        make_partition("CHM-3", labels, seed=4, scale=0.01, options=options)
        for labels in (small, shuffled)
    )
    assert one.sha256 == other.sha256
    assert {*small.names[one.shards[5].rows]} == {*shuffled.names[other.shards[5].rows]}


def test_seed_decides(small: Labels) -> None:
    hashes = [make_partition("CHM-5", small, seed=seed, scale=0.01).sha256 for seed in (0, 1, 0)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_hash_is_that_of_the_documented_text(small: Labels) -> None:
    import hashlib

    partition = make_partition("iid", small, seed=0, options={"clients": 2})
    lists = [[shard.client, sorted(small.names[shard.rows].tolist())] for shard in partition.shards]
    text = json.dumps(lists, separators=(",", ":"), ensure_ascii=True)
    assert partition.sha256 == hashlib.sha256(text.encode()).hexdigest()


# ----------------------------------------------------------------------------------------- patients


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {}) for name in ("CHX-1", "CHX-4", "CHX-5", "CHX-7", "CHM-2", "CHM-4", "CHM-5")],
        ("CHX-4", {"construction": "tilt"}),
        ("CHX-2", {"construction": "certain", "uncertain_fraction": 0.5}),
        ("CHM-3", {"share": 0.2}),
    ],
)
def test_patient_disjoint_keeps_sizes_and_quotas(
    name: str, options: dict[str, object], tables: dict[str, Labels]
) -> None:
    labels = tables[paper_dataset_of(name) or ""]
    plain = make_partition(name, labels, seed=0, options=options)
    partition = make_partition(name, labels, seed=0, options={**options, "patient_disjoint": True})
    assert shared_patients(partition, labels) == 0 < shared_patients(plain, labels)
    assert sizes(partition) == SIZES[name]
    if column := {
        "CHX-1": RARE["chexpert"],
        "CHX-5": [0],
        "CHM-3": RARE["chestmnist"],
        "CHM-4": [0],
    }.get(name):
        assert positives(partition, labels, column) == positives(plain, labels, column)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards", "quantity", "lognormal"])
def test_usual_partitions_can_keep_patients_together(name: str, small: Labels) -> None:
    partition = make_partition(name, small, seed=0, options={"patient_disjoint": True})
    assert shared_patients(partition, small) == 0
    assert sum(sizes(partition)) == 1000


def test_patients_must_be_known_to_be_kept_together() -> None:
    with pytest.raises(UserError, match="this data has none"):
        make_partition("iid", random_labels(100), seed=0, options={"patient_disjoint": True})


def test_whole_patients_that_do_not_add_up_are_refused() -> None:
    labels = random_labels(100, patients=np.repeat([f"p{k}" for k in range(10)], 10))
    with pytest.raises(UserError, match="whole patients do not add up"):
        make_partition("iid", labels, seed=0, options={"patient_disjoint": True, "clients": 3})


@settings(max_examples=60, deadline=None)
@given(
    images=st.lists(st.integers(1, 9), min_size=5, max_size=60),
    clients=st.integers(1, 5),
    used=st.floats(0.3, 1.0),
    seed=st.integers(0, 2**32),
)
def test_packing_patients_is_exact_or_refused(
    images: list[int], clients: int, used: float, seed: int
) -> None:
    patients = np.repeat([f"p{k}" for k in range(len(images))], images)
    labels = random_labels(len(patients), seed, patients=patients)
    pool = shuffled_pool(labels, seed, patient_disjoint=True)
    marked = labels.values[pool.rows, 0] > 0
    wanted_sizes = apportion(int(len(patients) * used), [1.0] * clients)
    quotas = apportion(int(marked.sum() * used * 0.8), [1.0] * clients)
    if any(quota > size for quota, size in zip(quotas, wanted_sizes, strict=True)):
        return
    try:
        hands = pool.split_by_quota(wanted_sizes, quotas, marked)
    except UserError:
        return
    owners = [set(patients[rows]) for rows in hands]
    assert [len(rows) for rows in hands] == wanted_sizes
    assert [int(labels.values[rows, 0].sum()) for rows in hands] == quotas
    assert sum(map(len, owners)) == len(set().union(*owners))


# ----------------------------------------------------------------------------- the usual partitions


def test_iid_clients_differ_by_one_image_at_most(small: Labels) -> None:
    assert (
        sorted(sizes(make_partition("iid", small, seed=0, options={"clients": 7})))
        == [142] + [143] * 6
    )


def test_quantity_follows_the_power_law(small: Labels) -> None:
    assert sizes(
        make_partition("quantity", small, seed=0, options={"clients": 3, "power": 1.0})
    ) == [
        545,
        273,
        182,
    ]
    assert (
        sizes(make_partition("quantity", small, seed=0, options={"clients": 4, "power": 0.0}))
        == [250] * 4
    )


def test_lognormal_sizes_are_exact_and_have_the_wanted_spread() -> None:
    labels = random_labels(20_000)
    found = np.array(
        sizes(make_partition("lognormal", labels, seed=0, options={"clients": 200, "min_size": 2}))
    )
    assert found.sum() == 20_000
    assert found.min() >= 2
    assert np.log(found).std() == pytest.approx(1.0, abs=0.15)
    assert (
        sizes(make_partition("lognormal", labels, seed=0, options={"clients": 4, "sigma": 0.0}))
        == [5000] * 4
    )
    with pytest.raises(
        UserError, match="20 clients of at least 10 images need 200, and there are 100"
    ):
        make_partition("lognormal", random_labels(100), seed=0)


def test_dirichlet_skews_labels_more_the_smaller_alpha(tables: dict[str, Labels]) -> None:
    labels = tables["chexpert"].take(np.arange(5000))
    skew = []
    for alpha in (0.05, 1.0, 100.0):
        partition = make_partition(
            "dirichlet", labels, seed=0, options={"clients": 5, "alpha": alpha, "min_size": 25}
        )
        assert sum(sizes(partition)) == 5000
        assert min(sizes(partition)) >= 25
        skew.append(float(np.mean(measure_skew(partition, labels).jensen_shannon)))
    assert skew[0] > 2 * skew[1] > 4 * skew[2]


def test_proportions_have_the_right_moments(small: Labels) -> None:
    from feddraw.data.scenarios.dirichlet import _proportions

    pool = shuffled_pool(small, 0)
    for alpha in (0.1, 0.5, 5.0):
        draws = np.array([_proportions(pool, 4, alpha) for _ in range(4000)])
        variance = 0.25 * 0.75 / (4 * alpha + 1)
        assert draws.mean(axis=0) == pytest.approx(0.25, abs=0.03)
        assert draws.var(axis=0) == pytest.approx(variance, rel=0.12)


def test_dirichlet_that_never_fills_a_client_says_so(small: Labels) -> None:
    with pytest.raises(UserError, match="use a larger alpha"):
        make_partition(
            "dirichlet", small, seed=0, options={"clients": 10, "alpha": 0.001, "min_size": 90}
        )


def test_shards_leave_each_client_few_classes() -> None:
    values = np.eye(5, dtype=np.uint8)[np.arange(1000) % 5]
    labels = Labels(values, PAPER_FINDINGS, np.array([f"{k:04d}" for k in range(1000)]))
    partition = make_partition("shards", labels, seed=0, options={"clients": 10, "per_client": 2})
    assert sizes(partition) == [100] * 10
    assert all(np.count_nonzero(row) <= 2 for row in label_counts(partition, labels))


def test_by_site_makes_each_site_a_client(small: Labels) -> None:
    partition = make_partition("by_site", small, seed=0, scale=0.5)
    assert {shard.client: len(shard) for shard in partition.shards} == {
        "east": 167,
        "north": 167,
        "south": 167,
    }
    assert small.sites is not None
    assert all(set(small.sites[shard.rows]) == {shard.client} for shard in partition.shards)


def test_by_site_counts_patients_of_several_sites() -> None:
    sites = np.array(["a", "a", "b", "b", "b", "a"])
    labels = random_labels(6, patients=np.array(["1", "2", "2", "3", "4", "4"]), sites=sites)
    with pytest.raises(UserError, match="2 patients have images at more than one site"):
        make_partition("by_site", labels, seed=0, options={"patient_disjoint": True})


# ------------------------------------------------------------------------------- names and mistakes


def test_every_scenario_is_listed_with_a_line_and_options() -> None:
    assert scenario_names() == [
        *SIZES,
        "by_site",
        "dirichlet",
        "iid",
        "lognormal",
        "quantity",
        "shards",
    ]
    assert describe_scenario("chx-4") == "CheXpert, 9 large + 1 small: 9 × 10,000, 1 × 2,500"
    assert all(
        describe_scenario(name) and "\n" not in describe_scenario(name) for name in scenario_names()
    )
    assert scenario_options("CHX-1")["share"] == 0.85
    assert scenario_options("dirichlet") == {
        "clients": 4,
        "alpha": 0.5,
        "min_size": 10,
        "patient_disjoint": False,
    }


def test_names_may_be_written_in_any_case(small: Labels) -> None:
    assert make_partition("chm-2", small, seed=0, scale=0.01).scenario == "CHM-2"
    assert make_partition("IID", small, seed=0).scenario == "iid"
    assert [paper_dataset_of("chm-2"), paper_dataset_of("CHX-7"), paper_dataset_of("iid")] == [
        "chestmnist",
        "chexpert",
        None,
    ]


def test_impossible_quota_says_what_is_needed_and_left(tables: dict[str, Labels]) -> None:
    with pytest.raises(
        UserError, match=r"^CHM-4, Atelectasis at C2–C4: needs 4,275 positives, 3,996 are left$"
    ):
        make_partition("CHM-4", tables["chestmnist"], seed=0, options={"large_positives": 1425})


def test_too_few_rare_positives_say_what_is_needed_and_left(tables: dict[str, Labels]) -> None:
    labels = tables["chestmnist"].take(np.arange(50000))
    with pytest.raises(
        UserError,
        match=(
            r"^CHX-1, Cardiomegaly or Consolidation at C2–C4: needs 7,500 positives, 3,\d+ are"
            r" left$"
        ),
    ):
        make_partition("CHX-1", labels, seed=0)


def test_quota_beyond_the_client_is_refused(tables: dict[str, Labels]) -> None:
    rare = np.flatnonzero(tables["chestmnist"].values[:, RARE["chestmnist"]].any(axis=1))[:1000]
    with pytest.raises(
        UserError, match=r"at C6: needs \d+ positives, and the client has 85 images"
    ):
        make_partition("CHM-3", tables["chestmnist"].take(rare), seed=0, scale=0.01)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CHM-22", {}, "no 'CHM-22' among the scenarios: did you mean CHM-2?"),
        ("dirichlet", {"beta": 1.0}, "dirichlet has no setting 'beta'"),
        ("CHM-2", {"tilt": 1.0}, "CHM-2 with construction concentration has no setting 'tilt'"),
        ("CHM-5", {"share": 0.5}, "CHM-5 has no setting 'share'"),
        (
            "CHM-2",
            {"construction": "tlt"},
            "construction must be one of concentration, enriched, findings, tilt, ",
        ),
        ("CHM-2", {"construction": "tilt", "tilt": -1.0}, "tilt must be zero or more"),
        ("CHM-2", {"share": math.nan}, "share must be between 0 and 1"),
        ("CHM-2", {"share": 0}, "share must be above 0"),
        ("CHM-2", {"share": "much"}, "share must be a number"),
        ("CHM-4", {"large_positives": 1.5}, "large_positives must be a whole number"),
        ("CHM-2", {"patient_disjoint": 1}, "patient_disjoint must be true or false"),
        ("iid", {"clients": 0}, "clients must be at least 1"),
        ("iid", {"clients": 1001}, "1,001 clients cannot share 1,000 images"),
        ("iid", {"clients": 2.5}, "clients must be a whole number"),
        ("iid", {"clients": 600}, "needs two or more to train"),
        ("dirichlet", {"alpha": 0.0}, "alpha must be a positive number"),
        ("dirichlet", {"alpha": math.inf}, "alpha must be a positive number"),
        ("dirichlet", {"min_size": 300}, "need 1,200, and there are 1,000"),
        ("shards", {"per_client": 0}, "per_client must be at least 1"),
        ("shards", {"per_client": 900}, "need 3,600 pieces, the data has 1,000"),
        ("quantity", {"power": math.nan}, "power must be zero or more"),
        ("nowhere.json", {}, "cannot read nowhere.json"),
        ("no_such_module:deal", {}, "cannot import 'no_such_module'"),
    ],
)
def test_mistakes_are_one_line(
    name: str, options: dict[str, object], message: str, small: Labels
) -> None:
    with pytest.raises(UserError) as refused:
        make_partition(
            name, small, seed=0, scale=0.01 if name.startswith("CHM") else 1.0, options=options
        )
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("seed", "scale", "message"),
    [
        (-1, 1.0, "seed must be zero or more"),
        (0, 0.0, "scale must be a positive number"),
        (0, math.nan, "scale must be a positive number"),
        (0, "big", "scenario.scale must be a number"),
        (0, 1.5, "needs 1,500 images, the data has 1,000"),
        (0, 0.001, "cannot share 1 images"),
    ],
)
def test_seed_and_scale_are_checked(seed: int, scale: float, message: str, small: Labels) -> None:
    with pytest.raises(UserError, match=message):
        make_partition("iid", small, seed=seed, scale=scale)


def test_scale_that_empties_a_client_is_refused(small: Labels) -> None:
    with pytest.raises(UserError, match="leaves a client 1 images: use a larger scale"):
        make_partition("CHM-2", small, seed=0, scale=0.0001)


def test_missing_labels_are_named(small: Labels) -> None:
    bare = Labels(small.values[:, :2], PAPER_FINDINGS[:2], small.names)
    with pytest.raises(UserError, match="this data has no Cardiomegaly and no Consolidation"):
        make_partition("CHM-2", bare, seed=0, scale=0.01)
    with pytest.raises(UserError, match="as CheXpert's do"):
        make_partition("CHM-2", bare, seed=0, scale=0.01, options={"construction": "certain"})
    with pytest.raises(UserError, match="by_site needs a site"):
        make_partition("by_site", bare, seed=0)


# ---------------------------------------------------------------------------------------- one's own


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = (
        "def halves(labels, seed, scale, cut=500):\n    return [range(cut), range(cut,"
        " len(labels))]\ndef named(labels, seed, scale):\n    return {'north': [5, 3], 'south': [1,"
        " 2]}\ndef again(labels, seed, scale):\n    from feddraw.data.scenarios.scenario_by_name"
        " import make_partition\n    return make_partition('iid', labels, seed=seed, scale=scale)\ndef twice(labels,"
        " seed, scale):\n    return [[0, 1], [1, 2]]\ndef outside(labels, seed, scale):\n    return"
        " [[0, 1], [2, 10**6]]\ndef ragged(labels, seed, scale):\n    return [[[0], [1, 2]]]\ndef"
        " nothing(labels, seed, scale):\n    return None\n"
    )
    (tmp_path / "own_scenarios.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_scenarios"


def test_own_function_is_a_scenario(own: str, small: Labels) -> None:
    assert sizes(make_partition(f"{own}:halves", small, seed=0, options={"cut": 100})) == [100, 900]
    north = make_partition(f"{own}:named", small, seed=0).shards[0]
    assert (north.client, north.rows.tolist()) == ("north", [3, 5])
    assert (
        make_partition(f"{own}:again", small, seed=0).sha256
        == make_partition("iid", small, seed=0).sha256
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("twice", "gives 1 images more than once"),
        ("outside", "must lie between 0 and 999"),
        ("ragged", "one-dimensional list of whole numbers"),
        ("nothing", "must return a list"),
        ("absent", "has no 'absent'"),
    ],
)
def test_own_function_is_checked(own: str, function: str, message: str, small: Labels) -> None:
    with pytest.raises(UserError, match=message):
        make_partition(f"{own}:{function}", small, seed=0)


def test_own_function_refuses_options_it_does_not_take(own: str, small: Labels) -> None:
    with pytest.raises(UserError, match="unexpected keyword argument 'shape'"):
        make_partition(f"{own}:halves", small, seed=0, options={"shape": 1})


@pytest.fixture
def listed(tmp_path: Path, small: Labels) -> Path:
    path = tmp_path / "CHM-2.json"
    partition = make_partition("CHM-2", small, seed=0, scale=0.01)
    index_list.write_index_list(path, partition, small, {"seed": 0, "scale": 0.01, "options": {}})
    return path


def test_index_list_deals_the_same_images_again(listed: Path, small: Labels) -> None:
    again = make_partition(str(listed), small, seed=5)
    first = make_partition("CHM-2", small, seed=0, scale=0.01)
    assert (again.scenario, again.sha256) == (first.scenario, first.sha256)
    for one, other in zip(again.shards, first.shards, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
    assert [path.name for path in listed.parent.iterdir()] == ["CHM-2.json"]


def test_index_list_takes_no_options(listed: Path, small: Labels) -> None:
    with pytest.raises(UserError, match=r"lists the images of each client: leave construction out"):
        make_partition(
            str(listed),
            small,
            seed=0,
            options={"construction": "enriched", "patient_disjoint": False},
        )


def test_index_list_may_be_in_the_home_folder(
    listed: Path, small: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(listed.parent))
    assert (
        make_partition(f"~/{listed.name}", small, seed=0).sha256
        == make_partition(str(listed), small, seed=0).sha256
    )


def test_index_list_is_checked(listed: Path, small: Labels, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"of the 785 images of .* are not in the data"):
        make_partition(str(listed), small.take(np.arange(900)), seed=0)
    with pytest.raises(UserError, match=r"made at scale 0\.01: use scale = 1"):
        make_partition(str(listed), small, seed=0, scale=0.5)
    document = json.loads(listed.read_text())
    document["clients"][0]["images"].pop()
    listed.write_text(json.dumps(document))
    with pytest.raises(UserError, match="was changed after it was built"):
        make_partition(str(listed), small, seed=0)
    for broken in ("", "[1]", '{"clients": 3}'):
        listed.write_text(broken)
        with pytest.raises(UserError, match="is no index list"):
            make_partition(str(listed), small, seed=0)
    with pytest.raises(UserError, match="it is a folder"):
        index_list.write_index_list(tmp_path, make_partition("iid", small, seed=0), small, {})


# ------------------------------------------------------------------------------------ heterogeneity


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CHM-1", 0.271),
        ("CHM-2", 0.387),
        ("CHM-3", 0.059),
        ("CHX-1", 0.321),
        ("CHX-2", 0.300),
        ("CHX-3", 0.173),
        ("CHX-4", 0.073),
    ],
)
def test_gini_is_that_of_the_paper_s_sizes(name: str, expected: float) -> None:
    assert gini(SIZES[name]) == pytest.approx(expected, abs=5e-4)


def test_size_measures_by_hand() -> None:
    measures = measure_sizes([60, 20, 20])
    assert (measures.size_ratio, measures.smallest_share) == (3.0, 0.2)
    assert measures.effective_clients == pytest.approx(1 / (0.36 + 0.04 + 0.04))
    assert gini([5, 5, 5]) == 0


def test_label_distances_are_zero_for_equal_and_one_for_disjoint_mixes() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert (jensen_shannon(p, p), earth_movers(p, p)) == (0.0, 0.0)
    assert (jensen_shannon(p, q), earth_movers(p, q)) == pytest.approx((1.0, 1.0))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=7))
def test_jensen_shannon_is_scipy_s(pairs: list[tuple[int, int]]) -> None:
    p, q = np.array(pairs, dtype=float).T + 1e-9
    assert jensen_shannon(p / p.sum(), q / q.sum()) == pytest.approx(
        np.nan_to_num(jensenshannon(p, q, base=2)), abs=1e-6
    )


def test_measures_of_a_partition_by_hand() -> None:
    values = np.array([[1, 1], [1, 0], [0, 0], [0, 1]], np.uint8)
    labels = Labels(values, ("a", "b"), np.array(list("wxyz")), np.array(["1", "2", "2", "1"]))
    partition = Partition(
        "mine", (Shard("C1", np.array([0, 1])), Shard("C2", np.array([2, 3]))), ""
    )
    measures = measure_skew(partition, labels)
    assert label_counts(partition, labels).tolist() == [[2, 1, 0], [0, 1, 1]]
    # mixes (2/3, 1/3, 0) and (0, 1/2, 1/2) beside (2/5, 2/5, 1/5) of both together
    assert measures.earth_movers == pytest.approx((4 / 15, 2 / 5))
    assert measures.shared_patients == 2
    assert measure_skew(partition, Labels(values, ("a", "b"), labels.names)).shared_patients is None


def test_figure_has_a_bar_a_client_with_the_first_on_top(small: Labels) -> None:
    from feddraw.analysis.partition_plot import partition_figure

    partition = make_partition("CHM-2", small, seed=0, scale=0.01)
    bars, mix = partition_figure(partition, small).axes
    assert [bar.get_width() for bar in bars.patches] == [95, 95, 95, 500]
    assert len(mix.patches) == 4 * 6
    assert bars.yaxis_inverted()


# --------------------------------------------------------------------------------- the command line


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """1,000 images of ChestMNIST's mix as an .npz in MedMNIST's layout."""
    labels = table_1("chestmnist").take(np.arange(1000))
    fourteen = np.zeros((1000, 14), np.uint8)
    fourteen[:, [0, 9, 2, 1, 8]] = labels.values
    empty = {f"{part}_labels": fourteen[:0] for part in ("val", "test")}
    np.savez(tmp_path / "labels.npz", train_labels=fourteen, train_names=labels.names, **empty)
    return tmp_path / "labels.npz"


def command(*words: object) -> str:
    from feddraw.cli.scenario import app

    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception:
        raise result.exception
    return result.stdout


def test_show_prints_the_documented_json(table: Path) -> None:
    document = json.loads(command("show", "chm-4", "--labels", table, "--scale", "0.01", "--json"))
    assert list(document) == ["scenario", "dataset", "total", "sha256", "clients", "heterogeneity"]
    assert (document["scenario"], document["dataset"], document["total"]) == (
        "CHM-4",
        "chestmnist",
        520,
    )
    first = document["clients"][0]
    assert list(first) == ["client", "size", "positives", "none"]
    assert (first["client"], first["size"], list(first["positives"])) == (
        "C1",
        70,
        list(PAPER_FINDINGS),
    )
    assert first["positives"]["Atelectasis"] == 40
    assert {"size_ratio", "gini", "smallest_share", "effective_clients"} <= set(
        document["heterogeneity"]
    )
    assert set(document["heterogeneity"]["jensen_shannon"]) == {"C1", "C2", "C3", "C4"}


def test_show_prints_a_table_with_counts_and_prevalence(table: Path) -> None:
    text = command("show", "CHM-4", "--labels", table, "--scale", "0.01")
    assert "40 (57.1%)" in text
    assert "sha256" in text
    assert "\x1b" not in text


def test_show_without_labels_gives_sizes_and_says_how_to_get_counts() -> None:
    text = command("show", "CHX-4")
    assert "92,500 images at 10 clients" in text
    assert "--labels FILE" in text
    document = json.loads(command("show", "CHX-4", "--json"))
    assert [client["size"] for client in document["clients"]] == SIZES["CHX-4"]
    assert document["sha256"] is None
    with pytest.raises(UserError, match="depend on the data: add --labels"):
        command("show", "dirichlet")


def test_build_writes_a_file_that_is_a_scenario(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    said = command(
        "build", "iid", "--labels", table, "--set", "scenario.clients=5", "--seed", 3, "--out", path
    )
    shown = json.loads(command("show", path, "--labels", table, "--json"))
    recorded = json.loads(path.read_text())
    assert [client["size"] for client in shown["clients"]] == [200] * 5
    assert shown["sha256"] == recorded["sha256"] in said
    assert (recorded["seed"], recorded["options"]) == (3, {"clients": 5})


def test_show_draws(table: Path, tmp_path: Path) -> None:
    command("show", "shards", "--labels", table, "--plot", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="add --labels"):
        command("show", "CHM-1", "--plot", tmp_path / "other.png")


def test_list_names_them_all() -> None:
    text = command("list")
    assert all(name in text for name in scenario_names())


def test_dealing_needs_no_torch() -> None:
    code = (
        "import sys; from feddraw.data.scenarios.scenario_by_name import scenario_names;"
        " scenario_names(); "
    )
    code += "print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------------------------- the real tables


@pytest.fixture(scope="module")
def real() -> dict[str, Labels]:
    from feddraw.data.dataset_by_name import read_training_labels

    chexpert, folder = os.environ.get("FEDDRAW_CHEXPERT_LABELS"), os.environ.get("FEDDRAW_DATA")
    if not (chexpert and folder):
        pytest.skip(
            "FEDDRAW_CHEXPERT_LABELS and FEDDRAW_DATA do not say where the real label tables are"
        )
    return {
        "chexpert": read_training_labels(Path(chexpert)),
        "chestmnist": read_training_labels(Path(folder) / "chestmnist_labels.npz"),
    }


def test_real_tables_have_the_paper_s_counts(real: dict[str, Labels]) -> None:
    for dataset, (expected, none, total) in TABLE_1.items():
        labels = real[dataset]
        assert (len(labels), labels.values.sum(axis=0).tolist()) == (total, expected)
        assert int((labels.values.max(axis=1) == 0).sum()) == none


def test_all_twelve_build_on_the_real_tables_within_ten_seconds(real: dict[str, Labels]) -> None:
    start = time.process_time()
    dealt = {
        name: make_partition(name, real[paper_dataset_of(name) or ""], seed=0) for name in SIZES
    }
    seconds = time.process_time() - start
    assert {name: sizes(partition) for name, partition in dealt.items()} == SIZES
    assert positives(dealt["CHX-5"], real["chexpert"], [0]) == [3500, 950, 950]
    assert positives(dealt["CHX-6"], real["chexpert"], [1]) == [3500, 950, 950]
    assert positives(dealt["CHM-4"], real["chestmnist"], [0]) == [4000, 839, 839, 839]
    assert positives(dealt["CHX-1"], real["chexpert"], RARE["chexpert"]) == [1324, 2500, 2500, 2500]
    assert seconds < 10


@pytest.mark.parametrize("name", TILTED)
def test_tilt_on_the_real_tables_gives_the_expected_information(
    name: str, real: dict[str, Labels]
) -> None:
    assert information_after_tilt(name, real[paper_dataset_of(name) or ""], 1) == pytest.approx(
        TILTED[name], abs=0.3
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"construction": "tilt"}, {"construction": "certain"}],
    ids=["concentration", "tilt", "certain"],
)
def test_chexpert_can_be_dealt_by_patient(
    options: dict[str, object], real: dict[str, Labels]
) -> None:
    for name in ("CHX-1", "CHX-4"):
        partition = make_partition(
            name, real["chexpert"], seed=0, options={**options, "patient_disjoint": True}
        )
        assert sizes(partition) == SIZES[name]
        assert shared_patients(partition, real["chexpert"]) == 0
