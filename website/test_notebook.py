"""The notebook of the tutorial runs from top to bottom, and is kept without its outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tutorial.ipynb"


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    cells = [
        cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]
    script = tmp_path / "notebook.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"MPLBACKEND": "agg"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "weights of C4" in done.stdout
