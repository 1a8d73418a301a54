"""When a job must stop: where going on would not help, with what must be changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from feddraw.core import Method
from feddraw.errors import RunFailed, UserError
from feddraw.nvflare.model_meta import unpack_meta
from feddraw.nvflare.site_numbers import STEPS_KEY, AskedNumbers
from feddraw.nvflare.swarm_handover import LedgerHistory
from feddraw.text import safe_line

log = logging.getLogger("feddraw.nvflare")


def logged_failure(why: str) -> RunFailed:
    """In FLARE's log too: some of its workflows show only the kind of an error."""
    log.error("%s", why)
    return RunFailed(why)


def stop_without_sizes(models: Sequence[FLModel], asked: AskedNumbers) -> None:
    """Stop in the first round if the clients' script sends no sizes: later rounds would not
    either.
    """
    if models and not any(asked.give_size(model.meta) for model in models):
        raise logged_failure(
            f"no site sends {asked.size_key} or {STEPS_KEY} in its model's meta, so none can be"
            f" weighed: {asked.how_to_send}"
        )


def stop_without_steps(
    models: Sequence[FLModel], asked: AskedNumbers, method: Method, method_name: str
) -> None:
    """Stop if the method computes with steps, and no client tells them."""
    steps_known = any(STEPS_KEY in model.meta for model in models)
    if method.needs.steps and models and not steps_known:
        raise logged_failure(
            f"{method_name} needs the clients' optimiser steps, and no site sends {STEPS_KEY}"
            f" in its model's meta: {asked.how_to_send}"
        )


def stop_without_extras(models: Sequence[FLModel], method: Method, method_name: str) -> None:
    """Stop if the method needs vectors beside the model, and no client sends any."""
    wanted = method.extras
    sent = any(_extra_in_meta(model).keys() & wanted.keys() for model in models)
    if wanted and models and not sent:
        first = next(iter(wanted.values()))
        meaning = f" ({first.meaning})" if first.meaning else ""
        raise logged_failure(
            f"{method_name} needs '{first.name}'{meaning} from its clients beside the model,"
            " and no site sends it: let the client's script train with feddraw.nvflare.Site, or"
            " choose a method that weighs plain models"
        )


def stop_without_clients(history: LedgerHistory, round: int) -> None:
    """Stop after two rounds in a row in which nobody counts: one may be an accident. `round` is
    the number of the last in `history`.
    """
    ledger = history[-1]
    if any(entry.weighted for entry in ledger):
        return
    reasons = "; ".join(safe_line(f"{entry.client}: {entry.status}") for entry in ledger[:3])
    reasons = reasons or "no site answered"
    log.error("round %d: no update counted, the model stays as it was (%s)", round, reasons)
    if len(history) > 1 and not any(entry.weighted for entry in history[-2]):
        raise logged_failure(
            f"no update counted in two rounds in a row ({reasons}): fix this, then start again"
        )


def _extra_in_meta(model: FLModel) -> dict[str, Any]:
    try:
        return dict(unpack_meta(model.meta).get("extra", {}))
    except (UserError, TypeError, ValueError):
        return {}
