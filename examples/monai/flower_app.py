"""A MONAI bundle under Flower, weighed by FedDRAW: a ClientApp around `MonaiAlgo`, and a ServerApp.

In a Flower app's pyproject.toml: serverapp = "flower_app:server", clientapp = "flower_app:client".
"""

from algo import open_algo, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from feddraw.flower import FedDRAW

ROUNDS = 3
client, server = ClientApp(), ServerApp()


@client.train()
def fit(message: Message, context: Context) -> Message:
    site = int(context.node_config["partition-id"])
    weights, images, steps = train(open_algo(site), message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"num-examples": images, "num-steps": steps, "partition-id": site})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedDRAW(
        fraction_evaluate=0.0, folder=context.run_config.get("folder")
    )  # was: FedAvg
    initial = ArrayRecord(open_algo(0).trainer.network.state_dict())
    strategy.start(grid, initial, num_rounds=ROUNDS)
