"""ONNX: the graph takes grey levels and gives probabilities, so the normalisation travels with
it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddraw.errors import RunFailed, first_line
from feddraw.experiment.trained_model import TrainedModel
from feddraw.export.exported_graph import (
    Scorer,
    example_input,
    from_pixels,
    graph_input,
    model_description,
)
from feddraw.system.file_writing import write_json, write_whole

OPSET = 17


def write_onnx(trained: TrainedModel, folder: Path) -> Scorer:
    """Write `model.onnx` and `model.json`; gives the file's own scores by onnxruntime."""
    import onnx

    graph = _traced_graph(trained)
    description = model_description(trained)
    onnx.helper.set_model_props(graph, {"feddraw": json.dumps(description)})
    write_whole(folder / "model.onnx", graph.SerializeToString())
    write_json(folder / "model.json", description)
    return _scorer_of_file(folder / "model.onnx")


def _traced_graph(trained: TrainedModel) -> Any:
    import onnx

    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        # the tracing exporter is called old; the other one needs more packages
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "model.onnx")
        try:
            torch.onnx.export(
                from_pixels(trained.module, trained),
                (example_input(trained),),
                path,
                input_names=["pixels"],
                output_names=["probabilities"],
                dynamic_axes={"pixels": {0: "images"}, "probabilities": {0: "images"}},
                opset_version=OPSET,
                dynamo=False,
            )
        except (torch.onnx.OnnxExporterError, RuntimeError) as error:
            raise RunFailed(
                f"this network cannot be written as ONNX: {first_line(error):.200}"
            ) from None
        return onnx.load(path)


def _scorer_of_file(path: Path) -> Scorer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def scores(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(session.run(["probabilities"], {"pixels": graph_input(images)})[0])

    return scores
