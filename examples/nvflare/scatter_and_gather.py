"""The same as job.py in FLARE's older workflow: `FedDRAW` as the aggregator of ScatterAndGather.

OMP_NUM_THREADS=1 python examples/nvflare/scatter_and_gather.py [FOLDER]
"""

import os
import sys
from pathlib import Path

from job import ROUNDS, first_model
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from task import Net

from feddraw.nvflare import FedDRAW


def main(folder: Path) -> None:
    initial = first_model(folder)
    os.chdir(Path(__file__).parent)
    job = FedJob(name="feddraw", min_clients=3)
    job.to_server(
        PTFileModelPersistor(model=Net(), source_ckpt_file_full_name=str(initial)), id="persistor"
    )
    job.to_server(FullModelShareableGenerator(), id="shareable_generator")
    job.to_server(
        FedDRAW(rounds=ROUNDS, folder=str(folder)), id="aggregator"
    )  # the line that changed
    job.to_server(
        ScatterAndGather(
            min_clients=3,
            num_rounds=ROUNDS,
            wait_time_after_min_received=0,
            aggregator_id="aggregator",
            persistor_id="persistor",
            shareable_generator_id="shareable_generator",
        )
    )
    job.to_server("task.py")
    job.to_clients("task.py")
    job.to_clients(ScriptRunner(script="client.py"))
    job.simulator_run(str(folder / "feddraw"), n_clients=3)
    print((folder / "weights.csv").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").resolve())
