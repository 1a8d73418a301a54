"""What judges the later stages of the atlas (studies/atlas-2.md, atlas-3.md, atlas-4.md), written
before their runs.

Of S2 to S8 nothing is judged or shown before all runs of the study are there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from atlas_runs import (
    DATA,
    FAILED,
    FOLDS,
    HELD,
    MARGIN,
    OPEN,
    REPLICATES,
    Floats,
    Found,
    Run,
    Verdict,
    best_elsewhere,
    cell,
    complete,
    decided,
    load,
    markdown,
    p_text,
    paired,
    paired_over,
    student,
    text,
    values,
    waiting,
    with_holm,
    within,
)

Runs = Sequence[Run]
Value = Callable[[Run], float]

STUDIES = ("drift", "similarity", "chosen", "rivals", "confirm", "left-out", "pretrained")


def load_studies() -> dict[str, list[Run]]:
    return {name: load(DATA / f"atlas-{name}.csv") for name in STUDIES}


def late(run: Run) -> float:
    return run.late


def last(run: Run) -> float:
    return run.curve[-1]


def none_by_the_margin(name: str, words: str, gains: Sequence[Found]) -> Verdict:
    """Held if every interval ends below the margin; failed if a mean above it is decided."""
    failed = any(decided(one) and one[0] > MARGIN for one in gains)
    return Verdict(
        name, FAILED if failed else HELD if all(one[2] < MARGIN for one in gains) else OPEN, words
    )


def equal_weights_ahead(name: str, size: Found) -> Verdict:
    """From FedAvg minus uniform averaging: held or failed by the side of zero, failed also within
    the margin.
    """
    mean, low, high, p = size
    gap = (-mean, -high, -low, p)
    outcome = HELD if gap[1] > 0 else FAILED if gap[2] < 0 or within(gap, MARGIN) else OPEN
    return Verdict(name, outcome, f"D = {text(gap)}")


# ---------------------------------------------------------------------------------------- S1, drift

LOCAL_STEPS = (2, 4, 8, 16)  # between two exchanges, 96 in all


def drift_gaps(runs: Runs, regime: str) -> dict[int, Floats]:
    """Uniform minus FedAvg by the number of local steps, over the last quarter of the training."""
    places = [f"{regime}, {steps} steps" for steps in LOCAL_STEPS]
    table = values(runs, places, ("fedavg", "uniform"), lambda run: run.last_quarter)
    found = {
        n: paired(table, place, "uniform", "fedavg")
        for n, place in zip(LOCAL_STEPS, places, strict=True)
    }
    count = min(map(len, found.values()))
    return {steps: gaps[:count] for steps, gaps in found.items()}


def drift(runs: Runs) -> Verdict:
    name = "S1, drift: with 2 local steps D is less than half of that with 16"
    found = drift_gaps(runs, "enriched")
    if len(found[2]) < REPLICATES:
        return waiting(name, runs)
    one = student(found[16] - 2 * found[2])
    return Verdict(
        name, HELD if one[1] > 0 else FAILED if one[2] < 0 else OPEN, f"D₁₆ − 2 D₂ = {text(one)}"
    )


def drift_table(runs: Runs) -> str:
    regimes = ("alike", "enriched")
    gaps = {regime: drift_gaps(runs, regime) for regime in regimes}
    lines = [
        [f"{n} × {96 // n}", *(text(student(gaps[regime][n])) for regime in regimes)]
        for n in LOCAL_STEPS
    ]
    return markdown(("local steps × rounds", *regimes), lines)


# ---------------------------------------------------------------------------------- S2, S3, signals

COMPARED_IN = ("enriched", "labels, large")
BETAS = ("3.0", "30.0", "100.0")
SIMILARITIES = {"itself": "feddraw,layer=classifier", "of all layers": "feddraw,layer=all"} | {
    signal: f"feddraw_variant,signal={signal}"
    for signal in ("constant", "shuffled", "standardised")
}
Compared = dict[tuple[str, str, str], Found]  # by similarity, regime and β_max


def with_beta(similarity: str, beta: str) -> str:
    return f"{SIMILARITIES[similarity]},beta_max={beta}"


def similarity_gaps(runs: Runs, others: Sequence[str], sign: int) -> Compared:
    """Others minus FedDRAW itself (sign 1) or the reverse (−1), Holm over all; empty before the
    study is complete.
    """
    table = values(runs, COMPARED_IN, [with_beta(*of) for of in product(SIMILARITIES, BETAS)], late)
    if not complete(table, REPLICATES):
        return {}
    return with_holm(
        {
            (other, regime, beta): student(
                sign * paired(table, regime, with_beta(other, beta), with_beta("itself", beta))
            )
            for other, regime, beta in product(others, COMPARED_IN, BETAS)
        }
    )


def named(where: tuple[str, str, str], one: Found) -> str:
    similarity, regime, beta = where
    return f"{similarity}, {regime}, β_max {float(beta):g}: {text(one)}, Holm p {p_text(one[3])}"


def shuffled(runs: Runs) -> Verdict:
    name = "S2, similarity: FedDRAW is within the margin of its shuffled control"
    found = similarity_gaps(runs, ("shuffled",), -1)
    if not found:
        return waiting(name, runs)
    failed = any(decided(one) and abs(one[0]) > MARGIN for one in found.values())
    held = all(within(one, MARGIN) for one in found.values())
    largest = max(found.items(), key=lambda item: abs(item[1][0]))
    words = f"FedDRAW minus control, the largest of {len(found)}: {named(*largest)}"
    return Verdict(name, FAILED if failed else HELD if held else OPEN, words)


def other_similarity(runs: Runs) -> Verdict:
    name = "S3, similarity: standardised or of all layers is better"
    found = similarity_gaps(runs, ("standardised", "of all layers"), 1)
    if not found:
        return waiting(name, runs)
    held = any(decided(one) and one[0] > 0 for one in found.values())
    failed = all(one[2] < MARGIN for one in found.values())
    best = max(found.items(), key=lambda item: item[1][0])
    words = f"minus FedDRAW, the best of {len(found)}: {named(*best)}"
    return Verdict(name, HELD if held else FAILED if failed else OPEN, words)


def similarity_table(found: Compared, others: Sequence[str]) -> str:
    lines = [
        [other, regime, *(cell(found.get((other, regime, beta))) for beta in BETAS)]
        for other, regime in product(others, COMPARED_IN)
    ]
    return markdown(("similarity", "regime", *(f"β_max {float(beta):g}" for beta in BETAS)), lines)


# ------------------------------------------------------------------------------------- S4, choosing

CHOICES = ("fedavg", "uniform", "feddraw", "afl")
CHOSEN_IN = ("alike", "enriched", "labels, large")
Chosen = dict[
    str, dict[str, tuple[Run, Run]]
]  # by regime and replicate: among four rules, among four uniform runs


def chosen_runs(runs: Runs, main: Runs) -> Chosen:
    """What validation chooses on the same images and split; empty before all runs are there."""
    known = {(run.regime, run.rule, run.seed): run for run in main}
    found: Chosen = {regime: {} for regime in CHOSEN_IN}
    for regime, seed in product(CHOSEN_IN, sorted({run.seed for run in main})):
        rules = [known[regime, rule, seed] for rule in CHOICES if (regime, rule, seed) in known]
        again = [
            run for run in runs if (run.regime, run.rule) == (f"{regime}, images {seed}", "uniform")
        ]
        uniform = [run for run in rules if run.rule == "uniform"] + again
        same_split = len({run.partition for run in (*rules, *uniform)}) == 1
        if same_split and len(rules) == len(uniform) == len(CHOICES):
            found[regime][seed] = (_best(rules), _best(uniform))
    whole = len(set.intersection(*map(set, found.values()))) >= REPLICATES
    return found if whole else {}


def _best(runs: Runs) -> Run:
    return max(runs, key=lambda run: run.validation)


def choice_gaps(found: Chosen, value: Value) -> dict[str, Found]:
    """Chosen among four rules minus among four uniform runs, by regime, and the mean over regimes
    as `all`.
    """
    both = {
        (regime, kind): {seed: value(pair[kind == "uniform"]) for seed, pair in by_seed.items()}
        for regime, by_seed in found.items()
        for kind in ("rules", "uniform")
    }
    gaps = {regime: student(paired(both, regime, "rules", "uniform")) for regime in found}
    return gaps | (
        {"all": student(paired_over(both, CHOSEN_IN, "rules", "uniform"))} if found else {}
    )


def choosing(runs: Runs, main: Runs) -> Verdict:
    name = "S4, choosing by validation: four rules give more than four uniform runs"
    found = chosen_runs(runs, main)
    if not found:
        return waiting(name, runs)
    one = choice_gaps(found, late)["all"]
    outcome = HELD if one[1] > 0 else FAILED if one[2] < 0 or within(one, 0.005) else OPEN
    return Verdict(name, outcome, f"among four rules − among four uniform runs: {text(one)}")


def choosing_table(runs: Runs, main: Runs) -> str:
    found = chosen_runs(runs, main)
    gaps, at_last = choice_gaps(found, late), choice_gaps(found, last)
    lines = []
    for regime in (*CHOSEN_IN, "all"):
        pairs = [
            pair
            for place, by_seed in found.items()
            if regime in (place, "all")
            for pair in by_seed.values()
        ]
        auc = [
            f"{np.mean([pair[kind].late for pair in pairs]):.3f}" if pairs else "—"
            for kind in (0, 1)
        ]
        taken = Counter(pair[0].rule for pair in pairs)
        rules = ", ".join(f"{rule} {taken[rule]}" for rule in CHOICES if pairs) or "—"
        differences = [text(of[regime]) if of else "—" for of in (gaps, at_last)]
        lines.append([regime, *auc, *differences, rules])
    header = (
        "regime",
        "among four rules",
        "among four uniform runs",
        "difference",
        "last round",
        "rule that was chosen",
    )
    return markdown(header, lines)


# --------------------------------------------------------------------------------- S5, tuned rivals

RIVALS = (
    "fedavg",
    "fednova",
    "fedprox",
    "fedadp",
    "scaffold",
    "moon",
    "feddyn",
)  # FedDRAW's, in the paper
TUNED_IN = ("alike", "enriched")
SETTINGS = {
    "feddraw": ("eta", (0.1, 0.2, 0.4, 0.8)),
    "fedprox": ("mu", (0.001, 0.01, 0.1, 1.0)),
    "fedadp": ("alpha", (1.0, 2.5, 5.0, 10.0)),
    "scaffold": ("server_lr", (0.25, 0.5, 0.75, 1.0)),
    "moon": ("mu", (0.01, 0.1, 1.0, 5.0)),
    "feddyn": ("alpha", (0.001, 0.01, 0.1, 1.0)),
}
Tuned = dict[tuple[str, str], tuple[Floats, list[str]]]  # by regime and rule


def settings_of(rule: str) -> list[str]:
    """A rule with each value of its own parameter, as tables name it."""
    parameter, tried = SETTINGS.get(rule, ("", ()))
    return [f"{rule},{parameter}={value}" for value in tried] or [rule]


def tuned(runs: Runs) -> Tuned:
    """Late AUC minus that of uniform averaging with the setting that validation chose elsewhere,
    and that setting.
    """
    rules = [
        "uniform",
        *(setting for rule in (*RIVALS, "feddraw") for setting in settings_of(rule)),
    ]
    test, validation = (
        values(runs, TUNED_IN, rules, of) for of in (late, lambda run: run.validation)
    )
    if not complete(test, REPLICATES):
        return {}
    found = {}
    for regime, rule in product(TUNED_IN, (*RIVALS, "feddraw")):
        options = settings_of(rule)
        gaps = np.stack([paired(test, regime, option, "uniform") for option in options])
        best = best_elsewhere(
            np.array([list(validation[regime, option].values()) for option in options])
        )
        found[regime, rule] = gaps[best, np.arange(len(best))], [options[place] for place in best]
    return found


def rival_gaps(found: Tuned) -> dict[tuple[str, str], Found]:
    """Tuned rivals minus uniform averaging, Holm over the fourteen."""
    return with_holm(
        {where: student(gaps) for where, (gaps, _) in found.items() if where[1] in RIVALS}
    )


def tuned_rivals(runs: Runs) -> Verdict:
    name = "S5, tuned: no rival is better than uniform averaging by the margin"
    gaps = rival_gaps(tuned(runs))
    if not gaps:
        return waiting(name, runs)
    (regime, rule), best = max(gaps.items(), key=lambda item: item[1][0])
    words = (
        f"minus uniform, the best of {len(gaps)}: {rule}, {regime}: {text(best)}, Holm p"
        f" {p_text(best[3])}"
    )
    return none_by_the_margin(name, words, list(gaps.values()))


def rivals_table(runs: Runs) -> str:
    """Tuned rules minus uniform averaging, with how often each value was chosen; FedDRAW is no part
    of the family.
    """
    found = tuned(runs)
    gaps = rival_gaps(found)
    lines = []
    for rule in (*RIVALS, "feddraw"):
        line = [rule, SETTINGS.get(rule, ("none", ()))[0]]
        for regime in TUNED_IN:
            own, picked = found.get((regime, rule), (None, []))
            beside = "—" if own is None else text(student(own))
            times = Counter(setting.rpartition("=")[2] for setting in picked if "=" in setting)
            line += [cell(gaps[regime, rule]) if (regime, rule) in gaps else beside]
            line += [
                ", ".join(f"{value} ({times[value]})" for value in sorted(times, key=float)) or "—"
            ]
        lines.append(line)
    return markdown(
        ("rule", "parameter", *(word for regime in TUNED_IN for word in (regime, "chosen"))), lines
    )


# ---------------------------------------------------------------------------------------- S6, leads

LEADS = {"CHM-1": -1, "CHM-3": 1}  # FedDRAW behind uniform averaging, and ahead
TRAININGS = 10


def lead_gaps(runs: Runs, value: Value) -> dict[str, Found]:
    """FedDRAW minus uniform averaging with Nadeau and Bengio's intervals; empty before all runs are
    there.
    """
    table = values(runs, tuple(LEADS), ("feddraw", "uniform"), value)
    if not complete(table, TRAININGS):
        return {}
    return {
        scenario: student(paired(table, scenario, "feddraw", "uniform"), 1 / (FOLDS - 1))
        for scenario in LEADS
    }


def leads(runs: Runs) -> list[Verdict]:
    found, made = lead_gaps(runs, late), []
    for scenario, sign in LEADS.items():
        name = (
            f"S6, the replication again: FedDRAW is {'ahead' if sign > 0 else 'behind'} in"
            f" {scenario}"
        )
        if not found:
            made.append(waiting(name, runs))
            continue
        one = found[scenario]
        held = one[1] > 0 if sign > 0 else one[2] < 0
        words = f"{'confirmed' if held else 'retracted'}: FedDRAW − uniform = {text(one)}"
        made.append(Verdict(name, HELD if held else FAILED, words))
    return made


def leads_table(runs: Runs) -> str:
    found, at_last = lead_gaps(runs, late), lead_gaps(runs, last)
    lines = []
    for scenario in LEADS:
        own = {
            rule: [run.late for run in runs if (run.regime, run.rule) == (scenario, rule)]
            for rule in ("feddraw", "uniform")
        }
        auc = [f"{np.mean(of):.3f}" if found else "—" for of in own.values()]
        lines.append(
            [scenario, *auc, *(text(of[scenario]) if of else "—" for of in (found, at_last))]
        )
    return markdown(("scenario", "FedDRAW", "uniform", "FedDRAW − uniform", "last round"), lines)


# ------------------------------------------------------------------------------------- S7, left out

LEFT_OUT = {"C1": "gamma 0.5", "C2": "gamma 2", "C3": "contrast 0.5, crop 0.1"}
LEFT_OUT_RULES = ("uniform", "fedavg", "feddraw", "random_effects")
WITHOUT_SITE = tuple(f"scanner, without {site}" for site in LEFT_OUT)


def at_left_out(run: Run) -> float:
    """The late AUC of the test images as the site makes them that the regime is without."""
    return float(np.mean(run.sites[run.regime.rpartition(" ")[2]][-5:]))


def left_out_gaps(runs: Runs) -> dict[tuple[str, str], Found]:
    """Rules minus uniform averaging by regime, and the mean over regimes as `all`, with Holm's p
    over its three.
    """
    table = values(runs, WITHOUT_SITE, LEFT_OUT_RULES, at_left_out)
    over_all = {
        rule: paired_over(table, WITHOUT_SITE, rule, "uniform") for rule in LEFT_OUT_RULES[1:]
    }
    if min(map(len, over_all.values())) < REPLICATES:
        return {}
    mean = with_holm({("all", rule): student(gaps) for rule, gaps in over_all.items()})
    places = product(WITHOUT_SITE, over_all)
    return {
        (place, rule): student(paired(table, place, rule, "uniform")) for place, rule in places
    } | mean


def left_out(runs: Runs) -> list[Verdict]:
    carries = "S7a, a site left out: equal weights are better there than size"
    nothing = "S7b, a site left out: no rule is better there than uniform averaging by the margin"
    found = left_out_gaps(runs)
    if not found:
        return [waiting(carries, runs), waiting(nothing, runs)]
    rules = {rule: found["all", rule] for rule in LEFT_OUT_RULES[1:]}
    words = "minus uniform: " + "; ".join(f"{rule} {text(of)}" for rule, of in rules.items())
    return [
        equal_weights_ahead(carries, found["all", "fedavg"]),
        none_by_the_margin(nothing, words, list(rules.values())),
    ]


def left_out_table(runs: Runs) -> str:
    """Bold in the last row only: single sites have no test of their own."""
    found = left_out_gaps(runs)
    auc = values(runs, WITHOUT_SITE, ("uniform",), at_left_out)
    lines = []
    for place, shown in (*zip(WITHOUT_SITE, LEFT_OUT.items(), strict=True), ("all", ("mean", ""))):
        own = [
            value
            for (regime, _), by_seed in auc.items()
            if place in (regime, "all")
            for value in by_seed.values()
        ]
        gaps = [found.get((place, rule)) for rule in LEFT_OUT_RULES[1:]]
        cells = [cell(one) if place == "all" or one is None else text(one) for one in gaps]
        lines.append([*shown, f"{np.mean(own):.3f}" if found else "—", *cells])
    return markdown(
        (
            "left out",
            "its images",
            "uniform",
            *(f"{rule} − uniform" for rule in LEFT_OUT_RULES[1:]),
        ),
        lines,
    )


# ----------------------------------------------------------------------------------- S8, fine-tuned

FINE_TUNED_IN, FINE_TUNED_RULES = ("alike", "enriched"), ("uniform", "fedavg", "feddraw")


def fine_tuned_gaps(runs: Runs) -> dict[tuple[str, str], Found]:
    """Rules minus uniform averaging by regime, Nadeau and Bengio's intervals, Holm over the
    four.
    """
    table = values(runs, FINE_TUNED_IN, FINE_TUNED_RULES, last)
    if not complete(table, FOLDS):
        return {}
    places = product(FINE_TUNED_IN, FINE_TUNED_RULES[1:])
    return with_holm(
        {
            (place, rule): student(paired(table, place, rule, "uniform"), 1 / (FOLDS - 1))
            for place, rule in places
        }
    )


def fine_tuned(runs: Runs) -> list[Verdict]:
    ahead = "S8a, fine-tuned: equal weights are ahead of size where the small sites are enriched"
    nothing = "S8b, fine-tuned: no rule is better than uniform averaging by the margin"
    found = fine_tuned_gaps(runs)
    if not found:
        return [waiting(ahead, runs), waiting(nothing, runs)]
    words = "minus uniform: " + "; ".join(
        f"{rule}, {place}: {text(one)}" for (place, rule), one in found.items()
    )
    return [
        equal_weights_ahead(ahead, found["enriched", "fedavg"]),
        none_by_the_margin(nothing, words, list(found.values())),
    ]


def fine_tuned_table(runs: Runs) -> str:
    found = fine_tuned_gaps(runs)
    lines = []
    for place in FINE_TUNED_IN:
        own = [run.curve[-1] for run in runs if (run.regime, run.rule) == (place, "uniform")]
        gaps = [cell(found.get((place, rule))) for rule in FINE_TUNED_RULES[1:]]
        lines.append([place, f"{np.mean(own):.3f}" if found else "—", *gaps])
    return markdown(
        ("regime", "uniform", *(f"{rule} − uniform" for rule in FINE_TUNED_RULES[1:])), lines
    )


# -------------------------------------------------------------------------------------- all of them


def verdicts(studies: Mapping[str, Runs], main: Runs) -> list[Verdict]:
    """S1 to S8, from each study's runs and those of the main table."""
    of = {name: studies.get(name, ()) for name in STUDIES}
    return [
        drift(of["drift"]),
        shuffled(of["similarity"]),
        other_similarity(of["similarity"]),
        choosing(of["chosen"], main),
        tuned_rivals(of["rivals"]),
        *leads(of["confirm"]),
        *left_out(of["left-out"]),
        *fine_tuned(of["pretrained"]),
    ]


def tables(studies: Mapping[str, Runs], main: Runs) -> dict[str, str]:
    """By the name of their mark on the page."""
    of = {name: studies.get(name, ()) for name in STUDIES}
    control = similarity_gaps(of["similarity"], ("shuffled",), -1)
    beside = {
        where: (*one[:3], math.nan)
        for where, one in similarity_gaps(of["similarity"], ("constant",), -1).items()
    }
    others = ("standardised", "of all layers")
    return {
        "drift": drift_table(of["drift"]),
        "similarity": similarity_table(control | beside, ("shuffled", "constant")),
        "similarity-others": similarity_table(similarity_gaps(of["similarity"], others, 1), others),
        "chosen": choosing_table(of["chosen"], main),
        "rivals": rivals_table(of["rivals"]),
        "confirm": leads_table(of["confirm"]),
        "left-out": left_out_table(of["left-out"]),
        "pretrained": fine_tuned_table(of["pretrained"]),
    }
