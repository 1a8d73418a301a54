"""safetensors: the state dict, what it belongs to, and a loader of ten lines."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save

from feddraw.experiment.run_preparation import network_builder
from feddraw.experiment.trained_model import TrainedModel
from feddraw.export.exported_graph import Scorer, from_pixels, model_description, scorer_of_graph
from feddraw.system.file_writing import write_json, write_whole

LOADER_SCRIPT = """\
import json
from pathlib import Path
from safetensors.torch import load_file
from feddraw.training.network_by_name import build_network  # pip install feddraw: the network's architecture

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text())
network, _ = build_network(about["network"]["name"], about["network"]["outputs"], about["network"]["settings"], channels=about["channels"])
network.load_state_dict(load_file(here / "model.safetensors"))
network.eval()  # in: (grey levels - 255 * about["mean"]) / (255 * about["std"]), (n, channels, size, size); out: logits
# where about["recalibration"] is not null, slope * logit + intercept of each output comes before its probability
"""


def write_safetensors(trained: TrainedModel, folder: Path) -> Scorer:
    """Write `model.safetensors`, `model.json` and `load.py`; gives the scores of the network as
    loaded from there.
    """
    state = {name: tensor.contiguous() for name, tensor in trained.module.state_dict().items()}
    write_whole(folder / "model.safetensors", save(state))
    name, settings = trained.experiment.section("model")
    settings.pop("weights", None)  # where training began from: not needed to load what came of it
    network_settings = {
        "network": {"name": name, "settings": settings, "outputs": len(trained.findings)}
    }
    write_json(folder / "model.json", model_description(trained) | network_settings)
    write_whole(folder / "load.py", LOADER_SCRIPT.encode())
    network, _ = network_builder(trained.experiment, len(trained.findings))()
    network.load_state_dict(load_file(folder / "model.safetensors"))
    return scorer_of_graph(from_pixels(network, trained))
