"""Time and memory as clients, rounds, images and models grow, each point in a process of its own;
and the figure.

    python -m benchmarks.speed.growth \
        '{"clients": 10, "rounds": 2, "pixels": 28, "hidden": 32, "stream": true}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.speed.made_up_model import client_names
from benchmarks.speed.timing import TimingSession, measured_in_own_process, seconds_of
from feddraw.system.machine import peak_memory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A point that all lines go through, or nearly.
USUAL_SIZES = {"clients": 10, "rounds": 2, "pixels": 28, "hidden": 32}
GROWING = {
    "clients": (10, 100, 1000),
    "rounds": (1, 4, 16),
    "pixels": (28, 84, 224),
    "hidden": (32, 400, 4400),
}
AXIS_LABELS = {
    "clients": "clients",
    "rounds": "rounds",
    "pixels": "pixels across",
    "hidden": "million parameters",
}
SUMMED = {"all at once": False, "streaming": True}


def measure_growth(session: TimingSession) -> dict[str, Any]:
    """Seconds of the run and peak megabytes, by what grows and how updates are summed."""
    growing = {name: values[:2] if session.quick else values for name, values in GROWING.items()}
    points = [
        (name, way, value) for name, values in growing.items() for way in SUMMED for value in values
    ]
    curves: dict[str, Any] = {name: {way: [] for way in SUMMED} for name in growing}
    for name, way, value in session.each("growth: time and memory of the serial engine", points):
        sizes = USUAL_SIZES | {name: value, "stream": SUMMED[way]}
        measured = measured_in_own_process("benchmarks.speed.growth", json.dumps(sizes))
        curves[name][way].append({"value": value} | measured)
    return curves


def run_of_size(
    clients: int, rounds: int, pixels: int, hidden: int, stream: bool
) -> dict[str, float]:
    """Seconds and peak megabytes of a run of the serial engine, one step of twenty images per
    client and round.
    """
    from benchmarks.speed import peer_task
    from feddraw.engines.serial import Serial
    from feddraw.experiment.run_preparation import initial_model
    from feddraw.federation import Federation, federate
    from feddraw.methods.feddraw import feddraw
    from feddraw.server.collectors import Streaming, Together
    from feddraw.training.client import Trainer
    from feddraw.training.loop import Examples
    from feddraw.training.settings import Training

    images, targets = peer_task.random_pictures(20 * clients, pixels)
    examples = Examples(images, targets)
    build = partial(peer_task.build_net, hidden, pixels)
    shards = np.split(np.arange(20 * clients), clients)
    trainer = Trainer(build, examples, shards, Training(epochs=1, batch_size=20), feddraw().local)
    model = initial_model(build, 0)
    names = client_names(clients)
    federation = Federation(
        feddraw(),
        Serial(trainer),
        names,
        rounds,
        seed=0,
        collect=Streaming([20] * clients) if stream else Together(),
    )
    next(federate(replace(federation, clients=names[:2]), model))  # torch is slow at first
    seconds = seconds_of(lambda: [None for _ in federate(federation, model)])
    return {"seconds": seconds, "megabytes": peak_memory() / 2**20, "parameters": len(model.params)}


def draw_growth(curves: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw growth.svg and growth.png, time above and memory below; returns their paths."""
    from matplotlib.figure import Figure

    from feddraw.analysis.plots import draw_legend, figure_style, save_figure

    paths = [folder / "growth.svg", folder / "growth.png"]
    with figure_style():
        figure = Figure(figsize=(11, 5.2), layout="constrained")
        grid = figure.subplots(2, len(curves), squeeze=False)
        for column, (name, ways) in enumerate(curves.items()):
            _draw_panel(grid[0][column], name, ways, "seconds")
            _draw_panel(grid[1][column], name, ways, "megabytes")
        grid[0][0].set_ylabel("seconds")
        grid[1][0].set_ylabel("peak MB")
        draw_legend(grid[0][0])
        for path in paths:
            save_figure(figure, path)
    return paths


def _draw_panel(axes: Axes, name: str, ways: Mapping[str, Any], key: str) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, StrMethodFormatter

    from feddraw.analysis.plots import line_look

    for place, (way, points) in enumerate(ways.items()):
        values = [
            point["parameters"] / 1e6 if name == "hidden" else point["value"] for point in points
        ]
        axes.plot(
            values, [point[key] for point in points], label=way, markersize=4, **line_look(place)
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(values))
    if key == "seconds":
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.set_xlabel(AXIS_LABELS[name])
    x_format = "{x:.2g}" if name == "hidden" else "{x:g}"
    for axis, form in ((axes.xaxis, x_format), (axes.yaxis, "{x:g}")):
        axis.set_major_formatter(StrMethodFormatter(form))  # powers of ten would be markup
        axis.set_minor_formatter(NullFormatter())


if __name__ == "__main__":
    print(json.dumps(run_of_size(**json.loads(sys.argv[1]))))
