"""A run's log, `rounds.jsonl`: one line per round, written as it happens; and the round with its
evaluation, from which a line is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feddraw.core import Model
from feddraw.results.checkpoint import model_digest
from feddraw.results.metrics import NOT_EVALUATED, Divergence, RunMetrics, SplitMetrics
from feddraw.results.site_evaluations import RoundEvaluation, SiteEvaluation
from feddraw.server.round import RoundResult
from feddraw.system.file_reading import number_or_nan, read_jsonl
from feddraw.system.file_writing import json_values

# What a line has that differs when the same round is run again.
CLOCK_FIELDS = ("seconds", "client_seconds", "evaluations", "time")
MOST_ROUNDS = 10_000_000  # a log may come from another party


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedRound(RoundResult):
    """What a round of an experiment gave, with the metrics of its model."""

    metrics: RunMetrics
    kept: Mapping[str, Model] = field(default_factory=dict)  # after the last round (`keep`)

    @staticmethod
    def of(result: RoundResult, **more: Any) -> EvaluatedRound:
        """A round as the server ended it, and what is now known of it."""
        names = [field.name for field in fields(RoundResult)]
        known = {name: getattr(result, name) for name in names}
        return EvaluatedRound(**(known | more))

    @property
    def diverged(self) -> str:
        """How this round shows that the run has diverged; empty if it does not."""
        return divergence_in_scores(self.metrics) or super().diverged


def divergence_in_scores(metrics: RunMetrics) -> str:
    """How a model's validation scores show that the run has diverged; empty if they do not."""
    broken = metrics.validation.not_finite
    if not broken:
        return ""
    findings = ", ".join(broken)
    return f"the model's scores are not finite numbers ({findings}); try a lower training.lr"


@dataclass(frozen=True, kw_only=True)
class RoundLine:
    """One line of the log."""

    round: int
    loss: float  # mean training loss of the clients that counted, NaN where none did
    validation: SplitMetrics = NOT_EVALUATED
    test: SplitMetrics = NOT_EVALUATED  # only with `test_every_round`, and after the last round
    model: str = ""  # a digest of the model's numbers
    seconds: Mapping[str, float]  # of training, aggregation and evaluation
    diverged: str = ""  # how the round shows that the run has diverged
    rounds: int = 0  # planned; in the folder of a Flower server, which has no settings to say it
    client_seconds: Mapping[str, float]  # how long each client worked, if it says so
    evaluations: tuple[SiteEvaluation, ...] = ()  # where the sites of a federation evaluate
    time: datetime = field(default_factory=lambda: datetime.now(UTC))  # when it was written

    @staticmethod
    def of(result: EvaluatedRound) -> RoundLine:
        return RoundLine(
            round=result.round,
            loss=result.loss,
            validation=result.metrics.validation,
            test=result.metrics.test,
            model=model_digest(result.model),
            seconds=result.seconds,
            diverged=result.diverged,
            client_seconds=result.client_seconds,
        )

    def evaluated_by(self, evaluation: RoundEvaluation) -> RoundLine:
        """The line with what the sites said of the round's model, and the time that this took."""
        spent = self.seconds.get("evaluation", 0.0) + evaluation.seconds
        seconds = {**self.seconds, "evaluation": spent}
        now = datetime.now(UTC)
        return replace(self, evaluations=evaluation.sites, seconds=seconds, time=now)

    def auc_of_sites(self) -> dict[str, float]:
        """The validation AUC at each site: what the sites of a federation say, or that of each
        site's own validation images. Under secure sums sites say nothing, and it is empty.
        """
        said = {}
        for site in self.evaluations:
            area = site.metrics.get("validation-auc", math.nan)
            if 0 <= area <= 1:
                said[site.client] = area
        return said or dict(self.validation.by_site)

    @property
    def whole_seconds(self) -> float:
        return sum(self.seconds.values())

    @staticmethod
    def read(document: Mapping[str, Any]) -> RoundLine:
        """What `document` wrote; raises what it stumbles over in anything else."""
        validation = document.get("validation")
        test = document.get("test")
        return RoundLine(
            round=_round_number(document["round"]),
            loss=number_or_nan(document["loss"]),
            validation=SplitMetrics.read_from_log(validation) if validation else NOT_EVALUATED,
            test=SplitMetrics.read_from_log(test) if test else NOT_EVALUATED,
            model=str(document["model"]),
            seconds=_seconds(document["seconds"]),
            diverged=str(document.get("diverged", "")),
            rounds=_round_number(document.get("rounds", 0)),
            client_seconds=_seconds(document["client_seconds"]),
            evaluations=tuple(map(SiteEvaluation.read, document.get("evaluations", ()))),
            time=datetime.fromisoformat(document["time"]).astimezone(UTC),
        )

    def document(self) -> dict[str, Any]:
        """As a line has it; what only some rounds have is left out where it is empty."""
        document: dict[str, Any] = {"round": self.round, "loss": self.loss}
        for name, split in (("validation", self.validation), ("test", self.test)):
            if split.evaluated:
                document[name] = split.log_document()
        document["model"] = self.model
        document["seconds"] = dict(self.seconds)
        if self.diverged:
            document["diverged"] = self.diverged
        if self.rounds:
            document["rounds"] = self.rounds
        document["client_seconds"] = dict(self.client_seconds)
        if self.evaluations:
            document["evaluations"] = [site.document() for site in self.evaluations]
        document["time"] = self.time.isoformat(timespec="seconds")
        return document

    def text(self) -> str:
        """The line itself."""
        return json.dumps(json_values(self.document())) + "\n"


def _round_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_ROUNDS:
        raise ValueError("no number of a round")
    return value


def _seconds(document: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): number_or_nan(value) for name, value in document.items()}


def read_round_log(path: Path) -> list[RoundLine]:
    """The lines up to the first that is torn; none where there is no file."""
    return [RoundLine.read(document) for document in read_jsonl(path)]


def first_divergence(lines: Sequence[RoundLine]) -> Divergence | None:
    """The first round that shows that the run has diverged, if one does."""
    return next((Divergence(line.round, line.diverged) for line in lines if line.diverged), None)
