"""Tasks: images of exactly one class beside torch and scikit-learn, over engines and secure sums."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import metrics as referee
from torch.nn.functional import cross_entropy

from feddraw.analysis import class_metrics
from feddraw.analysis.bootstrap import bootstrap, weighted_sensitivity
from feddraw.core import Job
from feddraw.data.class_column import class_name, names_in_order, why_no_classes
from feddraw.data.dataset import Dataset, Labels
from feddraw.data.label_cells import ColumnCells
from feddraw.data.own_tables import TableSettings, read_own_tables
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.methods.fedavg import fedavg
from feddraw.results.metrics import SplitMetrics
from feddraw.results.recorded_run import read_run
from feddraw.tasks import make_task
from feddraw.tasks.classes import Classes, OneOfSeveral, classes
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples, epoch_batches, loss_over_known
from feddraw.training.reproducibility import one_thread
from feddraw.training.settings import Training
from tiny import build, copied, initial, shards

NAMES = ("ring", "disc", "blank")


def one_hot(numbers: NDArray[Any], count: int = 3) -> NDArray[np.uint8]:
    return (numbers[:, None] == np.arange(count)).astype(np.uint8)


@cache
def shapes(images: int = 300, size: int = 28, seed: int = 0) -> Dataset:
    """Rings, discs and empty pictures in unequal numbers, a third of them without a known class."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(3, images, p=[0.2, 0.3, 0.5])
    across, down = np.meshgrid(np.arange(size), np.arange(size))
    pixels = rng.normal(120, 25, (images, size, size))
    for image, kind in zip(pixels, kinds, strict=True):
        middle = rng.uniform(9, size - 9, 2)
        far = np.hypot(across - middle[0], down - middle[1])
        image[(far < 8) & ((far > 5) | (kind == 1)) & (kind < 2)] += 70
    known = np.ones((images, 3), np.bool_)
    known[::15] = False
    labels = Labels(
        one_hot(kinds) * known,
        NAMES,
        names=np.array([f"{number:04d}" for number in range(images)]),
        known=known,
        task="classes",
    )
    order = rng.permutation(images)
    rows = dict(
        zip(
            ("train", "validation", "test"),
            np.split(order, [images * 6 // 10, images * 8 // 10]),
            strict=True,
        )
    )
    return Dataset("shapes", np.clip(pixels, 0, 255).astype(np.uint8), labels, rows)  # type: ignore[arg-type]


def experiment(**changes: Any) -> Experiment:
    return Experiment(
        data={"name": "tests:shapes", "size": 28},
        scenario={"name": "quantity", "clients": 3, "power": 1.0, "scale": 1.0},
        model={"name": "compact", "growth": 8},
        rounds=3,
        engine="serial",
    ).with_settings(
        {"training.batch_size": 16, "training.epochs": 1, "training.lr": 3e-3} | changes
    )


# ----------------------------------------------------------------------------------------- training


@pytest.mark.parametrize(("smoothing", "weights"), [(0.0, ()), (0.1, ()), (0.1, (1.0, 3.0))])
def test_softmax_training_is_a_bare_torch_loop(
    smoothing: float, weights: tuple[float, ...]
) -> None:
    """Stochastic gradient descent on one client: the same bits as torch's own loop."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (89, 8, 8), dtype=np.uint8)
    kinds = rng.integers(0, 2, 89)
    examples = Examples(pixels, one_hot(kinds, 2).astype(np.float32))
    how = Training(epochs=2, batch_size=8, lr=0.05, optimizer="sgd", label_smoothing=smoothing)
    trainer = Trainer(
        build, examples, shards(), how, fedavg().local, objective=OneOfSeveral(weights)
    )
    (update,) = map(copied, Serial(trainer).train([Job(0, 1, 0, 11, initial())]))

    module = build()[0]
    module.load_state_dict({name: torch.tensor(a) for name, a in initial().arrays().items()})
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    order = np.random.default_rng(11)
    losses = []
    module.train()
    with one_thread():
        for _ in range(2):
            for batch in epoch_batches(shards()[0], 8, order):
                images = torch.from_numpy(pixels[batch]).unsqueeze(1).float()
                images = images.sub_(255 * 0.5).div_(255 * 0.25)
                images = images.contiguous(memory_format=torch.channels_last)
                loss = cross_entropy(
                    module(images),
                    torch.from_numpy(kinds[batch]),
                    weight=torch.tensor(weights) if weights else None,
                    label_smoothing=smoothing,
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
    expected = module.state_dict()
    for name, array in update.model.arrays().items():
        assert np.array_equal(array, expected[name].numpy()), np.abs(
            array - expected[name].numpy()
        ).max()
    assert update.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_images_of_unknown_class_are_left_out_of_the_loss_and_of_accuracy() -> None:
    objective = OneOfSeveral()
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 5.0, 0.0], [0.0, 1.0, 3.0]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [math.nan] * 3, [0.0, 1.0, 0.0]])
    loss = loss_over_known(lambda *pair: objective.loss(*pair, 0.0), logits, targets)
    assert loss.item() == cross_entropy(logits[[0, 2]], torch.tensor([0, 1])).item()
    assert objective.right(logits.numpy(), targets.numpy()).tolist() == [True, False]


# ------------------------------------------------------------------------------------------ metrics


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_classes_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.choice(4, 200, p=[0.5, 0.3, 0.15, 0.05])
    logits = rng.normal(size=(200, 4)) + 1.2 * one_hot(kinds, 4)
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    unknown = rng.random(200) < 0.1
    truth = np.where(unknown[:, None], -1, one_hot(kinds, 4)).astype(np.int8)
    names = ["a", "b", "c", "d"]
    found = classes().evaluate(scores, truth, names, [math.nan] * 4)
    real, called = kinds[~unknown], scores[~unknown].argmax(axis=1)
    assert found.confusion == tuple(map(tuple, referee.confusion_matrix(real, called).tolist()))
    expected = {
        "auc": referee.roc_auc_score(real, scores[~unknown], multi_class="ovr"),
        "accuracy": referee.accuracy_score(real, called),
        "balanced_accuracy": referee.balanced_accuracy_score(real, called),
        "f1": referee.f1_score(real, called, average="macro"),
        "kappa": referee.cohen_kappa_score(real, called),
    }
    for metric, value in expected.items():
        assert found.of(metric).macro == pytest.approx(value, abs=1e-12), metric
    recalls = referee.recall_score(real, called, average=None)
    assert list(found.sensitivity.values()) == pytest.approx(recalls.tolist())
    assert found.specificity["a"] == pytest.approx(
        referee.recall_score(real != 0, called != 0), abs=1e-12
    )
    assert SplitMetrics.read(found.document()) == found
    # the first replicate of a bootstrap is the estimate
    outputs = classes().call(scores, np.full(4, math.nan))
    (row,) = bootstrap([outputs], truth, rng, measure=weighted_sensitivity, replicates=3)
    assert row[0] == pytest.approx(expected["balanced_accuracy"], abs=1e-12)


def test_a_class_without_images_has_no_sensitivity_and_broken_scores_no_calls() -> None:
    scores = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    truth = one_hot(np.array([0, 1]))
    found = classes().evaluate(scores, truth, NAMES, [math.nan] * 3)
    assert math.isnan(found.sensitivity["blank"])
    assert found.of("balanced_accuracy").macro == 1
    assert found.undefined == ("blank",)
    scores[0, 0] = math.nan
    broken = classes().evaluate(scores, truth, NAMES, [math.nan] * 3)
    assert broken.not_finite == ("ring",)
    assert math.isnan(broken.of("accuracy").macro)
    assert math.isnan(broken.of("balanced_accuracy").macro)


def test_of_equal_scores_the_first_class_is_called() -> None:
    assert class_metrics.called_classes(np.array([[0.4, 0.4, 0.2]])).tolist() == [[1, 0, 0]]


# ------------------------------------------------------------------------------------- a federation


def test_the_data_say_the_task_and_a_run_learns_and_records_it(tmp_path: Path) -> None:
    results = run(experiment(rounds=8), tmp_path / "run", dataset=shapes())
    test = results.last.metrics.test
    assert test.of("balanced_accuracy").macro > 0.6
    assert sum(map(sum, test.confusion)) == int(
        (shapes().labels.truth(shapes().rows["test"])[:, 0] >= 0).sum()
    )
    recorded = read_run(tmp_path / "run")
    assert recorded.task == "classes"
    assert recorded.metrics.test == test
    assert recorded.rounds[0].validation.of("balanced_accuracy").macro >= 0
    kept = recorded.predictions()
    assert kept is not None
    assert np.allclose(kept.scores.sum(axis=1), 1, atol=1e-6)


def test_worker_processes_secure_sums_and_other_rules_work_by_class() -> None:
    setup = prepare(experiment(), dataset=shapes())
    assert isinstance(setup.trainer.objective, OneOfSeveral)
    serial = run(experiment(), dataset=shapes()).last
    parallel = run(experiment(engine="processes", workers=2), dataset=shapes()).last
    assert serial.model.params.tobytes() == parallel.model.params.tobytes()
    assert serial.metrics == parallel.metrics
    for name in ("feddraw_by_class", "feddisco", "fedlaw", "qfedavg"):
        result = run(experiment(method=name, rounds=2, proxy=20), dataset=shapes()).last
        assert np.isfinite(result.model.params).all()
    clear = run(experiment(method="fedavg", rounds=1), dataset=shapes()).last
    masked = run(experiment(method="fedavg", rounds=1, secure=True), dataset=shapes()).last
    assert np.abs(clear.model.params - masked.model.params).max() < 1e-5


def test_labels_that_the_task_cannot_learn_from_are_refused() -> None:
    several = replace(
        shapes(), labels=replace(shapes().labels, values=np.ones((300, 3), np.uint8), known=None)
    )
    with pytest.raises(UserError, match="exactly one class for each image: 300 of 300"):
        prepare(experiment(), dataset=several)
    with pytest.raises(UserError, match=r"class_weights has 2 numbers for 3 classes"):
        prepare(
            experiment().with_settings({"data.task": "classes", "data.class_weights": [1, 2]}),
            dataset=shapes(),
        )
    with pytest.raises(UserError, match="numbers above 0"):
        make_task("classes", {"class_weights": [1, -1]})
    for weights in (5, "1, 2", [1, 2, math.inf], [1, math.nan], [1, 10**400]):
        with pytest.raises(UserError, match="a list of finite numbers above 0"):
            make_task("classes", {"class_weights": weights})
    with pytest.raises(UserError, match="grades"):
        make_task("grades", {})
    assert make_task("classes", {"class_weights": [1, 2]}) == Classes((1.0, 2.0))


def test_settings_decide_the_task_before_the_data() -> None:
    as_findings = experiment().with_settings({"data.task": "findings"})
    results = run(replace(as_findings, rounds=1), dataset=shapes())
    assert not results.last.metrics.test.confusion
    assert math.isfinite(results.last.metrics.test.gm.macro)


def test_classes_that_no_client_has_are_named_and_lost_by_nobody() -> None:
    labels = shapes().labels
    values = labels.values.copy()
    train = shapes().rows["train"]
    rings = train[values[train, 0] == 1]
    values[rings[1:]] = [0, 0, 1]
    with pytest.warns(UserWarning, match="have one training image only of ring"):
        prepare(experiment(), dataset=replace(shapes(), labels=replace(labels, values=values)))
    values[rings] = [0, 0, 1]
    with pytest.warns(UserWarning, match="no client has a training image of ring"):
        setup = prepare(
            experiment(), dataset=replace(shapes(), labels=replace(labels, values=values))
        )
    assert setup.dataset.findings == NAMES


# ------------------------------------------------------------------------------------- class column


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_class_column_is_one_column_of_labels_per_class(tmp_path: Path) -> None:
    lines = [
        f"{row}.png,{word}" for row, word in enumerate(["b", "a", "", "c", "b ", "unknown"] * 4)
    ]
    path = table(tmp_path, "\n".join(["path,dx", *lines]))
    labels = read_own_tables([path], TableSettings(class_column="dx")).labels
    assert labels.findings == ("a", "b", "c")
    assert labels.task == "classes"
    assert labels.values[:6].tolist() == [
        [0, 1, 0],
        [1, 0, 0],
        [0] * 3,
        [0, 0, 1],
        [0, 1, 0],
        [0] * 3,
    ]
    assert labels.known is not None
    assert labels.known[:6, 0].tolist() == [True, True, False, True, True, False]
    classes().check(labels)


def test_a_class_beyond_the_known_ones_is_named_with_its_line(tmp_path: Path) -> None:
    path = table(
        tmp_path, "path,dx\n" + "".join(f"{row}.png,{'abc'[row % 3]}\n" for row in range(30))
    )
    settings = TableSettings(class_column="dx", classes=["b", "a"])
    found = read_own_tables([path], settings)
    assert found.labels.findings == ("b", "a")
    assert len(found.labels) == 20
    first = found.problems[0]
    assert (first.what, first.where) == (
        "with a class that is not among data.classes",
        "t.csv line 4",
    )
    assert first.detail == "dx is 'c'"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"class_column": "dx", "blank": "negative"}, "data.blank is for columns of findings"),
        ({"class_column": "dx", "findings": ["a"]}, "data.findings is for columns of findings"),
        ({"classes": ["a", "b"]}, "data.classes needs data.class_column"),
        ({"class_column": "dx", "classes": ["a"]}, "must list two classes or more"),
        ({"class_column": "nothing"}, "no column"),
        ({"class_column": "same"}, "names 1 classes: it needs 2 to 50"),
        ({"class_column": "path"}, "names more than 50 classes"),
        ({"class_column": "case"}, "'Nevus' and 'nevus' in the column case look like one class"),
    ],
)
def test_settings_that_no_class_column_can_have(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    rows = [f"{row}.png,{'ab'[row % 2]},x,{('nevus', 'Nevus')[row % 2]}" for row in range(60)]
    path = table(tmp_path, "\n".join(["path,dx,same,case", *rows]))
    with pytest.raises(UserError, match=says):
        read_own_tables([path], TableSettings(**settings))


def test_sites_that_lack_a_class_have_the_outputs_of_all(tmp_path: Path) -> None:
    north = table(
        tmp_path, "path,grade\n" + "".join(f"n{r}.png,{r % 2}\n" for r in range(20)), "n.csv"
    )
    south = table(
        tmp_path, "path,grade\n" + "".join(f"s{r}.png,{r % 3}.0\n" for r in range(20)), "s.csv"
    )
    labels = read_own_tables(
        [north, south], TableSettings(class_column="grade"), root=tmp_path
    ).labels
    assert labels.findings == ("0", "1", "2")
    assert labels.known is None


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (["bcc", "nevus"] * 5, ""),
        (["0", "1", "2", "2.0"] * 5, ""),
        (["1", "2"] * 5, ""),
        (["a", "b"], "hardly ever repeated"),
        (["50", "61", "50", "61"], "no small grades"),
        (["0.5", "1.5"] * 5, "not whole"),
        (["a", "1"] * 5, "numbers and words"),
        (["0", "20"] * 5, "with gaps"),
        (["a|b", "c"] * 5, "several findings in a cell"),
        ([str(n) for n in range(60)] * 2, "more than 50"),
        (["a"] * 5, "one entry only"),
        ([""] * 5, "blank in every row"),
    ],
)
def test_a_column_looks_like_classes_where_few_words_or_grades_repeat(
    cells: list[str], why: str
) -> None:
    column = ColumnCells("x")
    for cell in cells:
        column.add(cell)
    found = why_no_classes(column)
    assert why in found if why else not found


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two findings or classes are called disc"):
        replace(shapes().labels, findings=("disc", "ring", "disc"))


def test_names_of_classes_have_one_spelling_and_an_order() -> None:
    assert [class_name(text) for text in (" bcc ", "2.0", "007", "n/a")] == ["bcc", "2", "7", ""]
    assert [class_name(text) for text in ("3,0", "3,00", "3.000000")] == ["3", "3", "3"]
    assert [class_name(text) for text in ("1,000", "1.000")] == ["1,000", "1.000"]
    assert names_in_order(["10", "2", "0"]) == ("0", "2", "10")
    assert names_in_order(["nevus", "Bcc"]) == ("Bcc", "nevus")


def test_nothing_warns_where_every_class_is_there() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(experiment(), dataset=shapes())
