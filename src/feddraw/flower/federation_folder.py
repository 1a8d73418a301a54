"""What a strategy writes to the folder of its run: the ledger, the log of rounds, and checkpoints
from which a server that was killed resumes. A strategy without a folder writes nothing.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from feddraw.errors import UserError
from feddraw.flower import round_report
from feddraw.flower.progress import Progress
from feddraw.flower.server_checkpoint import ServerCheckpoint, shared_tensors_in_checkpoint
from feddraw.results.round_log import RoundLine
from feddraw.results.run_folder import RunFolder
from feddraw.results.site_evaluations import RoundEvaluation
from feddraw.server.round import RoundRecord

log = logging.getLogger("flwr")


class FederationFolder:
    """The folder of one run, if it has one."""

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder = folder
        # whether `rounds.jsonl` is written here, and not by whoever evaluates
        self.logs_rounds = True
        self.begun = False  # it was looked into, and its ledger begun
        self._lock = ExitStack()  # held for a loop that is not ours
        self._unsaved = False  # a round was written down that no checkpoint holds yet
        self._last_line: RoundLine | None = None  # of the log, where it is written here

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder.path

    def locked(self) -> AbstractContextManager[None]:
        """For as long as our own loop runs."""
        return nullcontext() if self.folder is None else self.folder.locked()

    def lock_until_done(self) -> None:
        """For a loop that is not ours: until the last round is saved."""
        if self.folder is not None and not self.begun:
            self._lock.enter_context(self.folder.locked())

    def begin(self, progress: Progress) -> bool:
        """Begin the ledger, or continue after the checkpoint: whether there is one to resume
        from.
        """
        self.begun = True
        if self.folder is None:
            return False
        resume = progress.options.resume
        if not resume and self.folder.ledger.exists():
            raise UserError(
                f"{self.folder.path} is already used: choose another folder, or go on with"
                " resume=True"
            )
        checkpoint = _read_checkpoint(self.folder, progress) if resume else None
        if checkpoint is None:
            self.folder.forget_from(progress.rounds_before)
            return False
        self.folder.forget_from(checkpoint.rounds_done)
        progress.restore(checkpoint)
        log.info("continuing after %d rounds from %s", checkpoint.rounds_done, self.folder.path)
        return True

    def logged(self, rounds: int) -> bool:
        """Whether the last of so many rounds has its line in the log."""
        return self.folder is not None and self.folder.logged(rounds - 1)

    @property
    def finished(self) -> bool:
        """Whether the run's last file is there, which follows the last evaluation."""
        return self.folder is None or self.folder.metrics.is_file()

    # ------------------------------------------------------------------------------- after a round

    def write_round(self, done: RoundRecord, rounds: int) -> None:
        """A round, of so many, in the log and in the ledger."""
        self._unsaved = True
        if self.folder is None:
            return
        if self.logs_rounds:
            self._last_line = RoundLine(
                round=done.round,
                loss=round_report.loss_in_metrics(done.reported),
                seconds=done.seconds,
                client_seconds=done.client_seconds,
                rounds=rounds,
            )
            self.folder.add_line(self._last_line)
        self.folder.add_to_ledger(done.ledger, done.pieces)

    def save(self, progress: Progress, *, last: bool) -> None:
        """A checkpoint of the round that was written, with the model that is sent next."""
        if self.folder is None or not self._unsaved:
            return
        progress.checkpoint().write(self.folder)
        self._unsaved = False
        if last:
            self._lock.close()

    def write_evaluation(self, evaluation: RoundEvaluation) -> None:
        """What the sites say of a round's model, in the round's line."""
        line = self._last_line
        if self.folder is not None and line is not None and line.round == evaluation.round:
            self._last_line = line.evaluated_by(evaluation)
            self.folder.replace_line(self._last_line)


def _read_checkpoint(folder: RunFolder, progress: Progress) -> ServerCheckpoint | None:
    """The checkpoint; before that, the model is cut to the tensors that it holds."""
    shared = shared_tensors_in_checkpoint(folder)
    if shared is not None:
        progress.share_only(shared)
    return ServerCheckpoint.read(folder, progress.current.model.layout)
