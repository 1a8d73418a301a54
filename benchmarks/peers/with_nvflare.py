"""NVIDIA FLARE's simulator: its FedAvg, one thread and one process per client."""

import os
import sys
import tempfile
from pathlib import Path

import torch
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.job_config.base_fed_job import BaseFedJob
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.script_runner import ScriptRunner
from peer_task import Bench, Net, task


class Paced(FedAvg):
    """Rounds begin when the bench says so, and the model is not saved."""

    def sample_clients(self, num_clients: int | None = None) -> list:
        if not hasattr(self, "bench"):
            self.bench = Bench()
        else:
            self.bench.done()
        if not self.bench.wait():
            self.panic("enough")
        return super().sample_clients(num_clients)

    def save_model(self, model: object) -> None:
        pass


def main() -> None:
    wanted = task()
    with tempfile.TemporaryDirectory() as folder:
        initial = Path(folder) / "initial.pt"
        torch.save(Net(wanted.hidden).state_dict(), initial)
        job = BaseFedJob(name="bench")
        job.to_server(PTModel(model=Net(wanted.hidden), initial_ckpt=str(initial)), id="persistor")
        job.to_server(Paced(num_clients=wanted.clients, num_rounds=1000, persistor_id="persistor"))
        job.to_clients(ScriptRunner(script="with_nvflare_client.py"))
        job.simulator_run(
            str(Path(folder) / "workspace"), n_clients=wanted.clients, threads=wanted.clients
        )


if __name__ == "__main__":
    os.chdir(Path(sys.argv[0]).parent)
    main()
