"""A method is three rules, and any three go together: weights of one paper, training of another.

python examples/combining_rules.py
feddraw run --method feddraw+fedprox --set method.mu=0.1       # the same from the command line
"""

from feddraw import Experiment, iterate
from feddraw.core import Method, Weighted
from feddraw.core.schedules import Annealing
from feddraw.methods.feddraw import DualReputationAnnealing
from feddraw.methods.fedprox import Proximal

SMALL = {
    "scenario.scale": 0.005,
    "rounds": 3,
    "data.size": 28,
    "data.validation": 200,
    "data.test": 200,
}


def patient_feddraw(mu: float = 0.1, eta: float = 0.2) -> Method:
    """FedDRAW with a slower turn to similarity, and FedProx's pull to the received model."""
    weighting = DualReputationAnnealing(Annealing(eta=eta))
    return Method(Weighted(weighting), Proximal(mu))


def main() -> None:
    for method in ("feddraw+fedprox", "combining_rules:patient_feddraw"):
        print(method)
        for result in iterate(Experiment(method=method, engine="serial").with_settings(SMALL)):
            print(
                " ",
                result.round,
                {client: round(weight, 4) for client, weight in result.weights.items()},
            )


if __name__ == "__main__":
    main()
