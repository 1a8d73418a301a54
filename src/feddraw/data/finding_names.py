"""Names of findings: the paper's five, ChestX-ray14's fourteen, one spelling of each, and those
that a user chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

from feddraw.errors import UserError

# The paper's five findings, in its order (Table 1).
PAPER_FINDINGS = ("Atelectasis", "Edema", "Pleural Effusion", "Cardiomegaly", "Consolidation")
# ChestX-ray14's findings in MedMNIST's order, under the paper's names.
CHESTXRAY14_FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Pleural Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural Thickening",
    "Hernia",
)
FindingChoice = str | Sequence[str]  # "paper", "all", or names
_SPELLED = {name.lower(): name for name in (*CHESTXRAY14_FINDINGS, *PAPER_FINDINGS)} | {
    "effusion": "Pleural Effusion"
}


def canonical_finding(name: str) -> str:
    """A finding's name as the paper spells it, if it is one that we know."""
    words = " ".join(name.replace("_", " ").split())
    return _SPELLED.get(words.lower(), words)


def listed_findings(findings: FindingChoice) -> tuple[str, ...]:
    """The paper's findings, or those of a list."""
    listed = findings.split(",") if isinstance(findings, str) else findings
    if not isinstance(listed, Sequence) or not any(str(name).strip() for name in listed):
        raise UserError(f"findings must be paper, all, or a list of names, not {findings!r}")
    return PAPER_FINDINGS if findings == "paper" else tuple(str(name).strip() for name in listed)


def choose_findings(
    findings: FindingChoice, available: Sequence[str], where: str
) -> dict[str, int]:
    """Which of the columns are wanted: name -> place among the available."""
    places = {canonical_finding(name): place for place, name in enumerate(available)}
    if len(places) < len(available):
        raise UserError(f"{where} has two columns for one finding among {', '.join(available)}")
    if findings == "all":
        return places
    wanted = tuple(map(canonical_finding, listed_findings(findings)))
    if missing := [name for name in wanted if name not in places]:
        raise UserError(f"{where} has no finding {', '.join(missing)}; it has {', '.join(places)}")
    return {name: places[name] for name in wanted}
