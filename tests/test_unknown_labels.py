"""Labels that are not known are left out of loss, gradient, answers, metrics and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tiny
from feddraw.analysis import bootstrap, metrics
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.core import Cohort, Entry, Job, Layout, Local, Method, Model, Update
from feddraw.data.contact_sheet import findings_caption
from feddraw.data.dataset import UNKNOWN, Dataset, Labels
from feddraw.data.datasets.phantom import phantom
from feddraw.data.finding_names import PAPER_FINDINGS
from feddraw.data.scenarios.partition import Partition, Shard
from feddraw.data.scenarios.skew_measures import label_counts
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.method_by_name import combined_method
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, opened_engine, run
from feddraw.flower.score_histograms import BINS, count_by_score, histogram_metrics
from feddraw.flower.score_histograms import best_threshold_bin as merged_edge
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.results.recorded_run import read_run
from feddraw.server.policy import Policy
from feddraw.server.round import RoundResult
from feddraw.tasks.findings import Findings, findings
from feddraw.training.client import Trainer, group_counts
from feddraw.training.loop import Examples, loss_over_known
from feddraw.training.network_by_name import build_network
from feddraw.training.settings import Training
from small import small

BCE = torch.nn.functional.binary_cross_entropy_with_logits


@cache
def drawn() -> Dataset:
    return phantom(size=28, train=96, validation=40, test=40)


def hidden(dataset: Dataset, share: float, seed: int = 0) -> Dataset:
    """The same data set with this share of its labels unknown."""
    known = np.random.default_rng(seed).random(dataset.labels.values.shape) >= share
    return with_known(dataset, known)


def with_known(dataset: Dataset, known: NDArray[np.bool_]) -> Dataset:
    values = np.where(known, dataset.labels.values, 0).astype(np.uint8)
    return replace(dataset, labels=replace(dataset.labels, values=values, known=known))


def trainer(
    targets: NDArray[np.float32], rows: int, asks: tuple[str, ...] = (), **settings: object
) -> Trainer:
    data = drawn()
    examples = Examples(data.images, targets, data.mean, data.std)
    how = Training(**{"epochs": 1, "batch_size": 16, "optimizer": "sgd", "lr": 0.05} | settings)  # type: ignore
    builder = partial(build_network, "compact", len(PAPER_FINDINGS), {"growth": 4})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        found = Trainer(builder, examples, [np.arange(rows)], how, Local(), asks=asks)  # type: ignore[arg-type]
        assert (
            found.network is not None
        )  # it is made when it is first looked at: here, under this seed
        return found


# ----------------------------------------------------------------------------------- representation


def test_labels_carry_what_is_known() -> None:
    values = np.array([[1, 0], [0, 1], [0, 0]], np.uint8)
    known = np.array([[True, False], [True, True], [False, False]])
    labels = Labels(values, ("a", "b"), np.array(list("xyz")), known=known)
    assert labels.truth(np.arange(3)).tolist() == [[1, UNKNOWN], [0, 1], [UNKNOWN, UNKNOWN]]
    assert np.array_equal(
        labels.targets(), [[1, math.nan], [0, 1], [math.nan, math.nan]], equal_nan=True
    )
    assert labels.known_counts(np.arange(3)).tolist() == [2, 1]
    assert labels.take(np.array([0, 2])).known.tolist() == [[True, False], [False, False]]  # type: ignore[union-attr]
    assert labels.take(np.array([1])).known is None  # all known: the one way to say it
    assert labels.take(np.array([1])).truth(np.array([0])).dtype == np.uint8
    with pytest.raises(ValueError, match="hold a value"):
        Labels(np.ones_like(values), ("a", "b"), labels.names, known=known)
    with pytest.raises(ValueError, match="shape"):
        Labels(values, ("a", "b"), labels.names, known=known[:2])


# ----------------------------------------------------------------------------------------- training


def test_loss_is_the_mean_over_known_labels() -> None:
    logits = torch.tensor([[0.0, 2.0], [-1.0, 3.0]], requires_grad=True)
    targets = torch.tensor([[1.0, math.nan], [0.0, math.nan]])
    loss = loss_over_known(BCE, logits, targets)
    assert loss.item() == pytest.approx((math.log(2) + math.log1p(math.exp(-1))) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.allclose(logits.grad, torch.tensor([[-0.25, 0.0], [1 / (1 + math.e) / 2, 0.0]]))


def test_gradient_of_unknown_labels_by_finite_differences() -> None:
    targets = hidden(drawn(), 0.4).labels.targets()
    bench = trainer(targets, 16, asks=("gradient", "loss"), label_smoothing=0.1)
    with torch.no_grad():
        model = bench.network.read()
    rng = np.random.default_rng(1)
    rows = np.arange(16)
    network = bench.network

    def loss_at(params: NDArray[np.float64]) -> float:
        network.params.copy_(network.vector(params.astype(np.float32)))
        network.module.train()
        images, wanted = bench.examples.batch(rows)
        logits = network(images)[0].double()
        known = ~torch.isnan(wanted)
        smoothed = wanted.double() * 0.9 + 0.05
        terms = torch.nn.functional.softplus(logits) - smoothed * logits
        return float(terms[known].sum() / known.sum())

    update, _ = bench.work(Job(0, 1, 0, 5, model), {})
    given = update.extra["gradient"].astype(np.float64)
    step = 1e-3
    for direction in (
        given,
        given * rng.integers(0, 2, len(given)),
    ):  # steep, so that float32's rounding is small
        unit = direction / np.linalg.norm(direction)
        with torch.no_grad():
            slope = (loss_at(model.params + step * unit) - loss_at(model.params - step * unit)) / (
                2 * step
            )
        assert given @ unit == pytest.approx(slope, rel=0.01)


def test_a_batch_without_known_labels_makes_no_step() -> None:
    targets = drawn().labels.targets()
    targets[2:32] = math.nan  # of two batches of 16 at most two images are known
    seen = {
        trainer(targets, 32).work(Job(0, 1, 0, seed, _start()), {})[0].steps for seed in range(6)
    }
    assert seen == {1, 2}  # both in one batch, or one in each
    fixed = trainer(targets, 32, steps=5).work(Job(0, 1, 0, 1, _start()), {})[0]
    assert fixed.steps == 5
    targets[:32] = math.nan
    with pytest.raises(UserError, match="none of the 32 training images has a known label"):
        trainer(targets, 32).work(Job(0, 1, 0, 0, _start()), {})


def test_unknown_entries_teach_nothing() -> None:
    """Whatever stood in an unknown label: the classifier's row of a finding that nobody labelled
    does not move.
    """
    targets = drawn().labels.targets()
    targets[:, 2] = math.nan
    start = _start()
    trained = trainer(targets, 48).work(Job(0, 1, 0, 0, start), {})[0].model
    for output in range(len(PAPER_FINDINGS)):
        same = [
            np.array_equal(trained.params[p], start.params[p]) for p in start.layout.rows_of(output)
        ]
        assert all(same) == (output == 2)


@cache
def _start():  # type: ignore[no-untyped-def]
    return trainer(drawn().labels.targets(), 16).network.read()


@pytest.mark.parametrize("name", ["fedprox", "moon", "feddyn", "scaffold", "ditto"])
def test_local_rules_leave_unknown_labels_out(name: str) -> None:
    """Finite models and memories, whatever value an unknown label would have; one known label makes
    a difference.
    """
    whole = tiny.examples()
    known = np.random.default_rng(4).random(whole.targets.shape) >= 0.3
    known[: tiny.SIZES[0], 1] = False  # the first client does not label one finding
    known[80:88] = False  # some batches of the last client have few labels or none

    def trained(values: NDArray[np.float32]) -> list[bytes]:
        method = combined_method(name, {})
        targets = np.where(known, values, np.nan).astype(np.float32)
        examples = Examples(whole.images, targets, whole.mean, whole.std)
        shards = [*tiny.shards()[:3], np.arange(64, 89)]
        bench = Serial(
            Trainer(tiny.build, examples, shards, tiny.TRAINING, method.local, asks=method.asks)
        )
        last = tiny.train(method, rounds=2, engine=bench)[-1]
        vectors = [last.next_model.params, last.next_model.buffers]
        vectors += [vector for memory in bench.memory.values() for vector in memory.values()]
        assert all(np.isfinite(vector).all() for vector in vectors)
        return [vector.tobytes() for vector in vectors]

    first = trained(whole.targets)
    assert first == trained(np.where(known, whole.targets, 1 - whole.targets))
    other = whole.targets.copy()
    other[tuple(np.argwhere(known)[0])] = 1 - other[tuple(np.argwhere(known)[0])]
    assert first != trained(other)


def test_answers_are_over_known_labels() -> None:
    targets = drawn().labels.targets()
    targets[:24, 1] = math.nan
    bench = trainer(targets, 48, asks=("loss", "accuracy", "labels"))
    update, _ = bench.work(Job(0, 1, 0, 0, _start()), {})
    assert update.extra["labels"].tolist() == np.nansum(targets[:48], axis=0).tolist()
    logits = np.array([[2.0, -1.0], [-3.0, 1.0], [1.0, 4.0]], np.float32)
    wanted = np.array([[1.0, math.nan], [0.0, 1.0], [math.nan, 0.0]], np.float32)
    found = group_counts(logits, wanted, np.array([0, 1, 1], np.int8))
    # a: one of two known is positive, the higher score is called; b: the higher of 1.0 (positive)
    # and 4.0 (negative)
    assert found.tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 4, 2]


# ---------------------------------------------------------------------------------- metrics, counts


def test_metrics_leave_unknown_labels_out() -> None:
    scores = np.array([0.1, 0.9, 0.4, 0.6, 0.99])
    truth = np.array([0, 1, 1, 0, UNKNOWN], np.int8)
    assert metrics.auc(scores, truth) == 0.75
    assert metrics.best_threshold(scores, truth) == metrics.best_threshold(scores[:4], truth[:4])
    assert metrics.rates(scores, truth, 0.5) == (0.5, 0.5)
    table = findings().evaluate(
        np.stack([scores, scores], 1),
        np.stack([truth, np.full(5, UNKNOWN)], 1),
        ("a", "b"),
        [0.5, math.nan],
    )
    assert table.auc.macro == 0.75
    assert table.undefined == ("b",)
    weights = np.ones((1, 5))
    both = np.stack([truth, np.full(5, UNKNOWN, np.int8)], 1)
    macro = bootstrap._macro_of_replicates(
        bootstrap.weighted_auc, np.stack([scores] * 2, 1), both, weights, [np.arange(5)]
    )
    assert macro.tolist() == [0.75]
    kinds = count_by_score(scores[:, None], np.array([[0], [1], [1], [0], [math.nan]]))
    assert kinds.sum(axis=2).tolist() == [[2], [2]]


def test_a_federated_finding_without_both_labels_in_validation_has_no_threshold_and_no_gm() -> None:
    counts = np.zeros((2, 2, BINS), np.int64)
    counts[0, :, 100], counts[1, :, 200] = 5, 5
    validation = counts.copy()
    validation[1, 1] = 0  # no site has a positive validation image of b
    edges = [merged_edge(*validation[:, place]) for place in range(2)]
    found = histogram_metrics(counts, ("a", "b"), edges, task=Findings())
    assert found.auc.per_class == {"a": 1.0, "b": 1.0}
    assert found.gm.per_class["a"] == found.gm.macro == 1.0
    assert math.isnan(found.gm.per_class["b"])
    assert math.isnan(found.thresholds["b"])
    assert found.undefined == ("b",)


def test_a_contact_sheet_calls_no_image_healthy_whose_labels_are_not_known() -> None:
    said = [
        findings_caption(np.array(truth, np.int8), ("a", "b"))
        for truth in ((1, UNKNOWN), (0, 0), (0, UNKNOWN))
    ]
    assert said == ["a", "no finding", "none known"]


def test_counts_of_clients_leave_unknown_labels_out() -> None:
    values = np.array([[1, 0], [0, 0], [0, 0], [0, 1]], np.uint8)
    known = np.array([[True, True], [True, False], [True, True], [False, True]])
    labels = Labels(values, ("a", "b"), np.array(list("wxyz")), known=known)
    partition = Partition("own", (Shard("C1", np.arange(2)), Shard("C2", np.arange(2, 4))), "")
    assert label_counts(partition, labels).tolist() == [[1, 0, 0], [0, 1, 1]]


# -------------------------------------------------------------------------------------- aggregation


CLASSES, WIDTH = 3, 4
LAYOUT = Layout(
    (
        Entry("body.weight", "param", (5, WIDTH), 0),
        Entry("head.weight", "param", (CLASSES, WIDTH), 20),
        Entry("head.bias", "param", (CLASSES,), 32),
    ),
    "head",
)
LABELLED = ((True, False, True), (True, True, True), (True, False, False), (True, True, False))
SIZES = (40, 10, 30, 20)


def cohort_of(
    labelled: Sequence[Sequence[bool] | None], seed: int = 0
) -> tuple[Model, list[Update]]:
    rng = np.random.default_rng(seed)

    def model(params: NDArray[np.float32]) -> Model:
        return Model(params, np.zeros(0, np.float32), np.zeros(0, np.int64), LAYOUT)

    sent = rng.standard_normal(35).astype(np.float32)
    updates = []
    for client, own in enumerate(labelled):
        params = (sent + 0.1 * rng.standard_normal(35)).astype(np.float32)
        extra = {
            "progress": np.array([client + 2.0], np.float32),
            "loss": np.array([0.7], np.float32),
        }
        mask = None if own is None else np.array(own)
        updates.append(
            Update(client, model(params), SIZES[client], client + 2, {"loss": 1.0}, extra, mask)
        )
    return model(sent), updates


def aggregated(method: Method, sent: Model, updates: Sequence[Update], **how: Any) -> RoundResult:
    return tiny.together(
        method, sent, method.init(sent), updates, round=1, rounds=4, clients=list("ABCD"), **how
    )


def row(model: Model, output: int) -> NDArray[np.float32]:
    return np.concatenate([model.params[place] for place in LAYOUT.rows_of(output)])


def test_a_row_counts_over_the_clients_that_label_its_finding() -> None:
    sent, updates = cohort_of(LABELLED)
    outcome = aggregated(fedavg(), sent, updates)
    shares = np.array(SIZES) / 100
    body = sum(
        share * update.model.params[:20].astype(float)
        for share, update in zip(shares, updates, strict=True)
    )
    np.testing.assert_allclose(outcome.next_model.params[:20], body, atol=1e-6)
    by_hand = {0: shares, 1: np.array([0, 1 / 3, 0, 2 / 3]), 2: np.array([0.8, 0.2, 0, 0])}
    for output, weights in by_hand.items():
        mean = sum(
            w * row(update.model, output).astype(float)
            for w, update in zip(weights, updates, strict=True)
        )
        np.testing.assert_allclose(row(outcome.next_model, output), mean, atol=1e-6)
    told = {(entry.piece, entry.client): entry.weight for entry in outcome.pieces}
    assert told["class 1", "D"] == pytest.approx(2 / 3)
    assert told["class 2", "C"] == 0
    assert not any(piece == "class 0" for piece, _ in told)


RULES = (
    "fedavg",
    "feddraw",
    "feddraw_by_class",
    "fednova",
    "fedadam",
    "fedavgm",
    "ldawa",
    "krum",
    "trimmed_mean",
    "feddraw_variant",
    "feddraw_adaptive",
    "qfedavg",
    "fedmgda",
)


@pytest.mark.parametrize("name", RULES)
def test_rules_that_all_findings_are_labelled_for_give_the_same_bits(name: str) -> None:
    method = combined_method(name, {})
    silent, speaking = cohort_of([None] * 4), cohort_of([(True,) * 3] * 4)
    first, second = (aggregated(method, *one).next_model.params for one in (silent, speaking))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_a_row_that_nobody_labels_stays_as_it_was_sent(name: str) -> None:
    method = combined_method(name, {})
    sent, updates = cohort_of([(True, False, own) for own in (True, True, False, True)])
    sent.params[24] = -0.0  # the sign of zero stays as well
    state = method.init(sent)
    if name == "fedadam":  # momentum of earlier rounds would move it
        state["server"]["mean"] = np.ones_like(sent.params)
    outcome = tiny.together(method, sent, state, updates, round=1, rounds=4, clients=list("ABCD"))
    assert row(outcome.next_model, 1).tobytes() == row(sent, 1).tobytes()
    assert (row(outcome.next_model, 0) != row(sent, 0)).all()
    moved = {entry.client for entry in outcome.pieces if entry.piece == "class 2" and entry.weight}
    assert "C" not in moved
    if name == "trimmed_mean":  # nobody is left out of three clients at a share of 0.2
        mean = np.mean(
            [row(update.model, 2) for update in updates if update.client != 2],
            axis=0,
            dtype=np.float64,
        )
        np.testing.assert_allclose(row(outcome.next_model, 2), mean, atol=1e-6)


def test_similarity_is_over_the_rows_that_a_client_labels() -> None:
    sent, updates = cohort_of([(True, False, True), None, None, None])
    first = updates[0].model.params
    for place in LAYOUT.rows_of(1):
        first[place] = sent.params[place]  # has not moved, as nothing taught it

    def similarities(updates: Sequence[Update]) -> NDArray[np.float64]:
        weights, _ = tiny.weighting_of(feddraw()).weigh(Cohort(1, 4, sent, updates, 4), {})
        return np.asarray(weights.parts["similarity"])

    found = similarities(updates)
    ours = np.concatenate([row(updates[0].model, output) for output in (0, 2)]).astype(float)
    theirs = np.concatenate([row(sent, output) for output in (0, 2)]).astype(float)
    assert found[0] == pytest.approx(
        ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs), abs=1e-12
    )
    whole = similarities([replace(update, labelled=None) for update in updates])
    assert found[0] < whole[0]  # the row that has not moved made it look more similar
    assert found[1:].tolist() == pytest.approx(whole[1:].tolist(), abs=1e-12)


def test_streams_and_policies_divide_rows_alike() -> None:
    sent, updates = cohort_of([(True, False, own) for own in (True, True, False, True)])
    for method in (fedavg(), feddraw()):
        at_once = aggregated(method, sent, updates)
        stream = tiny.streamed(
            method,
            sent,
            method.init(sent),
            updates,
            sizes=SIZES,
            round=1,
            rounds=4,
            clients=list("ABCD"),
        )
        np.testing.assert_allclose(stream.next_model.params, at_once.next_model.params, atol=1e-6)
        assert row(stream.next_model, 1).tobytes() == row(sent, 1).tobytes()
        weights = [{(p.piece, p.client): p.weight for p in one.pieces} for one in (stream, at_once)]
        assert weights[0] == pytest.approx(weights[1])
    limited = aggregated(fedavg(), sent, updates, policy=Policy(cap=0.3))
    told = {entry.client: entry.weight for entry in limited.pieces if entry.piece == "class 2"}
    whole = {entry.client: entry.weight for entry in limited.ledger}
    assert max(whole.values()) <= 0.3 + 1e-12
    assert told == pytest.approx(
        {c: w / (1 - whole["C"]) if c != "C" else 0 for c, w in whole.items()}
    )


def test_a_false_announcement_is_refused() -> None:
    sent, updates = cohort_of([None] * 4)
    wrong = {1: np.ones(2, bool), 2: np.zeros(3, bool), 3: np.ones(3, np.float32)}
    updates = [replace(update, labelled=wrong.get(update.client)) for update in updates]
    status = [entry.status for entry in aggregated(fedavg(), sent, updates).ledger]
    assert status[0] == "weighted"
    assert "shape (2,)" in status[1]
    assert "none of the findings" in status[2]
    assert "type float32" in status[3]


# --------------------------------------------------------------------------------------- whole runs


def by_site(dataset: Dataset, clients: int = 3) -> Dataset:
    """Every client lacks one finding, one finding is known in part only, and some images have no
    known label.
    """
    known = np.random.default_rng(2).random(dataset.labels.values.shape) >= 0.2
    sites = np.arange(len(known)) % clients
    train = np.zeros(len(known), bool)
    train[dataset.rows["train"]] = True
    for site in range(clients):
        known[train & (sites == site), site] = False
    known[dataset.rows["train"][:4]] = False
    marked = with_known(dataset, known)
    return replace(
        marked, labels=replace(marked.labels, sites=np.array([f"S{site}" for site in sites]))
    )


ENGINES = (("serial", 1), ("processes", 2), ("flower", 1))


@pytest.mark.parametrize("name", ["feddraw", "scaffold"])
def test_engines_give_the_same_bits(name: str) -> None:
    data = by_site(drawn())
    models = {}
    for engine, workers in ENGINES if name == "feddraw" else ENGINES[::2]:
        experiment = small(
            engine=engine, workers=workers, rounds=2, method=name, scenario="by_site"
        )
        setting = prepare(experiment, dataset=data)
        with opened_engine(setting) as running:
            method = setting.method
            *_, last = tiny.federate(
                setting.initial, method, running, setting.clients, rounds=2, seed=0
            )
        models[engine] = last.next_model.params.tobytes()
        told = {entry.piece: set() for entry in last.pieces}
        for entry in last.pieces:
            told[entry.piece] |= {entry.client} if entry.weight else set()
        assert told == {"class 0": {"S1", "S2"}, "class 1": {"S0", "S2"}, "class 2": {"S0", "S1"}}
    assert len(set(models.values())) == 1


@pytest.mark.parametrize("name", ["fedavg+scaffold", "feddraw+feddyn"])
def test_a_run_whose_rows_have_their_own_shares_goes_on_to_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    data = by_site(drawn())
    experiment = small(
        rounds=4, method=name, scenario="by_site", **{"participation.fraction": 0.67}
    )
    run(experiment, tmp_path / "whole", dataset=data)
    rounds = iterate(experiment, tmp_path / "cut", dataset=data)
    next(rounds)
    state = next(rounds).state["server"]
    assert state["spans"]
    rounds.close()  # type: ignore[attr-defined]
    run(experiment, tmp_path / "cut", dataset=data, resume=True)
    for file in ("model.safetensors", "weights.csv", "pieces.csv"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()


def test_a_client_without_a_known_label_is_named() -> None:
    data = by_site(drawn())
    assert data.labels.known is not None
    assert data.labels.sites is not None
    mute = with_known(data, data.labels.known & (data.labels.sites != "S1")[:, None])
    with pytest.raises(UserError, match="client S1 has no known label"):
        prepare(small(scenario="by_site"), dataset=mute)


def test_a_finding_that_nobody_labels_is_named_and_the_explanation_says_who_taught_which(
    tmp_path: Path,
) -> None:
    data = by_site(drawn())
    assert data.labels.known is not None
    known = data.labels.known.copy()
    known[data.rows["train"], 4] = False
    with pytest.warns(UserWarning, match="no client has labels for Consolidation"):
        run(small(rounds=1, scenario="by_site"), tmp_path / "run", dataset=with_known(data, known))
    said = "\n".join(weights_in_sentences(explain_run_weights(read_run(tmp_path / "run"))))
    assert "Atelectasis was learnt from the labels of S1 and S2." in said
    assert "No client labels Consolidation" in said
    told = read_run(tmp_path / "run").partition
    assert told["known"]["S0"][0] == told["known"]["S1"][4] == 0


def test_findings_with_the_same_weights_of_their_own_are_not_said_to_have_the_models(
    tmp_path: Path,
) -> None:
    """One client labels nothing of two findings: both have the same weights, which are not those of
    the whole model.
    """
    data = by_site(drawn())
    assert data.labels.sites is not None
    known = np.ones(data.labels.values.shape, bool)
    in_training = np.zeros(len(known), bool)
    in_training[data.rows["train"]] = True
    without_labels = in_training & (data.labels.sites == "S0")
    known[np.ix_(without_labels, [0, 1])] = False
    run(small(rounds=1, scenario="by_site"), tmp_path / "run", dataset=with_known(data, known))
    said = "\n".join(weights_in_sentences(explain_run_weights(read_run(tmp_path / "run"))))
    assert "those of the whole model." not in said
    assert (
        "differed most from those of the whole model in round 0: S0 counted 0.0 % instead" in said
    )
