"""FedDRAW beside FedAvg on small phantoms: who counts how much, and what comes of it.

python examples/quickstart.py
"""

from feddraw import Experiment, iterate

SMALL = {
    "scenario.scale": 0.005,
    "rounds": 4,
    "data.size": 28,
    "data.validation": 200,
    "data.test": 400,
}


def main() -> None:
    for method in ("feddraw", "fedavg"):
        print(method)
        for result in iterate(
            Experiment(scenario="CHM-2", method=method, engine="serial").with_settings(SMALL)
        ):
            print(
                " ",
                result.round,
                {client: round(weight, 3) for client, weight in result.weights.items()},
            )
        print(
            "  test AUC",
            round(result.metrics.test.auc.macro, 3),
            "(a toy: the difference says nothing)",
        )


if __name__ == "__main__":
    main()
