"""MLflow: a run of the experiment `feddraw`, or of MLFLOW_EXPERIMENT_NAME, in the store that
MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddraw.errors import UserError
from feddraw.results.trackers import GROUP, TrackedRun
from feddraw.system.machine import installed

MOST_SETTINGS = 100  # that MLflow takes in one message
MOST_NUMBERS = 1000
LONGEST_SETTING = 500  # characters; older servers refuse more


def mlflow(run: TrackedRun) -> MLflowRun:
    """A run in the store that MLFLOW_TRACKING_URI names."""
    if not installed("mlflow"):
        raise UserError("it is not installed: pip install 'feddraw[track]'")
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    if run.number:
        return MLflowRun(client, run.number, running=False)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", GROUP)
    experiment = client.get_experiment_by_name(name)
    place = client.create_experiment(name) if experiment is None else experiment.experiment_id
    number = client.create_run(place, run_name=run.folder.name).info.run_id
    _add_settings(client, number, run.settings)
    return MLflowRun(client, number, running=True)


def _add_settings(client: Any, number: str, settings: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    values = [Param(name, str(value)[:LONGEST_SETTING]) for name, value in settings.items()]
    for start in range(0, len(values), MOST_SETTINGS):
        client.log_batch(number, params=values[start : start + MOST_SETTINGS])


class MLflowRun:
    """One run in an MLflow store."""

    def __init__(self, client: Any, number: str, *, running: bool) -> None:
        self._client = client
        self.number = number
        self._running = running  # a report that is added later changes nothing of how a run ended

    def add(self, round: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if not self._running:
            self._client.update_run(self.number, status="RUNNING")
            self._running = True
        now = int(time.time() * 1000)
        metrics = [Metric(metric_name(name), v, now, round) for name, v in numbers.items()]
        for start in range(0, len(metrics), MOST_NUMBERS):
            self._client.log_batch(self.number, metrics=metrics[start : start + MOST_NUMBERS])

    def add_files(self, name: str, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self.number, str(file), name)

    def close(self, *, failed: bool) -> None:
        if self._running:
            self._client.set_terminated(self.number, "FAILED" if failed else "FINISHED")


def metric_name(name: str) -> str:
    """As MLflow takes it: a site's name may have characters that are refused, or lead elsewhere."""
    group, _, rest = name.partition("/")
    return "/".join(re.sub(r"[^\w\- :]", "_", part) for part in (group, rest) if part)
