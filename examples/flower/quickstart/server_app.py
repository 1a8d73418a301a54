"""A server as Flower's quickstart has it.

The swap from FedAvg to FedDRAW is the marked import, and nothing else.
"""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from task import Net

from feddraw.flower import FedDRAW as FedAvg  # was: from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=int(context.run_config.get("num-server-rounds", 3)),
    )
    print(
        "accuracy after each round:",
        [m["accuracy"] for m in result.evaluate_metrics_clientapp.values()],
    )
