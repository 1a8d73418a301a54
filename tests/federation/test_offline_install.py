"""Installation at a site without internet, as docs/federation.md describes it: packages are
downloaded on one machine and installed on another with no index.

`make test-federation`; it needs the package index and some minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from needed import LONG

from feddraw.flower.operator_folder import constraints
from test_packaging import built

pytestmark = LONG


def call(*command: str | Path, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_a_site_without_any_index_gets_a_working_installation_from_a_folder_of_wheels(
    tmp_path: Path,
) -> None:
    wheel = built("wheel", tmp_path)
    (tmp_path / "constraints.txt").write_text(constraints())
    online = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call(
        *(sys.executable, "-m", "pip", "download", "--constraint", "constraints.txt"),
        *(f"{wheel}[flower]", "--dest", "wheels"),
        environment=online,
        folder=tmp_path,
    )

    # nothing of pip's settings, and an index that nobody answers
    offline = {name: value for name, value in online.items() if not name.startswith("PIP_")}
    offline |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    offline |= {"PIP_CACHE_DIR": str(tmp_path / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    call(sys.executable, "-m", "venv", "site", environment=offline, folder=tmp_path)
    python = tmp_path / "site" / "bin" / "python"
    call(
        *(python, "-m", "pip", "install", "--no-index", "--find-links", "wheels"),
        "feddraw[flower]",
        environment=offline,
        folder=tmp_path,
    )
    call(python, "-m", "pip", "check", environment=offline, folder=tmp_path)
    feddraw = python.with_name("feddraw")
    call(feddraw, "site", "key", "North", environment=offline, folder=tmp_path)
    operator = ["operator", "init", "federation", "--address", "localhost:8443"]
    call(feddraw, *operator, environment=offline, folder=tmp_path)
    invite = ["operator", "invite", "federation", "North/North.site.toml"]
    printed = call(feddraw, *invite, environment=offline, folder=tmp_path)
    assert "North  SHA256:" in printed
    assert (tmp_path / "federation" / "constraints.txt").read_text() == constraints()
