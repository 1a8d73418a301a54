"""The command line in tests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from feddraw.cli import main


def typed(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as typed, in this process: starting Python takes longer than most commands do."""
    out, err = io.StringIO(), io.StringIO()
    argv, showing = (
        patch.object(sys, "argv", ["feddraw", *words]),
        patch.object(warnings, "showwarning"),
    )
    with (
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
        argv,
        showing,
        patch.dict(os.environ),
        pytest.raises(SystemExit) as left,
    ):
        main()
    assert isinstance(left.value.code, int)
    return subprocess.CompletedProcess(words, left.value.code, out.getvalue(), err.getvalue())
