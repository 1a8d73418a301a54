"""What a strategy is told beside the arguments of Flower's FedAvg, as one value that does not
change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from feddraw.core import Method, Proxy
from feddraw.errors import UserError, positive
from feddraw.results.run_folder import RunFolder
from feddraw.results.trackers import check_tracker
from feddraw.secure.sums.signing_keys import SiteDirectory
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import RoundRecord
from feddraw.tasks import Task
from feddraw.tasks.findings import Findings


@dataclass(frozen=True, eq=False, kw_only=True)
class StrategyOptions:
    """The keyword arguments of `MethodStrategy`, read and checked."""

    method: Method
    # the layer that gives the scores, or several in the order of the findings; empty: by its shape
    classifier: str | Sequence[str] = ""
    findings: tuple[str, ...] = ()  # names of the classifier's outputs; for the ledger, and checked
    task: Task = field(
        default_factory=Findings
    )  # what these outputs say: how counts become metrics
    # tensors that nobody trains, by name: sent to each site once
    frozen: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    proxy: Proxy | None = None  # labelled images at the server, for methods that need some

    round_offset: int = 0  # rounds that were done before this start
    # T, where it is not round_offset + num_rounds, or where a loop that is not ours calls
    rounds: int = 0
    seed: int = 0  # of sampling, and of local training where the clients are ours
    wait: float = 600.0  # seconds for enough nodes to connect

    gate: Gate = field(default_factory=Gate)  # which updates are let in
    policy: Policy = field(default_factory=Policy)  # limits on weights and sizes
    # name to key's fingerprint or node id; empty: a name belongs to the node that comes first
    sites: Mapping[str, str | int] = field(default_factory=dict)
    rebind: bool = False  # on resume, names belong to whoever answers under them first

    folder: RunFolder | None = None  # ledger, log and checkpoint
    track: str = ""  # with it: show the rounds to this tracker as well
    resume: bool = False  # from the folder's checkpoint, if there is one
    # leave tensors in the replies after they were read; None: only where others may look at them
    keep_replies: bool | None = None
    on_round: Callable[[RoundRecord], None] | None = None  # called after every round
    # the ledger's columns as lists among the metrics that Flower logs; it is in the folder anyway
    ledger_in_metrics: bool = False

    subgroups: int = 0  # that sites count beside all images, after the last round, in clear
    secure: bool = False  # see sums of updates only; clients need `secure_mod` and keys
    site_keys: SiteDirectory | None = None  # with it: the sites' public keys by name
    # with it: sites say their weights, also where these tell of their updates
    clear_weights: bool = False
    masked_counts: bool = False  # with it: evaluations are counts, summed under masks too

    def __post_init__(self) -> None:
        positive("wait", self.wait)
        if self.method.needs.server_images and self.proxy is None:
            raise UserError("this weighting needs labelled images at the server: give proxy=")
        offset_fits = self.round_offset < self.rounds if self.rounds else True
        if self.round_offset < 0 or self.rounds < 0 or not offset_fits:
            raise UserError(
                f"rounds = {self.rounds} must be more than round_offset = {self.round_offset},"
                " neither negative"
            )
        check_tracker(self.track)
        if self.track and self.folder is None:
            raise UserError(f"track = {self.track!r} needs a folder: give folder=")
        self.policy.check_method(self.method)
        self.gate.check_method(self.method)


def run_folder_from(folder: Path | str | RunFolder | None) -> RunFolder | None:
    """A path as the folder of a run."""
    if isinstance(folder, Path | str):
        return RunFolder(Path(folder))
    return folder
