"""FedDRAW as NVIDIA FLARE's aggregator: the weights and the model of the package's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from feddraw.core import Job
from feddraw.errors import RunFailed
from feddraw.federation import seed_of
from feddraw.methods.feddraw import feddraw

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants

from feddraw.nvflare import FedDRAW


class Context:
    """What FLARE tells an aggregator."""

    def __init__(self, round: int, weights: dict[str, Any]) -> None:
        self.props = {AppConstants.CURRENT_ROUND: round, AppConstants.GLOBAL_MODEL: {"weights": weights}}

    def get_prop(self, name: str) -> Any:
        return self.props[name]


def test_the_aggregator_gives_the_model_and_the_ledger_of_the_loop(tmp_path: Path) -> None:
    results = tiny.train(feddraw(), 2)
    bench, aggregator = tiny.bench(feddraw()), FedDRAW(rounds=2, folder=str(tmp_path))
    model = tiny.initial()
    for round in range(2):
        aggregator.reset_stats()
        for client in (2, 0, 3, 1):  # not in order
            job = Job(round, 2, client, seed_of(0, round, client), model)
            (update,) = map(tiny.copied, bench.train([job]))
            meta = {
                "client_name": tiny.NAMES[client],
                "num_examples": update.size,
                "NUM_STEPS_CURRENT_ROUND": update.steps,
            }
            aggregator.accept_model(FLModel(params_type=ParamsType.FULL, params=update.model.arrays(), meta=meta))
        aggregator.fl_ctx = Context(round, model.arrays())
        found = aggregator.aggregate_model().params
        model = results[round].next_model
        weights = {entry.client: entry.weight for entry in aggregator.history[round]}
        assert weights == results[round].weights
        for name, array in model.arrays().items():
            assert found[name].dtype == array.dtype
            assert np.allclose(found[name], array, rtol=0, atol=1e-6)  # the sum is taken in another order of clients
    assert len((tmp_path / "weights.csv").read_text().splitlines()) == 1 + 2 * 4


def test_a_broken_model_is_refused_and_the_others_count() -> None:
    aggregator, sent = FedDRAW(rounds=3), tiny.initial().arrays()
    aggregator.reset_stats()
    for client in ("a", "b", "c"):
        params = {name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()}
        if client == "b":
            del params["classifier.bias"]
        aggregator.accept_model(FLModel(params=params, meta={"client_name": client, "num_examples": 5}))
    aggregator.fl_ctx = Context(0, sent)
    aggregator.aggregate_model()
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    assert found == {"a": "counted", "b": "refused: its tensors have other names", "c": "counted"}


@pytest.mark.parametrize(
    ("change", "meta", "says"),
    [
        (lambda params: params | {"classifier.bias": params["classifier.bias"].astype("U8")}, {}, "of type <U8"),
        (lambda params: params | {"classifier.bias": params["classifier.bias"].astype(object)}, {}, "of type object"),
        (lambda params: params | {"classifier.bias": params["classifier.bias"][:1]}, {}, "of shape (1,)"),
        (lambda params: params, {"num_examples": float("inf")}, "cannot convert float infinity"),
        (lambda params: params, {"num_examples": "many"}, "invalid literal"),
        (lambda params: params, {"num_examples": -1}, "size -1"),
    ],
)
def test_what_is_no_model_is_refused_in_a_line_and_the_others_count(change: Any, meta: Any, says: str) -> None:
    aggregator, sent = FedDRAW(rounds=3), tiny.initial().arrays()
    aggregator.reset_stats()
    for client in ("a", "b", "c"):
        params = {name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()}
        about = {"client_name": client, "num_examples": 5} | (meta if client == "b" else {})
        aggregator.accept_model(FLModel(params=change(params) if client == "b" else params, meta=about))
    aggregator.fl_ctx = Context(0, sent)
    aggregator.aggregate_model()
    found = {entry.client: entry.status for entry in aggregator.history[0]}
    assert (found["a"], found["c"]) == ("counted", "counted")
    assert found["b"].startswith("refused: ")
    assert says in found["b"]


def numpy_round(aggregator: FedDRAW, round: int, meta: dict[str, Any], params: Any = None) -> None:
    """A round of FLARE's hello-numpy: three sites, one matrix."""
    sent = {"numpy_key": np.arange(9, dtype=np.float32).reshape(3, 3)}
    aggregator.reset_stats()
    for client in ("site-1", "site-2", "site-3"):
        about = {"client_name": client} | meta
        aggregator.accept_model(
            FLModel(params={"numpy_key": sent["numpy_key"] + 1} if params is None else params, meta=about)
        )
    aggregator.fl_ctx = Context(round, sent)
    aggregator.aggregate_model()


def test_a_clients_name_cannot_write_to_the_servers_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "feddraw.nvflare"):
        numpy_round(FedDRAW(rounds=3), 0, {"num_examples": 5, "client_name": "A\x1b[2J\nround 9: B"})
    assert any("A\\x1b[2J\\nround 9" in said for said in caplog.messages)
    assert all(said.isprintable() for said in caplog.messages)


def test_sites_that_send_neither_size_nor_steps_stop_the_job_with_what_is_missing() -> None:
    with pytest.raises(RunFailed, match="no site sends num_examples or NUM_STEPS_CURRENT_ROUND in its model's meta"):
        numpy_round(FedDRAW(rounds=3), 0, {})
    aggregator = FedDRAW(rounds=3)
    numpy_round(aggregator, 0, {"NUM_STEPS_CURRENT_ROUND": 5})
    assert [entry.status for entry in aggregator.history[0]] == ["counted"] * 3


def test_two_rounds_in_which_nobody_counts_end_the_job(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = FedDRAW(rounds=5)
    numpy_round(aggregator, 0, {"num_examples": 5})
    numpy_round(aggregator, 1, {"num_examples": 5}, {})
    assert [r.levelname for r in caplog.records if "no update counted" in r.message] == ["ERROR"]
    with pytest.raises(RunFailed, match="no update counted in two rounds in a row"):
        numpy_round(aggregator, 2, {"num_examples": 5}, {})


def test_a_layer_that_is_only_guessed_to_be_the_classifier_is_told(caplog: pytest.LogCaptureFixture) -> None:
    numpy_round(FedDRAW(rounds=3), 0, {"num_examples": 5})
    assert "the layer 'numpy_key' is taken as the classifier, though it is not a matrix with a bias" in caplog.text


def test_a_policy_limits_a_site_that_says_ten_million_images(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[policy]\ncap_times = 1.5\n")
    for policy in ({"cap_times": 1.5}, str(tmp_path / "policy.toml")):
        aggregator, sent = FedDRAW(rounds=3, policy=policy), tiny.initial().arrays()
        aggregator.reset_stats()
        for client, size in (("a", 5), ("b", 7), ("c", 10**7)):
            params = {name: array + (0.1 if array.dtype == np.float32 else 1) for name, array in sent.items()}
            aggregator.accept_model(FLModel(params=params, meta={"client_name": client, "num_examples": size}))
        aggregator.fl_ctx = Context(0, sent)
        aggregator.aggregate_model()
        found = {entry.client: (entry.weight, entry.clause) for entry in aggregator.history[0]}
        assert found["c"] == (0.5, "cap_times")
        assert sum(weight for weight, _ in found.values()) == pytest.approx(1)
