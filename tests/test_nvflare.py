"""FedDRAW as NVIDIA FLARE's aggregator: the weights and the model of the package's own loop."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from feddraw import catalog
from feddraw.core import Job, OnItsOwn
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import initial_model
from feddraw.federation import client_seed
from feddraw.methods.feddraw import feddraw

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ProcessType, ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from feddraw.nvflare import FedDRAW, MethodAggregator, Site
from feddraw.nvflare.model_meta import pack_meta, unpack_meta
from feddraw.training.own_frozen_layers import frozen_digest
from half_frozen_network import FROZEN_NAMES, half_frozen, site_trainer


class Context:
    """What FLARE tells an aggregator; with a site's name, as in a swarm."""

    def __init__(
        self, round: int, weights: dict[str, Any], meta: Any = None, site: str = ""
    ) -> None:
        learnable = {"weights": weights, "meta": meta or {}}
        self.props = {AppConstants.CURRENT_ROUND: round, AppConstants.GLOBAL_MODEL: learnable}
        self.props[ReservedKey.PROCESS_TYPE] = (
            ProcessType.CLIENT_JOB if site else ProcessType.SERVER_JOB
        )
        self.site = site

    def get_prop(self, name: str) -> Any:
        return self.props.get(name)

    def get_identity_name(self) -> str:
        return self.site

    def get_peer_context(self) -> None:
        return None


def test_the_aggregator_gives_the_model_and_the_ledger_of_the_loop(tmp_path: Path) -> None:
    results = tiny.train(feddraw(), 2)
    bench, aggregator = tiny.bench(feddraw()), FedDRAW(rounds=2, folder=str(tmp_path))
    model = tiny.initial()
    for round in range(2):
        aggregator.reset_stats()
        for client in (2, 0, 3, 1):  # not in order
            job = Job(round, 2, client, client_seed(0, round, client), model)
            (update,) = map(tiny.copied, bench.train([job]))
            meta = {
                "client_name": tiny.NAMES[client],
                "num_examples": update.size,
                "NUM_STEPS_CURRENT_ROUND": update.steps,
            }
            aggregator.accept_model(
                FLModel(params_type=ParamsType.FULL, params=update.model.arrays(), meta=meta)
            )
        aggregator.fl_ctx = Context(round, model.arrays())
        found = aggregator.aggregate_model().params
        model = results[round].next_model
        weights = {entry.client: entry.weight for entry in aggregator.history[round]}
        assert weights == results[round].weights
        for name, array in model.arrays().items():
            assert found[name].dtype == array.dtype
            assert np.allclose(
                found[name], array, rtol=0, atol=1e-6
            )  # the sum is taken in another order of clients
    assert len((tmp_path / "weights.csv").read_text().splitlines()) == 1 + 2 * 4


def test_a_broken_model_is_refused_and_the_others_count() -> None:
    aggregator, sent = FedDRAW(rounds=3), tiny.initial().arrays()
    aggregator.reset_stats()
    for client in ("a", "b", "c"):
        params = {
            name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()
        }
        if client == "b":
            del params["classifier.bias"]
        aggregator.accept_model(
            FLModel(params=params, meta={"client_name": client, "num_examples": 5})
        )
    aggregator.fl_ctx = Context(0, sent)
    aggregator.aggregate_model()
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    reason = f"its tensors have other names: 1 of {len(sent)} are missing, such as classifier.bias"
    assert found == {"a": "weighted", "b": f"refused: {reason}", "c": "weighted"}


@pytest.mark.parametrize(
    ("change", "meta", "says"),
    [
        (
            lambda params: params | {"classifier.bias": params["classifier.bias"].astype("U8")},
            {},
            "of type <U8",
        ),
        (
            lambda params: params | {"classifier.bias": params["classifier.bias"].astype(object)},
            {},
            "of type object",
        ),
        (
            lambda params: params | {"classifier.bias": params["classifier.bias"][:1]},
            {},
            "of shape (1,)",
        ),
        (lambda params: params, {"num_examples": float("inf")}, "cannot convert float infinity"),
        (lambda params: params, {"num_examples": "many"}, "invalid literal"),
        (lambda params: params, {"num_examples": -1}, "size -1"),
    ],
)
def test_what_is_no_model_is_refused_in_a_line_and_the_others_count(
    change: Any, meta: Any, says: str
) -> None:
    aggregator, sent = FedDRAW(rounds=3), tiny.initial().arrays()
    aggregator.reset_stats()
    for client in ("a", "b", "c"):
        params = {
            name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()
        }
        about = {"client_name": client, "num_examples": 5} | (meta if client == "b" else {})
        aggregator.accept_model(
            FLModel(params=change(params) if client == "b" else params, meta=about)
        )
    aggregator.fl_ctx = Context(0, sent)
    aggregator.aggregate_model()
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    assert (found["a"], found["c"]) == ("weighted", "weighted")
    assert found["b"].startswith("refused: ")
    assert says in found["b"]


def numpy_round(aggregator: FedDRAW, round: int, meta: dict[str, Any], params: Any = None) -> None:
    """A round of FLARE's hello-numpy: three sites, one matrix."""
    sent = {"numpy_key": np.arange(9, dtype=np.float32).reshape(3, 3)}
    aggregator.reset_stats()
    for client in ("site-1", "site-2", "site-3"):
        about = {"client_name": client} | meta
        aggregator.accept_model(
            FLModel(
                params={"numpy_key": sent["numpy_key"] + 1} if params is None else params,
                meta=about,
            )
        )
    aggregator.fl_ctx = Context(round, sent)
    aggregator.aggregate_model()


def test_a_clients_name_cannot_write_to_the_servers_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "feddraw.nvflare"):
        numpy_round(
            FedDRAW(rounds=3), 0, {"num_examples": 5, "client_name": "A\x1b[2J\nround 9: B"}
        )
    assert any("A\\x1b[2J\\nround 9" in said for said in caplog.messages)
    assert all(said.isprintable() for said in caplog.messages)


def test_sites_that_send_neither_size_nor_steps_stop_the_job_with_what_is_missing() -> None:
    with pytest.raises(
        RunFailed, match="no site sends num_examples or NUM_STEPS_CURRENT_ROUND in its model's meta"
    ):
        numpy_round(FedDRAW(rounds=3), 0, {})
    aggregator = FedDRAW(rounds=3)
    numpy_round(aggregator, 0, {"NUM_STEPS_CURRENT_ROUND": 5})
    assert [entry.status for entry in aggregator.history[0]] == ["weighted"] * 3


def rounds_by_steps(aggregator: MethodAggregator, steps: list[dict[str, int]]) -> None:
    """Rounds of sites that send the same matrix, and of all numbers only these steps."""
    sent = {"numpy_key": np.arange(9, dtype=np.float32).reshape(3, 3)}
    for round, of_sites in enumerate(steps):
        aggregator.reset_stats()
        for client, said in of_sites.items():
            meta = {"client_name": client, "NUM_STEPS_CURRENT_ROUND": said}
            aggregator.accept_model(FLModel(params={"numpy_key": sent["numpy_key"] + 1}, meta=meta))
        aggregator.fl_ctx = Context(round, sent)
        aggregator.aggregate_model()


def test_steps_that_add_up_over_rounds_are_not_a_size_that_grows(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    aggregator = MethodAggregator("fedavg", rounds=4, folder=str(tmp_path))
    rounds_by_steps(
        aggregator,
        [
            {"site-1": 20, "site-2": 20, "site-3": 20},
            {"site-1": 40, "site-2": 40, "site-3": 40},
            {"site-1": 60, "site-2": 60, "site-3": 60},
            {"site-1": 80, "site-2": 80, "site-3": 20},  # the third has restarted
        ],
    )
    for ledger in aggregator.history:
        assert [entry.weight for entry in ledger] == pytest.approx([1 / 3] * 3)
        assert [entry.size for entry in ledger] == [20, 20, 20]
    last = aggregator.history[3]
    note = "weighted: says 80 steps after 20 in its first answer, 20 count as its size"
    assert [entry.status for entry in last] == [note, note, "weighted"]
    assert [entry.steps for entry in last] == [None, None, 20]  # how many were of the round?
    assert (tmp_path / "weights.csv").read_text().splitlines()[-3].startswith("3,site-1,20,,")
    told = [said for said in caplog.messages if "have grown" in said]
    assert [said.split()[0] for said in told] == ["site-1", "site-2", "site-3"]  # each once
    line = "set self.__fl_meta__ = {'num_examples': number of its images, 'NUM_STEPS_CURRENT_ROUND'"
    assert all(line in said for said in told)


def test_a_method_that_counts_steps_refuses_those_that_add_up_or_are_not_told() -> None:
    aggregator = MethodAggregator("inverse_steps", rounds=4)
    rounds_by_steps(aggregator, [{"a": 20, "b": 20, "c": 20}, {"a": 40, "b": 20, "c": 20}])
    statuses = [entry.status for entry in aggregator.history[1]]
    assert statuses[1:] == ["weighted", "weighted"]
    assert statuses[0].startswith("refused: its steps grew from 20 to 40, and this method needs")
    assert statuses[0].endswith("in its model's meta (in Lightning: self.__fl_meta__)")
    with pytest.raises(RunFailed, match=r"inverse_steps needs .* NUM_STEPS_CURRENT_ROUND in its"):
        numpy_round(MethodAggregator("inverse_steps", rounds=3), 0, {"num_examples": 5})
    with pytest.raises(RunFailed, match=r"fednova needs 'progress' .with plain SGD its number of"):
        numpy_round(MethodAggregator("fednova", rounds=3), 0, {"num_examples": 5})


def test_images_may_grow_and_steps_that_are_not_told_are_unknown() -> None:
    aggregator = FedDRAW(rounds=3)
    numpy_round(aggregator, 0, {"num_examples": 5})
    numpy_round(aggregator, 1, {"num_examples": 9})  # new patients
    assert [entry.size for entry in aggregator.history[1]] == [9, 9, 9]
    assert [entry.steps for entry in aggregator.history[1]] == [None, None, None]


class LightningSite:
    """A Lightning client as FLARE patches it: its own process, whose trainer goes on in every
    round.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, received: list[FLModel]) -> None:
        lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
        from nvflare.app_opt.lightning import api

        class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.head = torch.nn.Linear(4, 2)

            def training_step(self, batch: Any, index: int) -> Any:
                return self.head(batch[0]).mean()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        self.sent: list[FLModel] = []
        stand_ins = {
            "init": lambda rank: None,
            "get_config": dict,
            "receive": lambda: received[-1],
            "is_train": lambda: True,
            "is_evaluate": lambda: False,
            "is_submit_model": lambda: False,
            "clear": lambda: None,
            "send": lambda model, clear_cache: self.sent.append(model),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(api, name, stand_in)
        self.net = Net()
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        self.trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", **dict.fromkeys(quiet, False)
        )
        api.patch(self.trainer)
        images = torch.utils.data.TensorDataset(torch.zeros(10, 4))
        self.images = torch.utils.data.DataLoader(images, batch_size=2)

    def train(self) -> FLModel:
        self.trainer.fit(self.net, self.images)
        return self.sent[-1]


@pytest.mark.filterwarnings("ignore")  # Lightning's, about few workers
def test_a_lightning_client_that_restarts_keeps_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "head.weight": np.zeros((2, 4), np.float32),
        "head.bias": np.zeros(2, np.float32),
    }
    received: list[FLModel] = []
    aggregator = MethodAggregator("fedavg", rounds=4)
    sites: dict[str, LightningSite] = {}
    for round in range(4):
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        received.append(FLModel(params=tensors, current_round=round))
        aggregator.reset_stats()
        for name in ("site-1", "site-2", "site-3"):
            if round == 0 or (round == 3 and name == "site-3"):
                sites[name] = LightningSite(monkeypatch, received)
            site = sites[name]
            monkeypatch.setattr(
                "nvflare.app_opt.lightning.api.send",
                lambda model, clear_cache, sent=site.sent: sent.append(model),
            )
            answer = site.train()
            answer.meta["client_name"] = name
            aggregator.accept_model(answer)
        aggregator.fl_ctx = Context(round, arrays)
        arrays = aggregator.aggregate_model().params
        assert [entry.weight for entry in aggregator.history[round]] == pytest.approx([1 / 3] * 3)
        assert [entry.size for entry in aggregator.history[round]] == [5, 5, 5]


def test_two_rounds_in_which_nobody_counts_end_the_job(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = FedDRAW(rounds=5)
    numpy_round(aggregator, 0, {"num_examples": 5})
    numpy_round(aggregator, 1, {"num_examples": 5}, {})
    assert [r.levelname for r in caplog.records if "no update counted" in r.message] == ["ERROR"]
    with pytest.raises(RunFailed, match="no update counted in two rounds in a row"):
        numpy_round(aggregator, 2, {"num_examples": 5}, {})


def test_the_last_layer_is_found_and_told_or_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "feddraw.nvflare"):
        numpy_round(FedDRAW(rounds=3), 0, {"num_examples": 5})
    assert "classifier: numpy_key, 3 outputs" in caplog.messages
    heads = {
        "edema.weight": np.ones((2, 4), np.float32),
        "effusion.weight": np.ones((3, 4), np.float32),
    }
    for classifier, says in (
        ("", "cannot identify the classifier: it may be edema, effusion"),
        ("effusion", ""),
    ):
        aggregator = FedDRAW(rounds=3, classifier=classifier)
        for client in ("site-1", "site-2"):
            aggregator.accept_model(
                FLModel(params=heads, meta={"client_name": client, "num_examples": 5})
            )
        aggregator.fl_ctx = Context(0, heads)
        with pytest.raises(UserError, match=says) if says else nullcontext():
            aggregator.aggregate_model()


def test_a_policy_limits_a_site_that_says_ten_million_images(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[policy]\ncap_times = 1.5\n")
    for policy in ({"cap_times": 1.5}, str(tmp_path / "policy.toml")):
        aggregator, sent = FedDRAW(rounds=3, policy=policy), tiny.initial().arrays()
        aggregator.reset_stats()
        for client, size in (("a", 5), ("b", 7), ("c", 10**7)):
            params = {
                name: array + (0.1 if array.dtype == np.float32 else 1)
                for name, array in sent.items()
            }
            aggregator.accept_model(
                FLModel(params=params, meta={"client_name": client, "num_examples": size})
            )
        aggregator.fl_ctx = Context(0, sent)
        aggregator.aggregate_model()
        found = {entry.client: (entry.weight, entry.clause) for entry in aggregator.history[0]}
        assert found["c"] == (0.5, "cap_times")
        assert sum(weight for weight, _ in found.values()) == pytest.approx(1)


# --------------------------------------------------------------------------------------- any method


def averaging() -> list[str]:
    """The methods that average models with no images at the server."""
    made = {name: catalog.find("methods", name)() for name in catalog.names("methods")}
    return [
        name
        for name, method in made.items()
        if not (method.centralised or method.needs.server_images)
        and not isinstance(method.local, OnItsOwn)
    ]


def sites_of(method: Any) -> list[Site]:
    return [
        Site(method, tiny.bench(method).trainer, number, name=name, shard=number)
        for number, name in enumerate(tiny.NAMES)
    ]


@pytest.mark.parametrize("name", averaging())
def test_every_method_gives_the_models_and_the_weights_of_the_loop(name: str) -> None:
    method = catalog.find("methods", name)()
    results = tiny.train(method, 3)
    aggregator, sites = MethodAggregator(name, rounds=3), sites_of(method)
    model, meta = tiny.initial().arrays(), dict[str, Any]()
    for round in range(3):
        aggregator.reset_stats()
        for number in (2, 0, 3, 1):
            sent = FLModel(params=model, current_round=round, total_rounds=3, meta=meta)
            answer = sites[number].train(sent)
            answer.meta["client_name"] = (
                f"{number} {tiny.NAMES[number]}"  # in the order of the loop's clients
            )
            sites[number].name = answer.meta["client_name"]
            aggregator.accept_model(answer)
        aggregator.fl_ctx = Context(round, model, meta)
        found = aggregator.aggregate_model()
        weights = {entry.client.split()[1]: entry.weight for entry in aggregator.history[round]}
        assert weights == results[round].weights
        model, meta = found.params, found.meta
        for key, array in results[round].next_model.arrays().items():
            assert np.array_equal(model[key], array), (round, key)


def test_a_method_that_needs_other_clients_says_what_they_must_run() -> None:
    with pytest.raises(RunFailed, match=r"scaffold needs .* train with feddraw\.nvflare\.Site"):
        numpy_round(MethodAggregator("scaffold", rounds=3), 0, {"num_examples": 5})
    with pytest.raises(UserError, match="averages no models"):
        MethodAggregator("centralised", rounds=3)
    with pytest.raises(UserError, match="gate: "):
        MethodAggregator("fedavg", rounds=3, gate={"max_sice": 4})
    with pytest.raises(UserError, match=r"gate\.norm must be one of"):
        MethodAggregator("fedavg", rounds=3, gate={"norm": "refuze"})


def test_a_site_whose_update_did_not_count_forgets_what_it_learnt() -> None:
    method = catalog.find("methods", "scaffold")()
    site = sites_of(method)[0]
    sent = {"current_round": 0, "total_rounds": 2, "params": tiny.initial().arrays()}
    site.train(FLModel(**sent, meta=pack_meta({"weighted": {}})))
    site.train(FLModel(**sent, meta=pack_meta({"weighted": {"East": 0}})))
    assert not site._memory
    site.train(FLModel(**sent, meta=pack_meta({"weighted": {"North": 0}})))
    assert site._memory


def test_a_site_that_is_not_asked_for_a_round_keeps_what_it_learnt_before() -> None:
    aggregator, sites = (
        MethodAggregator("scaffold", rounds=3),
        sites_of(catalog.find("methods", "scaffold")()),
    )
    model, meta = tiny.initial().arrays(), dict[str, Any]()
    for round, asked in enumerate((sites, sites[1:])):
        aggregator.reset_stats()
        for site in asked:
            answer = site.train(
                FLModel(params=model, current_round=round, total_rounds=3, meta=meta)
            )
            answer.meta["client_name"] = site.name
            aggregator.accept_model(answer)
        aggregator.fl_ctx = Context(round, model, meta)
        found = aggregator.aggregate_model()
        model, meta = found.params, found.meta
    assert unpack_meta(meta)["weighted"] == {"North": 0, "East": 1, "South": 1, "West": 1}
    sites[0].train(FLModel(params=model, current_round=2, total_rounds=3, meta=meta))
    assert sites[0]._memory


def test_what_travels_beside_a_model_is_words_and_bytes_and_comes_back_as_it_was() -> None:
    tree = {
        "state": {"mean": np.arange(6, dtype=np.float32).reshape(2, 3), "round": 3},
        "names": ["A", "B"],
    }
    meta = pack_meta(tree)
    assert {type(value) for value in meta["feddraw"]["bits"].values()} == {bytes}
    back = unpack_meta(meta)
    assert np.array_equal(back["state"].pop("mean"), tree["state"]["mean"])  # type: ignore[index]
    assert back == {"state": {"round": 3}, "names": ["A", "B"]}
    assert pack_meta({}) == unpack_meta({}) == unpack_meta(None) == {}
    with pytest.raises(UserError, match="cannot be read"):
        unpack_meta({"feddraw": {"words": "[[1", "bits": {}}})


# ----------------------------------------------------------------------------------- the older kind


def sent_by(
    client: str, params: Any, round: int = 0, kind: str = DataKind.WEIGHTS, **meta: Any
) -> Shareable:
    """A result as ScatterAndGather and a swarm's gatherer pass it on."""
    shareable = DXO(kind, data=params, meta=meta).to_shareable()
    shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, round)
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: client})
    return shareable


def test_the_older_kind_takes_weights_and_differences_and_knows_a_site_by_flares_word() -> None:
    aggregator, sent = (
        FedDRAW(rounds=3),
        {"numpy_key": np.arange(9, dtype=np.float32).reshape(3, 3)},
    )
    context = Context(0, sent)
    ones = {"numpy_key": np.ones((3, 3), np.float32)}
    whole = {"numpy_key": sent["numpy_key"] + 1}
    assert aggregator.accept(
        sent_by("site-1", whole, num_examples=5, client_name="site-9"), context
    )
    assert aggregator.accept(
        sent_by("site-2", ones, kind=DataKind.WEIGHT_DIFF, num_examples=5), context
    )
    assert not aggregator.accept(sent_by("site-3", whole, round=7, num_examples=5), context)
    nothing = Shareable()
    nothing.set_peer_props({ReservedKey.IDENTITY_NAME: "site-4"})
    assert not aggregator.accept(nothing, context)
    shareable = aggregator.aggregate(context)
    assert np.array_equal(shareable["DXO"]["data"]["numpy_key"], whole["numpy_key"])
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    assert found["site-1"] == found["site-2"] == "weighted"
    assert "site-3" not in found
    assert found["site-4"].startswith("refused: no model: ")
    aggregator.accept(sent_by("site-1", whole, round=1, num_examples=5), later := Context(1, sent))
    aggregator.aggregate(later)  # nobody has called reset, as in a swarm
    assert [entry.status for entry in aggregator.history[1]][:2] == [
        "unused: only 1 client could count, and policy.min_sites asks for 2",
        "missing",
    ]


def test_one_site_without_a_size_is_refused_with_the_line_to_add_and_the_others_count() -> None:
    aggregator, sent = FedDRAW(rounds=3), tiny.initial().arrays()
    about: dict[str, dict[str, Any]] = {"a": {"num_examples": 5}, "b": {}, "c": {"num_examples": 5}}
    for client, meta in about.items():
        moved = {
            name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()
        }
        aggregator.accept(sent_by(client, moved, **meta), Context(0, sent))
    aggregator.aggregate(Context(0, sent))
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    assert (found["a"], found["c"]) == ("weighted", "weighted")
    assert (
        "let the client's script send FLModel(params=…, meta={'num_examples': number of its images"
        in found["b"]
    )


def test_a_swarm_hands_on_the_first_steps_of_every_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddraw.nvflare.aggregator.SWARM_PAUSE", 0.0)
    sent = {"numpy_key": np.arange(9, dtype=np.float32).reshape(3, 3)}
    swarm = {name: MethodAggregator("fedavg", rounds=2) for name in ("a", "b")}
    meta: dict[str, Any] = {}
    for round, (gatherer, aggregator) in enumerate(swarm.items()):
        context = Context(round, sent, meta, site=gatherer)
        for name, steps in (("a", 20 * (round + 1)), ("b", 20)):  # b has restarted
            said: dict[str, Any] = {"NUM_STEPS_CURRENT_ROUND": steps}
            aggregator.accept(sent_by(name, sent, round, **said), context)
        meta = FLModelUtils.from_shareable(aggregator.aggregate(context)).meta
    assert [entry.weight for entry in swarm["b"].history[1]] == pytest.approx([0.5, 0.5])


def test_a_swarm_hands_the_state_on_and_every_site_has_the_whole_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddraw.nvflare.aggregator.SWARM_PAUSE", 0.0)
    method = catalog.find("methods", "fedadam")()  # it remembers moments
    results, sites = tiny.train(method, 3), sites_of(method)
    names = [f"{number} {name}" for number, name in enumerate(tiny.NAMES)]
    swarm = {name: MethodAggregator("fedadam", rounds=3, folder=str(tmp_path)) for name in names}
    model, meta = tiny.initial().arrays(), dict[str, Any]()
    for round, gatherer in enumerate((names[2], names[0], names[3])):
        for name, aggregator in swarm.items():
            aggregator.handle_event(
                AppEventType.ROUND_STARTED, Context(round, model, meta, site=name)
            )
        context = Context(round, model, meta, site=gatherer)
        for number, name in enumerate(names):
            answer = sites[number].train(
                FLModel(params=model, current_round=round, total_rounds=3, meta=meta)
            )
            swarm[gatherer].accept(sent_by(name, answer.params, round, **answer.meta), context)
        found = FLModelUtils.from_shareable(swarm[gatherer].aggregate(context))
        model, meta = found.params, found.meta
        for key, array in results[round].next_model.arrays().items():
            assert np.array_equal(model[key], array), (round, key)
    for name, aggregator in swarm.items():
        aggregator.handle_event(EventType.END_RUN, Context(2, model, meta, site=name))
    ledgers = {(tmp_path / name / "weights.csv").read_bytes() for name in names}
    assert len(ledgers) == 1
    assert len(ledgers.pop().splitlines()) == 1 + 3 * 4


# ----------------------------------------------------------------------------------- frozen layers


def frozen_sites(backbone: str = "") -> list[Site]:
    """Sites whose networks draw their own frozen layers, so that only the job's make them equal."""
    method = catalog.find("methods", "fedavg")()
    return [
        Site(method, site_trainer(), number, name=name, shard=number, backbone=backbone)
        for number, name in enumerate(tiny.NAMES)
    ]


def frozen_round(
    aggregator: MethodAggregator, sites: list[Site], round: int, model: Any, meta: Any
) -> tuple[Any, Any, list[FLModel]]:
    """The next model with its meta, and what the sites sent."""
    aggregator.reset_stats()
    answers = []
    for site in sites:
        answer = site.train(FLModel(params=model, current_round=round, total_rounds=3, meta=meta))
        answer.meta["client_name"] = site.name
        answers.append(answer)
        aggregator.accept_model(answer)
    aggregator.fl_ctx = Context(round, model, meta)
    found = aggregator.aggregate_model()
    return found.params, found.meta, answers


def statuses(aggregator: MethodAggregator) -> list[str]:
    return [entry.status for entry in aggregator.history[-1]]


def test_frozen_layers_go_out_with_the_first_model_and_never_come_back() -> None:
    first = initial_model(half_frozen, seed=7)
    aggregator, sites = MethodAggregator("fedavg", rounds=3), frozen_sites()
    model, meta = first.arrays(), dict[str, Any]()
    trained = set(model) - set(FROZEN_NAMES)
    for round in range(3):
        model, meta, answers = frozen_round(aggregator, sites, round, model, meta)
        assert all(set(answer.params) == trained for answer in answers)
        assert set(model) == trained
        assert statuses(aggregator) == ["weighted"] * 4
    for site in sites:
        used = site.trainer.network.layout.frozen
        assert all(np.array_equal(used[name], first.layout.frozen[name]) for name in FROZEN_NAMES)
    assert not np.array_equal(model["second.weight"], first.arrays()["second.weight"])


def test_frozen_layers_from_a_file_give_the_bits_of_those_that_were_sent() -> None:
    """A job whose model begins without them: nothing frozen travels."""
    first = initial_model(half_frozen, seed=7)
    results = {}
    for way in ("sent", "from a file"):
        aggregator, sites = MethodAggregator("fedavg", rounds=3), frozen_sites()
        model, meta = first.arrays(), dict[str, Any]()
        if way == "from a file":
            model = {name: array for name, array in model.items() if name not in FROZEN_NAMES}
            for site in sites:
                site.trainer.freeze(first.layout.frozen)
        for round in range(2):
            model, meta, _ = frozen_round(aggregator, sites, round, model, meta)
        results[way] = model
    assert results["sent"].keys() == results["from a file"].keys()
    for name, array in results["sent"].items():
        assert np.array_equal(array, results["from a file"][name]), name


def test_a_site_whose_file_has_other_frozen_layers_does_not_train_on_the_jobs() -> None:
    first = initial_model(half_frozen, seed=7)
    site = frozen_sites("/srv/backbones/other.pt")[0]
    own = frozen_digest(site.trainer.network.layout.frozen)
    agreed = frozen_digest(first.layout.frozen)
    said = f"other.pt: its frozen tensors have SHA-256 {own}, the server's {agreed};"
    with pytest.raises(UserError, match=said):
        site.train(FLModel(params=first.arrays(), current_round=0, total_rounds=3, meta={}))
    late = frozen_sites()[1]  # a process that began after the first round
    trained = {name: a for name, a in first.arrays().items() if name not in FROZEN_NAMES}
    with pytest.raises(UserError, match="went out with its first model"):
        late.train(
            FLModel(
                params=trained, current_round=1, total_rounds=3, meta=pack_meta({"frozen": agreed})
            )
        )


def test_one_site_with_other_frozen_layers_is_refused_and_without_a_majority_the_job_ends() -> None:
    first = initial_model(half_frozen, seed=7)
    trained = {name: a for name, a in first.arrays().items() if name not in FROZEN_NAMES}
    sites = frozen_sites()
    for site in sites[1:]:
        site.trainer.freeze(first.layout.frozen)
    aggregator = MethodAggregator("fedavg", rounds=3)
    _, meta, _ = frozen_round(aggregator, sites, 0, trained, {})
    agreed = frozen_digest(first.layout.frozen)
    own = frozen_digest(sites[0].trainer.network.layout.frozen)
    refused = f"refused: its frozen layers are of SHA-256 {own}, the job's are of {agreed}"
    assert sorted(statuses(aggregator)) == [refused, *["weighted"] * 3]
    assert unpack_meta(meta)["frozen"] == agreed
    with pytest.raises(RunFailed, match="different frozen layers"):
        frozen_round(MethodAggregator("fedavg", rounds=3), frozen_sites(), 0, trained, {})


def test_one_site_cannot_cut_the_model_by_leaving_tensors_out() -> None:
    sent = tiny.initial().arrays()
    aggregator = MethodAggregator("fedavg", rounds=3)
    for client in ("a", "b", "c"):
        params = dict(sent)
        meta: dict[str, Any] = {"client_name": client, "num_examples": 5}
        if client == "a":
            left_out = {"classifier.bias": params.pop("classifier.bias")}
            meta |= pack_meta({"frozen": frozen_digest(left_out)})
        aggregator.accept_model(FLModel(params=params, meta=meta))
    aggregator.fl_ctx = Context(0, sent)
    assert set(aggregator.aggregate_model().params) == set(sent)
    assert statuses(aggregator)[1:] == ["weighted", "weighted"]
    assert statuses(aggregator)[0].startswith("refused: its tensors have other names")


def test_a_swarm_hands_the_digest_of_the_frozen_layers_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddraw.nvflare.aggregator.SWARM_PAUSE", 0.0)
    first = initial_model(half_frozen, seed=7)
    sites = frozen_sites()
    swarm = [MethodAggregator("fedavg", rounds=2) for _ in range(2)]
    model, meta = first.arrays(), dict[str, Any]()
    for round, aggregator in enumerate(swarm):
        context = Context(round, model, meta, site=f"gatherer {round}")
        for site in sites:
            answer = site.train(
                FLModel(params=model, current_round=round, total_rounds=2, meta=meta)
            )
            if round and site is sites[0]:
                answer.meta |= pack_meta({"frozen": "0" * 64})
            aggregator.accept(sent_by(site.name, answer.params, round, **answer.meta), context)
        found = FLModelUtils.from_shareable(aggregator.aggregate(context))
        model, meta = found.params, found.meta
    assert set(model) == set(first.arrays()) - set(FROZEN_NAMES)
    lost = [entry for entry in swarm[1].history[-1] if not entry.weighted]
    assert [entry.client for entry in lost] == [sites[0].name]
    assert "the job's are of " + frozen_digest(first.layout.frozen) in lost[0].status
