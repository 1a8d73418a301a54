"""FedDRAW's mathematics: every number that the paper prints, and what must hold for anybody's
sizes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cosine as distance

import feddraw
from feddraw.core.schedules import (
    BETA_MAX,
    COSINE_BLOCK,
    ETA,
    LAM,
    READINGS,
    beta,
    cosine,
    gamma,
    gamma_and_beta,
    most_moved_by_similarity,
    size_prior,
    softmax,
    weights_and_parts,
)
from feddraw.errors import UserError

CHX1 = [20_000, 5_000, 5_000, 5_000]
CHX4 = [10_000] * 9 + [2_500]
T = 15


def weights(round, sizes, similarities=None, **settings):
    return feddraw.weights(
        round=round, rounds=T, sizes=sizes, similarities=similarities, **settings
    )


def small_client(round, gap, **settings):
    """CHX-4: the small client's weight when it is `gap` more similar than the nine large ones."""
    return weights(round, CHX4, [0.9] * 9 + [0.9 + gap], **settings)[-1]


def large_client(round, gap, **settings):
    """CHX-1: the large client's weight when it is `gap` more similar than the three small ones."""
    return weights(round, CHX1, [0.9 + gap] + [0.9] * 3, **settings)[0]


# ----------------------------------------------------------------------------------- golden numbers


@pytest.mark.parametrize(
    ("reading", "small", "large"),
    [("reported", 0.0270, 0.5714), ("equation", 0.0270, 0.5714), ("algorithm1", 0.0810, 0.5307)],
)
def test_round_0_of_each_reading(reading, small, large):
    assert small_client(0, 0, reading=reading) == pytest.approx(small, abs=5e-5)
    assert large_client(0, 0, reading=reading) == pytest.approx(large, abs=5e-5)


@pytest.mark.parametrize("reading", ["reported", "equation"])
@pytest.mark.parametrize("sizes", [CHX1, CHX4])
def test_round_0_is_the_prior_and_the_last_round_is_exactly_uniform(reading, sizes):
    similarities = np.linspace(-1, 1, len(sizes))
    assert weights(0, sizes, similarities, reading=reading).tolist() == size_prior(sizes).tolist()
    assert set(weights(T - 1, sizes, similarities, reading=reading)) == {1 / len(sizes)}


def test_algorithm1_ends_without_equal_weights():
    assert beta(14, T, reading="algorithm1") == pytest.approx(0.5438, abs=5e-5)
    assert np.ptp(weights(14, CHX1, [0.8, 0.9, 0.9, 0.9], reading="algorithm1")) > 0.01


def test_no_single_beta_turns_the_softmax_of_the_prior_into_the_prior():
    """Why round 0 must be a case of its own: the two scenarios need different temperatures."""
    for sizes, needed in ((CHX4, 17.1), (CHX1, 3.24)):
        prior = size_prior(sizes)
        assert softmax(prior, needed) == pytest.approx(prior, rel=0.01)


@pytest.mark.parametrize("reading", READINGS)
def test_gamma_falls_from_the_round_that_the_reading_counts_from(reading):
    late = reading == "equation"
    assert [gamma(t, reading=reading) for t in range(T)] == [
        math.exp(-0.4 * (t + late)) for t in range(T)
    ]


def test_beta_is_loosely_close_to_its_maximum_until_the_middle():
    assert beta(7, T) == pytest.approx(0.753 * 3, abs=2e-3)
    assert beta(7, T, reading="algorithm1") == pytest.approx(0.798 * 3, abs=2e-3)
    assert beta(10, T) == pytest.approx(0.55 * 3, abs=3e-3)
    assert [beta(0, T, reading=reading) is None for reading in READINGS] == [True, False, True]
    assert beta(14, T) == 0 == beta(14, T, reading="equation")


def test_a_small_eta_still_trusts_size_at_the_end():
    assert gamma(14, eta=0.01) == pytest.approx(0.87, abs=1e-3)


def test_the_paper_values_are_the_defaults():
    assert (ETA, LAM, BETA_MAX) == (0.4, 0.2, 3.0)


def test_the_printed_extrema_follow_from_their_gaps():
    assert small_client(6, 0.0267) == pytest.approx(0.1037, abs=5e-5)
    assert small_client(6, 0.0264) == pytest.approx(0.10365, abs=1e-5)
    assert small_client(6, 0.0269) == pytest.approx(0.10375, abs=1e-5)
    assert large_client(6, -0.0844) == pytest.approx(0.2334, abs=5e-5)


def test_algorithm1_would_need_other_gaps_for_the_same_extrema():
    assert small_client(6, 0.0259, reading="algorithm1") == pytest.approx(0.1037, abs=5e-5)
    assert large_client(6, -0.0825, reading="algorithm1") == pytest.approx(0.2334, abs=5e-5)


@pytest.mark.parametrize(
    ("round", "low", "high"),
    [
        (4, 0.0205, 0.0401),
        (5, 0.0127, 0.0314),
        (7, 0.0052, 0.0243),
        (8, 0.0034, 0.0236),
        (9, 0.0023, 0.0242),
        (10, 0.0015, 0.0265),
    ],
)
def test_gaps_with_which_the_small_client_is_above_equal_but_below_its_maximum(round, low, high):
    """CHX-4, printed: above .1000 in rounds 4 to 10, at most .1037 in round 6.

    The bounds have four digits.
    """
    assert small_client(round, low - 1e-4) < 0.1 < small_client(round, low + 1e-4)
    assert small_client(round, high - 1e-4) < 0.10370 < small_client(round, high + 1e-4)


def test_gaps_with_which_the_large_client_is_overtaken_in_round_5_and_lowest_in_round_6():
    """CHX-1, printed: first below .2500 in round 5, at least .2334 in round 6."""
    assert large_client(4, -0.1085) < 0.25 < large_client(4, -0.1083)
    assert large_client(5, -0.0672) < 0.25 < large_client(5, -0.0670)
    for round, gap in ((5, -0.1089), (7, -0.0704), (8, -0.0633), (9, -0.0612)):
        assert large_client(round, gap - 1e-4) < 0.2334 < large_client(round, gap + 1e-4)


def test_in_round_3_the_small_client_is_not_yet_above_equal():
    assert small_client(3, 0.0348) < 0.1 < small_client(3, 0.0350)


def test_clients_of_one_size_are_as_far_apart_as_printed():
    chx4 = weights(6, CHX4, [*np.linspace(0.9, 0.9046, 9), 0.9290])
    assert np.ptp(chx4[:9]) == pytest.approx(0.000998, rel=0.01)
    chx1 = weights(4, CHX1, [0.8, 0.9, 0.90035, 0.9007])
    assert np.ptp(chx1[1:]) == pytest.approx(0.000360, rel=0.02)


def test_from_round_4_on_the_weights_are_near_uniform_averaging():
    """Within 4 % in CHX-4 and 7 % in CHX-1, with the gaps that the paper's figure needs."""
    assert all(
        abs(small_client(t, 0.0267 * math.exp(-0.2 * abs(t - 6))) - 0.1) < 0.004
        for t in range(4, T)
    )
    assert all(
        abs(large_client(t, -0.0844 * math.exp(-0.3 * abs(t - 6))) - 0.25) < 0.07 * 0.25
        for t in range(5, T)
    )


@pytest.mark.parametrize("reading", ["reported", "equation"])
def test_with_one_round_the_prior_wins(reading):
    only = feddraw.weights(
        round=0, rounds=1, sizes=CHX1, similarities=[0, 1, 1, 1], reading=reading
    )
    assert only.tolist() == size_prior(CHX1).tolist()


# --------------------------------------------------------------------------------------- properties

unhurried = settings(deadline=None)  # a busy machine is no mistake
clients = st.integers(1, 12).flatmap(
    lambda k: st.tuples(
        st.lists(st.integers(1, 10**12), min_size=k, max_size=k),
        st.lists(st.floats(-1, 1), min_size=k, max_size=k),
    )
)
times = st.integers(1, 400).flatmap(
    lambda rounds: st.tuples(st.integers(0, rounds - 1), st.just(rounds))
)
strengths = st.fixed_dictionaries(
    {name: st.floats(1e-12, 1e300) for name in ("eta", "lam", "beta_max")}
)


@unhurried
@given(clients, times, strengths, st.sampled_from(READINGS))
def test_weights_are_a_distribution_whatever_the_settings(who, when, strength, reading):
    (sizes, similarities), (t, rounds) = who, when
    found = feddraw.weights(
        round=t, rounds=rounds, sizes=sizes, similarities=similarities, reading=reading, **strength
    )
    assert found.dtype == np.float64
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-12)


@unhurried
@given(clients, st.integers(0, T - 1), st.sampled_from(READINGS), st.randoms(use_true_random=False))
def test_a_client_counts_the_same_wherever_it_stands(who, t, reading, random):
    sizes, similarities = map(np.array, who)
    order = random.sample(range(len(sizes)), len(sizes))
    straight = weights(t, sizes, similarities, reading=reading)
    assert weights(t, sizes[order], similarities[order], reading=reading) == pytest.approx(
        straight[order], rel=1e-12
    )


@unhurried
@given(arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6)), st.floats(0, 1e308))
def test_softmax_never_overflows(scores, strength):
    with np.errstate(all="raise", under="ignore"):
        found = softmax(scores, strength)
    assert found.sum() == pytest.approx(1)
    assert found[scores.argmax()] == found.max()


@pytest.mark.parametrize("length", [1, 5, COSINE_BLOCK - 1, COSINE_BLOCK, 2 * COSINE_BLOCK + 7])
def test_cosine_of_float32_vectors_has_float64_precision_over_many_blocks(length):
    rng = np.random.default_rng(length)
    reference = rng.normal(size=length).astype(np.float32)
    rows = (reference + rng.normal(scale=0.1, size=(3, length))).astype(np.float32)
    found = cosine(rows, reference)
    wide, along = rows.astype(np.float64), reference.astype(np.float64)
    expected = wide @ along / np.linalg.norm(wide, axis=1) / np.linalg.norm(along)
    assert found == pytest.approx(expected, abs=1e-12)
    assert found == pytest.approx([1 - distance(row, along) for row in wide], abs=1e-12)
    assert (np.abs(found) <= 1).all()


@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37])
def test_cosine_does_not_depend_on_length(scale):
    vector = np.array([3, 4], np.float32) * np.float32(scale)
    assert cosine(np.stack([vector, -vector]), np.array([3, 4], np.float32)) == pytest.approx(
        [1, -1]
    )


def test_a_vector_without_length_has_similarity_zero():
    rows = np.array([[0, 0], [1, 0]], np.float32)
    assert cosine(rows, np.array([1, 0], np.float32)).tolist() == [0, 1]
    assert cosine(rows, np.zeros(2, np.float32)).tolist() == [0, 0]


@unhurried
@given(clients, times)
def test_the_parts_explain_the_weights(who, when):
    parts = weights_and_parts(*who, *gamma_and_beta(*when))
    assert parts.prior.sum() == pytest.approx(1)
    assert parts.reputation == pytest.approx(
        parts.gamma * parts.prior + (1 - parts.gamma) * parts.similarity
    )
    if parts.beta is None:
        assert parts.weight is parts.prior
    else:
        assert parts.weight == pytest.approx(softmax(parts.reputation, parts.beta))


# ----------------------------------------------------------------------------------------- schedule


def test_schedule_has_an_element_a_round_with_every_part_of_every_client():
    rows = feddraw.schedule(rounds=T, sizes=CHX1, similarities=[0.91, 0.99, 0.99, 0.98])
    assert [row["round"] for row in rows] == list(range(T))
    assert all(list(row) == ["round", "gamma", "beta", "clients"] for row in rows)
    parts = ["client", "size", "prior", "similarity", "reputation", "weight"]
    assert all(list(client) == parts for row in rows for client in row["clients"])
    assert (rows[0]["gamma"], rows[0]["beta"]) == (1.0, None)
    assert rows[0]["clients"][0] | {"weight": 0} == {
        "client": "C1",
        "size": 20_000,
        "prior": pytest.approx(4 / 7),
        "similarity": 0.91,
        "reputation": pytest.approx(4 / 7),
        "weight": 0,
    }
    for t, row in enumerate(rows):
        assert [c["weight"] for c in row["clients"]] == weights(
            t, CHX1, [0.91, 0.99, 0.99, 0.98]
        ).tolist()


def test_schedule_takes_a_row_of_similarities_a_round():
    table = [[0.5, 1.0], [1.0, 0.5], [0.2, 0.1]]
    for given_as in (table, np.array(table)):
        rows = feddraw.schedule(
            rounds=3, sizes=[1, 1], similarities=given_as, clients=["North", "South"]
        )
        assert [[c["similarity"] for c in row["clients"]] for row in rows] == table
        assert [c["client"] for c in rows[0]["clients"]] == ["North", "South"]


def test_without_similarities_every_client_is_fully_similar():
    rows = feddraw.schedule(rounds=2, sizes=[3, 1])
    assert all(client["similarity"] == 1 for row in rows for client in row["clients"])
    assert weights(5, CHX1).tolist() == weights(5, CHX1, [1, 1, 1, 1]).tolist()


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"rounds": -3}, "rounds must be"),
        ({"rounds": math.nan}, "rounds must be"),
        ({"rounds": 2.5}, "rounds must be"),
        ({"eta": 0.0}, "eta must be a positive number, not 0.0"),
        ({"eta": math.nan}, "eta must be"),
        ({"lam": -0.2}, "lam must be"),
        ({"beta_max": math.inf}, "beta_max must be"),
        ({"reading": "algorthm1"}, "did you mean algorithm1?"),
        ({"sizes": []}, "sizes must be a list"),
        ({"sizes": [10, 0]}, "sizes must be positive numbers, not [10.0, 0.0]"),
        ({"sizes": [10, -1]}, "sizes must be positive"),
        ({"sizes": [10, math.nan]}, "sizes must be positive"),
        ({"similarities": [1, 1, 1]}, "3 similarities for 2 clients"),
        ({"similarities": []}, "0 similarities for 2 clients"),
        ({"similarities": [1, 1.5]}, "between -1 and 1, not [1.0, 1.5]"),
        ({"similarities": [1, math.nan]}, "between -1 and 1"),
    ],
)
def test_a_mistake_is_one_line(changes, says):
    settings = {"rounds": 3, "sizes": [10, 20], "similarities": [1, 1]} | changes
    for call in (
        lambda: feddraw.schedule(**settings),
        lambda: feddraw.weights(round=0, **settings),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert says in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("round", [-1, 3, 1.5, math.nan])
def test_a_round_outside_the_run_is_refused(round):
    with pytest.raises(UserError, match="is not among the rounds 0 to 2"):
        feddraw.weights(round=round, rounds=3, sizes=[1, 2])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"similarities": [[1, 1]]}, "1 rows of similarities for 3 rounds"),
        ({"similarities": [[1, 1], [1], [1, 1]]}, "1 similarities for 2 clients"),
        ({"clients": ["only"]}, "1 names for 2 clients"),
    ],
)
def test_a_table_of_another_shape_is_one_line(changes, says):
    with pytest.raises(UserError, match=says):
        feddraw.schedule(rounds=3, sizes=[10, 20], **changes)


# ----------------------------------------------------------------------------------------- extremes

vast = st.fixed_dictionaries(
    {name: st.floats(5e-324, 1.7e308) for name in ("eta", "lam", "beta_max")}
)
crowds = st.integers(1, 200).flatmap(
    lambda k: st.tuples(
        st.lists(st.sampled_from([1, 2, 999, 10**6, 10**12 - 1, 10**12]), min_size=k, max_size=k),
        st.lists(st.sampled_from([-1.0, -1e-300, 0.0, 1e-300, 0.5, 1.0]), min_size=k, max_size=k),
    )
)
long_times = st.integers(1, 10**9).flatmap(
    lambda rounds: st.tuples(st.integers(0, rounds - 1), st.just(rounds))
)


@unhurried
@given(crowds, long_times, vast, st.sampled_from(READINGS))
def test_weights_stay_in_the_simplex_for_any_crowd_any_length_and_any_strength(
    who, when, strength, reading
):
    (sizes, similarities), (t, rounds) = who, when
    with np.errstate(divide="raise", invalid="raise"):
        found = feddraw.weights(
            round=t,
            rounds=rounds,
            sizes=sizes,
            similarities=similarities,
            reading=reading,
            **strength,
        )
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-12)


@unhurried
@given(clients, times, strengths, st.sampled_from(READINGS))
def test_of_two_clients_of_one_size_the_more_similar_counts_no_less(who, when, strength, reading):
    (sizes, similarities), (t, rounds) = who, when
    sizes = [sizes[0]] * len(sizes)
    found = feddraw.weights(
        round=t, rounds=rounds, sizes=sizes, similarities=similarities, reading=reading, **strength
    )
    order = np.argsort(similarities)
    assert (np.diff(found[order]) >= -1e-15).all()


@unhurried
@given(clients, times, st.integers(2, 1000), st.sampled_from(READINGS))
def test_only_the_proportions_of_the_sizes_matter(who, when, times_as_large, reading):
    (sizes, similarities), (t, rounds) = who, when
    options = {"round": t, "rounds": rounds, "similarities": similarities, "reading": reading}
    larger = feddraw.weights(sizes=[size * times_as_large for size in sizes], **options)
    assert larger == pytest.approx(feddraw.weights(sizes=sizes, **options), rel=1e-9, abs=1e-15)


# ------------------------------------------------------------ how much similarity can move at most


@unhurried
@given(clients, st.integers(0, T - 1), st.floats(0.1, 50), st.sampled_from(READINGS))
def test_similarity_moves_no_more_of_the_weight_than_the_bound(them, round, beta_max, reading):
    sizes, similarities = them
    schedule = gamma_and_beta(round, T, ETA, LAM, beta_max, reading)
    moved = weights_and_parts(sizes, similarities, *schedule).weight
    unmoved = weights_and_parts(sizes, np.ones(len(sizes)), *schedule).weight
    total_variation = np.abs(moved - unmoved).sum() / 2
    gap = max(similarities) - min(similarities)
    assert total_variation <= most_moved_by_similarity(gap, *schedule) + 1e-12


def test_the_bound_on_similarity_is_reached_and_has_the_printed_numbers():
    """Two clients whose weights with equal similarities are those of the proof."""
    length = 1.5  # L = beta (1 - gamma) R
    fewer = 1 / (1 + math.exp(length / 2))
    scores = np.log([fewer, 1 - fewer])
    change = np.abs(softmax(scores + np.array([length, 0.0]), 1.0) - [fewer, 1 - fewer]).sum() / 2
    bound = most_moved_by_similarity(length, gamma=0.0, beta=1.0)
    assert change == pytest.approx(bound)
    assert bound == pytest.approx(math.tanh(length / 4))
    at_its_largest = max(most_moved_by_similarity(0.018, *gamma_and_beta(t, T)) for t in range(T))
    assert at_its_largest == pytest.approx(0.0098, abs=5e-5)
    assert most_moved_by_similarity(0.5, gamma=1.0, beta=None) == 0.0
