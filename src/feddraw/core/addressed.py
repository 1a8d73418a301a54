"""What the server tells single clients in a broadcast that all clients get. numpy only.

The server sends the same to everybody, and a site does not know which number it has at the server.
So each client draws a tag for its update and sends it along; the server answers with a table of
tags, each followed by what is said to its client, and a client looks for its own. The table hides
nothing: every client can read all its rows.
"""

from __future__ import annotations

import numpy as np

from feddraw.core.exchange import Extra, Job
from feddraw.core.model import Vector
from feddraw.errors import UserError

TAG = Extra("tag", "number", 0.0, 1.0, meaning="a number between 0 and 1, drawn anew each time")


def drawn_tag(job: Job) -> Vector:
    """(1,): the tag of a client's update in one round."""
    return np.random.default_rng([job.seed, job.round]).random(1, dtype=np.float32)


NOBODY = -1.0  # in place of a tag, in rows that are left over


def addressed(tags: Vector, rows: Vector, room: int) -> Vector:
    """The table of tags (clients,) and what is said to each (clients, length), as one vector.

    There is room for so many clients, so that it is as long in every round: engines keep the memory
    of what they send.
    """
    table = np.column_stack([tags, rows]).astype(np.float32)
    padded = np.full((max(room, len(table)), table.shape[1]), NOBODY, np.float32)
    padded[: len(table)] = table
    return padded.ravel()


def own_row(table: Vector, tag: Vector, length: int) -> Vector | None:
    """(length,): what is said to the client with this tag; None if it is not in the table, or if
    two have drawn the same.
    """
    if table.ndim != 1 or len(table) % (1 + length):
        raise UserError("the server's table cannot be read: update feddraw here or there")
    entries = table.reshape(-1, 1 + length)
    (mine,) = np.nonzero(entries[:, 0] == tag[0])
    return np.array(entries[mine[0], 1:]) if len(mine) == 1 else None
