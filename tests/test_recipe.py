"""The paper's recipe step by step beside torch's own functions, and the numbers behind some rules
of thumb.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from feddraw.core import Job
from feddraw.data.scenarios.whole_patients import NOBODY, _Placement, assign_whole_patients
from feddraw.errors import UserError
from feddraw.methods.fedavg import fedavg
from feddraw.server.gate import MOST_STEPS, Gate
from feddraw.training.loop import epoch_batches, steps_per_epoch
from feddraw.training.settings import Training
from tiny import bench, build, copied, examples, initial, shards, through_gate

SEED = 11
PAPER = Training(epochs=1, batch_size=8, lr=1e-3, weight_decay=5e-3, label_smoothing=0.05, clip=5.0)


def ours(training: Training) -> tuple[dict[str, np.ndarray], float, int]:
    """The first client's tensors, loss and steps after a round."""
    (update,) = map(
        copied, bench(fedavg(), training=training).train([Job(0, 1, 0, SEED, initial())])
    )
    return update.model.arrays(), update.metrics["loss"], update.steps


def torchs(training: Training, steps: int) -> tuple[dict[str, np.ndarray], float, list[float]]:
    """The same by torch's optimiser, clipping and losses, with the norms before clipping."""
    module = build()[0]
    module.load_state_dict(
        {name: torch.tensor(array) for name, array in initial().arrays().items()}
    )
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    more = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    settings = {"lr": training.lr, "weight_decay": training.weight_decay}
    optimizer = kinds[training.optimizer](module.parameters(), **settings, **more)
    rng, losses, norms, rows = np.random.default_rng(SEED), [], [], shards()[0]
    module.train()
    while len(losses) < steps:
        for batch in epoch_batches(rows, training.batch_size, rng):
            if len(losses) == steps:
                break
            pixels = torch.from_numpy(examples().images[batch]).float() / 255
            logits = module(((pixels - 0.5) / 0.25).unsqueeze(1))
            loss = smoothed(
                logits, torch.from_numpy(examples().targets[batch]), training.label_smoothing
            )
            optimizer.zero_grad()
            loss.backward()
            limit = training.clip or float("inf")
            norms.append(float(clip_grad_norm_(module.parameters(), limit)))
            optimizer.step()
            losses.append(float(loss.detach()))
    state = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    return state, float(np.mean(losses)), norms


def smoothed(logits: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
    """A finding is there or not: torch's cross entropy of two classes, with torch's own label
    smoothing.
    """
    pairs = torch.stack([torch.zeros_like(logits), logits], dim=-1).reshape(-1, 2)
    return functional.cross_entropy(pairs, targets.reshape(-1).long(), label_smoothing=smoothing)


def assert_same_training(training: Training) -> list[float]:
    for steps in (1, 2, 7):
        state, loss, taken = ours(replace(training, steps=steps))
        expected, mean, norms = torchs(training, steps)
        assert taken == steps
        assert loss == pytest.approx(mean, rel=2e-5)
        for name, array in state.items():
            np.testing.assert_allclose(
                array, expected[name], rtol=1e-4, atol=2e-5, err_msg=f"{name}, step {steps}"
            )
    return norms


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_decay": 0.0, "label_smoothing": 0.0, "clip": 0.0},
        {
            "weight_decay": 0.0,
            "label_smoothing": 0.0,
            "clip": 0.0,
            "optimizer": "sgd",
            "momentum": 0.9,
        },
        {"weight_decay": 0.0, "clip": 0.0},
        {"label_smoothing": 0.4, "clip": 0.0},
        {"weight_decay": 0.5, "clip": 0.0},
        {},
    ],
    ids=[
        "Adam",
        "SGD with momentum",
        "smoothing",
        "much smoothing",
        "much decay",
        "the paper's recipe",
    ],
)
def test_local_training_is_that_of_torchs_own_functions(changes: dict[str, object]) -> None:
    assert_same_training(replace(PAPER, **changes))


def test_a_gradient_above_the_limit_is_clipped_to_it_as_torch_does() -> None:
    norms = assert_same_training(
        replace(PAPER, optimizer="sgd", lr=0.5, weight_decay=0.0, clip=0.05)
    )
    assert min(norms) > 0.05  # so that every step was clipped


def test_a_gradient_below_the_limit_is_left_as_it_is() -> None:
    settings = {"optimizer": "sgd", "lr": 0.1, "steps": 4}
    far, without = (ours(replace(PAPER, clip=clip, **settings))[0] for clip in (1e4, 0.0))
    for name, array in far.items():
        np.testing.assert_array_equal(array, without[name])


@pytest.mark.parametrize(("effort", "steps"), [(1.0, 5), (0.9, 5), (0.5, 3), (0.49, 2), (0.01, 1)])
def test_a_share_of_the_steps_is_rounded_with_halves_up_and_is_at_least_one(
    effort: float, steps: int
) -> None:
    (update,) = bench(fedavg()).train(
        [Job(0, 1, 0, SEED, initial(), effort=effort)]
    )  # 40 images in batches of 8
    assert update.steps == steps


def test_steps_of_an_epoch_are_the_batches_that_there_are() -> None:
    for images, size in np.ndindex(20, 9):
        found = list(epoch_batches(np.arange(images), size + 2, np.random.default_rng(0)))
        assert steps_per_epoch(images, size + 2) == len(found)


def test_smoothed_targets_lie_between_their_labels_and_one_half() -> None:
    trainer = bench(fedavg(), training=replace(PAPER, label_smoothing=0.2)).trainer
    logits, targets = torch.tensor([[0.3, -1.2]]), torch.tensor([[1.0, 0.0]])
    expected = functional.binary_cross_entropy_with_logits(logits, torch.tensor([[0.9, 0.1]]))
    assert trainer.smoothed_loss(logits, targets).item() == pytest.approx(expected.item(), rel=1e-6)


# ----------------------------------------------------------------------------------------- the gate


@pytest.mark.parametrize(
    ("change", "accepted"),
    [(0, True), (1, True), (MOST_STEPS, True), (-1, False), (MOST_STEPS + 1, False)],
)
def test_a_counter_may_stay_or_go_up_by_as_many_steps_as_a_training_can_have(
    change: int, accepted: bool
) -> None:
    (update,) = map(copied, bench(fedavg()).train([Job(0, 1, 0, SEED, initial())]))
    counters = initial().counters + np.array([0, change])  # one of the two is enough
    counted, verdicts = through_gate(
        [replace(update, model=replace(update.model, counters=counters))], initial(), 1, Gate()
    )
    assert len(counted) == accepted
    assert verdicts[0].status == (
        "weighted" if accepted else "refused: counters that no training gives"
    )


# ----------------------------------------------------------------------------------- whole patients


@pytest.mark.parametrize(
    ("patient", "takers"),
    [
        ((1, 1), [0, 1, 2]),  # as mixed as the first client's quota: it keeps pace
        (
            (1, 2),
            [1, 2],
        ),  # after it the first client would have 8 places for others where 9 positives are to come
        ((1, 3), [1, 2]),  # 27 left where 9 positives are to come: just so
        ((1, 4), [2]),
        ((2, 10), [2]),
    ],
)
def test_a_patient_goes_where_its_other_images_leave_room_for_the_positives_to_come(
    patient: tuple[int, int], takers: list[int]
) -> None:
    packing = _Placement(np.array([[10, 10], [10, 30]]), np.array([patient, (28, 60), (0, 40)]))
    packing.needs[2], packing.left[2] = (
        (10, 60),
        [10, 60],
    )  # who leaves images out has room for any of these
    assert [client for client, _ in packing._takers(0)] == takers


def test_a_patient_that_no_client_can_take_in_pace_goes_wherever_there_is_room() -> None:
    packing = _Placement(np.array([[10, 10]]), np.array([(1, 8), (9, 2)]))
    assert packing._takers(0) == [(0, 10)]


def test_clients_with_few_positives_are_filled_also_where_patients_with_positives_have_many_other_images() -> (
    None
):
    dealt = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        counts = [(1, int(rng.integers(0, 6))) for _ in range(40)] + [(0, 1)] * 30
        patients = np.repeat(np.arange(len(counts)), [sum(count) for count in counts])
        marked = np.concatenate([[True] * a + [False] * b for a, b in counts])
        needs = np.array([[10, 20], [10, 30], [5, 15]])
        try:
            owner = assign_whole_patients(
                patients, marked, needs, rng.integers(0, 2**63, len(counts), dtype=np.uint64)
            )
        except UserError:
            continue
        dealt += 1
        for client, need in enumerate(needs.tolist()):
            assert [
                int((marked & (owner == client)).sum()),
                int((~marked & (owner == client)).sum()),
            ] == need
        for patient in range(len(counts)):
            assert len(set(owner[patients == patient].tolist()) - {NOBODY}) <= 1
    assert dealt == 60
