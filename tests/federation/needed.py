"""What the tests of real federations need: without some of it they are skipped."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import pytest

# Seconds that a test waits for what takes a few on a machine with nothing else to do.
PATIENCE = 600.0

LONG = pytest.mark.skipif(
    not os.environ.get("FEDDRAW_FEDERATION"), reason="long: make test-federation"
)
KEY_TOOLS = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")),
    reason="no openssl or ssh-keygen",
)
NGINX = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None,
    reason="no nginx: apt install nginx",
)


def wait_until_connected(made: Any, *nodes: str) -> None:
    """Until these nodes of a federation are connected."""
    deadline = time.monotonic() + PATIENCE
    for node in nodes:
        while "SuperNode ID" not in made.log(node):
            assert time.monotonic() < deadline, f"{node} does not connect: {made.log(node)}"
            time.sleep(0.2)
