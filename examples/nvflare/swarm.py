"""Three sites of a FLARE swarm, weighed by FedDRAW: no server sees a model, and every round another
site aggregates.

OMP_NUM_THREADS=1 python examples/nvflare/swarm.py [FOLDER]

Each site has the whole ledger: FOLDER/site-1/weights.csv, FOLDER/site-2/weights.csv, …
"""

import os
import sys
from pathlib import Path

from job import ROUNDS, first_model
from nvflare.app_common.ccwf.ccwf_job import CCWFJob, SwarmClientConfig, SwarmServerConfig
from nvflare.app_common.ccwf.comps.simple_model_shareable_generator import (
    SimpleModelShareableGenerator,
)
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.job_config.script_runner import ScriptRunner
from task import Net

from feddraw.nvflare import FedDRAW


def main(folder: Path) -> None:
    initial = first_model(folder)
    os.chdir(Path(__file__).parent)
    job = CCWFJob(name="feddraw", min_clients=3)
    job.add_swarm(
        server_config=SwarmServerConfig(
            num_rounds=ROUNDS, min_clients=3, start_task_timeout=300, max_status_report_interval=600
        ),
        client_config=SwarmClientConfig(
            executor=ScriptRunner(script="client.py"),
            aggregator=FedDRAW(rounds=ROUNDS, folder=str(folder)),  # the line that changed
            persistor=PTFileModelPersistor(model=Net(), source_ckpt_file_full_name=str(initial)),
            shareable_generator=SimpleModelShareableGenerator(),
            min_responses_required=3,
            learn_task_ack_timeout=300,
            final_result_ack_timeout=300,
        ),
    )
    job.to_clients("task.py")
    job.simulator_run(str(folder / "feddraw"), n_clients=3)
    for site in ("site-1", "site-2", "site-3"):
        print(site, (folder / site / "weights.csv").read_text(), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").resolve())
