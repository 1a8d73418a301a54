"""A server that only aggregates runs with what requirements-server.txt names: no torch, no scipy,
no pictures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FEWER = """
import sys
for name in ("torch", "scipy", "matplotlib", "skimage", "PIL", "pooch", "monai", "pandas"):
    sys.modules[name] = None
import numpy as np
folder = sys.argv[1]
"""

FLOWER = """
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from feddraw.flower import FedDRAW
from feddraw.flower.in_process_grid import InProcessGrid

app = ClientApp()

@app.train()
def train(message, context):
    number = int(context.node_config["partition-id"])
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    moved = {name: Array(array + np.float32(0.1 * (1 + number))) for name, array in arrays.items()}
    metrics = MetricRecord({"num-examples": 10 * (1 + number), "partition-id": number})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

grid = InProcessGrid(app, [{"partition-id": number} for number in range(3)])
ones, zeros = np.ones((2, 4), np.float32), np.zeros(2, np.float32)
first = ArrayRecord({"head.weight": Array(ones), "head.bias": Array(zeros)})

def serve(rounds, resume):
    return FedDRAW(fraction_evaluate=0.0, folder=folder, resume=resume, rounds=4).start(grid, first, num_rounds=rounds)

serve(2, False)
found = serve(4, True).arrays["head.weight"].numpy()
assert np.isfinite(found).all() and (found > 1).all()
"""

FLARE = """
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from feddraw.nvflare import FedDRAW

aggregator = FedDRAW(rounds=4, folder=folder)
model = {"head.weight": np.ones((2, 4), np.float32), "head.bias": np.zeros(2, np.float32)}
for round in range(4):
    aggregator.reset_stats()
    for number in range(3):
        moved = {name: array + np.float32(0.1 * (1 + number)) for name, array in model.items()}
        about = {"client_name": f"partition {number}", "num_examples": 10 * (1 + number)}
        aggregator.accept_model(FLModel(params=moved, meta=about))
    aggregator.fl_ctx = FLContext()
    aggregator.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round)
    aggregator.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, {"weights": model, "meta": {}})
    model = aggregator.aggregate_model().params
"""


@pytest.mark.parametrize(
    ("package", "code"), [("flwr", FLOWER), ("nvflare", FLARE)], ids=["flwr", "nvflare"]
)
def test_a_server_trains_four_rounds_and_writes_the_ledger(
    package: str, code: str, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    run = [sys.executable, "-c", FEWER + code, tmp_path / "run"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "weights.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:2] for line in lines[1:4]] == [
        ["0", f"partition {number}"] for number in range(3)
    ]
    assert len(lines) == 1 + 4 * 3


def test_the_list_for_servers_keeps_to_the_bounds_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = [
        line
        for line in (ROOT / "requirements-server.txt").read_text(encoding="utf-8").splitlines()
        if line
    ]
    listed = [line for line in wanted if not line.startswith("#")]
    assert listed
    assert [line for line in listed if f'"{line}"' not in project] == []
    assert not [line for line in listed if line.startswith("torch")]
