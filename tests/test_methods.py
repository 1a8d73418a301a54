"""Each method against what is known of it by hand: golden numbers, fixed points, closed forms, and
coincidences.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from feddraw.core import BySize, Job, Joint, Model, Server, why_not_first
from feddraw.core.schedules import cosine, size_prior
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.settings import make_method
from feddraw.federation import client_seed
from feddraw.methods.fedadp import FedAdpWeighting, fedadp, gompertz
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.methods.feddyn import DynamicallyRegularized, feddyn
from feddraw.methods.fednova import accumulation, fednova
from feddraw.methods.fedprox import fedprox
from feddraw.methods.moon import contrastive_term, moon
from feddraw.methods.scaffold import scaffold
from feddraw.methods.uniform import uniform
from feddraw.server.method_check import MadeUpFederation
from feddraw.training.client import Trainer
from feddraw.training.loop import steps_per_epoch
from feddraw.training.network import Network, layout_of_module
from quadratics import Bowl, Lossy, descend, linear, optimum, optimum_by_row, play, quadratic
from quadratics import build as quadratic_network
from small import small
from tiny import (
    METHODS,
    NAMES,
    SIZES,
    TRAINING,
    Altered,
    aggregate,
    bench,
    build,
    cohort_of,
    copied,
    examples,
    federate,
    initial,
    made_of,
    method_of,
    mixed,
    same,
    server_images,
    shards,
    train,
    weighting_of,
)

TWO = [Bowl(1.0, 0.0), Bowl(4.0, 1.0)]  # the unweighted optimum is 0.8
UNEQUAL = [Bowl(1.0, 0.0, images=6), Bowl(4.0, 1.0, images=2)]

RNG = np.random.default_rng(5)


def random_bowl(images=2, hessian=None):
    root = RNG.normal(size=(3, 3))
    return Bowl(
        root @ root.T / 3 + np.eye(3) if hessian is None else hessian, RNG.normal(size=3), images
    )


MANY = [random_bowl(images) for images in (2, 5, 3)]
START = RNG.normal(size=3).astype(np.float32)

# ----------------------------------------------------------------------------------- kinds of state


def test_parameters_floating_buffers_and_counters_are_told_apart():
    kinds = {entry.name: entry.kind for entry in initial().layout.entries}
    assert {kinds[f"first_norm.{name}"] for name in ("weight", "bias")} == {"param"}
    assert {kinds[f"first_norm.{name}"] for name in ("running_mean", "running_var")} == {"buffer"}
    assert kinds["first_norm.num_batches_tracked"] == "counter"


def test_kinds_do_not_depend_on_what_a_layer_is_called():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 2)
    )
    entries = {entry.name: entry for entry in layout_of_module(module, "2").entries}
    assert [entries[f"1.{n}"].kind for n in ("weight", "running_var", "num_batches_tracked")] == [
        "param",
        "buffer",
        "counter",
    ]
    assert entries["1.num_batches_tracked"].dtype == "int64"


def test_a_server_step_beyond_the_clients_moves_parameters_but_only_averages_variances():
    """FedNova in CHM-2 makes a step of 1.79: variances of .4 around a sent 1.0 would become
    -.079.
    """
    sent = replace(
        initial(), params=np.ones_like(initial().params), buffers=np.ones_like(initial().buffers)
    )
    sizes = (9500, 9500, 9500, 49968)
    state = fednova().init(sent)
    cohort = cohort_of(np.zeros((4, 1)), sizes)
    updates = [
        replace(
            update,
            model=Model(
                np.full_like(sent.params, 0.4),
                np.full_like(sent.buffers, 0.4),
                np.full_like(sent.counters, 10 + i),
                sent.layout,
            ),
            extra={"progress": np.array([size], np.float32)},
        )
        for i, (update, size) in enumerate(zip(cohort.updates, sizes, strict=True))
    ]
    found = aggregate(fednova(), replace(cohort, sent=sent, updates=updates), state).model
    assert found.params == pytest.approx(np.full_like(sent.params, -0.0788), abs=1e-4)
    assert (found.buffers == np.float32(0.4)).all()
    assert (found.counters == 13).all()
    assert found.counters.dtype == np.int64


# ---------------------------------------------------------------------------------------- A1 FedAvg


def test_fedavg_with_one_step_is_a_step_of_gradient_descent_on_the_weighted_sum():
    sizes = np.array([bowl.images for bowl in MANY])
    gradient = sum(
        p * bowl.gradient(START) for p, bowl in zip(sizes / sizes.sum(), MANY, strict=True)
    )
    assert play(fedavg(), MANY, START)[0].x == pytest.approx(START - 0.1 * gradient, abs=1e-6)


def test_fedavg_with_ten_steps_has_a_biased_fixed_point():
    assert play(fedavg(), TWO, 0.0, rounds=30, steps=10)[-1].x == pytest.approx(0.604126, abs=1e-6)
    assert play(fedavg(), TWO, 0.604126, steps=10)[0].x == pytest.approx(0.604126, abs=1e-6)
    assert optimum(TWO) == pytest.approx(0.8)


def test_local_steps_follow_the_closed_form_of_gradient_descent():
    for bowl, y in zip(MANY, play(fedavg(), MANY, START, steps=7)[0].clients, strict=True):
        assert y == pytest.approx(descend(bowl, START, 0.1, 7), abs=1e-6)


def test_a_duplicated_client_is_a_doubled_weight_under_fedavg_but_not_under_uniform():
    twice, doubled = [MANY[0], *MANY], [replace(MANY[0], images=4), *MANY[1:]]
    for method, equal in ((fedavg(), True), (uniform(), False)):
        one, other = (play(method, bowls, START, steps=5)[0].x for bowls in (twice, doubled))
        assert np.allclose(one, other, atol=1e-6) is equal


# --------------------------------------------------------------------------------------- A2 FedProx


def test_fedprox_scalar():
    assert play(fedprox(mu=0.7), [Bowl(2.0, 1.0)], -0.5, steps=6)[0].x == pytest.approx(
        0.442962, abs=1e-6
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_first_step_of_fedprox_does_not_depend_on_mu(optimizer):
    one, other = (play(fedprox(mu), MANY, START, optimizer=optimizer)[0].x for mu in (0.0, 50.0))
    assert np.array_equal(one, other)
    one, other = (
        play(fedprox(mu), MANY, START, optimizer=optimizer, steps=2, lr=0.01)[0].x
        for mu in (0.0, 50.0)
    )
    assert not np.allclose(one, other, atol=1e-4)


def test_fedprox_leaves_buffers_alone():
    """The pull acts on parameters only: with all the pull in the world, statistics still follow the
    images.
    """
    engine = bench(fedprox(mu=1e4), training=replace(TRAINING, optimizer="sgd", lr=1e-4))
    assert (
        np.abs(train(fedprox(mu=1e4), engine=engine)[0].model.buffers - initial().buffers).max()
        > 0.1
    )


# --------------------------------------------------------------------------------------- A3 FedNova


@pytest.mark.parametrize(
    ("images", "settings"),
    [
        (1, {}),
        (1, {"steps": 3}),
        (1, {"epochs": 2}),
        (1, {"momentum": 0.9, "optimizer": "sgd"}),
        (9, {"batch_size": 1}),
    ],
)
@pytest.mark.parametrize("effort", [1.0, 0.2])
def test_a_client_without_a_batch_is_refused_instead_of_waiting_for_one_for_ever(
    images, settings, effort
):
    engine = bench(fedavg(), [*shards()[:3], np.arange(images)], replace(TRAINING, **settings))
    with pytest.raises(UserError, match=f"^{images} image.*too few for a training step"):
        list(engine.train([Job(0, 1, 3, 0, initial(), effort=effort)]))


@pytest.mark.parametrize(
    ("steps", "momentum", "decay", "golden"),
    [
        (3, 0.9, 0.0, 5.61),
        (17, 0.9, 0.0, 95.009464),
        (9, 0.0, 0.025, 8.150580),
        (314, 0.0, 0.0, 314.0),
    ],
)
def test_fednova_normalisers(steps, momentum, decay, golden):
    assert accumulation(steps, momentum, decay) == pytest.approx(golden, abs=1e-6)
    if momentum:  # by brute force: step k's gradient is in every later step, shrunk by the momentum
        assert sum(momentum**j for k in range(steps) for j in range(k + 1)) == pytest.approx(
            golden, abs=1e-6
        )
    elif decay:
        assert sum((1 - decay) ** k for k in range(steps)) == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize(
    ("mu", "settings", "normaliser"),
    [
        (0.0, {"steps": 3, "momentum": 0.9}, 5.61),
        (0.0, {"steps": 17, "momentum": 0.9}, 95.009464),
        (0.25, {"steps": 9}, 8.150580),
        (0.0, {"steps": 9}, 9.0),
    ],
)
def test_on_linear_losses_a_normalised_move_is_the_gradient(mu, settings, normaliser):
    (bowl,) = bowls = [Bowl(np.eye(3), [1.0, -2.0, 0.5])]
    moved = play(fednova(mu), bowls, START, loss=linear, **settings)[0].clients[0] - START
    assert moved / (-0.1 * normaliser) == pytest.approx(bowl.c, abs=1e-5)


def test_under_adam_fednova_counts_steps_which_is_exact_for_constant_gradients():
    (bowl,) = bowls = [Bowl(np.eye(3), [1.0, -2.0, 0.5])]
    played = play(fednova(), bowls, START, loss=linear, optimizer="adam", lr=0.01, steps=12)[0]
    assert (played.clients[0] - START) / (-0.01 * 12) == pytest.approx(np.sign(bowl.c), abs=1e-4)


def test_fednova_undoes_unequal_work():
    """Linear losses, a batch of two: three and one steps.

    FedAvg counts the busy client's gradient three times.
    """
    bowls = [Bowl(np.eye(2), [1.0, 0.0], images=6), Bowl(np.eye(2), [0.0, 1.0], images=2)]
    nova, average = (
        play(m, bowls, [0.0, 0.0], loss=linear, batch_size=2)[0].x for m in (fednova(), fedavg())
    )
    mean_steps = 0.75 * 3 + 0.25 * 1
    assert nova == pytest.approx(-0.1 * mean_steps * np.array([0.75, 0.25]), abs=1e-6)
    assert average == pytest.approx(-0.1 * np.array([0.75 * 3, 0.25 * 1]), abs=1e-6)


# scenario: (large clients, their size), (small clients, their size), coefficients of large and
# small, sum of all
NOVA = {
    "CHX-1": ((1, 20_000), (3, 5_000), 0.3883, 0.3847, 1.542),
    "CHX-2": ((2, 20_000), (2, 5_000), 0.3402, 0.3370, 1.354),
    "CHX-3": ((3, 10_000), (1, 2_500), 0.2901, 0.2846, 1.155),
    "CHX-4": ((9, 10_000), (1, 2_500), 0.1059, 0.1039, 1.057),
    "CHX-5": ((2, 10_000), (1, 5_000), 0.3603, 0.3580, 1.079),
    "CHM-1": ((1, 60_468), (1, 18_000), 0.6466, 0.6450, 1.292),
    "CHM-2": ((1, 49_968), (3, 9_500), 0.4496, 0.4481, 1.794),
    "CHM-3": ((5, 14_000), (1, 8_468), 0.1709, 0.1702, 1.024),
    "CHM-4": ((3, 15_000), (1, 7_000), 0.2678, 0.2670, 1.070),
    "CHM-5": ((4, 19_617), (0, 1), 0.2500, None, 1.0),
}


def nova_coefficients(sizes):
    steps = [2 * math.ceil(size / 64) for size in sizes]
    extra = [{"progress": np.array([accumulation(taken)], np.float32)} for taken in steps]
    cohort = cohort_of(np.zeros((len(sizes), 2)), sizes, steps=steps, extra=extra)
    return aggregate(fednova(), cohort).coefficients


@pytest.mark.parametrize("scenario", NOVA)
def test_fednova_in_the_papers_scenarios_is_nearly_uniform_with_a_longer_step(scenario):
    (large, large_size), (small, small_size), of_large, of_small, total = NOVA[scenario]
    sizes = [large_size] * large + [small_size] * small
    found = nova_coefficients(sizes)
    assert found[0] == pytest.approx(of_large, abs=6e-5)
    assert found[-1] == pytest.approx(of_small or of_large, abs=6e-5)
    assert found.sum() == pytest.approx(total, abs=6e-4)
    assert found.sum() == pytest.approx(len(sizes) * (size_prior(sizes) ** 2).sum(), rel=0.01)


def test_fednova_with_all_of_chexpert_split_in_four_is_fedavg():
    assert nova_coefficients([47_756, 47_757, 47_757, 47_757]) == pytest.approx(
        np.full(4, 0.25), abs=1e-5
    )


def test_steps_of_the_papers_sizes():
    assert [2 * steps_per_epoch(n, 64) for n in (2_500, 5_000, 10_000, 20_000)] == [
        80,
        158,
        314,
        626,
    ]


def test_fednova_with_equal_steps_is_fedavg():
    one, other = (play(m, UNEQUAL, 0.3, rounds=3, steps=5)[-1] for m in (fednova(), fedavg()))
    assert one.x == pytest.approx(other.x, abs=1e-7)
    assert one.weights == pytest.approx([0.75, 0.25])


def test_fednova_refuses_momentum_with_a_proximal_term():
    with pytest.raises(UserError, match="momentum and a proximal term"):
        play(fednova(mu=0.1), TWO, 0.0, momentum=0.9)


# -------------------------------------------------------------------------------------- A4 SCAFFOLD

SPACES = [("II", "update"), ("II", "gradient"), ("I", "gradient"), ("I", "update")]


@pytest.mark.parametrize(("option", "space"), SPACES)
def test_the_first_round_of_scaffold_is_uniform_averaging(option, space):
    one, other = (
        play(m, UNEQUAL, 0.3, steps=5)[0].x
        for m in (scaffold(option=option, space=space), uniform())
    )
    assert np.array_equal(one, other)


def test_the_first_round_of_scaffold_is_uniform_averaging_under_adam():
    assert same(train(scaffold())[0].model, train(uniform())[0].model)


@pytest.mark.parametrize("space", ["update", "gradient"])
def test_option_ii_gives_the_mean_raw_gradient_of_the_round(space):
    """In batches of two over unlike images, in the second round, when controls are not zero any
    more.
    """
    seen = []

    def recorded(logits, targets):
        centre = targets[:, -3:].mean(dim=0)
        seen.append((logits[0] - centre).detach().numpy())  # every Hessian is the identity
        return quadratic(logits, targets)

    bowls = [Unlike(np.eye(3), RNG.normal(size=(n, 3)), n) for n in (4, 8)]
    played = play(scaffold(space=space), bowls, START, rounds=2, batch_size=2, loss=recorded)
    gradients = seen[6:]  # round 0 took 2 + 4 steps
    assert played[1].memory[0]["control"] == pytest.approx(np.mean(gradients[:2], axis=0), abs=1e-5)
    assert played[1].memory[1]["control"] == pytest.approx(np.mean(gradients[2:], axis=0), abs=1e-5)
    assert played[1].state["server"]["control"] == pytest.approx(
        (played[1].memory[0]["control"] + played[1].memory[1]["control"]) / 2, abs=1e-6
    )


class Unlike(Bowl):
    """A client whose images have centres of their own."""

    @property
    def c(self):
        return np.mean(self.centre, axis=0)

    @property
    def targets(self):
        return np.concatenate(
            [np.tile(self.A.ravel(), (self.images, 1)), self.centre], axis=1
        ).astype(np.float32)


@pytest.mark.parametrize(("option", "space"), SPACES)
@pytest.mark.parametrize("steps", [1, 25])
def test_at_the_optimum_with_its_gradients_as_controls_there_is_no_drift(option, space, steps):
    x = optimum(MANY)
    memory = {i: {"control": bowl.gradient(x).astype(np.float32)} for i, bowl in enumerate(MANY)}
    played = play(
        scaffold(option=option, space=space), MANY, x, rounds=2, memory=memory, steps=steps
    )
    for round in played:
        assert round.clients == pytest.approx(np.tile(x, (3, 1)), abs=1e-5)


def test_with_equal_hessians_and_option_i_every_client_follows_the_central_path():
    hessian = MANY[0].A
    bowls = [random_bowl(images, hessian) for images in (2, 5, 3)]
    centre = Bowl(hessian, np.mean([bowl.c for bowl in bowls], axis=0))
    played = play(scaffold(option="I", space="gradient"), bowls, START, rounds=4, steps=6)
    for before, after in itertools.pairwise(
        played
    ):  # from the second round on: controls start at zero
        assert after.clients == pytest.approx(
            np.tile(descend(centre, before.x, 0.1, 6), (3, 1)), abs=1e-5
        )


def test_scaffold_with_identical_clients_is_fedavg_and_controls_are_equal():
    bowls = [MANY[0]] * 3
    one, other = (play(m, bowls, START, rounds=4, steps=5) for m in (scaffold(), fedavg()))
    assert one[-1].x == pytest.approx(other[-1].x, abs=1e-6)
    for round in one:
        for client in range(3):
            assert round.memory[client]["control"] == pytest.approx(
                round.state["server"]["control"], abs=1e-5
            )


def test_scaffold_reaches_the_optimum_that_fedavg_misses():
    assert play(scaffold(), TWO, 0.0, rounds=60, steps=10)[-1].x == pytest.approx(0.8, abs=1e-4)


def test_scaffold_weighted_by_samples_reaches_the_weighted_optimum():
    found = play(scaffold(weights="samples"), UNEQUAL, 0.0, rounds=80, steps=10)[-1].x
    assert found == pytest.approx(optimum(UNEQUAL, [0.75, 0.25]), abs=1e-4)


def test_scaffolds_server_rate_scales_the_move():
    half, whole = (play(scaffold(server_lr=rate), MANY, START, steps=3)[0].x for rate in (0.5, 1.0))
    assert half - START == pytest.approx((whole - START) / 2, abs=1e-6)


def test_when_clients_are_missing_the_common_control_moves_by_their_share():
    change = [{"control_change": np.array([4.0], np.float32)}]
    cohort = cohort_of([[1.0]], [10], clients=[2], extra=change, population=4)
    method = scaffold()
    assert aggregate(method, cohort).state["server"]["control"] == pytest.approx(1.0)


HALVES = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
COHORTS = {
    "all": lambda round: range(4),
    "half": lambda round: HALVES[round % 6],
    "changing": lambda round: [(0,), (1, 2), (0, 1, 2), (3, 1), (0, 2, 3)][round % 5],
}


WEIGHTINGS = {
    name: weighting_of(method_of(name))
    for name in METHODS
    if not why_not_first(method_of(name)) and not isinstance(method_of(name).aggregation, Joint)
}
CORRECTED = {"scaffold": scaffold(), "feddyn": feddyn(0.5)}
# what a client remembers, and the server's mean of it
MEANS = {"scaffold": ("control", "control"), "feddyn": ("gradient", "h")}
# every weighting under both corrections, with partial labels; cohorts take turns
TRIED = [
    (name, training, who, "partial")
    for (name, training), who in zip(
        itertools.product(WEIGHTINGS, CORRECTED), itertools.cycle(COHORTS), strict=False
    )
] + [(name, training, "half", "all") for name in ("fedavg", "feddraw") for training in CORRECTED]


# updates that do not arrive: after the loss all who are left label a finding that not all label
LOST = {(1, 0), (1, 3), (2, 3), (4, 0)}


def bench_with_partial_labels(method, training):
    """North does not label the second finding, West not the first: some cohorts label both."""
    whole = examples()
    targets = whole.targets.copy()
    north, *_, west = shards()
    targets[north, 1] = np.nan
    targets[west, 0] = np.nan
    labelled = replace(whole, targets=targets)
    return Serial(Trainer(build, labelled, shards(), training, method.local, asks=method.asks))


class SharesByHand:
    """Each client's share of every parameter, from nothing but the weights in the ledger."""

    def __init__(self, layout, method, population=4):
        self.layout = layout
        self.change = "held" in method.asks  # uniform weights leave all shares as they are
        self.shares = np.full((population, layout.length("param")), 1 / population)

    def after(self, result):
        here = [number for number, entry in enumerate(result.ledger) if entry.weighted]
        if not here or not self.change:
            return self.shares
        names = [result.ledger[number].client for number in here]
        whole = np.array([result.ledger[number].weight for number in here])
        weights = np.tile(whole[:, None], self.shares.shape[1])
        for output in range(self.layout.outputs):
            own = {
                entry.client: entry.weight
                for entry in result.pieces
                if entry.piece == f"class {output}"
            }
            for row in self.layout.rows_of(output) if own else ():
                weights[:, row] = np.array([[own[name]] for name in names])
        total = weights.sum(axis=0)
        counts = total > 0  # elsewhere nobody present labels the finding
        present = self.shares[here].sum(axis=0)
        new = self.shares[here]
        new[:, counts] = (weights / np.where(counts, total, 1) * present)[:, counts]
        self.shares[here] = new
        return self.shares


@pytest.mark.parametrize(("name", "training", "who", "labels"), TRIED)
def test_under_every_weighting_and_cohort_the_servers_vector_is_the_mean_by_shares(
    name, training, who, labels
):
    """SCAFFOLD's c and FedDyn's h are zero at rest, so rest is at the optimum of the losses by
    these shares. With partial labels some updates are lost as well.
    """
    kept, mean = MEANS[training]
    method = mixed(WEIGHTINGS[name], CORRECTED[training])
    how = replace(TRAINING, optimizer="sgd", lr=0.05, steps=2)
    partial_labels = labels == "partial"
    engine = bench_with_partial_labels(method, how) if partial_labels else bench(method, None, how)
    options = {
        "proxy": server_images(),
        "efforts": lambda round: dict.fromkeys(COHORTS[who](round), 1.0),
    }
    lossy = Lossy(engine, lambda round, client: (round, client) in LOST)
    reached = lossy if partial_labels else engine
    by_hand = SharesByHand(initial().layout, method)
    for result in federate(initial(), method, reached, NAMES, rounds=6, seed=0, **options):
        shares = by_hand.after(result)
        assert shares.sum(axis=0) == pytest.approx(1)
        remembered = np.zeros_like(shares)
        for client, memory in engine.memory.items():
            remembered[client] = memory[kept]
        expected = (shares * remembered).sum(axis=0)
        assert result.state["server"][mean] == pytest.approx(expected, abs=1e-5)


def shares_of(state, population=4):
    return (
        np.array([state["server"]["shares"].get(str(client), 1.0) for client in range(population)])
        / population
    )


FOUR = [random_bowl(images) for images in (2, 5, 3, 12)]


WEIGHTED = {
    "samples": scaffold(weights="samples"),
    "option I": scaffold(weights="samples", option="I", space="gradient"),
    "feddraw+scaffold": mixed(weighting_of(feddraw()), scaffold(server_lr=0.8)),
    "feddraw+feddyn": mixed(weighting_of(feddraw()), feddyn(alpha=1.0)),
    "fedadp+scaffold": mixed(weighting_of(fedadp()), scaffold()),
}


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("samples", "changing"),
        ("option I", "half"),
        ("feddraw+scaffold", "all"),
        ("feddraw+feddyn", "changing"),
        ("fedadp+scaffold", "half"),
    ],
)
def test_weighted_scaffold_and_feddyn_come_to_rest_at_the_weighted_optimum(name, who):
    method = WEIGHTED[name]
    steps = (
        {"steps": 8, "lr": 0.2}
        if isinstance(method.local, DynamicallyRegularized)
        else {"steps": 4}
    )
    last = play(method, FOUR, START, rounds=80, present=COHORTS[who], **steps)[-1]
    shares = shares_of(last.state)
    assert last.x == pytest.approx(optimum(FOUR, shares), abs=1e-2)
    if isinstance(weighting_of(method), BySize):
        assert shares == pytest.approx(np.array([2, 5, 3, 12]) / 22, abs=1e-3)
    elif who == "all":
        assert shares == pytest.approx(last.weights / last.weights.sum(), abs=1e-3)


# By client, the findings that it labels; every element of a quadratic's vector is one.
PARTIAL = np.array([(1, 1, 0), (1, 0, 1), (1, 1, 1), (0, 1, 1)], bool)
IN_PART = [
    replace(bowl, hessian=bowl.A * np.outer(own, own))
    for bowl, own in zip(FOUR, PARTIAL, strict=True)
]
PARTIALLY_LABELLED = {
    "scaffold": scaffold(),
    "samples": scaffold(weights="samples"),
    "feddraw+scaffold": mixed(weighting_of(feddraw()), scaffold()),
    "fedavg+feddyn": mixed(BySize(), feddyn(alpha=1.0)),
    "feddraw+feddyn": mixed(weighting_of(feddraw()), feddyn(alpha=1.0)),
}


@pytest.mark.parametrize(
    ("name", "who", "lossy"),
    [
        ("scaffold", "changing", True),
        ("samples", "half", False),
        ("feddraw+scaffold", "changing", True),
        ("fedavg+feddyn", "changing", True),
        ("feddraw+feddyn", "all", True),
    ],
)
def test_with_partial_labels_every_row_comes_to_rest_at_the_optimum_by_its_shares(name, who, lossy):
    method = PARTIALLY_LABELLED[name]
    regularized = isinstance(method.local, DynamicallyRegularized)
    steps = {"steps": 8, "lr": 0.2} if regularized else {"steps": 4}
    played = play(
        method,
        IN_PART,
        START,
        rounds=90,
        present=COHORTS[who],
        lose=lambda round, client: lossy and (2 * round + client) % 3 == 0,
        labelled=PARTIAL,
        **steps,
    )
    by_hand = SharesByHand(Network(*quadratic_network(3)).read().layout, method)
    for round in played:
        shares = by_hand.after(round.result)
    distances = [np.abs(round.x - optimum_by_row(IN_PART, shares)).max() for round in played]
    assert distances[-1] < 1e-4
    assert distances[-1] < distances[10] / 10
    if isinstance(weighting_of(method), BySize):  # what a row's weights are is known
        sizes = np.array([2, 5, 3, 12])[:, None] * PARTIAL
        wanted = optimum_by_row(IN_PART, sizes / sizes.sum(axis=0))
        assert played[-1].x == pytest.approx(wanted, abs=1e-3)


def test_uniform_weights_need_nothing_more_than_the_papers_send():
    assert (scaffold().sends, feddyn().sends) == ({"control_change": "params"}, {})
    assert scaffold(weights="samples").sends == {"control_change": "params", "held": "params"}
    limited = make_method(small(method="scaffold", **{"policy.cap": 0.5}))
    assert limited.sends == {
        "control_change": "params",
        "held": "params",
    }  # a policy may change uniform weights


def test_a_client_that_joins_later_stands_for_as_much_as_the_others():
    """Over Flower the population grows when another node connects: the mean is then over
    one more.
    """
    method = scaffold()
    change = [{"control_change": np.array([value], np.float32)} for value in (4.0, 2.0)]
    cohort = cohort_of([[1.0], [1.0]], [10, 10], extra=change)
    state = aggregate(method, cohort).state
    assert state["server"]["control"] == pytest.approx(3.0)
    later = cohort_of(
        [[1.0]],
        [10],
        clients=[2],
        extra=[{"control_change": np.array([3.0], np.float32)}],
        population=3,
    )
    assert aggregate(method, later, state).state["server"]["control"] == pytest.approx(
        (4.0 + 2.0 + 3.0) / 3
    )


@pytest.mark.parametrize(("option", "space"), [("II", "gradient"), ("I", "update")])
def test_scaffold_refuses_units_that_do_not_fit_under_adam(option, space):
    with pytest.raises(UserError, match="under Adam") as error:
        bench(scaffold(option=option, space=space))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("option", "space"), [("II", "update"), ("I", "gradient")])
def test_scaffold_trains_under_adam_in_units_that_fit(option, space):
    results = train(scaffold(option=option, space=space), rounds=3)
    assert np.isfinite(results[-1].model.params).all()
    assert results[-1].loss < results[0].loss


def test_controls_learnt_under_adam_are_normalised_directions():
    """Why they go into the step and not into the gradient: their size is about one, whatever the
    gradient's is.
    """
    bowls = [Bowl(np.eye(3), [1e3, -1e3, 1e3]), Bowl(np.eye(3), [1e3, -1e3, 1e3])]
    played = play(scaffold(), bowls, [0.0, 0.0, 0.0], optimizer="adam", lr=1e-3, steps=20)
    assert played[0].memory[0]["control"] == pytest.approx([-1, 1, -1], abs=0.01)


def test_option_i_is_the_mean_gradient_over_all_images_whatever_the_batches():
    bowls = [Unlike(np.eye(3), RNG.normal(size=(n, 3)), n) for n in (4, 7)]
    played = play(scaffold(option="I", space="gradient"), bowls, START, batch_size=4)
    for client, bowl in enumerate(bowls):
        assert played[0].memory[client]["control"] == pytest.approx(START - bowl.c, abs=1e-5)


def test_option_i_with_a_dropped_last_image_is_still_a_mean():
    bowls = [Bowl(np.eye(3), START + 1, images=5)]
    control = play(scaffold(option="I", space="gradient"), bowls, START, batch_size=4)[0].memory[0][
        "control"
    ]
    assert control == pytest.approx([-1, -1, -1], abs=1e-5)


# ------------------------------------------------------------------------------------------ A5 MOON


def test_moon_without_weight_is_fedavg():
    for one, other in zip(train(moon(mu=0.0), rounds=3), train(fedavg(), rounds=3), strict=True):
        assert same(one.model, other.model)


def test_moon_has_no_term_in_the_first_round_but_in_the_second():
    ours, plain = train(moon(mu=5.0), rounds=2), train(fedavg(), rounds=2)
    assert same(ours[0].model, plain[0].model)
    assert not same(ours[1].model, plain[1].model)


def test_moon_when_last_and_received_agree_is_log_two_without_gradient():
    features = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    reference = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    value = contrastive_term(features, reference, reference, 0.5)
    (gradient,) = torch.autograd.grad(value, features)
    assert value.item() == pytest.approx(math.log(2))
    assert gradient.numpy() == pytest.approx(np.zeros((7, 5)), abs=1e-8)


def test_moon_golden_numbers():
    z = torch.tensor([[3.0, 4.0]])
    assert contrastive_term(z, 2 * z, -z, 0.5).item() == pytest.approx(0.018150, abs=1e-6)
    assert contrastive_term(z, -z, 2 * z, 0.5).item() == pytest.approx(4.018150, abs=1e-6)


def test_moon_does_not_overflow_at_a_small_temperature():
    z = torch.tensor([[3.0, 4.0]])
    assert contrastive_term(z, -z, z, 1e-3).item() == pytest.approx(2000)
    assert contrastive_term(z, z, -z, 1e-3).item() == 0


def test_moons_gradient_is_orthogonal_to_the_features():
    generator = torch.Generator().manual_seed(0)
    features, received, last = (torch.randn(7, 5, generator=generator) for _ in range(3))
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(contrastive_term(features, received, last, 0.5), features)
    assert gradient.norm() > 0.01
    assert (gradient * features).sum(dim=1).detach().numpy() == pytest.approx(np.zeros(7), abs=1e-7)


def job_for(client, model, round=0, rounds=3, broadcast=None):
    return Job(round, rounds, client, client_seed(0, round, client), model, broadcast or {})


def test_a_client_shows_of_a_layer_what_its_row_of_the_cohort_shows():
    made = MadeUpFederation.of(fedavg())
    cohort = made.round().cohort(made.updates)
    where = cohort.sent.layout.find("classifier", "both")
    for view, layer, moves in zip(cohort.views(), cohort.layer(), cohort.moves, strict=True):
        assert np.array_equal(view.layer(), layer)
        assert np.array_equal(view.move(), moves[where])


def test_a_question_that_no_client_can_answer_is_an_error_and_not_group_counts():
    trainer: Trainer = bench(fedavg()).trainer
    trainer.asks = ("favourite colour",)
    with pytest.raises(UserError, match="no client can answer 'favourite colour'"):
        trainer.work(job_for(0, initial()), {})


def test_moons_references_are_in_evaluation_mode_and_their_statistics_do_not_move():
    trainer: Trainer = bench(moon()).trainer
    _, memory = trainer.work(job_for(0, initial()), {})
    other = train(fedavg())[0].model
    trainer.work(job_for(0, other, round=1), memory)
    received, last = trainer.reference(0), trainer.reference(1)
    assert not received.module.training
    assert not last.module.training
    assert same(received.read(), other)
    split = len(other.params)
    assert np.array_equal(last.read().params, memory["last"][:split])
    assert np.array_equal(last.read().buffers, memory["last"][split:])


def test_moons_last_model_is_the_clients_own_trained_one_with_its_buffers():
    kept = []
    method = moon()
    engine = Altered(bench(method), lambda updates: kept.append([*map(copied, updates)]) or updates)
    for _ in federate(initial(), method, engine, NAMES, rounds=2, seed=0):
        for update in kept[-1]:
            own = np.concatenate([update.model.params, update.model.buffers])
            assert np.array_equal(engine.memory[update.client]["last"], own)


def test_a_client_that_did_not_take_part_keeps_its_older_model():
    engine = bench(moon())
    list(engine.train([job_for(client, initial()) for client in range(4)]))
    engine.commit(range(4))
    before = engine.memory[3]["last"].copy()
    list(engine.train([job_for(client, initial(), round=1) for client in range(3)]))
    engine.commit(range(3))
    assert np.array_equal(engine.memory[3]["last"], before)


# ---------------------------------------------------------------------------------------- A6 FedDyn

EXACT = {
    "steps": 40,
    "lr": 0.3,
}  # solves a/2 (y - c)² + 1/2 (y - x)² for a = 1 and 4 to the last bit


def test_after_exact_local_solves_feddyn_holds_each_clients_gradient():
    for round in play(feddyn(alpha=1.0), UNEQUAL, 0.3, rounds=5, **EXACT):
        for client, bowl in enumerate(UNEQUAL):
            gradient = bowl.gradient(round.clients[client])
            assert round.memory[client]["gradient"] == pytest.approx(gradient, abs=1e-5)


def test_feddyn_converges_to_the_unweighted_optimum():
    assert play(feddyn(alpha=1.0), UNEQUAL, 0.3, rounds=40, **EXACT)[-1].x == pytest.approx(
        0.8, abs=1e-5
    )


@pytest.mark.parametrize("steps", [1, 25])
def test_feddyn_stays_at_the_optimum_for_any_number_of_steps(steps):
    x = optimum(MANY)
    memory = {i: {"gradient": bowl.gradient(x).astype(np.float32)} for i, bowl in enumerate(MANY)}
    for round in play(feddyn(alpha=0.1), MANY, x, rounds=3, memory=memory, steps=steps):
        assert round.x == pytest.approx(x, abs=1e-5)
        assert round.state["server"]["h"] == pytest.approx(np.zeros(3), abs=1e-6)


def test_feddyn_in_its_authors_form_is_the_same():
    """u_i is the sum of client i's moves: the server sends mean(y) + mean(u), lam_i = -alpha u_i, h
    their mean.
    """
    alpha, x, u = 0.1, START, np.zeros((3, 3))
    for round in play(feddyn(alpha), MANY, START, rounds=6, steps=4):
        u += round.clients - x
        assert round.x == pytest.approx(round.clients.mean(axis=0) + u.mean(axis=0), abs=1e-5)
        assert [m["gradient"] for m in round.memory.values()] == pytest.approx(-alpha * u, abs=1e-5)
        assert round.state["server"]["h"] == pytest.approx(-alpha * u.mean(axis=0), abs=1e-6)
        x = round.x


def test_feddyn_with_alpha_near_zero_is_not_fedavg():
    first = play(feddyn(alpha=1e-6), MANY, START, steps=5)[0]
    mean = play(uniform(), MANY, START, steps=5)[0].x
    assert first.x == pytest.approx(2 * mean - START, abs=1e-5)


def test_feddyn_overshoots_where_moves_do_not_shrink():
    """A constant move v a round: x goes v T (T + 3) / 2 instead of v T."""
    bowls = [Bowl(np.eye(1), 1.0)] * 2  # a linear loss of slope 1 moves by -lr
    last = play(feddyn(alpha=1e-6), bowls, 0.0, rounds=15, loss=linear, lr=1.0)[-1]
    assert last.x == pytest.approx(-135, rel=1e-3)


def test_feddyn_under_adam_reaches_the_prox_centre():
    """No loss but the two terms of the method: from 1, with lam / alpha = 1, to 2."""
    memory = {0: {"gradient": np.array([0.5], np.float32)}}
    flat = [Bowl(0.0, 0.0)]
    settings = {"memory": memory, "optimizer": "adam", "lr": 0.01, "steps": 600}
    assert play(feddyn(alpha=0.5), flat, 1.0, **settings)[0].clients[0] == pytest.approx(
        2.0, abs=2e-3
    )


def test_feddyn_can_show_the_mean_of_the_clients():
    sent, mean = (
        play(feddyn(alpha=0.1, show=show), MANY, START, rounds=3, steps=4)[-1]
        for show in ("sent", "mean")
    )
    assert np.array_equal(sent.shown, sent.x)
    assert np.array_equal(mean.x, sent.x)
    assert mean.shown == pytest.approx(mean.clients.mean(axis=0), abs=1e-5)


def test_the_ledger_holds_the_coefficients_of_feddyns_moves():
    first = play(feddyn(), MANY, START, steps=4)[0]
    assert first.weights == pytest.approx([2 / 3] * 3)
    assert first.x == pytest.approx(START + first.weights @ (first.clients - START), abs=1e-5)


# ---------------------------------------------------------------------------------------- A7 FedAdp


def test_fedadps_map_from_angle_to_score():
    angles = np.array([0, 0.5, 1, math.pi / 2, math.pi])
    assert gompertz(angles, 5.0) == pytest.approx(
        [5, 4.999974, 3.160603, 0.279931, 1.1e-4], abs=1e-5
    )


def at_angles(*angles):
    """Unit moves of clients of equal size, this far from their common direction, which is the first
    axis.
    """
    return np.array([[math.cos(a), math.sin(a)] for a in angles])


def test_fedadp_with_equal_angles_weighs_by_size():
    cohort = cohort_of([[1, 2], [2, 4], [0.5, 1]], [30, 50, 20])
    weights, _ = FedAdpWeighting().weigh(cohort, FedAdpWeighting().init())
    assert weights.values == pytest.approx([0.3, 0.5, 0.2])
    symmetric = cohort_of(at_angles(0.7, -0.7), [5, 5])
    assert FedAdpWeighting().weigh(symmetric, FedAdpWeighting().init())[0].values == pytest.approx(
        [0.5, 0.5]
    )


def test_fedadp_golden_weights():
    """n = (3, 1), smoothed angles 0 and a right angle; after so many rounds one more does not
    change a mean.
    """
    state = {"angle": {"0": 0.0, "1": math.pi / 2}, "rounds": {"0": 10**15, "1": 10**15}}
    weights, _ = FedAdpWeighting().weigh(cohort_of([[1, 0], [0, 1]], [3, 1]), state)
    assert weights.values == pytest.approx([0.997037, 0.002963], abs=1e-6)


def test_fedadps_angle_is_the_mean_over_the_clients_own_rounds():
    rule = FedAdpWeighting()
    _, state = rule.weigh(cohort_of(at_angles(0.4, -0.4), [1, 1]), rule.init())
    assert state["angle"] == {"0": pytest.approx(0.4), "1": pytest.approx(0.4)}
    three = at_angles(0.8, -0.8)
    _, state = rule.weigh(cohort_of(three, [1, 1], clients=[1, 2], round=5, population=3), state)
    assert state["angle"] == {
        "0": pytest.approx(0.4),
        "1": pytest.approx(0.6),
        "2": pytest.approx(0.8),
    }
    assert state["rounds"] == {"0": 1, "1": 2, "2": 1}
    _, state = rule.weigh(
        cohort_of(at_angles(0.9, -0.9), [1, 1], clients=[1, 2], round=6, population=3), state
    )
    assert state["angle"]["1"] == pytest.approx((0.4 + 0.8 + 0.9) / 3)
    assert state["angle"]["2"] == pytest.approx((0.8 + 0.9) / 2)


def test_fedadp_does_not_depend_on_the_length_of_the_moves():
    moves = RNG.normal(size=(4, 9))
    short, long = (
        FedAdpWeighting().weigh(cohort_of(moves * s, SIZES), FedAdpWeighting().init())[0]
        for s in (1e-5, 10)
    )
    assert short.values == pytest.approx(long.values, rel=1e-5)


def test_in_a_round_where_nobody_moves_fedadp_weighs_by_size():
    weights, state = FedAdpWeighting().weigh(
        cohort_of(np.zeros((2, 3)), [3, 1]), FedAdpWeighting().init()
    )
    assert weights.values == pytest.approx([0.75, 0.25])
    assert state["angle"] == {"0": 0, "1": 0}


def test_fedadp_survives_opposite_moves_that_cancel():
    weights, _ = FedAdpWeighting().weigh(
        cohort_of([[1, 0], [-1, 0]], [1, 1]), FedAdpWeighting().init()
    )
    assert weights.values == pytest.approx([0.5, 0.5])


# ------------------------------------------------------------------------------------------ FedDRAW


def test_feddraw_compares_weight_and_bias_of_the_classifier_with_the_model_that_was_sent():
    kept = []
    method = feddraw()
    engine = Altered(bench(method), lambda updates: kept.extend(map(copied, updates)) or updates)
    result = train(method, engine=engine)[0]
    sent = initial().arrays()
    before = np.concatenate(
        [sent[f"classifier.{part}"].ravel() for part in ("weight", "bias")]
    ).astype(float)
    for update, entry in zip(kept, result.ledger, strict=True):
        arrays = update.model.arrays()
        after = np.concatenate(
            [arrays[f"classifier.{part}"].ravel() for part in ("weight", "bias")]
        ).astype(float)
        expected = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
        assert entry.similarity == pytest.approx(expected, abs=1e-12)
        assert entry.prior == update.size / sum(SIZES)


@pytest.mark.parametrize(
    ("layer", "part", "length"),
    [
        ("classifier", "both", 14),
        ("classifier", "weight", 12),
        ("classifier", "bias", 2),
        ("first", "both", 36),
    ],
)
def test_feddraw_can_look_at_any_layer_and_part(layer, part, length):
    assert len(initial().params[initial().layout.find(layer, part)]) == length
    entries = train(feddraw(layer=layer, part=part))[0].ledger
    assert all(-1 <= entry.similarity <= 1 for entry in entries)


def test_feddraw_can_look_at_all_layers():
    where = initial().layout.find("all")
    assert len(initial().params[where]) == len(initial().params)
    rows = np.stack([initial().params, -initial().params])
    assert cosine(rows[:, where], initial().params[where]) == pytest.approx([1, -1])


def test_an_unknown_layer_suggests_the_nearest():
    with pytest.raises(UserError, match=r"did you mean second_norm\?"):
        train(feddraw(layer="second_nrom"))


def test_feddraws_prior_is_over_the_clients_that_are_counted():
    method = feddraw()
    engine = Altered(bench(method), lambda updates: [u for u in updates if u.client != 0])
    first, second = train(method, rounds=2, engine=engine)
    assert [entry.status for entry in first.ledger] == [
        "missing",
        "weighted",
        "weighted",
        "weighted",
    ]
    assert list(first.weights.values()) == pytest.approx(np.array(SIZES[1:]) / sum(SIZES[1:]))
    assert set(second.weights.values()) == {1 / 3}


# ------------------------------------------------------------------------------------- coincidences


def equal_sizes(method, rounds=3):
    return train(method, rounds, engine=bench(method, shards((16, 16, 16, 16))))[-1].model.params


def test_with_equal_sizes_fedavg_uniform_and_fednova_are_one():
    average = equal_sizes(fedavg())
    assert np.array_equal(average, equal_sizes(uniform()))
    assert np.array_equal(average, equal_sizes(fednova()))


def test_with_equal_sizes_feddraw_differs_only_through_similarity():
    similarity = np.array([0.9, 0.901, 0.9005, 0.9])
    cohorts = [np.array([[s, math.sqrt(1 - s * s)] for s in similarity])] * 15
    for t, rows in enumerate(cohorts):
        cohort = cohort_of(rows, [100] * 4, sent=[1, 0], round=t)
        assert weighting_of(feddraw()).weigh(cohort, {})[0].values == pytest.approx(
            np.full(4, 0.25), abs=1e-3
        )


@pytest.mark.parametrize("method", [fedprox(mu=0.0), moon(mu=0.0)])
def test_without_their_term_fedprox_and_moon_are_fedavg(method):
    assert same(train(method, rounds=3)[-1].model, train(fedavg(), rounds=3)[-1].model)


def test_feddraw_without_temperature_is_uniform_after_its_first_round():
    results = train(feddraw(beta_max=1e-12), rounds=3)
    assert list(results[0].weights.values()) == pytest.approx(np.array(SIZES) / sum(SIZES))
    for result in results[1:]:
        assert list(result.weights.values()) == pytest.approx([0.25] * 4, abs=1e-9)


def test_fedadp_with_identical_clients_is_fedavg():
    bowls = [replace(MANY[0], images=images) for images in (2, 5, 3)]
    one, other = (play(m, bowls, START, rounds=3, steps=4)[-1] for m in (fedadp(), fedavg()))
    assert one.x == pytest.approx(other.x, abs=1e-6)
    assert one.weights == pytest.approx([0.2, 0.5, 0.3], abs=1e-6)


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fedprox(mu=-1.0),
        lambda: fedprox(mu=math.nan),
        lambda: fednova(mu=-0.1),
        lambda: fedadp(alpha=0.0),
        lambda: scaffold(server_lr=-1.0),
        lambda: scaffold(option="III"),
        lambda: scaffold(space="gradients"),
        lambda: scaffold(weights="sizes"),
        lambda: moon(mu=-1.0),
        lambda: moon(temperature=0.0),
        lambda: feddyn(alpha=0.0),
        lambda: feddyn(alpha=math.inf),
        lambda: feddyn(show="average"),
        lambda: feddraw(eta=-0.4),
        lambda: feddraw(beta_max=math.nan),
        lambda: feddraw(reading="report"),
        lambda: feddraw(part="weights"),
    ],
)
def test_a_wrong_hyperparameter_is_refused_in_one_line(wrong):
    with pytest.raises(UserError) as error:
        wrong()
    assert "\n" not in str(error.value)


def test_any_weighting_goes_with_any_local_and_server_rule():
    mixture = made_of(fedprox(mu=0.7).local, BySize(), Server())
    assert play(mixture, [Bowl(2.0, 1.0)], -0.5, steps=6)[0].x == pytest.approx(0.442962, abs=1e-6)
