"""A policy in a federation: the strategy's argument, the ready app's default, and the file that a
site has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import tiny
from feddraw.errors import UserError
from feddraw.experiment.running import run
from feddraw.flower import FedDRAW, MethodStrategy
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_app import app
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.server_app import serve_flower_run
from feddraw.flower.settings import READY_POLICY, read_run_config
from feddraw.methods.fednova import fednova
from feddraw.results.outcome_settings import dotted_settings
from feddraw.server.policy import Policy
from feddraw.system.file_reading import read_csv, read_toml
from small import small

NODES = [{"partition-id": number} for number in range(4)]
MOST = 10**7


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def boasting() -> ClientApp:
    """Clients that send back what they got; the last one says that it has ten million images."""
    clients = ClientApp()

    @clients.train()
    def train(message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord(
            {"num-examples": MOST if number == 3 else 1000 + number, "partition-id": number}
        )
        arrays = ArrayRecord(dict(message.content["arrays"]))
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return clients


def taken(rounds: int = 15, **options: Any) -> list[float]:
    """What the site that boasts counts, by round."""
    strategy = FedDRAW(fraction_evaluate=0.0, min_available_nodes=4, **options)
    strategy.start(InProcessGrid(boasting(), NODES), model_to_arrays(tiny.initial()), rounds)
    return [done.weights["partition 3"] for done in strategy.history]


def test_a_site_that_says_ten_million_images_is_held_to_the_policy_of_the_strategy(
    tmp_path: Path,
) -> None:
    drop_in = taken()  # in FedAvg's place nothing is limited unless asked
    assert [round(share, 3) for share in drop_in[:4]] == [1.0, 0.682, 0.532, 0.427]
    assert drop_in[0] > 0.9996
    assert max(taken(policy=READY_POLICY)) <= 1.5 / 4
    (tmp_path / "policy.toml").write_text("[policy]\nmax_size = 1000\ncap = 0.3\n")
    assert max(taken(policy=tmp_path / "policy.toml")) <= 0.3
    assert taken(policy={"max_size": 1000})[0] == pytest.approx(0.25)
    with pytest.raises(UserError, match="a policy cannot limit the weights of this method"):
        MethodStrategy(fednova(), policy={"cap": 0.5})
    with pytest.raises(UserError, match="policy has no setting 'caps'"):
        FedDRAW(policy={"caps": 0.5})


def config(**changes: Any) -> dict[str, Any]:
    """The tests' small experiment without a word about a policy."""
    settings = dotted_settings(small(**changes).table())
    return {"nodes": 3} | {
        k: v for k, v in settings.items() if not (isinstance(v, list) or k.startswith("policy."))
    }


def carry_out(settings: dict[str, Any], **node: Any) -> Any:
    nodes = [{"partition-id": number} | node for number in range(3)]
    return serve_flower_run(InProcessGrid(app, nodes, settings), settings)


def test_the_ready_app_limits_every_site_unless_its_settings_say_otherwise(
    tmp_path: Path, caplog: Any
) -> None:
    strategy = carry_out(config(rounds=1) | {"out": str(tmp_path / "flower")})
    assert strategy.policy == READY_POLICY
    assert strategy.history[0].weights["C1"] == 0.5  # with 55 % of the images
    assert read_toml(tmp_path / "flower" / "experiment.toml")["policy"]["cap_times"] == 1.5
    list(run(small(rounds=1, **{"policy.cap_times": 1.5}), tmp_path / "run"))
    for name in ("model.safetensors", "weights.csv", "metrics.json"):
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert read_csv(tmp_path / "run" / "weights.csv")[0]["clause"] == "cap_times"
    assert read_run_config(config() | {"policy.cap": 0.6})[0].policy == Policy(cap=0.6)
    assert read_run_config(config() | {"set": "policy.cap=1.0"})[0].policy == Policy()
    assert "no policy" not in caplog.text
    carry_out(config(rounds=1, method="fednova"))
    assert (
        "no policy limits how much a site counts: its server rule turns weights into coefficients"
        in caplog.text
    )


def test_a_site_does_not_train_under_another_policy_than_the_one_in_its_file(
    tmp_path: Path,
) -> None:
    agreed = tmp_path / "policy.toml"
    agreed.write_text("[policy]\ncap_times = 1.5\n")
    assert carry_out(config(rounds=1), policy=str(agreed)).history[0].ledger[0].weighted
    refused = carry_out(config(rounds=1) | {"policy.cap_times": 3.0}, policy=str(agreed))
    status = {entry.status for entry in refused.history[0].ledger}
    assert all("another policy than agreed: cap_times = 3.0, here 1.5" in one for one in status)
