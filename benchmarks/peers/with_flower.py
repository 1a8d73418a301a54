"""Flower's simulation on Ray: FedAvg, two CPUs, a client at a time on each."""

import logging
import os

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}

import ray  # noqa: F401
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_task import Bench, Net, task, tensors, train

client, server = ClientApp(), ServerApp()
kept: dict = {}  # a worker builds the network and the data once


@client.train()
def fit(message: Message, context: Context) -> Message:
    if not kept:
        wanted = task()
        kept.update(net=Net(wanted.hidden), data=tensors(wanted))
    net, (x, y) = kept["net"], kept["data"][int(context.node_config["partition-id"])]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"loss": train(net, x, y), "num-examples": len(x)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    wanted, bench = task(), Bench()
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=wanted.clients)
    arrays = ArrayRecord(Net(wanted.hidden).state_dict())
    for number, _ in enumerate(bench.rounds(), 1):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        found, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert found is not None, "no client answered"
        arrays = found


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client, task().clients, backend_config=resources)
