"""Imports that were documented under another name still work, and say where the thing is now."""

from __future__ import annotations

import subprocess
import sys

import pytest

from feddraw import moved


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_an_old_module_is_the_new_one_with_a_warning() -> None:
    code = "import importlib\n" + "".join(
        f"old, new = importlib.import_module({old!r}), importlib.import_module({new!r})\n"
        "names = [name for name in vars(new) if not name.startswith('__')]\n"
        "assert names and all(getattr(old, name) is getattr(new, name) for name in names)\n"
        for old, new in moved.MODULES.items()
    )
    found = python(code)
    assert not found.returncode, found.stderr
    for old, new in moved.MODULES.items():
        assert f"{old} is now {new}" in found.stderr


def test_an_old_name_is_found_with_a_warning() -> None:
    for package, names in moved.NAMES.items():
        for name, place in names.items():
            found = python(
                f"import warnings; warnings.simplefilter('error', DeprecationWarning)\n"
                f"from {package} import {name} as old\nfrom {place} import {name} as new\nassert old is new"
            )
            assert not found.returncode, found.stderr
            assert f"{package}.{name} is now {place}.{name}" in found.stderr


def test_what_never_was_there_is_not_found() -> None:
    with pytest.raises(ImportError):
        from feddraw.training import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import feddraw.nothing  # noqa: F401
