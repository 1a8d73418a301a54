"""The parts that are whole runs: every method, and mixtures, in every way to carry them out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, get_args, get_type_hints

from artefacts import Document, decode_run
from workbench import Cases, Settings, Workbench

# Ways to run every method; what a method cannot do is refused, and that is compared too.
CAPS = {"policy.cap": 0.3, "policy.floor": 0.1, "policy.fixed": "Hill=0.15"}
# Sites move by as far as their steps take them: the largest is refused, another one clipped.
GATE = {"gate.norm": "refuse", "gate.factor": 1.8, "gate.clip": 1.1}
SOME_TAKE_PART = {"participation.sampler": "uniform", "participation.fraction": 0.6}
SOME_TAKE_PART |= {"participation.stragglers": 0.4, "participation.joins": "West=1"}
OTHER_TRAINING = {"training.optimizer": "sgd", "training.momentum": 0.9, "training.lr": 0.05}
OTHER_TRAINING |= {
    "training.weight_decay": 1e-3,
    "training.label_smoothing": 0.05,
    "training.clip": 1.0,
}
OTHER_TRAINING |= {
    "training.augment": True,
    "keep.best": True,
    "keep.tail": 2,
    "test_every_round": True,
}
OTHER_TRAINING |= {"corruption.flip": "East=0.3", "corruption.noise": "West=0.1", "seed": 3}
BY_HALVES = {
    "training.steps": 2,
    "training.persist_optimizer": True,
    "folds": 3,
    "scenario": "dirichlet",
}
BY_HALVES |= {
    "scenario.clients": 4,
    "model": "compact",
    "model.growth": 4,
    "policy.max_size_times": 1.2,
}
MOST_TAKE_PART = {
    "participation.sampler": "by_size",
    "participation.fraction": 0.8,
    "participation.stragglers": 0.4,
}
SECURE_CAPS = {"secure": True, "policy.cap_times": 1.3}


def every_method(
    bench: Workbench, changes: Settings, *, labels: str = "all", mixed: bool = True
) -> Cases:
    """Each method, and mixtures with each half, under these settings; with --quick no mixtures."""
    dataset = bench.dataset if labels == "all" else bench.partly_labelled
    for name, method in bench.several(changes).items():
        if (mixed and not bench.quick) or "+" not in name:
            yield name, partial(bench.run, {**method, **changes}, dataset)


def every_mixture(bench: Workbench) -> Cases:
    """All pairs that the tree accepts; with --quick, so many that each half is there."""
    for name in bench.some_mixtures() if bench.quick else bench.all_mixtures:
        yield name, partial(bench.run, {"method": name})


def every_setting(bench: Workbench) -> Cases:
    """Each setting of each method at another value than its usual one."""
    function_of: Callable[[str, str], Any] = bench.find("feddraw.catalog:find")
    for name in bench.methods:
        function = function_of("methods", name)
        hints = get_type_hints(function)
        for key, parameter in inspect.signature(function).parameters.items():
            for value in _other_values(parameter.default, hints.get(key)):
                changes = {"method": name, f"method.{key}": value}
                yield f"{name}.{key}={value}", partial(bench.run, changes)


def _other_values(usual: Any, hint: Any) -> list[Any]:
    if isinstance(usual, bool):
        return [not usual]
    if isinstance(usual, int):
        return [usual + 1]
    if isinstance(usual, float):
        return [usual / 2 + 2**-7]
    return [choice for choice in get_args(hint) if choice != usual]


def resumed(bench: Workbench, changes: Settings, dataset: Any = None) -> Document:
    """Stop after the first round and go on: the checkpoint between, and all at the end."""
    import feddraw

    folder, experiment = bench.new_folder(), bench.experiment(changes)
    given = {"dataset": dataset or bench.dataset}
    with closing(feddraw.iterate(experiment, folder, **given)) as rounds:
        next(rounds)
    between = decode_run(folder, bench.names)["checkpoint"]
    feddraw.run(experiment, folder, resume=True, **given)
    return decode_run(folder, bench.names) | {"checkpoint after round 0": between}


def every_resume(bench: Workbench) -> Cases:
    """Each method, resumed; also where some are absent, so that what they remember is kept too."""
    for name, method in bench.several().items():
        yield name, partial(resumed, bench, method)
        changes = {**method, **SOME_TAKE_PART, "keep.best": True, "keep.tail": 2}
        yield f"{name} some take part", partial(resumed, bench, changes)


def two_workers(bench: Workbench) -> Cases:
    """Two worker processes for every kind of client; a run starts its own, which takes seconds."""
    changes = {"engine": "processes", "workers": 2}
    chosen = ("scaffold",) if bench.quick else bench.kinds_of_client
    for name in chosen:
        yield name, partial(bench.run, {"method": name, **changes}, bench.partly_labelled)
    yield "feddraw stream", partial(bench.run, {"method": "feddraw", "stream": True, **changes})
    if not bench.quick:
        yield "ditto resumed", partial(resumed, bench, {"method": "ditto", **changes})


def two_workers_secure(bench: Workbench) -> Cases:
    """Secure sums of clients in two worker processes."""
    changes = {"engine": "processes", "workers": 2, "secure": True}
    for name in ("feddraw",) if bench.quick else ("feddraw", "feddisco"):
        yield name, partial(bench.run, {"method": name, **changes})
