"""A MONAI bundle at three sites in NVIDIA FLARE's simulator, weighed by FedDRAW.

OMP_NUM_THREADS=1 python examples/monai/flare_job.py [FOLDER]
"""

import json
import os
import sys
from pathlib import Path

from algo import BUNDLE
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from feddraw.nvflare import FedDRAW

ROUNDS = 3


def main(folder: Path) -> None:
    os.chdir(Path(__file__).parent)
    network = json.loads((BUNDLE / "configs" / "train.json").read_text(encoding="utf-8"))[
        "network_def"
    ]
    kind = network.pop("_target_")
    recipe = FedAvgRecipe(
        name="monai",
        model={"class_path": f"monai.networks.nets.{kind}", "args": network},
        min_clients=3,
        num_rounds=ROUNDS,
        train_script="flare_client.py",
        train_args=str(BUNDLE.parent.resolve()),
        aggregator=FedDRAW(rounds=ROUNDS, folder=str(folder)),
    )
    recipe.execute(SimEnv(num_clients=3, workspace_root=str(folder))).get_result()
    print((folder / "weights.csv").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").resolve())
