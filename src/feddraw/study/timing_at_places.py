"""A measurement in as many processes as will train, all at once: cores share memory and caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from feddraw.errors import RunFailed, UserError, first_line
from feddraw.system.workers import Worker, WorkerDied, serve, stop_workers
from feddraw.training.device_memory import allot_image_memory
from feddraw.training.devices import WorkerPlace

Answer = TypeVar("Answer")


def measure_at_every_place(
    places: Sequence[WorkerPlace], measure: Callable[..., Answer], *arguments: object
) -> list[Answer]:
    """What `measure(device, *arguments)` gives in a process at each place, all at once.

    What a worker refuses, and a lack of memory, is a `UserError`; that it failed a `RunFailed`.
    """
    team = [Worker(serve, _measure_here) for _ in places]
    try:
        for worker, place in zip(team, places, strict=True):
            worker.send((place, measure, arguments))
        return [worker.receive() for worker in team]
    except UserError:
        raise
    except WorkerDied as death:
        what = f"a worker {death.how} while timing training steps{death.advice}"
        raise RunFailed(what) from None
    except RunFailed as failure:
        raise UserError(str(failure)) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise RunFailed(f"a worker failed while timing training steps: {reason}") from error
    finally:
        stop_workers(team)


def _measure_here(request: tuple[WorkerPlace, Callable[..., Any], Sequence[Any]]) -> Any:
    """What a worker does."""
    place, measure, arguments = request
    allot_image_memory(place)
    warnings.simplefilter("ignore")
    return measure(place.device, *arguments)
