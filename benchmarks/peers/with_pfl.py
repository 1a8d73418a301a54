"""pfl-research: federated averaging with every user in every round, in one process or, as
`torchrun` would, in two.
"""

import os
import subprocess
import sys

if len(sys.argv) > 1 and "RANK" not in os.environ:
    port = str(20_000 + os.getpid() % 20_000)
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "bench",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    second = subprocess.Popen(
        [sys.executable, *sys.argv], env=os.environ | {"RANK": "1", "LOCAL_RANK": "1"}
    )
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from peer_task import BATCH, LR, Bench, Net, task, tensors

TOGETHER, FIRST = "RANK" in os.environ, os.environ.get("RANK", "0") == "0"


class Learner(Net):
    """With what pfl asks of a network."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return torch.nn.functional.binary_cross_entropy_with_logits(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {}


class Pauses(TrainingProcessCallback):
    """The bench decides when a round begins; the second process waits for the first."""

    def __init__(self) -> None:
        self.bench = Bench() if FIRST else None

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._wait()
        return Metrics()

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        if self.bench:
            self.bench.done()
        return not self._wait(), Metrics()

    def _wait(self) -> bool:
        wanted = torch.tensor([1.0 if self.bench is None or self.bench.wait() else 0.0])
        if TOGETHER:
            torch.distributed.broadcast(wanted, 0)
        return bool(wanted)


def main() -> None:
    wanted = task()
    users = dict(enumerate(tensors(wanted)))
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    net = Learner(wanted.hidden)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    rounds = NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=wanted.clients,
        val_cohort_size=None,
    )
    steps = NNTrainHyperParams(local_learning_rate=LR, local_num_epochs=1, local_batch_size=BATCH)
    backend = SimulatedBackend(training_data=data, val_data=None)
    FederatedAveraging().run(
        rounds, backend, model, steps, callbacks=[Pauses()], send_metrics_to_platform=False
    )


if __name__ == "__main__":
    main()
