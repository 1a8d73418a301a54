"""Jobs in NVIDIA FLARE's simulator: its hello jobs with one line changed, and all three of its
workflows.

`make matrix` runs them, for each version of FLARE in an environment of its own.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")
if "FEDDRAW_MATRIX" not in os.environ:
    pytest.skip("`make matrix` runs them", allow_module_level=True)

import torch

import feddraw
from feddraw.aggregation import ClientUpdate

EXAMPLES = Path(__file__).parent.parent / "examples"
SITES = ("site-1", "site-2", "site-3")

# FLARE's examples/hello-world/hello-numpy (Apache-2.0), shortened: an array that "trains" by adding
# 1.
NUMPY_CLIENT = """
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

flare.init()
while flare.is_running():
    input_model = flare.receive()
    new_params = input_model.params[NPConstants.NUMPY_KEY] + 1
    output_model = flare.FLModel(
        params={NPConstants.NUMPY_KEY: new_params},
        params_type=flare.ParamsType.FULL,
        metrics={"weight_mean": float(new_params.mean())},
        current_round=input_model.current_round,
    )
    flare.send(output_model)
"""
NUMPY_JOB = """
import pathlib
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv
from feddraw.nvflare import FedDRAW

FOLDER = str(pathlib.Path("ledger").resolve())
if __name__ == "__main__":
    recipe = NumpyFedAvgRecipe(
        name="hello-numpy",
        min_clients=2,
        num_rounds=3,
        model=[[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        train_script="client.py",
        aggregator=FedDRAW(rounds=3, folder=FOLDER),  # the line that was added
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root="workspace")).get_result()
"""
SIZE = "        meta={'num_examples': 5},\n"  # what the refusal asks for

# FLARE's examples/hello-world/hello-pt (Apache-2.0), shortened, with noise in place of CIFAR-10. It
# sends its steps.
PT_MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class SimpleNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)
"""
PT_CLIENT = """
import torch
import nvflare.client as flare
from model import SimpleNetwork
from torch import nn
from torch.optim import SGD

model, loss, epochs = SimpleNetwork(), nn.CrossEntropyLoss(), 2
optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
train_loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))) for _ in range(3)]
flare.init()
while flare.is_running():
    input_model = flare.receive()
    model.load_state_dict(input_model.params)
    steps = epochs * len(train_loader)
    for epoch in range(epochs):
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
    output_model = flare.FLModel(
        params=model.cpu().state_dict(),
        metrics={"accuracy": 0.1},
        meta={"NUM_STEPS_CURRENT_ROUND": steps},
    )
    flare.send(output_model)
"""
PT_JOB = """
import pathlib
from model import SimpleNetwork
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from feddraw.nvflare import FedDRAW

FOLDER = str(pathlib.Path("ledger").resolve())
if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="hello-pt",
        min_clients=2,
        num_rounds=2,
        model=SimpleNetwork(),
        train_script="client.py",
        aggregator=FedDRAW(rounds=2, folder=FOLDER),  # the line that was added
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root="workspace")).get_result()
"""

# A network with a frozen body. BODY is the site's own file of it, empty where the job's model has
# it.
FROZEN_MODEL = """
from collections import OrderedDict
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        super().__init__(OrderedDict(body=body, classifier=nn.Linear(32, 2)))
        body.requires_grad_(False)
"""
FROZEN_CLIENT = """
import json
import numpy as np
import nvflare.client as flare
import torch
from model import Net
from feddraw.methods.fedavg import fedavg
from feddraw.nvflare import Site
from feddraw.training.client import Trainer
from feddraw.training.loop import Examples
from feddraw.training.settings import Training

BODY = ""

def build():
    net = Net()
    if BODY:
        net.body.load_state_dict(torch.load(BODY, weights_only=True))
    return net, "classifier"

rng = np.random.default_rng(0)
images = rng.integers(0, 255, (24, 8, 8), dtype=np.uint8)
targets = np.repeat(images.mean((1, 2))[:, None] > 127, 2, axis=1).astype(np.float32)
examples = Examples(images, targets, 0.5, 0.25)
settings = Training(epochs=1, batch_size=8, lr=0.1)
trainer = Trainer(build, examples, [np.arange(24)], settings, fedavg().local)
flare.init()
name = flare.get_site_name()
site = Site(fedavg(), trainer, int(name[-1]) - 1, name=name, backbone=BODY)
while flare.is_running():
    received = flare.receive()
    answer = site.train(received)
    travelled = [received.current_round, sorted(received.params), sorted(answer.params)]
    # one string: two sites share the output, and their pieces would stand on one line
    print(f"TRAVELLED {json.dumps(travelled)}\\n", end="", flush=True)
    flare.send(answer)
"""
FROZEN_JOB = """
import pathlib
import torch
from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from feddraw.nvflare import MethodAggregator

FOLDER = str(pathlib.Path("ledger").resolve())
WHOLE = True
if __name__ == "__main__":
    torch.manual_seed(3)
    net = Net()
    torch.save(net.body.state_dict(), "body.pt")
    state = net.state_dict()
    kept = {name: state[name] for name in state if WHOLE or name.startswith("classifier")}
    torch.save(kept, "initial.pt")
    recipe = FedAvgRecipe(
        name="frozen",
        model=Net(),
        initial_ckpt=str(pathlib.Path("initial.pt").resolve()),
        min_clients=2,
        num_rounds=2,
        train_script="client.py",
        aggregator=MethodAggregator("fedavg", rounds=2, folder=FOLDER),
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root="workspace")).get_result()
"""


def carried_out(script: Path, *arguments: str | Path) -> str:
    """What a job's script and FLARE's processes said."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NVFLARE_TELEMETRY": "0"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=script.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    return done.stdout


def ledger(folder: Path) -> list[dict[str, str]]:
    with (folder / "weights.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(lines: list[dict[str, str]]) -> dict[tuple[int, str], float]:
    return {(int(line["round"]), line["client"]): float(line["weight"]) for line in lines}


def job(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder / "job.py"


# -------------------------------------------------------------------------------------------- hello


def test_hello_numpy_is_refused_with_the_line_that_its_client_must_add_and_runs_with_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    said = carried_out(job(tmp_path / "before", client=NUMPY_CLIENT, job=NUMPY_JOB))
    assert "no site sends num_examples or NUM_STEPS_CURRENT_ROUND in its model's meta" in said
    assert (
        "let the client's script send FLModel(params=…, meta={'num_examples': number of its images"
        in said
    )
    assert not (tmp_path / "before" / "ledger").exists()
    mark = "        current_round="
    carried_out(
        job(tmp_path / "after", client=NUMPY_CLIENT.replace(mark, SIZE + mark), job=NUMPY_JOB)
    )
    lines = ledger(tmp_path / "after" / "ledger")
    assert [line["status"] for line in lines] == ["weighted"] * 6
    assert set(weights(lines).values()) == {0.5}


def test_hello_pt_runs_with_one_line_at_the_server(tmp_path: Path) -> None:
    said = carried_out(job(tmp_path, client=PT_CLIENT, job=PT_JOB, model=PT_MODEL))
    lines = ledger(tmp_path / "ledger")
    assert [line["status"] for line in lines] == ["weighted"] * 4, said[-2000:]
    assert {line["size"] for line in lines} == {"6"}
    assert all(float(line["similarity"]) > 0 for line in lines)  # of the last layer


# ---------------------------------------------------------------------------------------- workflows


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], float]:
    """The weights of the example's three sites in a loop of our own, without FLARE."""
    sys.path.insert(0, str(EXAMPLES / "nvflare"))
    try:
        from task import Net, load, train
    finally:
        sys.path.pop(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sent, state, found = Net().state_dict(), None, {}
    for round in range(3):
        updates = []
        for number, site in enumerate(SITES):
            model = Net()
            model.load_state_dict(sent)
            features, labels = load(number)
            steps = train(model, features, labels, lr=0.1)
            updates.append(ClientUpdate(model.state_dict(), len(labels), site, steps))
        result = feddraw.aggregate(sent, updates, round=round, rounds=3, state=state)
        sent, state = result.next_model, result.state
        found |= {(round, entry.client): entry.weight for entry in result.ledger}
    return found


@pytest.mark.parametrize("workflow", ["job", "scatter_and_gather"])
def test_a_workflow_with_a_server_weighs_as_the_loop_does(
    workflow: str, tmp_path: Path, loop: dict[tuple[int, str], float]
) -> None:
    said = carried_out(EXAMPLES / "nvflare" / f"{workflow}.py", tmp_path)
    assert (tmp_path / "weights.csv").is_file(), said[-2000:]
    assert weights(ledger(tmp_path)) == pytest.approx(loop, abs=1e-6)
    assert list((tmp_path / "feddraw").rglob("FL_global_model.pt"))


def test_a_swarm_of_three_sites_weighs_as_the_loop_does_and_each_site_has_the_ledger(
    tmp_path: Path, loop: dict[tuple[int, str], float]
) -> None:
    said = carried_out(EXAMPLES / "nvflare" / "swarm.py", tmp_path)
    for site in SITES:
        assert (tmp_path / site / "weights.csv").is_file(), said[-2000:]
        assert weights(ledger(tmp_path / site)) == pytest.approx(loop, abs=1e-6)
        (saved,) = (tmp_path / "feddraw" / site).rglob("FL_global_model.pt")
        torch.load(saved, weights_only=True)


# ----------------------------------------------------------------------------------- frozen layers


def test_frozen_tensors_go_out_once_or_never_and_the_model_is_the_same(tmp_path: Path) -> None:
    trained = ["classifier.bias", "classifier.weight"]
    whole = ["body.0.bias", "body.0.weight", *trained]
    models = {}
    for way, first in {"sent": whole, "file": trained}.items():
        folder = tmp_path / way
        folder.mkdir()
        client, script = FROZEN_CLIENT, FROZEN_JOB
        if way == "file":
            client = client.replace('BODY = ""', f'BODY = "{folder / "body.pt"}"')
            script = script.replace("WHOLE = True", "WHOLE = False")
        said = carried_out(job(folder, client=client, job=script, model=FROZEN_MODEL))
        lines = [line.partition("TRAVELLED ")[2] for line in said.splitlines()]
        travelled = sorted(json.loads(line) for line in lines if line)
        expected = [[0, first, trained]] * 2 + [[1, trained, trained]] * 2
        assert travelled == expected, said[-2000:]
        assert [line["status"] for line in ledger(folder / "ledger")] == ["weighted"] * 4
        (saved,) = folder.rglob("FL_global_model.pt")
        models[way] = torch.load(saved, weights_only=True)["model"]
        assert sorted(models[way]) == first  # FLARE keeps what its first model had
    for name in trained:
        assert torch.equal(models["sent"][name], models["file"][name])


# -------------------------------------------------------------------------------------------- MONAI


def test_a_monai_bundle_trains_at_three_sites(tmp_path: Path) -> None:
    pytest.importorskip("monai", reason="MONAI is not installed")
    pytest.importorskip("ignite", reason="pytorch-ignite is not installed")
    said = carried_out(EXAMPLES / "monai" / "flare_job.py", tmp_path)
    assert (tmp_path / "weights.csv").is_file(), said[-2000:]
    lines = ledger(tmp_path)
    assert [line["status"] for line in lines] == ["weighted"] * 9
    assert [line["size"] for line in lines[:3]] == ["160", "40", "40"]
    assert [line["steps"] for line in lines[:3]] == ["8", "2", "2"]
