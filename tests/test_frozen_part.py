"""A network whose first part is frozen: features once per image, and the same result as training
the whole network with that part frozen.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors.numpy import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from feddraw import catalog
from feddraw.cli import app
from feddraw.core import Job
from feddraw.data.feature_cache import cached_folders, images_identity
from feddraw.errors import UserError
from feddraw.experiment import frozen_features
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import examples_on_features, make_trainer, prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment
from feddraw.experiment.trained_model import load_trained
from feddraw.experiment.verify import verify
from feddraw.flower import engine as flower_engine
from feddraw.flower import job_orders
from feddraw.flower.array_records import arrays_to_vectors, model_to_arrays
from feddraw.flower.frozen_layers import FROZEN, FrozenLayers, take_frozen
from feddraw.system import workers
from feddraw.training.client import Trainer
from feddraw.training.network import Network
from feddraw.training.network_by_name import build_network
from feddraw.training.network_cut import find_cut
from feddraw.training.partly_frozen_by_trial import build_partly_frozen
from small import small

LAST_BLOCK = "body.12"  # of the small network: a layer with batch norm, and the norm after it


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Block(nn.Module):
    """A block with a way around it, as in ResNet; without batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(x + inner)


class WithoutNorm(nn.Module):
    """Steps between the layers that are no layers, a parameter of its own, one activation that is
    used on both sides of a cut, and a layer that does something else in training.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))
        self.activation = nn.ReLU()
        self.stem = nn.Conv2d(1, 6, 3, stride=3)
        self.dropout = nn.Dropout(0.5)
        self.block1 = Block(6)
        self.block2 = Block(6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.activation(self.stem(x + self.offset)))
        x = self.block2(self.block1(x))
        logits: Tensor = self.head(self.activation(x).mean(dim=(2, 3)))
        return logits


def without_norm(classes: int) -> nn.Module:
    return WithoutNorm(classes)


def local_rules(*, asking: bool = True) -> list[str]:
    """One method of every local rule; where `asking`, also of every answer that a client gives."""
    first = ("fedavg", "moon", "scaffold", "feddyn", "ditto")
    kinds: dict[tuple[type, object], str] = {}
    for name in (*first, *catalog.names("methods")):
        method = catalog.find("methods", name)()
        if not method.centralised:
            kinds.setdefault((type(method.local), method.asks if asking else ()), name)
    return sorted(kinds.values())


def frozen_experiment(cut: str = "body", **changes: Any) -> Experiment:
    data = {"data.train": 120, "data.validation": 60, "data.test": 60}
    return small(**{"model.frozen": cut, "method": "fedavg", "rounds": 2} | data | changes)


def assert_features_give_the_bits_of_images(experiment: Experiment) -> None:
    on_features = run(experiment)
    on_images = run(experiment.with_settings({"data.features": "off"}))
    assert on_features.metrics.test.auc == on_images.metrics.test.auc
    arrays = on_features.last.model.arrays()
    for name, expected in on_images.last.model.arrays().items():
        assert np.array_equal(arrays[name], expected), name


@pytest.mark.parametrize("method", local_rules())
@pytest.mark.parametrize("cut", ["body", LAST_BLOCK])
def test_training_on_features_has_the_bits_of_the_whole_network_with_that_part_frozen(
    cut: str, method: str
) -> None:
    """The features are computed in batches of another size; the sums within an image are the
    same.
    """
    changes = {"method": method, "training.batch_size": 16, "training.clip": 1.0}
    if method == "feddyn":
        changes["training.clip"] = 0.0
    if method == "random_effects":
        changes["method.batch_size"] = 4
    assert_features_give_the_bits_of_images(frozen_experiment(cut, **changes))


@pytest.mark.parametrize("method", local_rules(asking=False))
@pytest.mark.parametrize("cut", ["body", "block2"])
def test_a_network_of_ones_own_without_batch_norm_has_the_same_bits_too(
    cut: str, method: str
) -> None:
    few = {"data.train": 60, "data.validation": 20, "data.test": 20, "training.batch_size": 16}
    changes = {"model": "test_frozen_part:without_norm", "training.lr": 1e-2} | few
    assert_features_give_the_bits_of_images(frozen_experiment(cut, method=method, **changes))


def test_a_cut_before_two_blocks_with_ways_around_them_has_the_same_bits() -> None:
    changes = {"model": "test_frozen_part:without_norm", "training.weight_decay": 0.1}
    assert_features_give_the_bits_of_images(frozen_experiment("block1", **changes))


def test_only_what_follows_the_cut_is_trained_and_the_saved_model_is_the_whole_network(
    tmp_path: Path,
) -> None:
    experiment = frozen_experiment(LAST_BLOCK)
    setup = prepare(experiment)
    result = run(experiment, tmp_path / "run")
    whole, _ = build_network("compact", 5, {"growth": 8})
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert saved.keys() == whole.state_dict().keys()
    before = setup.initial.arrays()
    moved = {
        name for name in saved if not np.array_equal(saved[name].ravel(), before[name].ravel())
    }
    body = {name for name in saved if not name.startswith(("body.12", "body.13", "classifier"))}
    assert not moved & body
    assert "body.12.norm.running_mean" in moved
    assert "body.12.conv.weight" in moved
    assert len(result.last.model.params) == sum(
        parameter.numel()
        for name, parameter in whole.named_parameters()
        if name.startswith(("body.12", "body.13", "classifier"))
    )


def test_engines_resume_and_verify_give_the_same_bits(tmp_path: Path) -> None:
    copies = {"data.copies": 2, "training.augment": True}
    experiment = frozen_experiment(LAST_BLOCK, method="scaffold", rounds=3, **copies)
    whole = run(experiment, tmp_path / "whole")
    elsewhere = run(experiment.with_settings({"engine": "processes", "workers": 2}))
    assert np.array_equal(whole.last.model.params, elsewhere.last.model.params)
    for result in iterate(experiment, tmp_path / "stopped"):
        if result.round == 1:
            break
    resumed = run(experiment, tmp_path / "stopped", resume=True)
    assert np.array_equal(whole.last.model.params, resumed.last.model.params)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (
        tmp_path / "stopped" / "model.safetensors"
    ).read_bytes()
    assert verify(tmp_path / "whole").same


def test_flower_nodes_that_have_the_data_train_on_the_same_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flower_engine, "installed", lambda _: False)  # Ray would start processes
    experiment = frozen_experiment(LAST_BLOCK)
    expected = run(experiment)
    over_flower = run(experiment.with_settings({"engine": "flower"}))
    assert np.array_equal(expected.last.model.params, over_flower.last.model.params)


def test_a_site_without_the_weights_gets_the_frozen_part_once_and_trains_on_its_features(
    tmp_path: Path,
) -> None:
    experiment = complete_settings(frozen_experiment(LAST_BLOCK))
    setup = prepare(experiment)
    images = prepare(experiment.with_settings({"data.features": "off"})).dataset
    frozen = setup.initial.layout.frozen
    layers = FrozenLayers(frozen)
    shards = setup.training_rows

    def opened_site() -> Trainer:
        trainer = make_trainer(experiment, images, shards, setup.method)
        trainer.examples_behind = partial(examples_on_features, experiment, images, shards)
        return trainer

    orders = job_orders.add_orders(ConfigRecord(), layers.order)
    first = layers.with_layers(RecordDict({"config": orders}), node=1)
    trainer = opened_site()
    digest = take_frozen(trainer, first, tmp_path)
    assert digest == layers.order[FROZEN]
    job = Job(round=0, rounds=1, client=0, seed=3, model=setup.initial)
    update, _ = trainer.work(job, {})
    expected, _ = setup.trainer.work(job, {})
    assert np.array_equal(update.model.params, expected.model.params)
    # only what is trained goes up
    sent = sum(array.nbytes for array in arrays_to_vectors(model_to_arrays(update.model)).values())
    assert sent < sum(array.nbytes for array in frozen.values()) / 3
    again = opened_site()  # another process of the site, which has kept the layers
    assert take_frozen(again, RecordDict({"config": orders}), tmp_path) == digest
    assert np.array_equal(again.work(job, {})[0].model.params, expected.model.params)


def test_the_saved_model_scores_images_as_the_run_did(tmp_path: Path) -> None:
    experiment = frozen_experiment(LAST_BLOCK)
    run(experiment, tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    dataset = prepare(experiment.with_settings({"model.frozen": ""})).dataset
    scores = trained.scores(dataset.images[dataset.rows["test"]])
    recorded = load_file(tmp_path / "run" / "predictions.safetensors")
    np.testing.assert_allclose(scores, recorded["test.scores"], rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------- where it is cut


def cut_of(layer: str) -> Any:
    module, classifier = build_network("test_frozen_part:without_norm", 3, {}, side=12)
    return find_cut(module, classifier, layer, side=12)


def test_a_layer_that_is_not_there_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(UserError, match="did you mean block2"):
        cut_of("blok2")
    with pytest.raises(UserError, match=r"did you mean block1\.first, block2\.first"):
        cut_of("layer.first")


def test_without_a_near_name_the_outer_layers_are_listed_once() -> None:
    with pytest.raises(UserError) as refused:
        cut_of("qqq")
    listed = str(refused.value).rpartition("choose from ")[2].split(", ")
    assert {"body", "block2", "block2.first"} <= set(listed)
    module, classifier = build_network("compact", 3, {})  # has a layer that is called body
    with pytest.raises(UserError) as refused:
        find_cut(module, classifier, "qqq", side=28)
    listed = str(refused.value).rpartition("choose from ")[2].split(", ")
    assert listed.count("body") == 1
    assert not any(name.count(".") > 1 for name in listed)


def test_a_cut_within_a_block_is_refused_with_the_block_before_which_it_can_be_cut() -> None:
    with pytest.raises(UserError, match=r"a way around it; use model\.frozen = block2"):
        cut_of("block2.second")
    module, classifier = build_network("compact", 3, {})
    with pytest.raises(UserError, match="nothing to freeze before it"):
        find_cut(module, classifier, "body.0", side=28)


class Twice(nn.Module):
    """One layer that is used twice."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.again(self.stem(x)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def twice(classes: int) -> nn.Module:
    return Twice(classes)


def test_a_layer_that_is_called_twice_is_no_place_to_cut() -> None:
    module, classifier = build_network("test_frozen_part:twice", 3, {}, side=12)
    with pytest.raises(UserError, match="called 2 times in a pass"):
        find_cut(module, classifier, "again", side=12)


def test_settings_that_do_not_go_together_are_refused() -> None:
    for changes, message in (
        ({"model.frozen": ""}, "set model.frozen"),
        ({"data.features": "float64"}, "data.features must be one of"),
        ({"data.copies": -1}, "data.copies must be from 0"),
        ({"training.augment": True}, "set data.copies"),
        ({"data.copies": 2}, "goes with training.augment = true"),
        ({"model.frozen": 3}, "model.frozen must be body or the name of a layer"),
    ):
        experiment = frozen_experiment(**{"data.features": "float32"} | changes)
        with pytest.raises(UserError, match=message):
            prepare(experiment)


def test_a_run_without_a_frozen_part_has_no_settings_of_features() -> None:
    assert "features" not in complete_settings(small()).section("data")[1]
    assert complete_settings(frozen_experiment()).section("data")[1]["features"] == "float32"


def test_the_trained_part_takes_less_memory_than_the_whole() -> None:
    build = partial(build_network, "compact", 3, {"growth": 8})
    part, classifier = build_partly_frozen(build, "body", side=28)
    assert {name for name, _ in part.named_parameters()} == {
        "classifier.weight",
        "classifier.bias",
    }
    network = Network(part, classifier)
    assert [entry.name for entry in network.layout.entries] == [
        "classifier.weight",
        "classifier.bias",
    ]


# ----------------------------------------------------------------------------------------- the cache


class CountedPasses:
    """How many images pass the frozen part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images = 0
        original = frozen_features.FeaturePass.of_batch

        def counted(own: frozen_features.FeaturePass, rows: Any) -> Any:
            self.images += len(rows)
            return original(own, rows)

        monkeypatch.setattr(frozen_features.FeaturePass, "of_batch", counted)


def entry_file(cache: Path, name: str) -> Path:
    (file,) = cache.glob(f"*/{name}")
    return file


def test_every_image_passes_the_frozen_part_once_in_its_life(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = CountedPasses(monkeypatch)
    for method in ("fedavg", "fedprox"):
        run(frozen_experiment(method=method))
    assert passes.images == 240
    run(frozen_experiment(seed=0, partition_seed=3))
    assert passes.images == 240
    run(frozen_experiment(**{"data.features": "float16"}))  # kept otherwise
    assert passes.images == 480
    assert len(cached_folders()) == 2


def test_only_the_images_that_a_run_needs_are_computed_and_later_ones_are_added(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = CountedPasses(monkeypatch)
    fewer = {"scenario": "iid", "scenario.clients": 2, "scenario.scale": 0.5}
    first = run(frozen_experiment(**fewer))
    seen = passes.images
    assert seen < 240
    run(frozen_experiment())
    assert passes.images == 240
    again = run(frozen_experiment(**fewer))
    assert passes.images == 240
    assert np.array_equal(first.last.model.params, again.last.model.params)


def test_features_do_not_depend_on_which_images_are_computed_together(own_cache: Path) -> None:
    setup = prepare(frozen_experiment())
    plain = prepare(frozen_experiment(**{"data.features": "off"}))
    backbone = frozen_features.backbone_of(
        complete_settings(frozen_experiment()),
        partial(build_network, "compact", 5, {"growth": 8}),
        setup.initial.layout.frozen,
    )
    dataset = plain.dataset
    feature_pass = frozen_features.FeaturePass(backbone, dataset.images, dataset.mean, dataset.std)
    rows = np.array([7, 3, 200])
    assert np.array_equal(feature_pass.of_batch(rows), setup.dataset.images[rows])


def test_a_computation_that_was_cut_off_goes_on_where_it_stopped(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(frozen_experiment(), None)
    for folder in cached_folders():
        for file in folder.path.iterdir():
            file.unlink()
    original = frozen_features.FeaturePass.of_batch
    left = [3]

    def interrupted(own: frozen_features.FeaturePass, rows: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(own, rows)

    with monkeypatch.context() as patch:
        patch.setattr(frozen_features.FeaturePass, "of_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(frozen_experiment())
    passes = CountedPasses(monkeypatch)
    resumed = run(frozen_experiment())
    assert passes.images == 240 - 3 * frozen_features.FEATURE_BATCH
    assert np.array_equal(expected.last.model.params, resumed.last.model.params)


def test_damaged_features_are_noticed_and_computed_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(frozen_experiment())
    file = entry_file(own_cache, "features.bin")
    content = bytearray(file.read_bytes())
    content[100] ^= 255
    file.write_bytes(content)
    passes = CountedPasses(monkeypatch)
    with pytest.warns(UserWarning, match="1 damaged rows of features"):
        again = run(frozen_experiment())
    assert passes.images == 1
    assert np.array_equal(expected.last.model.params, again.last.model.params)
    file.write_bytes(bytes(content[:1000]))  # cut short
    with pytest.warns(UserWarning, match="damaged rows of features"):
        again = run(frozen_experiment())
    assert np.array_equal(expected.last.model.params, again.last.model.params)
    entry_file(own_cache, "about.json").write_text("{")
    again = run(frozen_experiment())
    assert np.array_equal(expected.last.model.params, again.last.model.params)


def scaled(classes: int) -> nn.Module:
    """A network whose code changes while its tensors stay."""
    network = WithoutNorm(classes)
    network.stem.register_forward_hook(lambda _, __, output: output * STRENGTH["stem"])
    return network


STRENGTH = {"stem": 1.0}


def test_features_of_other_code_are_noticed_and_computed_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = frozen_experiment(model="test_frozen_part:scaled", **{"model.frozen": "block2"})
    run(experiment)
    monkeypatch.setitem(STRENGTH, "stem", 2.0)
    with pytest.warns(UserWarning, match="another version of this network's code"):
        changed = run(experiment)
    whole = run(experiment.with_settings({"data.features": "off"}))
    np.testing.assert_allclose(changed.last.model.params, whole.last.model.params, atol=1e-6)


def test_other_weights_other_images_and_another_cut_have_entries_of_their_own(
    own_cache: Path,
) -> None:
    for changes in (
        {},
        {"seed": 1},  # random weights follow the seed
        {"model.frozen": LAST_BLOCK},
        {"data.seed": 5},
    ):
        prepare(frozen_experiment(**changes))
    assert len(cached_folders()) == 4


def test_a_full_disk_is_one_line_and_what_was_written_stays_right(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feddraw.data import feature_cache

    original = feature_cache.FeatureEntry.write
    left = [2]

    def full(own: Any, rows: Any, features: Any) -> None:
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        original(own, rows, features)

    with monkeypatch.context() as patch:
        patch.setattr(feature_cache.FeatureEntry, "write", full)
        with pytest.raises(UserError, match="No space left"):
            run(frozen_experiment())
    on_images = run(frozen_experiment(**{"data.features": "off"}))
    assert np.array_equal(run(frozen_experiment()).last.model.params, on_images.last.model.params)


def test_a_disk_that_is_too_small_is_one_line_before_anything_is_written(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = shutil.disk_usage(own_cache.parent)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)
    with pytest.raises(UserError, match=r"has 0\.0 MB free; make room, or set FEDDRAW_CACHE"):
        run(frozen_experiment())
    assert not list(own_cache.glob("*"))


def test_worker_processes_compute_the_same_features(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = np.array(prepare(frozen_experiment()).dataset.images)
    for folder in cached_folders():
        for file in folder.path.iterdir():
            file.unlink()
    monkeypatch.setattr(workers, "WORKERS_PAY", 0.0)
    said: list[tuple[str, int, int]] = []
    together = prepare(frozen_experiment(), progress=lambda *step: said.append(step))
    assert np.array_equal(alone, together.dataset.images)
    assert ("features", 240, 240) in said


def test_augmented_copies_are_fixed_and_only_training_draws_them(own_cache: Path) -> None:
    experiment = frozen_experiment(**{"data.copies": 3, "training.augment": True})
    setup = prepare(experiment)
    features = setup.dataset.images
    training = np.concatenate(setup.training_rows)
    assert len(features) == 4 * 240
    for copy in range(1, 4):
        of_copy = features[training + 240 * copy]
        assert (of_copy != features[training]).any(axis=1).all()
        assert not features[setup.dataset.rows["test"] + 240 * copy].any()
    first = run(experiment)
    second = run(experiment)
    plain = run(frozen_experiment())
    assert np.array_equal(first.last.model.params, second.last.model.params)
    assert not np.array_equal(first.last.model.params, plain.last.model.params)


def test_images_are_told_apart_by_their_pixels() -> None:
    images = np.zeros((3, 4, 4), np.uint8)
    other = images.copy()
    other[2, 3, 3] = 1
    assert images_identity(images) == images_identity(images.copy())
    assert images_identity(images) != images_identity(other)
    assert images_identity(images) != images_identity(images.reshape(3, 2, 8))


def test_data_clean_deletes_features_and_with_images_prepared_images(own_cache: Path) -> None:
    run(frozen_experiment())
    images = own_cache / "somewhere-0123"
    images.mkdir()
    for name in ("about.json", "images.npy"):
        (images / name).write_text("{}")
    stranger = own_cache / "notes"
    stranger.mkdir()
    (stranger / "mine.txt").write_text("not of the cache")
    runner = CliRunner()
    assert "would delete 1 entries" in runner.invoke(app, ["data", "clean", "--dry-run"]).output
    assert "deleted 0 entries" in runner.invoke(app, ["data", "clean", "--unused", "1"]).output
    assert "deleted 1 entries" in runner.invoke(app, ["data", "clean"]).output
    assert images.is_dir()
    assert "deleted 1 entries" in runner.invoke(app, ["data", "clean", "--images"]).output
    assert [path.name for path in own_cache.iterdir()] == ["notes"]
    assert run(frozen_experiment()).metrics.test.auc.macro > 0
