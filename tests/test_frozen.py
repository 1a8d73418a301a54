"""Frozen layers: out of the optimiser, of gradients and of messages, whatever rule trains the
others.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from safetensors.numpy import load_file
from torch import nn

import tiny
from feddraw import catalog
from feddraw.engines.serial import Serial
from feddraw.errors import UserError
from feddraw.experiment.run_preparation import initial_model
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment
from feddraw.federation import Federation, federate
from feddraw.flower import job_orders
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_app import Site, client
from feddraw.flower.frozen_layers import FROZEN, FrozenLayers, take_frozen
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.reply_intake import Reply
from feddraw.flower.strategy import MethodStrategy
from feddraw.methods.fedavg import fedavg
from feddraw.server.collectors import Together
from feddraw.system.machine import installed
from feddraw.training.client import Trainer
from feddraw.training.network import Network
from feddraw.training.network_by_name import build_network, with_frozen_layers
from feddraw.training.server_images import ServerImages
from feddraw.training.settings import Training
from half_frozen_network import FROZEN_NAMES, half_frozen, site_trainer
from small import small


def methods() -> list[str]:
    """One method of every local rule, and every server rule with it."""
    seen, found = set(), []
    for name in catalog.names("methods"):
        method = catalog.find("methods", name)()
        aggregation = method.aggregation
        rules = (type(method.local), type(getattr(aggregation, "server", aggregation)))
        if not method.centralised and rules not in seen:
            seen.add(rules)
            found.append(name)
    return found


@pytest.mark.parametrize("name", methods())
def test_frozen_parameters_stay_to_the_bit_under_every_rule(name: str) -> None:
    method = catalog.find("methods", name)()
    initial = initial_model(half_frozen, seed=0)
    training = Training(
        epochs=1, batch_size=8, lr=1e-2, optimizer="sgd", momentum=0.5, weight_decay=0.1
    )
    frozen_build = with_frozen_layers(half_frozen, initial.layout.frozen)
    trainer = Trainer(
        frozen_build, tiny.examples(), tiny.shards(), training, method.local, asks=method.asks
    )
    engine = Serial(trainer)
    proxy = (
        ServerImages(frozen_build, tiny.examples(), np.arange(16), 8)
        if method.needs.server_images
        else None
    )
    before = initial.arrays()
    federation = Federation(
        method, engine, tiny.NAMES, rounds=2, seed=0, collect=Together(proxy=proxy)
    )
    for result in federate(federation, initial):
        after = result.next_model.arrays()
    for which in (trainer.network, *trainer._references):
        for frozen in FROZEN_NAMES:
            assert np.array_equal(
                which.module.get_parameter(frozen).detach().numpy(), before[frozen]
            )
            assert which.module.get_parameter(frozen).grad is None
    assert all(np.array_equal(after[frozen], before[frozen]) for frozen in FROZEN_NAMES)
    assert (after["second.weight"] != before["second.weight"]).any()
    assert len(initial.params) == sum(
        array.size for name, array in before.items() if name in TRAINED
    )


TRAINED = (
    "first_norm.weight",
    "first_norm.bias",
    "second.weight",
    "second_norm.weight",
    "classifier.weight",
    "classifier.bias",
)


def test_the_others_train_as_torch_does_with_the_same_layers_frozen() -> None:
    module, classifier = half_frozen()
    network = Network(module, classifier)
    images = torch.rand(4, 1, 8, 8)
    network(images)[0].square().sum().backward()  # type: ignore[no-untyped-call]
    values = network.values(network.grads)
    plain, _ = tiny.build()
    plain.load_state_dict(
        {name: torch.from_numpy(np.array(a)) for name, a in network.read().arrays().items()}
    )
    plain.train()(images).square().sum().backward()
    for entry in network.layout.entries:
        if entry.kind == "param":
            expected = plain.get_parameter(entry.name).grad
            assert expected is not None
            np.testing.assert_allclose(values[entry.span], expected.flatten(), rtol=1e-4, atol=1e-6)


def frozen_experiment(**changes: Any) -> Experiment:
    return small(**{"model.freeze": ["body.0", "body.1"], "rounds": 2} | changes)


def test_every_engine_gives_the_same_bits_with_frozen_layers_from_a_file_of_weights(
    tmp_path: Path,
) -> None:
    """Workers make their networks anew, without the file: the values of frozen layers are sent to
    them.
    """
    state = {name: torch.full_like(v, 0.1) for name, v in own(5).state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "w.pth")
    changes = {
        "model": "test_frozen:own",
        "model.weights": str(tmp_path / "w.pth"),
        "model.freeze": ["body.0"],
    }
    engines = ["serial", "processes"] + ["flower"] * (
        not installed("ray")
    )  # which would start processes, too
    for engine in engines:
        run(small(**changes, rounds=1, engine=engine, workers=1), tmp_path / engine)
    models = [load_file(tmp_path / engine / "model.safetensors") for engine in engines]
    assert set(models[0]) == set(state)
    assert (models[0]["body.0.weight"] == np.float32(0.1)).all()
    assert all(np.array_equal(model[name], models[0][name]) for model in models for name in state)


def test_a_run_with_frozen_layers_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(frozen_experiment()).last.model
    list(islice(iterate(frozen_experiment(), tmp_path / "run"), 1))
    again = run(frozen_experiment(), tmp_path / "run", resume=True).last.model
    assert np.array_equal(again.params, whole.params)
    frozen = again.layout.frozen
    assert frozen
    assert all(np.array_equal(array, whole.layout.frozen[name]) for name, array in frozen.items())


def own(classes: int) -> nn.Module:
    return build_network("compact", classes, {"growth": 8})[0]


def test_a_frozen_classifier_and_a_layer_that_is_not_there_are_one_line() -> None:
    with pytest.raises(UserError, match="the classifier 'classifier' is frozen"):
        Network(*build_network("compact", 5, {"freeze": "classifier"}))
    with pytest.raises(UserError, match="no 'bdy' among the layers"):
        build_network("compact", 5, {"freeze": ["bdy"]})


# -------------------------------------------------------------------------------------- over Flower


def ordered(layers: FrozenLayers, node: int) -> RecordDict:
    return layers.with_layers(
        RecordDict({"config": job_orders.add_orders(ConfigRecord(), layers.order)}), node
    )


def answered(node: int, held: str = "") -> Reply:
    about = ConfigRecord({"name": f"site {node}"})
    if held:
        about[FROZEN] = held
    return Reply(node, f"site {node}", (1, 0, ""), RecordDict({"client": about}))


def test_a_site_gets_the_frozen_layers_once_and_again_when_it_has_lost_them(tmp_path: Path) -> None:
    server = initial_model(half_frozen, seed=7).layout.frozen
    layers, trainer = FrozenLayers(server), site_trainer()
    first = ordered(layers, 1)
    assert FROZEN in first.array_records
    held = take_frozen(trainer, first, tmp_path)
    for name, array in server.items():
        assert np.array_equal(trainer.network.module.get_parameter(name).detach().numpy(), array)
    layers.note_holders([1, 2], [answered(1, held), answered(2)])
    second = ordered(layers, 1)
    assert FROZEN not in second.array_records
    assert FROZEN in ordered(layers, 2).array_records
    fresh = site_trainer()  # another process of the site
    assert take_frozen(fresh, second, tmp_path) == held
    assert all(
        np.array_equal(fresh.network.layout.frozen[name], array) for name, array in server.items()
    )
    with pytest.raises(UserError, match="come again in the next round"):
        take_frozen(site_trainer(), second, tmp_path / "nowhere")
    layers.note_holders([1], [])
    assert FROZEN in ordered(layers, 1).array_records


def test_a_site_whose_server_names_no_frozen_layers_goes_back_to_its_own(tmp_path: Path) -> None:
    """Layers of an earlier round, which others were not sent, must not be used unagreed."""
    trainer = site_trainer()
    own_build = trainer.build
    server = initial_model(half_frozen, seed=7).layout.frozen
    take_frozen(trainer, ordered(FrozenLayers(server), 1), tmp_path)
    assert take_frozen(trainer, ordered(FrozenLayers({}), 1), tmp_path) == ""
    assert trainer.build is own_build
    now = trainer.network.layout.frozen
    assert not np.array_equal(now["first.weight"], server["first.weight"])


def test_nothing_is_added_where_no_layer_is_frozen() -> None:
    layers = FrozenLayers({})
    content = RecordDict({"arrays": ArrayRecord()})
    assert layers.with_layers(content, 1) is content
    assert layers.order == {}


def test_a_federation_over_flower_keeps_the_servers_frozen_layers(tmp_path: Path) -> None:
    initial = initial_model(half_frozen, seed=7)
    trainer, sent = site_trainer(), list[bool]()

    def open_site(context: Any) -> Site:
        number = int(context.node_config["partition-id"])
        return Site(trainer, tiny.NAMES[number], number, number, tmp_path / str(number))

    class Watched(MethodStrategy):
        def configure_train(self, *arguments: Any) -> Any:
            messages = list(super().configure_train(*arguments))
            sent.append(all(FROZEN in message.content.array_records for message in messages))
            return messages

    strategy = Watched(
        fedavg(), fraction_evaluate=0.0, frozen=initial.layout.frozen, findings=("bright", "left")
    )
    nodes = [{"partition-id": number} for number in range(2)]
    strategy.start(InProcessGrid(client(open_site), nodes), model_to_arrays(initial), 3)
    assert sent == [True, False, False]
    assert strategy.model is not None
    after = strategy.model.arrays()
    assert all(np.array_equal(after[name], initial.arrays()[name]) for name in FROZEN_NAMES)
    assert all(entry.weighted for done in strategy.history for entry in done.ledger)
    assert (after["second.weight"] != initial.arrays()["second.weight"]).any()
