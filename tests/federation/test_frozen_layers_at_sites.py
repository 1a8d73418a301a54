"""A frozen part of the network in a real federation: a SuperLink, three nodes with images of their
own, every message in a process of its own. `make test-federation`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from needed import LONG
from safetensors.numpy import load_file

from feddraw.system.file_reading import read_csv
from feddraw.training.network_by_name import build_network
from test_flower_app import hospital
from test_flower_deployment import script

pytestmark = LONG

HOSPITALS = ("North", "East", "South")
GROWTH = 8


def weights_file(file: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    module, _ = build_network("compact", 2, {"growth": GROWTH})
    torch.save(module.state_dict(), file)
    return file


def test_a_site_with_the_file_is_sent_nothing_frozen_and_one_with_another_file_does_not_train(
    tmp_path: Path,
) -> None:
    """North has the server's file, East another, South none: it is sent the tensors."""
    agreed = weights_file(tmp_path / "server.pt", seed=5)
    own = {
        "North": f' backbone="{weights_file(tmp_path / "copy.pt", seed=5)}"',
        "East": f' backbone="{weights_file(tmp_path / "other.pt", seed=6)}"',
        "South": "",
    }
    with script().federation(tmp_path / "federation", secure=False) as made:
        for seed, name in enumerate(HOSPITALS):
            data = hospital(tmp_path / name, 60, seed)
            memory = made.folder / name
            made.supernode(name, f'data="{data}" client="{name}" memory="{memory}"{own[name]}')
        names = "data.findings=Opacity,Enlarged data.normalize=measured"
        made.run(
            f'rounds=2 data.name="folder" data.size=16 method.name="fedavg" training.epochs=1'
            f' training.batch_size=8 nodes=3 wait=300.0 timeout=300.0 out="run"'
            f' set="{names} model.growth={GROWTH} model.frozen=body model.weights={agreed}"',
            timeout=900,
        )
        ledger = read_csv(made.folder / "run" / "weights.csv")
        for round in "01":
            status = {line["client"]: line["status"] for line in ledger if line["round"] == round}
            assert status.pop("North") == status.pop("South") == "weighted"
            (refused,) = status.values()  # of a node that the server has no name for
            assert "other.pt: its frozen tensors have SHA-256" in refused
            assert "(in full at East: " in refused
            assert "\n" not in refused
        kept = {file.parent.name for file in made.folder.rglob("frozen-*.safetensors")}
        assert kept == {"South"}
        trained = load_file(made.folder / "run" / "model.safetensors")
    before = torch.load(agreed, weights_only=True)
    assert (trained["classifier.weight"] != before["classifier.weight"].numpy()).any()
    assert (trained["body.0.weight"] == before["body.0.weight"].numpy()).all()
