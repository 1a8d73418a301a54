"""Three sites in NVIDIA FLARE's simulator, weighed by FedDRAW.

OMP_NUM_THREADS=1 python examples/nvflare/job.py [FOLDER]

The ledger is FOLDER/weights.csv, the model
FOLDER/feddraw/server/simulate_job/app_server/FL_global_model.pt.
"""

import os
import sys
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from task import Net

from feddraw.nvflare import FedDRAW

ROUNDS = 3


def first_model(folder: Path) -> Path:
    """The weights to begin with: FLARE would draw some of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.save(Net().state_dict(), folder / "initial.pt")
    return folder / "initial.pt"


def main(folder: Path) -> None:
    initial = first_model(folder)
    os.chdir(Path(__file__).parent)
    recipe = FedAvgRecipe(
        name="feddraw",
        model=Net(),
        initial_ckpt=str(initial),
        min_clients=3,
        num_rounds=ROUNDS,
        train_script="client.py",
        aggregator=FedDRAW(rounds=ROUNDS, folder=str(folder)),
    )
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(folder))).get_result()
    print((folder / "weights.csv").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").resolve())
