"""Some of what `make faults` does at length: kill, start again, and compare every byte."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_killed_commands_come_to_the_same_bytes() -> None:
    script = Path(__file__).with_name("kills.py")
    words = [sys.executable, script, "--seconds", "20", "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = re.search(r"^all +(\d+)", done.stdout, re.MULTILINE)
    assert kills is not None
    assert int(kills[1]) >= 1, done.stdout  # how many there is time for depends on the machine
    assert ": 0 differences" in done.stdout
