"""What the sites of a federation say of a round's model: who evaluated it, on how many images, how
long it took and with what result, and why others did not. A part of the round's line in the log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feddraw.server.status import Status, StatusKind
from feddraw.system.file_reading import number_or_nan


@dataclass(frozen=True, kw_only=True)
class SiteEvaluation:
    """One site's evaluation of one round's model, or why there is none."""

    client: str
    status: str = StatusKind.EVALUATED.value  # the text of a `Status`
    images: float = math.nan  # NaN where it is not known, as under secure sums
    seconds: float = math.nan  # that it worked, if it says so
    metrics: Mapping[str, float] = field(default_factory=dict)  # its own; none under secure sums

    @property
    def kind(self) -> StatusKind:
        """What became of the site in this evaluation."""
        return Status.read(self.status).kind

    @property
    def evaluated(self) -> bool:
        return self.kind is StatusKind.EVALUATED

    @property
    def absent(self) -> bool:
        """Whether an evaluation is missing that was wanted."""
        return self.kind not in (StatusKind.EVALUATED, StatusKind.NOT_SAMPLED)

    @staticmethod
    def read(document: Mapping[str, Any]) -> SiteEvaluation:
        """What `document` wrote; raises what it stumbles over in anything else."""
        metrics = document.get("metrics", {})
        return SiteEvaluation(
            client=str(document["client"]),
            status=str(document["status"]),
            images=number_or_nan(document.get("images")),
            seconds=number_or_nan(document.get("seconds")),
            metrics={str(name): number_or_nan(value) for name, value in metrics.items()},
        )

    def document(self) -> dict[str, Any]:
        """As the log has it; what is not known is left out."""
        document: dict[str, Any] = {"client": self.client, "status": self.status}
        for name, number in (("images", self.images), ("seconds", self.seconds)):
            if math.isfinite(number):
                document[name] = number
        if self.metrics:
            document["metrics"] = dict(self.metrics)
        return document


@dataclass(frozen=True, eq=False)
class RoundEvaluation:
    """The evaluation of one round's model by the sites."""

    round: int
    sites: tuple[SiteEvaluation, ...]
    seconds: float  # from the message to the sites until their answers were merged
