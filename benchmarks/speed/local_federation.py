"""`examples/flower/local_federation.py` as a module: a SuperLink and its nodes on this machine, for
as long as a measurement lasts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.speed.timing import CHECKOUT

SCRIPT = Path("examples") / "flower" / "local_federation.py"


@contextmanager
def local_federation(
    folder: Path, checkout: Path = CHECKOUT, *, secure: bool = False
) -> Iterator[Any]:
    """A federation of this or another checkout of feddraw, by its own script: with TLS, keys and
    nginx where `secure` is set. Its nodes find the measurement's app in this checkout.
    """
    spec = importlib.util.spec_from_file_location("local_federation", checkout / SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    paths = [str(checkout.resolve() / "src"), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    with (
        patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))),
        module.federation(folder, secure=secure) as made,
    ):
        yield made


def write_app(folder: Path, name: str, module: str, settings: str) -> Path:
    """A Flower app whose two halves are `server` and `app` of a module; returns its folder."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.0"
description = "a measurement"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "feddraw"
[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:app"
[tool.flwr.app.config]
{settings}
"""
    )
    return folder
