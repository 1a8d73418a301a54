"""The house stays as it was built: imports point one way, the mathematics needs no torch, gradients
have one place.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import feddraw
from feddraw import catalog
from feddraw.errors import UserError
from feddraw.report import section_order
from feddraw.report.blocks import Cell, Fold, ReportTable
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.run_collection import collect_runs
from run_folders import make_run

SOURCE = Path(feddraw.__file__).parent

# From the ground up: a room may import the rooms below it, and its own modules. Modules are named
# by their path.
ROOMS = [
    {"errors"},
    {"text", "catalog", "models"},
    {"system"},
    {"core", "data"},
    {"server", "methods", "training"},
    {"results", "engines", "secure"},
    {"analysis", "federation"},
    {"tasks"},
    {"experiment", "watch", "explorer", "paper"},
    {"study", "report", "export", "flower", "aggregation"},
    {"doctor", "nvflare"},
    {"cli"},
    {"__main__"},
]
# What these may know is less than all that is below them.
ONLY = {
    "system": {"errors", "text"},
    "catalog": {"errors"},
    "secure.sums": {"errors"},
    "core": {"errors", "system", "text"},
    "models": {"errors"},
    "methods": {"errors", "core"},
    "analysis.metrics": {"errors", "results"},
    "results.metrics": {"system"},
    "analysis.statistics": {"errors"},
    "analysis.palette": set(),
    "server.streaming": {"core", "errors"},
    "training.optimizers": set(),
    "training.allocator": set(),
}


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def name_of(path):
    """A file as other files import it: `server.gate`; a package as `server`."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name):
    return name.partition(".")[0]


def height(room):
    found = [level for level, rooms in enumerate(ROOMS) if room in rooms]
    assert found, f"{room} has no place among the rooms of this test"
    return found[0]


NAMES = {name_of(path): path for path in modules()}


def imported(path):
    """Which of our modules a file imports, anywhere in it: inside functions and for type checkers
    too.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "feddraw" and rest and not rest.startswith("__"):
                inner = rest if rest in NAMES else rest.rpartition(".")[0]
                if inner:
                    yield inner, node.lineno


@cache
def imports():
    """What every module imports; read when a test asks, not while tests are collected."""
    return {name: list(imported(path)) for name, path in NAMES.items()}


def test_imports_point_one_way():
    wrong = []
    for own, path in NAMES.items():
        for name, line in imports()[own]:
            if room_of(name) == room_of(own):
                continue
            where = f"{path.relative_to(SOURCE)}:{line}"
            if height(room_of(name)) >= height(room_of(own)):
                wrong.append(f"{where}: {own} must not import {name}")
            for key in (own, room_of(own)):
                if key in ONLY and room_of(name) not in ONLY[key]:
                    wrong.append(f"{where}: {key} must not know {name}")
    assert wrong == []


def test_no_module_imports_itself_by_a_detour():
    """Not even through an import inside a function."""
    edges = {own: {name for name, _ in found if name != own} for own, found in imports().items()}
    packages = {name for name, path in NAMES.items() if path.name == "__init__.py"}
    done, stack = set(), []

    def visit(name):
        if name in stack:
            raise AssertionError(" -> ".join([*stack[stack.index(name) :], name]))
        if name not in done:
            stack.append(name)
            for other in sorted(edges.get(name, ())):
                if not (
                    other in packages and name.startswith(f"{other}.")
                ):  # a module of the package it looks up
                    visit(other)
            stack.pop()
            done.add(name)

    for name in sorted(edges):
        visit(name)


def test_our_own_modules_are_imported_by_a_string_in_the_catalogue_only():
    allowed = {
        "catalog.py",
        "__init__.py",
        "flower/__init__.py",
    }  # those that import what is asked for
    found = {
        str(path.relative_to(SOURCE))
        for path in modules()
        if "import_module(" in path.read_text("utf-8")
    }
    assert found <= allowed


def test_every_room_is_there():
    assert {room_of(name) for name in NAMES} == set().union(*ROOMS)


def architecture_page():
    return (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_architecture_page_names_files_that_there_are():
    named = set(re.findall(r"\b[a-z0-9_]+(?:/[a-z0-9_]+)*\.py\b", architecture_page()))
    packages = set(re.findall(r"`([a-z]+)/`", architecture_page()))
    assert {"core/model.py", "report/section_order.py", "federation.py"} <= named
    assert packages <= {room_of(name) for name in NAMES}
    places = (SOURCE, SOURCE.parent.parent)  # the package, and the repository with its tests
    missing = [path for path in named if not any((place / path).is_file() for place in places)]
    assert not missing


def test_the_section_on_the_architecture_page_gives_blocks(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", architecture_page(), re.DOTALL)
    names = {}
    exec(code, names)
    for method in ("feddraw", "fedavg"):
        make_run(tmp_path / method, method=method)
    report = compute_report(
        collect_runs([tmp_path]), settings=ReportSettings(replicates=0), command=""
    )
    tables = list(names["section"](report, report.scenarios[0]))
    assert [table.caption for table in tables] == [
        "Mean weights of feddraw",
        "Mean weights of fedavg",
    ]
    assert [row[1].text for row in tables[1].rows] == ["0.125", "0.125", "0.125", "0.625"]


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


FIRST_TO_BRING_TORCH = """
import importlib, sys

class Torch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(print(importing))

sys.meta_path.insert(0, Torch())
for importing in {names!r}:
    importlib.import_module(importing)
"""


def bring_torch(names):
    """Which of the modules, imported one after another in a fresh process, is the first to import
    torch.
    """
    found = python(FIRST_TO_BRING_TORCH.format(names=names))
    assert not found.returncode, found.stderr
    return found.stdout.split()


def test_the_words_the_mathematics_scenarios_metrics_and_every_method_need_no_torch():
    rooms = {
        "core",
        "schedules",
        "standing_shares",
        "catalog",
        "participation",
        "data",
        "scenarios",
        "methods",
        "server",
        "results",
    }
    numeric = [f"feddraw.{name}" for name in NAMES if room_of(name) in rooms]
    numeric += [
        "feddraw.aggregation",
        "feddraw.analysis.metrics",
        "feddraw.analysis.statistics",
        "feddraw.federation",
    ]
    assert bring_torch(numeric) == []
    assert bring_torch(["feddraw.core", "feddraw.training.loop"]) == ["feddraw.training.loop"]


def test_weights_need_numpy_only():
    found = python(
        "import sys, feddraw; feddraw.weights(round=4, rounds=15, sizes=[2, 1], similarities=[.9,"
        " 1]);feddraw.schedule(rounds=15, sizes=[2, 1]);print(*{'torch', 'scipy', 'matplotlib',"
        " 'skimage', 'monai', 'typer', 'pandas'} & set(sys.modules))"
    )
    assert (found.returncode, found.stdout.strip()) == (0, ""), found.stderr


def calls(attribute):
    """Where a method of this name is called."""
    return [
        str(path.relative_to(SOURCE))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == attribute
    ]


def test_gradients_on_client_data_are_taken_in_one_place():
    assert calls("backward") == ["training/loop.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in modules())
    assert text.count(".backward(") == 1
    assert "torch.func" not in text
    # of an image of noise, to see where a network can be cut
    assert [
        path.name for path in modules() if "autograd.grad(" in path.read_text(encoding="utf-8")
    ] == ["network_cut.py"]


def test_no_randomness_comes_from_a_global_generator():
    """Randomness is an argument.

    Torch's own generator is seeded only in a fork that is thrown away.
    """
    text = {path: path.read_text(encoding="utf-8") for path in modules()}
    assert not [
        path for path, code in text.items() if "np.random.seed" in code or "import random\n" in code
    ]
    assert all("fork_rng" in code for code in text.values() if "torch.manual_seed" in code)


def test_a_method_file_holds_a_function_of_its_name():
    for name in catalog.names("methods"):
        assert callable(catalog.find("methods", name))


@pytest.mark.parametrize("kind", ["datasets", "methods", "models", "scenarios"])
def test_a_file_without_a_function_of_its_name_is_named(kind, monkeypatch):
    monkeypatch.setattr(catalog, "names", lambda kind: ("half_done",))
    module = f"{catalog.PACKAGES.get(kind, f'feddraw.{kind}')}.half_done"
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    with pytest.raises(UserError, match=f"^{re.escape(module)} has no function 'half_done'"):
        catalog.find(kind, "half_done")


def test_every_section_of_the_report_has_a_place_in_its_order():
    sections = {path.stem for path in (SOURCE / "report" / "sections").glob("*.py")} - {"__init__"}
    imported = {name.rpartition(".")[2] for name, _ in imports()["report.section_order"]}
    assert sorted(sections - imported) == [], "not in report/section_order.py, so never shown"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("a string", "a str where a block is needed"),
        (
            ReportTable("Sizes", ["client", "images"], [[Cell("C1")]]),
            "a row of the table 'Sizes' has 1 cells, and its header 2",
        ),
    ],
)
def test_a_section_that_gives_no_blocks_or_a_short_row_is_named(block, why):
    def section():
        yield Fold("more", [block])

    with pytest.raises(UserError, match=f"^{__name__}.* {re.escape(why)}"):
        section_order.checked_blocks(section(), section)
