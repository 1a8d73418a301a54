"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from typer import Option


def name_option(kind: str, help: str) -> Any:
    """An option for a name of this kind, which the tab key completes."""

    def beginning(incomplete: str) -> list[str]:
        from feddraw import catalog
        from feddraw.data import dataset_by_name
        from feddraw.data.scenarios import scenario_by_name

        known: dict[str, Callable[[], Iterable[str]]] = {
            "data": dataset_by_name.dataset_names,
            "scenarios": scenario_by_name.scenario_names,
            "methods": lambda: catalog.names("methods"),
        }
        return [name for name in known[kind]() if name.lower().startswith(incomplete.lower())]

    return Option(help=help, autocompletion=beginning)


DataOption = name_option(
    "data", "Data set, one of `feddraw list data` (phantom, cells, chestmnist, …), or a path."
)
ScenarioOption = name_option(
    "scenarios", "Split between clients: CHX-1 to CHX-7, CHM-1 to CHM-5, iid, …"
)
MethodOption = name_option(
    "methods", "A method, or A+B: the weighting of A with the training of B."
)
KeptModelOption = Option(
    help="Model: last (last round); best or tail, if the run kept it (keep.best, keep.tail)."
)
RunsAtOnceOption = Option(
    help="Runs at the same time; 0: one per core, or as many as the GPUs' memory holds."
)
DevicesOption = Option(
    help=(
        "Devices for the workers: cuda:0,cuda:1, or all (every GPU). Workers share a GPU if its"
        " memory allows. cpu:0,cpu:1 simulates two devices on the CPU. (default: training.device)"
    )
)
