"""A MONAI bundle that MONAI's own command runs on new images, without feddraw.

The network is TorchScript, so that any architecture fits; the preparation of images and the cells
of the table are our own modules, copied whole. MONAI evaluates texts of a configuration that begin
with $, @ or %, so the names of findings stand in a file of their own.
"""

from __future__ import annotations

import inspect
import io
import re
import warnings
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddraw import __version__
from feddraw.data import imaging
from feddraw.experiment.trained_model import TrainedModel
from feddraw.export.exported_graph import (
    Scorer,
    example_input,
    from_pixels,
    model_description,
    scorer_of_graph,
)
from feddraw.results.about import images_in_words
from feddraw.system import csv_cells
from feddraw.system.file_writing import make_subfolder, write_json, write_whole

SCHEMA_URL = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
SCORING_SCRIPT = '''\
"""What the bundle's configuration calls: prepare images as in training, score them, write a CSV."""

import csv
import json
from pathlib import Path

import numpy as np
import torch

from scripts.csv_cells import to_csv_cell
from scripts.imaging import BadImage, Recipe

SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


def files(images):
    """An image file, or all of a folder and the folders below it."""
    place = Path(images)
    if place.is_file():
        return [place]
    found = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not found:
        raise SystemExit(f"no PNG, JPEG or DICOM file in {place}")
    return found


def write_scores(network, images, output, model):
    """One row per image: probabilities and calls, and in the last column why there are none."""
    model = json.loads(Path(model).read_text(encoding="utf-8"))
    recipe = Recipe(
        model["size"],
        model["clahe"],
        model["clahe_kernel"],
        model["clahe_clip"],
        channels=model["channels"],
        fit=model["fit"],
        levels=tuple(model["levels"]),
    )
    names = header(model)
    with open(output, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", *map(to_csv_cell, names), "problem"])
        for path in files(images):
            try:
                prepared = recipe.of_file(path).reshape(recipe.size, recipe.size, recipe.channels)
            except BadImage as why:
                table.writerow([to_csv_cell(str(path)), *[""] * len(names), why])
                continue
            with torch.no_grad():
                pixels = prepared.transpose(2, 0, 1)[None].astype(np.float32)
                scores = network(torch.from_numpy(pixels))[0].tolist()
            table.writerow([to_csv_cell(str(path)), *map(to_csv_cell, cells(model, scores)), ""])
'''


def write_monai_bundle(trained: TrainedModel, folder: Path) -> Scorer:
    """Write the bundle; gives the scores of its network as loaded from there."""
    for name in ("configs", "models", "scripts", "docs"):
        make_subfolder(folder / name)
    network = folder / "models" / "model.ts"
    write_whole(network, _torchscript(trained))
    write_json(folder / "configs" / "metadata.json", bundle_metadata(trained))
    write_json(folder / "configs" / "inference.json", inference_config())
    write_json(folder / "models" / "model.json", model_description(trained))
    write_whole(folder / "scripts" / "__init__.py", b"")
    for module in (imaging, csv_cells):
        name = module.__name__.rpartition(".")[2]
        write_whole(folder / "scripts" / f"{name}.py", inspect.getsource(module).encode())
    script = f"{SCORING_SCRIPT}\n\n{trained.task.script}"
    write_whole(folder / "scripts" / "scoring.py", script.encode())
    readme = resources.files("feddraw.export") / "bundle_readme.md"
    write_whole(folder / "docs" / "README.md", readme.read_bytes())
    return scorer_of_graph(torch.jit.load(network))  # type: ignore[no-untyped-call]


def _torchscript(trained: TrainedModel) -> bytes:
    graph = from_pixels(trained.module, trained)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(graph, example_input(trained))  # type: ignore[no-untyped-call]
    content = io.BytesIO()
    torch.jit.save(traced, content)
    return content.getvalue()


def inference_config() -> dict[str, Any]:
    """The configuration that `python -m monai.bundle run` reads."""
    return {
        "imports": ["$import torch", "$import scripts.scoring as scoring"],
        "bundle_root": ".",
        "images": "$@bundle_root + '/images'",
        "output": "$@bundle_root + '/scores.csv'",
        "model": "$@bundle_root + '/models/model.json'",
        "network": "$torch.jit.load(@bundle_root + '/models/model.ts').eval()",
        "run": ["$scoring.write_scores(@network, @images, @output, @model)"],
    }


def bundle_metadata(trained: TrainedModel) -> dict[str, Any]:
    """The bundle's `metadata.json`, by MONAI's schema."""
    recipe = trained.recipe
    names = ["grey"] if recipe.channels == 1 else ["red", "green", "blue"]
    image = {
        "type": "image",
        "format": "magnitude",
        **_modality(trained),
        "num_channels": recipe.channels,
        "spatial_shape": [recipe.size, recipe.size],
        "dtype": "float32",
        "value_range": [0, 255],
        "is_patch_data": False,
        "channel_def": {str(place): name for place, name in enumerate(names)},
    }
    probabilities = {
        "type": "probabilities",
        "format": "classification",
        "num_channels": len(trained.findings),
        "spatial_shape": [],
        "dtype": "float32",
        "value_range": [0, 1],
        "is_patch_data": False,
        "channel_def": {
            str(place): _channel_name(name, place) for place, name in enumerate(trained.findings)
        },
    }
    method, _ = trained.experiment.section("method")
    about = trained.experiment.about
    name, _ = trained.experiment.section("data")
    words = trained.task.words
    return {
        "schema": SCHEMA_URL,
        "version": "0.1.0",
        "changelog": {"0.1.0": "exported from a run"},
        "monai_version": version("monai"),
        "pytorch_version": str(torch.__version__).partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {
            "pillow": version("pillow"),
            "scikit-image": version("scikit-image"),
        },
        "task": f"{words.labels.many.capitalize()} on {images_in_words(about, name) or 'images'}",
        "description": f"Trained by several sites together ({method}) with feddraw {__version__}",
        "authors": "",
        "copyright": "",
        "intended_use": "research, not a medical device",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": probabilities}},
    }


def _modality(trained: TrainedModel) -> dict[str, str]:
    """What DICOM files said of the training images, else what the run says; nothing where neither
    does.
    """
    said = trained.trained_on.modalities if trained.trained_on is not None else ()
    data, _ = trained.experiment.section("data")
    modality = ", ".join(said) or images_in_words(trained.experiment.about, data)
    return {"modality": modality} if modality else {}


def _channel_name(finding: str, place: int) -> str:
    """The finding's name where MONAI reads it as text; its place in `model.json` where not."""
    return finding if re.fullmatch(r"\w[\w ,.()/+-]*", finding) else f"finding {place + 1}"
