"""Statistics beside scipy, scikit-posthocs, statsmodels and scikit-learn; every mistake in a table
names its cell.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from feddraw import cli
from feddraw.analysis import bootstrap, statistics
from feddraw.analysis import statistics_in_words as words
from feddraw.analysis.metrics import auc
from feddraw.analysis.paired_differences import against, repeats_needed, repeats_over_all_in_words
from feddraw.analysis.paired_repeats import paired_repeats
from feddraw.analysis.statistics import Table, compare
from feddraw.errors import UserError

SHAPES = [(3, 3), (5, 4), (12, 8), (20, 12), (60, 5)]


def random_values(scenarios: int, methods: int, ties: bool) -> np.ndarray:
    rng = np.random.default_rng([scenarios, methods, ties])
    if ties:
        return rng.integers(0, 6, (scenarios, methods)) + np.arange(methods) // 3.0
    return rng.normal(size=(scenarios, methods)) + 0.3 * np.arange(methods)


def named(values: np.ndarray) -> Table:
    scenarios, methods = values.shape
    return Table(
        tuple(f"S{i}" for i in range(scenarios)), tuple(f"m{i}" for i in range(methods)), values
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_friedman_is_scipys(shape: tuple[int, int], ties: bool) -> None:
    values = random_values(*shape, ties)
    expected = stats.friedmanchisquare(*values.T)
    found = statistics.friedman(statistics.rank(values))
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue))


def test_iman_davenport_is_the_f_of_an_analysis_of_variance_of_the_ranks() -> None:
    ranks = statistics.rank(random_values(12, 8, True))
    rows, columns = ranks.shape
    between = rows * ((ranks.mean(axis=0) - ranks.mean()) ** 2).sum()
    rest = ((ranks - ranks.mean(axis=0)) ** 2).sum()  # row means are all equal
    expected = (between / (columns - 1)) / (rest / ((rows - 1) * (columns - 1)))
    found = statistics.friedman(ranks)
    assert found.f_statistic == pytest.approx(expected)
    assert found.f_p == pytest.approx(stats.f.sf(expected, columns - 1, (rows - 1) * (columns - 1)))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nemenyi_is_that_of_scikit_posthocs(shape: tuple[int, int], ties: bool) -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    values = random_values(*shape, ties)
    expected = posthocs.posthoc_nemenyi_friedman(values).to_numpy()
    np.testing.assert_allclose(statistics.nemenyi(statistics.rank(values)), expected, atol=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(9, 5), (12, 3), (20, 5)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_wilcoxon_with_holm_is_that_of_scikit_posthocs(shape: tuple[int, int], ties: bool) -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    values = random_values(*shape, ties)
    expected = posthocs.posthoc_wilcoxon(list(values.T), p_adjust="holm").to_numpy()
    for pair in compare(named(values)).pairs:
        a, b = int(pair.first[1:]), int(pair.second[1:])
        assert pair.holm_p == pytest.approx(expected[a, b])
        assert pair.wilcoxon_p == pytest.approx(stats.wilcoxon(values[:, a], values[:, b]).pvalue)


@pytest.mark.parametrize("decimals", [1, 2, 4])
def test_p_and_effect_of_a_printed_table_are_those_of_exact_decimals(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    for _ in range(300):
        whole = rng.integers(
            700, 760, (int(rng.integers(3, 18)), 2)
        )  # in units of the last digit: exact
        printed = Table(("S",) * len(whole), ("a", "b"), whole / 10**decimals)
        first, second = whole.T.astype(np.float64)
        assert statistics.wilcoxon(*printed.values.T, printed.steps) == statistics.wilcoxon(
            first, second
        )
        effect = statistics.rank_biserial(*printed.values.T, printed.steps)
        assert effect == statistics.rank_biserial(first, second)


def test_a_comparison_of_a_printed_table_has_the_ties_that_a_reader_sees() -> None:
    values = np.array(
        [[0.3, 0.2], [0.8, 0.7], [0.6, 0.7], [0.9, 0.8]]
    )  # differences of .1, and none that floats see so
    assert len(set(np.abs(values[:, 0] - values[:, 1]).tolist())) > 1
    (pair,) = compare(named(values)).pairs
    assert pair.wilcoxon_p == stats.wilcoxon([1, 1, -1, 1]).pvalue == 0.625
    assert pair.rank_biserial == 0.5


def test_means_over_seeds_tie_where_exact_means_do() -> None:
    orders = {
        "a": (0.1, 0.2, 0.3),
        "b": (0.3, 0.2, 0.1),
        "c": (0.1, 0.1, 0.4),
    }  # .2 on paper, not in floats
    assert len({sum(values) for values in orders.values()}) > 1
    rows = [
        (s, m, str(seed), v)
        for s in ("x", "y")
        for m, of in orders.items()
        for seed, v in enumerate(of)
    ]
    table = statistics.tabulate_repeats(rows)
    assert table.values.tolist() == [[0.2] * 3] * 2
    assert statistics.rank(table.values).tolist() == [[2, 2, 2]] * 2
    assert table.steps == 30


def test_differences_of_means_over_seeds_tie_where_exact_ones_do() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        whole = rng.integers(700, 720, (9, 2, 3))  # scenario, method, seed
        rows = [
            (f"s{s}", f"m{m}", str(r), whole[s, m, r] / 10) for s, m, r in np.ndindex(whole.shape)
        ]
        table = statistics.tabulate_repeats(rows)
        exact = statistics.wilcoxon(*whole.sum(axis=2).T.astype(np.float64))
        assert statistics.wilcoxon(*table.values.T, table.steps) == exact


def test_wins_against_a_reference_are_counted_on_exact_differences() -> None:
    rows = [
        ("x", "ours", "0", 0.3),
        ("x", "theirs", "0", 0.2),
        ("y", "ours", "0", 0.7),
        ("y", "theirs", "0", 0.8),
    ]
    found = {one.scenario: one for one in against(rows, "theirs")}
    assert [(one.mean, one.wins) for one in found.values()] == [
        (0.1, 1),
        (-0.1, 0),
        (0.0, 0),
    ]  # over both: no winner


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([0.5, 71.25], 100),
        ([3.0, 1200.0], 1),
        ([1e-4, 0.2], 1e4),
        ([0.1 + 0.2, 0.5], 0),
        ([1 / 3], 0),
        ([1e15, 0.1], 0),
    ],
)
def test_a_tables_precision_is_its_last_digit_and_computed_numbers_have_none(
    values: list[float], steps: float
) -> None:
    assert statistics.steps_in_one(values) == steps


def test_numbers_of_full_precision_are_compared_as_they_are() -> None:
    values = np.random.default_rng(0).random((9, 2))
    values[0] = 0.5, 0.5 + 1e-15
    (pair,) = compare(named(values)).pairs
    assert pair.wilcoxon_p == pytest.approx(stats.wilcoxon(*values.T).pvalue)
    assert pair.ties == 0


def test_holm_is_that_of_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(0).choice([0.001, 0.01, 0.02, 0.2, 0.9], 40)
    np.testing.assert_allclose(statistics.holm(p), multitest.multipletests(p, method="holm")[1])


def test_critical_values_are_demsars() -> None:
    """Table 5(a) of Demšar (2006), for 2 to 10 methods."""
    at_05 = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    at_10 = [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]
    for alpha, printed in ((0.05, at_05), (0.10, at_10)):
        for methods, value in enumerate(printed, start=2):
            assert statistics.critical_value(methods, alpha) == pytest.approx(value, abs=1.1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.10])
def test_a_pair_is_significant_where_its_p_is_below_alpha_and_no_group_holds_both(
    shape: tuple[int, int], alpha: float
) -> None:
    found = compare(named(random_values(*shape, True)), alpha=alpha)
    rejected = found.friedman.p < alpha and len(found.ranks) >= statistics.FEWEST_SCENARIOS
    assert found.rejected == rejected
    for pair in found.pairs:
        assert pair.significant == (rejected and pair.nemenyi_p < alpha)
        assert pair.significant != any(
            {pair.first, pair.second} <= set(group) for group in found.groups
        )
    for one, other in pairwise(found.groups):
        assert not set(one) <= set(other)
        assert not set(other) <= set(one)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_control_against_all_is_the_normal_test_of_ranks_with_holms_step_down(
    shape: tuple[int, int],
) -> None:
    values = random_values(*shape, True)
    found = compare(named(values), control="m1")
    scenarios, methods = shape
    average = np.mean([stats.rankdata(-row) for row in values], axis=0)
    error = math.sqrt(methods * (methods + 1) / (6 * scenarios))
    z = {f"m{i}": (average[i] - average[1]) / error for i in range(methods) if i != 1}
    assert {one.method: one.z for one in found.against_control} == pytest.approx(z)
    p = {method: 2 * stats.norm.sf(abs(gap)) for method, gap in z.items()}
    assert {one.method: one.p for one in found.against_control} == pytest.approx(p)
    # step down by hand: the i-th smallest of m times m - i + 1, never below the one before
    highest, corrected = 0.0, {}
    for place, method in enumerate(sorted(p, key=lambda method: p[method])):
        highest = max(highest, (len(p) - place) * p[method])
        corrected[method] = min(1.0, highest)
    assert {one.method: one.holm_p for one in found.against_control} == pytest.approx(corrected)
    for one in found.against_control:
        assert one.significant == (found.rejected and corrected[one.method] < 0.05)


def test_the_control_is_feddraw_or_the_first_unless_one_is_named() -> None:
    values = np.arange(15.0).reshape(5, 3)
    scenarios = tuple("abcde")
    assert compare(Table(scenarios, ("x", "feddraw (eta=1)", "y"), values)).control.startswith(
        "feddraw"
    )
    assert compare(Table(scenarios, ("x", "y", "z"), values)).control == "x"
    with pytest.raises(UserError, match="nobody"):
        compare(Table(scenarios, ("x", "y", "z"), values), control="nobody")


def test_nothing_is_significant_with_few_scenarios_or_where_friedman_does_not_reject() -> None:
    always_in_order = np.tile(np.arange(8.0), (4, 1))
    few = compare(named(always_in_order), alpha=0.10)
    assert few.friedman.p < 0.001
    assert not any(one.significant for one in (*few.pairs, *few.against_control))
    said = words.comparison_in_words(few)
    assert said.startswith("No difference between methods is shown: ranks over 4 scenarios")
    assert "ignificant" not in said
    mixed = compare(named(np.array([[1.0, 2, 3], [3, 2, 1]] * 3)))
    assert words.comparison_in_words(mixed).startswith(
        "No difference between methods is shown at alpha 0.05 (Friedman p = 1.000, 6 scenarios)."
    )
    enough = compare(named(np.tile(np.arange(8.0), (5, 1))), alpha=0.10)
    assert "significantly better than" in words.comparison_in_words(enough)
    assert "at alpha 0.1 (Nemenyi; Friedman p < 0.001, 5 scenarios)" in words.comparison_in_words(
        enough
    )


def test_methods_that_share_the_best_average_rank_are_all_named() -> None:
    """In each scenario one of the two is first and the other second: neither has the best rank."""
    eight = words.comparison_in_words(
        compare(named(np.array([[0.9, 0.8, 0.1], [0.8, 0.9, 0.1]] * 4)))
    )
    assert eight.startswith(
        "m0 and m1 share the best average rank and are significantly better than"
    )
    two = words.comparison_in_words(compare(named(np.array([[0.9, 0.8], [0.8, 0.9]]))))
    assert two.endswith(" m0 and m1 share the best average rank.")
    tilted = np.array([[0.9, 0.8, 0.7, 0.0], [0.8, 0.9, 0.7, 0.0]] * 4)
    assert (
        "no difference between m0 and m1, which share the best average rank, and m2. m0 and"
        in words.comparison_in_words(compare(named(tilted)))
    )


@pytest.mark.parametrize(("successes", "trials"), [(4, 4), (0, 4), (9, 12), (1, 1)])
def test_the_interval_of_a_share_is_clopper_and_pearsons(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert statistics.proportion_interval(successes, trials) == pytest.approx(tuple(expected))


def test_only_repeats_that_all_methods_have_are_paired() -> None:
    found = paired_repeats(
        [("a", "0"), ("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"), ("b", "3")]
    )
    assert (found.methods, found.repeats) == (("a", "b", "c"), ("1",))
    assert list(found.uncounted_in_words()) == [
        "a, seed 0: not counted, because b and c have no result there",
        "a and b, seed 2: not counted, because c has no result there",
        "b, seed 3: not counted, because a and c have no result there",
    ]
    assert paired_repeats([]).repeats == ()


def test_groups_are_the_maximal_sets() -> None:
    assert statistics.groups([1.0, 2.0, 3.5, 3.6, 9.0], 1.6) == [(0, 1), (1, 2, 3)]
    assert statistics.groups([3.0, 1.0, 2.0], 5.0) == [(1, 2, 0)]
    assert statistics.groups([1.0, 5.0, 9.0], 1.0) == []


def test_where_friedman_does_not_reject_all_methods_are_one_group() -> None:
    found = compare(named(np.array([[1.0, 2, 3, 4], [4, 3, 2, 1]])))
    assert found.groups == (tuple(found.average_ranks),)
    assert not any(pair.significant for pair in found.pairs)


def test_equal_values_everywhere_are_no_difference_and_no_error() -> None:
    found = compare(named(np.ones((4, 3))))
    assert (found.friedman.statistic, found.friedman.p) == (0.0, 1.0)
    assert [
        (p.nemenyi_p, p.wilcoxon_p, p.holm_p, p.rank_biserial, p.ties) for p in found.pairs
    ] == [(1, 1, 1, 0, 4)] * 3


def test_two_methods_can_be_compared_and_agree_with_the_sign_of_the_difference() -> None:
    values = np.column_stack([np.arange(8.0) + 1, np.arange(8.0)])
    found = compare(named(values))
    (pair,) = found.pairs
    assert (pair.first, pair.wins, pair.losses, pair.rank_biserial, pair.mean_difference) == (
        "m0",
        8,
        0,
        1.0,
        1.0,
    )
    assert found.friedman.statistic == pytest.approx(8)
    lower = compare(named(values), lower_is_better=True)
    (pair,) = lower.pairs
    assert (pair.first, pair.rank_biserial, pair.mean_difference) == ("m1", 1.0, -1.0)


def test_rank_biserial_is_the_difference_of_wilcoxons_rank_sums() -> None:
    first, second = random_values(15, 2, True).T
    unequal = first != second
    up = stats.wilcoxon(first, second, alternative="greater", method="asymptotic").statistic
    total = unequal.sum() * (unequal.sum() + 1) / 2
    assert statistics.rank_biserial(first, second) == pytest.approx(2 * up / total - 1)


# ---------------------------------------------------------------------------------------- bootstrap


def scores_of_two(images: int = 400, classes: int = 3) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(5)
    truth = (rng.random((images, classes)) < 0.3).astype(np.int64)
    good = np.round(truth + rng.normal(size=truth.shape), 1)
    return (
        good,
        np.round(truth + 2 * rng.normal(size=truth.shape), 1),
        truth,
        rng.integers(0, 150, images),
    )


def auc_difference(
    first: Any, second: Any, truth: Any, seed: int = 0, **options: Any
) -> bootstrap.Interval:
    drawn = bootstrap.bootstrap([first, second], truth, np.random.default_rng(seed), **options)
    return bootstrap.interval(drawn[0] - drawn[1])


def test_a_weighted_auc_is_the_auc_of_images_so_often_repeated() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    good, _, truth, _ = scores_of_two()
    weights = np.random.default_rng(1).integers(0, 4, (5, len(truth))).astype(np.float64)
    found = bootstrap.weighted_auc(good[:, 0], truth[:, 0], weights)
    for row, area in zip(weights, found, strict=True):
        assert area == pytest.approx(
            metrics.roc_auc_score(truth[:, 0], good[:, 0], sample_weight=row)
        )


def test_the_weighted_auc_counts_ties_half_and_is_exact_for_whole_weights() -> None:
    rng = np.random.default_rng(3)
    scores, truth = rng.integers(12, size=200) / 12, (rng.random(200) < 0.2).astype(np.int64)
    weights = rng.integers(4, size=(6, 200)).astype(np.float64)
    positive, negative = np.flatnonzero(truth == 1), np.flatnonzero(truth == 0)
    wins = (np.sign(scores[positive, None] - scores[negative]) + 1) / 2
    pairs = [np.outer(row[positive], row[negative]) for row in weights]
    expected = [(wins * pair).sum() / pair.sum() for pair in pairs]
    assert bootstrap.weighted_auc(scores, truth, weights).tolist() == expected


def test_the_estimate_is_the_difference_of_macro_aucs_and_its_interval_is_that_of_a_plain_bootstrap() -> (
    None
):
    metrics = pytest.importorskip("sklearn.metrics")
    good, poor, truth, _ = scores_of_two()
    found = auc_difference(good, poor, truth)
    assert found.estimate == pytest.approx(
        metrics.roc_auc_score(truth, good) - metrics.roc_auc_score(truth, poor)
    )
    rng = np.random.default_rng(1)
    draws = [rng.integers(len(truth), size=len(truth)) for _ in range(300)]
    plain = [
        metrics.roc_auc_score(truth[d], good[d]) - metrics.roc_auc_score(truth[d], poor[d])
        for d in draws
    ]
    assert (found.low, found.high) == pytest.approx(
        tuple(np.quantile(plain, [0.025, 0.975])), abs=0.015
    )
    assert found.low < found.estimate < found.high


def test_copies_of_images_give_the_replicates_that_weights_give() -> None:
    """The same patients are drawn, for measures with a form for weights and for those without."""
    good, _, truth, _ = scores_of_two(60)
    patients = np.arange(60) // 3
    options = {"patients": patients, "replicates": 120}
    by_weights = bootstrap.bootstrap(
        [good[:, :1]], truth[:, :1], np.random.default_rng(5), **options
    )
    by_copies = bootstrap.bootstrap_by_copies(
        auc, good[:, 0], truth[:, 0], np.random.default_rng(5), **options
    )
    assert by_copies == pytest.approx(by_weights[0, 1:])


def test_whole_patients_are_drawn_so_copies_of_an_image_add_no_certainty() -> None:
    good, poor, truth, _ = scores_of_two(150)
    four = [np.repeat(one, 4, axis=0) for one in (good, poor, truth)]
    alone = auc_difference(good, poor, truth)
    by_patient = auc_difference(*four, patients=np.repeat(np.arange(150), 4))
    by_image = auc_difference(*four)
    assert (by_patient.low, by_patient.high) == pytest.approx((alone.low, alone.high))
    assert by_image.high - by_image.low < 0.6 * (alone.high - alone.low)


def test_with_folds_the_auc_is_taken_within_each_so_another_scale_does_not_matter() -> None:
    good, poor, truth, patients = scores_of_two()
    folds = patients % 5
    shifted = good + 100 * folds[:, None]
    one = auc_difference(good, poor, truth, patients=patients, folds=folds, replicates=200)
    other = auc_difference(shifted, poor, truth, patients=patients, folds=folds, replicates=200)
    assert one == other


def test_a_method_against_itself_differs_by_nothing_and_the_seed_decides() -> None:
    good, poor, truth, patients = scores_of_two()
    same = auc_difference(good, good, truth, patients=patients, replicates=100)
    assert (same.estimate, same.low, same.high) == (0, 0, 0)
    runs = [auc_difference(good, poor, truth, s, replicates=100) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


# ----------------------------------------------------------------------------------------- as typed


@pytest.fixture
def stats_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`feddraw stats` of a table with these lines: exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own

    def typed(text: str, *words: str) -> tuple[int, str, str]:
        Path("t.csv").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["feddraw", "stats", "t.csv", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return typed


TIDY = "scenario,method,auc,auc_std\n" + "".join(
    f"S{s},{m},{0.5 + 0.1 * i + 0.01 * (s % 3)},0.1\n"
    for s in range(6)
    for i, m in enumerate(("a", "b", "[/c]"))
)


def test_seeds_and_folds_are_no_values(stats_of: Callable[..., tuple[int, str, str]]) -> None:
    lines = TIDY.replace("auc,auc_std", "auc,seed,fold,round,repeat").replace(
        ",0.1\n", ",1,2,3,4\n"
    )
    code, said, _ = stats_of(lines, "--json")
    assert code == 0
    assert list(json.loads(said)["values"]) == ["auc"]


MISTAKES = {
    "missing cell": (
        TIDY.replace("S2,b,", "S2,a2,"),
        (),
        "no row for S0 a2, S1 a2, S2 b, S3 a2, S4 a2 and 1 more",
    ),
    "twice": (
        TIDY + "S1,b,.4,0\n",
        (),
        "auc: more than one row for S1 b: give one, such as the mean over seeds",
    ),
    "nan": (TIDY.replace("S0,a,0.5", "S0,a,nan"), (), "line 2: auc of S0 a is 'nan', not a number"),
    "blank": (TIDY.replace("S0,a,0.5", "S0,a,"), (), "line 2: auc of S0 a is blank"),
    "words": (
        TIDY.replace("S0,a,0.5", "S0,a,high"),
        (),
        "line 2: auc of S0 a is 'high', not a number",
    ),
    "no name": (TIDY.replace("S0,a,", "S0,,"), (), "line 2: no method"),
    "one method": (
        "scenario,method,auc\nS1,a,1\nS2,a,2\n",
        (),
        "one method only (a): a comparison needs at least two",
    ),
    "one scenario": ("scenario,method,auc\nS1,a,1\nS1,b,2\n", (), "one scenario only (S1)"),
    "no rows": ("scenario,method,auc\n", (), "no method: a comparison needs at least two"),
    "column": (
        TIDY,
        ("--value", "gm"),
        "has no column 'gm'; it has scenario, method, auc, auc_std",
    ),
    "no values": ("scenario,method\nS1,a\n", (), "has no column of values"),
    "alpha": (TIDY, ("--alpha", "1"), "alpha must be below 1"),
    "alpha zero": (TIDY, ("--alpha", "0"), "alpha must be a positive number"),
    "plot": (TIDY, ("--plot", "x.gif"), "cannot draw to x.gif"),
    "against nobody": (TIDY, ("--against", "x", "--over", "auc_std", "--value", "auc"), "x"),
    "against without seeds": (TIDY, ("--against", "a"), "name their column with --over"),
    "against twice": (
        TIDY + "S1,b,.4,0.1\n",
        ("--against", "a", "--over", "auc_std"),
        "more than one row for S1 b 0.1",
    ),
    "seed missing": (
        "scenario,method,seed,v\nS,a,0,1\nS,a,1,1\nS,b,0,1\n",
        ("--over", "seed"),
        "one scenario only (S)",
    ),
    "no seed that all have": (
        "scenario,method,seed,v\nS,a,0,1\nS,b,1,1\n",
        ("--over", "seed"),
        "no seed that all methods have: S: a, seed 0: not counted, because b has no result there",
    ),
    "control": (TIDY, ("--control", "x"), "x"),
}


@pytest.mark.parametrize(("text", "words", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_in_a_table_is_one_line_that_names_the_cells(
    text: str,
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, errors = stats_of(text, *words)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_stats_says_in_words_who_is_better_and_draws(
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = stats_of(TIDY, "--plot", "cd.svg")
    assert code == 0
    assert (
        "Nemenyi's test shows no difference between [/c], which has the best average rank, and b."
        " [/c] is significantly better than a at alpha 0.05 (Nemenyi; Friedman p = 0.002, 6 scenarios)."
        in " ".join(out.split())
    )
    assert "a against each other method at alpha 0.05 (z of average ranks, Holm)" in out
    assert "auc_std" not in out
    assert "[/c]  1.00" in Path("cd.svg").read_text(encoding="utf-8")


def test_stats_as_json_is_one_document_and_repeats_are_averaged(
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    rows = [
        f"{s};{m};{seed};{i + s + seed / 10}"
        for s in range(5)
        for i, m in enumerate("abc")
        for seed in range(3)
    ]
    text = "\n".join(["set;rule;seed;loss", *rows])
    words = (
        "--scenario",
        "set",
        "--method",
        "rule",
        "--over",
        "seed",
        "--lower-is-better",
        "--json",
    )
    document = json.loads(stats_of(text, *words)[1])
    loss = document["values"]["loss"]
    assert loss["average_ranks"] == {"a": 1, "b": 2, "c": 3}
    assert loss["friedman"]["statistic"] == pytest.approx(10)
    assert loss["friedman"]["iman_davenport"]["statistic"] is None  # infinite: all scenarios agree
    assert loss["pairs"][0]["mean_difference"] == pytest.approx(-1)
    assert set(document) == {"alpha", "lower_is_better", "values"}


def test_differences_are_paired_by_seed_and_their_interval_is_students() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2, 3, 6))  # scenario, method, seed
    rows = [
        (f"s{s}", f"m{m}", str(r), float(values[s, m, r]))
        for s in range(2)
        for m in range(3)
        for r in reversed(range(6))
    ]
    found = {(one.scenario, one.method): one for one in against(rows, "m0")}
    pairs = {"s0": values[0, 2] - values[0, 0], "": (values[:, 2] - values[:, 0]).mean(axis=0)}
    for scenario, pair in pairs.items():
        one, expected = found[scenario, "m2"], stats.ttest_1samp(pair, 0).confidence_interval(0.95)
        assert (one.mean, one.low, one.high) == pytest.approx(
            (pair.mean(), expected.low, expected.high)
        )
        assert (one.wins, one.repeats) == ((pair > 0).sum(), 6)
    assert not any(method == "m0" for _, method in found)


def test_holm_is_over_all_scenarios_shown_and_apart_over_their_means() -> None:
    rng = np.random.default_rng(4)
    rows = [(s, m, str(r), float(rng.normal())) for s in "pq" for m in "abc" for r in range(5)]
    found = against(rows, "a")
    for family in (
        [one for one in found if one.scenario],
        [one for one in found if not one.scenario],
    ):
        expected = pytest.importorskip("statsmodels.stats.multitest").multipletests(
            [one.p for one in family], method="holm"
        )
        assert [one.holm_p for one in family] == pytest.approx(expected[1].tolist())
    values = {
        (s, m): [v for s_, m_, _, v in rows if (s_, m_) == (s, m)] for s in "pq" for m in "abc"
    }
    expected_p = {
        (s, m): stats.ttest_rel(values[s, m], values[s, "a"]).pvalue for s in "pq" for m in "bc"
    }
    assert {(one.scenario, one.method): one.p for one in found if one.scenario} == pytest.approx(
        expected_p
    )


def test_differences_of_a_single_repeat_are_not_counted_in_the_correction() -> None:
    values = (("a", "0", 1.0), ("a", "1", 2.0), ("b", "0", 2.0), ("b", "1", 2.5), ("c", "0", 3.0))
    rows = [("p", *value) for value in values]
    found = {one.method: one for one in against(rows, "a")}
    assert found["b"].holm_p == found["b"].p
    assert math.isnan(found["c"].holm_p)
    assert "corrected for the 1 differences" in words.differences_in_words(
        list(found.values()), 0.05, 0, last=False
    )


def test_folds_that_share_images_widen_intervals_as_nadeau_and_bengio_have_it() -> None:
    rows = [
        ("s", m, str(r), v)
        for m, of in (("a", [0.0] * 5), ("b", [0.3, 0.1, 0.4, 0.1, 0.5]))
        for r, v in enumerate(of)
    ]
    (plain,), (corrected,) = against(rows, "a"), against(rows, "a", folds=5)
    assert corrected.high - corrected.low == pytest.approx(
        (plain.high - plain.low) * np.sqrt((1 / 5 + 1 / 4) * 5)
    )
    spread = np.std([0.3, 0.1, 0.4, 0.1, 0.5], ddof=1)
    assert corrected.p == pytest.approx(2 * stats.t.sf(0.28 / (spread * np.sqrt(0.45)), 4))
    with pytest.raises(UserError, match="folds must be at least 2"):
        against(rows, "a", folds=1)


@pytest.mark.parametrize(
    ("difference", "spread"), [(0.5, 1.0), (0.01, 0.02), (2.0, 0.5), (0.1, 1.0)]
)
def test_the_repeats_needed_are_those_of_a_paired_t_test(difference: float, spread: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    expected = power.solve_power(difference / spread, power=0.8, alpha=0.05)
    assert repeats_needed(difference, spread) == math.ceil(expected)


def test_a_tiny_difference_and_folds_that_share_too_much_need_more_than_anyone_trains() -> None:
    assert repeats_needed(0.0, 1.0) == math.inf
    assert repeats_needed(0.001, 1.0) == math.inf
    assert repeats_needed(1.0, 0.0) == 2
    assert (
        repeats_needed(1.0, 1.0)
        < repeats_needed(1.0, 1.0, overlap=0.1)
        < math.inf
        == repeats_needed(1, 1, overlap=0.25)
    )


def test_an_unfinished_study_is_compared_where_both_methods_were_run() -> None:
    rows = [("a", "x", "0", 0.7), ("a", "x", "1", 0.8), ("a", "y", "1", 0.7), ("b", "x", "1", 0.5)]
    (one,) = against(rows, "x")
    assert (one.scenario, one.method, one.repeats, one.wins) == ("a", "y", 1, 0)
    assert one.mean == pytest.approx(-0.1)
    assert one.low == -math.inf
    with pytest.raises(UserError, match="uniform"):
        against(rows, "uniform")


def test_stats_shows_the_last_five_rounds_and_one_repeat_claims_nothing(
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    rounds = {"a": "0.1 0.5 0.5 0.5 0.5 0.5", "b": "0.1 0.6 0.5 0.5 0.5 0.9"}
    lines = [f"p,{m},{r},{text.split()[-1]},{text}" for r in range(2) for m, text in rounds.items()]
    header = "scenario,method,seed,auc,auc_by_round"
    code, out, _ = stats_of("\n".join([header, *lines]), "--over", "seed", "--against", "a")
    assert code == 0
    assert "last 5" in out
    assert "+0.1000" in out
    _, out, _ = stats_of("\n".join([header, *lines[:2]]), "--over", "seed", "--against", "a")
    assert "*" not in out
    assert "One repeat per method" in out
    document = json.loads(
        stats_of("\n".join([header, *lines[:2]]), "--over", "seed", "--against", "a", "--json")[1]
    )
    (one,) = document["values"]["auc"]
    assert (one["low"], one["p"], one["more_repeats"]) == (None, None, None)
    assert one["last_five"] == pytest.approx(0.1)


def test_means_equal_at_the_digits_given_are_ties_and_others_are_named(
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    table = "scenario,method,auc\n" + "\n".join(
        f"{s},{m},{v}" for s in "pq" for m, v in (("a", 0.70001), ("b", 0.70002))
    )
    assert "2 pairs" in stats_of(table)[1]
    out = stats_of(table, "--digits", "4", "--json")[1]
    assert json.loads(out)["values"]["auc"]["average_ranks"] == {"a": 1.5, "b": 1.5}


def test_stats_counts_only_seeds_that_all_methods_have_and_names_the_others(
    stats_of: Callable[..., tuple[int, str, str]],
) -> None:
    values = {("a", 0): 0.6, ("b", 0): 0.7, ("a", 1): 0.9, ("b", 1): 0.5}
    lines = [f"S{s},{m},{seed},{v}" for s in range(5) for (m, seed), v in values.items()]
    table = "\n".join(["scenario,method,seed,auc", *lines])
    unfinished = table.replace("S4,b,1,0.5", "")  # in S4 only seed 0 is left, where b is better
    _, out, _ = stats_of(unfinished, "--over", "seed")
    assert "2 methods over 5 scenarios, 1 to 2 paired seeds in each" in out
    assert "S4: a, seed 1: not counted, because b has no result there" in out
    document = json.loads(stats_of(unfinished, "--over", "seed", "--json")[1])["values"]["auc"]
    assert document["ranks"]["S3"] == {"a": 1, "b": 2}
    assert document["ranks"]["S4"] == {"a": 2, "b": 1}
    assert document["paired_repeats"] == {"S0": 2, "S1": 2, "S2": 2, "S3": 2, "S4": 1}
    # c was trained with seed 0 only: then a minus b is over seed 0 only, too
    third = "\n".join([table, *(f"S{s},c,0,0.65" for s in range(5))])
    words = ("--over", "seed", "--against", "b", "--json")
    document = json.loads(stats_of(third, *words)[1])
    one = document["values"]["auc"][0]
    assert (one["method"], one["repeats"], one["mean"]) == ("a", 1, pytest.approx(-0.1))
    assert "a and b, seed 1: not counted" in document["left_out"]["auc"][0]


def test_stats_against_a_method_prints_draws_and_documents_differences(
    stats_of: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    lines = [
        f"{s},{m},{r},{0.7 + 0.01 * (m == 'b') + 0.001 * r}"
        for s in "pq"
        for m in "ab"
        for r in range(3)
    ]
    table, picture = "\n".join(["scenario,method,seed,auc", *lines]), tmp_path / "differences.svg"
    code, out, _ = stats_of(table, "--over", "seed", "--against", "a", "--plot", str(picture))
    assert code == 0
    assert "auc minus that of a" in out
    assert out.count("+0.0100*") == 3
    assert "3/3" in out
    assert "minus that of a" in picture.read_text()
    out = stats_of(table, "--over", "seed", "--against", "a", "--json")[1]
    assert [one["scenario"] for one in json.loads(out)["values"]["auc"]] == ["p", "q", ""]


def test_differences_over_all_scenarios_say_which_repeats_they_are_of() -> None:
    def said(*seeds: str) -> list[str]:
        rows = [
            (scenario, method, seed, 0.1 * place)
            for scenario, of in zip("xy", seeds, strict=True)
            for place, method in enumerate("ab")
            for seed in of
        ]
        return list(repeats_over_all_in_words(against(rows, "a")))

    assert said("012", "012") == []
    assert said("012", "12") == [
        "all: b over the 2 seeds that all scenarios have, of up to 3 in one scenario"
    ]
    assert said("01", "23") == ["all: no row for b, because no seed is common to all scenarios"]
