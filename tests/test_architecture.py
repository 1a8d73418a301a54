"""The house stays as it was built: imports point one way, the mathematics needs no torch, gradients have one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import feddraw
from feddraw import catalog

SOURCE = Path(feddraw.__file__).parent

# From the ground up; a module may import its own floor and those below it. What is not named here is on the top floor,
# with the command line and the reports: nothing below may import it.
FLOORS = [
    {"allocator", "errors", "files", "fused", "locks", "naming"},
    {"catalog", "core", "schedules", "shares", "metrics", "statistics"},
    {"data", "scenarios", "models", "optimizers"},
    {"training"},
    {"methods"},
    {"engines", "gate", "participation", "policy", "streaming"},
    {"federation", "evaluation"},
    {"results", "board"},
    {"experiment"},
]
# Leaves know at most the words and one another where named.
LEAVES = {
    "allocator": set(),
    "errors": set(),
    "catalog": {"errors"},
    "files": {"errors"},
    "fused": set(),
    "palette": set(),
    "locks": {"errors"},
    "naming": set(),
    "core": {"errors", "fused"},
    "schedules": {"errors"},
    "shares": {"core"},
    "metrics": {"errors"},
    "statistics": {"errors"},
    "models": {"errors", "catalog"},
    "optimizers": set(),
    "methods": {"errors", "core", "schedules", "shares"},
    "gate": {"errors", "core", "fused"},
    "participation": {"errors"},
    "policy": {"catalog", "core", "errors", "methods"},
    "streaming": {"core"},
}


def floor(part):
    return next((height for height, parts in enumerate(FLOORS) if part in parts), len(FLOORS))


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path):
    """The top-level module or package that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path):
    """Which parts of the package a file imports, anywhere in it; for type checkers only counts too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            head, *rest = name.split(".")
            if head == "feddraw" and rest and not rest[0].startswith("__"):
                yield rest[0], node.lineno


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = part_of(path)
    for part, line in imported_parts(path):
        assert floor(part) <= floor(own), f"{path.name}:{line}: {own} must not import {part}, which stands above it"
        if own in LEAVES and part != own:
            assert part in LEAVES[own], f"{path.name}:{line}: {own} must not know {part}"


def test_the_floors_name_parts_that_exist():
    there = {part_of(path) for path in modules()} | {"statistics"}
    assert set().union(*FLOORS) <= there
    assert LEAVES.keys() <= there


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def bring_torch(names):
    """Which of the modules, imported one after another in a fresh process, is the first to import torch."""
    found = python(
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(print(name))"
    )
    assert not found.returncode, found.stderr
    return found.stdout.split()


def test_the_words_the_mathematics_scenarios_metrics_and_every_method_need_no_torch():
    there = {part_of(path) for path in modules()}
    numeric = {"core", "schedules", "catalog", "metrics", "statistics", "gate", "participation", "policy", "federation"}
    numeric |= {"data", "shares"}
    parts = [f"feddraw.{part}" for part in sorted(numeric & there)]
    scenarios = [f"feddraw.scenarios.{path.stem}" for path in (SOURCE / "scenarios").glob("[!_]*.py")]
    methods = [f"feddraw.methods.{name}" for name in catalog.names("methods")]
    assert bring_torch([*parts, *scenarios, *methods]) == []
    assert bring_torch(["feddraw.core", "feddraw.training"]) == ["feddraw.training"]


def test_weights_need_numpy_only():
    found = python(
        "import sys, feddraw; feddraw.weights(round=4, rounds=15, sizes=[2, 1], similarities=[.9, 1]);"
        "feddraw.schedule(rounds=15, sizes=[2, 1]);"
        "print(*{'torch', 'scipy', 'matplotlib', 'skimage', 'monai', 'typer', 'pandas'} & set(sys.modules))"
    )
    assert (found.returncode, found.stdout.strip()) == (0, ""), found.stderr


def of_the_product():
    """All but the bench, which trains on random numbers, as other systems' scripts do."""
    return [path for path in modules() if part_of(path) != "bench"]


def calls(attribute):
    """Where a method of this name is called."""
    return [
        str(path.relative_to(SOURCE))
        for path in of_the_product()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute
    ]


def test_gradients_on_client_data_are_taken_in_one_place():
    assert calls("backward") == ["training.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in of_the_product())
    assert text.count(".backward(") == 1
    assert "autograd.grad" not in text
    assert "torch.func" not in text


def test_no_randomness_comes_from_a_global_generator():
    """Randomness is an argument. Torch's own generator is seeded only in a fork that is thrown away."""
    text = {path: path.read_text(encoding="utf-8") for path in modules()}
    assert not [path for path, code in text.items() if "np.random.seed" in code or "import random\n" in code]
    assert all("fork_rng" in code for code in text.values() if "torch.manual_seed" in code)


def test_a_method_file_holds_a_function_of_its_name():
    for name in catalog.names("methods"):
        assert callable(catalog.find("methods", name))
