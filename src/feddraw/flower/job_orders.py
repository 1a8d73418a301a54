"""What our server sends to our clients beside the user's own configuration: one text under one key.

Every other key of the configuration is the user's. A record of its own would be simpler, but
Flower's client-side mods refuse a message with two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from feddraw.errors import UserError

KEY = "feddraw"


def add_orders(config: ConfigRecord, orders: Mapping[str, Any]) -> ConfigRecord:
    """A copy of the user's configuration with our orders in it."""
    if KEY in config:
        raise UserError(
            f"the configuration has a key '{KEY}', which this package uses itself: choose another"
            " name"
        )
    return ConfigRecord(dict(config) | {KEY: json.dumps(orders)})


def read_orders(content: RecordDict) -> dict[str, Any]:
    """Our orders in a message; none where the server is not ours."""
    texts = [config[KEY] for config in content.config_records.values() if KEY in config]
    if not texts:
        return {}
    try:
        orders = json.loads(str(texts[0]))
    except (ValueError, RecursionError):
        orders = None
    if not isinstance(orders, dict):
        raise UserError("the server's settings cannot be read: is its feddraw of the same version?")
    return orders


def with_order(content: RecordDict, name: str, value: Any) -> RecordDict:
    """A copy of a message's content with one more order; unchanged where there are no orders."""
    for record, config in content.config_records.items():
        if KEY in config:
            orders = read_orders(content) | {name: value}
            settings = ConfigRecord(dict(config) | {KEY: json.dumps(orders)})
            return RecordDict({**content, record: settings})
    return content


def last_weighted_in_orders(content: RecordDict, alias: str) -> int | None:
    """The last round in which the server weighted this client's update, -1 before the first; None
    if the server does not say.
    """
    rounds = read_orders(content).get("weighted")
    if rounds is None:
        return None
    last = rounds.get(alias, -1) if isinstance(rounds, dict) else None
    if not isinstance(last, int):
        raise UserError(
            "the server's settings cannot be read: which updates it counted is not a round by"
            " client"
        )
    return last
