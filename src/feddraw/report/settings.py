"""How a report is computed: levels, replicates and ranges that its user may choose."""

from __future__ import annotations

from dataclasses import dataclass

from feddraw.errors import UserError, not_negative


@dataclass(frozen=True)
class ReportSettings:
    """What the user of a report chooses; the page prints all of it."""

    alpha: float = 0.05  # level of the tests over scenarios
    replicates: int = 1000  # of the bootstrap; 0: none
    margin: float = 0.0  # how far below another method still counts as no worse; 0: no such test
    decision_range: tuple[float, float] = (0.01, 0.5)  # threshold probabilities of decision curves

    checklist: str = ""  # a reporting guideline to show with the report: tripod-ai

    def __post_init__(self) -> None:
        """Refuse what no report can be computed with."""
        not_negative("replicates", self.replicates)
        if not 0 < self.alpha < 1:
            raise UserError(f"alpha must be between 0 and 1, not {self.alpha}")
        if not 0 <= self.margin < 1:
            raise UserError(f"margin must be from 0 to below 1, such as 0.01, not {self.margin}")
        low, high = self.decision_range
        if not 0 < low < high < 1:
            raise UserError(
                "decision curves need threshold probabilities LOW-HIGH with 0 < LOW < HIGH < 1,"
                f" such as 0.01-0.5, not {low:g}-{high:g}"
            )

    @property
    def options(self) -> list[str]:
        """The options of `feddraw report` that differ from the defaults."""
        usual = ReportSettings()
        words = []
        for name in ("alpha", "replicates", "margin"):
            value = getattr(self, name)
            if value != getattr(usual, name):
                words += [f"--{name}", str(value)]
        if self.decision_range != usual.decision_range:
            low, high = self.decision_range
            words += ["--decision-range", f"{low:g}-{high:g}"]
        if self.checklist:
            words += ["--checklist", self.checklist]
        return words


def decision_range_of(text: str) -> tuple[float, float]:
    """The two numbers of a text such as 0.01-0.5."""
    low, _, high = text.partition("-")
    try:
        return float(low), float(high)
    except ValueError:
        raise UserError(
            f"a range of threshold probabilities is written as 0.01-0.5, not {text!r}"
        ) from None
