"""What the history says of a registered study: which commit registered it, whether its text has
changed since, and that its tables came later.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def registration_lines(text: str, tables: Sequence[str], root: Path = ROOT) -> str:
    """By the history of a checkout; `text` and `tables` are paths in it."""
    registered = _first_commit(root, text)
    if registered is None:
        return f"- {text}: its commit is not in the history that is here"
    commit, date = registered
    same = _git(root, "diff", "--quiet", commit, "--", text) is not None
    lines = [
        f"Registered by {commit} of {date} ({text}, {'unchanged' if same else 'CHANGED'} since)"
    ]
    for table in tables:
        added = _first_commit(root, table)
        if added is not None:
            is_later = _git(root, "merge-base", "--is-ancestor", commit, added[0]) is not None
            is_later = is_later and added[0] != commit
            order = "after the registration" if is_later else "NOT after the registration"
            lines.append(f"{table} came with {added[0][:8]} of {added[1]}, {order}")
    return "\n".join(f"- {line}" for line in lines)


def _first_commit(root: Path, file: str) -> tuple[str, str] | None:
    """Hash and date of the commit that added a file; a shallow clone does not know it."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    found = _git(root, "log", "--diff-filter=A", "--format=%H %cs", "--", file)
    if not found:
        return None
    commit, date = found.splitlines()[-1].split()
    return commit, date


def _git(root: Path, *words: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
