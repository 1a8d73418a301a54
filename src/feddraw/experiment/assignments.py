"""Settings as people type them: KEY=VALUE, with a dotted path of `experiment.toml` as the key."""

from __future__ import annotations

import tomllib
from typing import Any

from feddraw.errors import UserError


def parse_settings(assignments: list[str]) -> dict[str, Any]:
    """KEY=VALUE, where a value that is no number, truth value or list is taken as a word."""
    settings = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes KEY=VALUE, not '{assignment}'")
        settings[key.strip()] = parse_value(text)
    return settings


def parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .5, which TOML does not know
    except ValueError:
        return text
