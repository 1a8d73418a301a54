"""The figure of docs/which-weights.md, from the tables in docs/data alone.

python -m benchmarks.work_study_figure    writes docs/images/weights-or-steps.svg
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.work_study import DATA, HEAD, PARTITIONS, read_rows
from benchmarks.work_study_tables import (
    DECIDED,
    SIMILARITY,
    W1,
    W2,
    W3,
    W4,
    Contrast,
    Estimate,
    Results,
    by_cell,
    contrasts,
    moved_share,
    similarity_verdict,
    verdict_of_work,
    weights_and_work,
)
from feddraw.analysis.palette import INK, SERIES
from feddraw.analysis.plots import figure_style, save_figure

FILE = DATA.parent / "images" / "weights-or-steps.svg"

PANELS = {
    "natural": "natural sites",
    "random": "one large site, images at random",
    "concentration": "small sites enriched, concentration",
    "tilt": "small sites enriched, tilt 1",
}
ROWS = {
    W1: "equal weights − by size,\nequal epochs",
    W2: "equal weights − by size,\nequal steps",
    W3: "the first minus the second:\nwhat is work",
    W4: "FedNova − by size,\nequal epochs",
    "similarity": "FedDRAW − one similarity\nfor all, equal epochs",
}


def shown_differences(results: Results) -> dict[str, dict[str, tuple[Estimate, str]]]:
    """By partition, the rows with their verdicts."""
    shown: dict[str, dict[str, tuple[Estimate, str]]] = {partition: {} for partition in PARTITIONS}
    for name, estimates in weights_and_work(results).items():
        for partition, estimate in estimates.items():
            verdict = estimate.verdict()
            if name == W3:
                verdict = verdict_of_work(results, partition, estimate)
            shown[partition][name] = (estimate, verdict)
    similarity = contrasts(results, SIMILARITY)
    for partition in PARTITIONS:
        contrast = Contrast("feddraw", "constant", partition, "epochs")
        if contrast in similarity:
            estimate = similarity[contrast]
            verdict = similarity_verdict(estimate, moved_share(results, contrast))
            shown[partition]["similarity"] = (estimate, verdict)
    return shown


def work_figure(results: Results) -> Figure:
    """Differences in test AUC with their intervals, a panel for each partition."""
    shown = shown_differences(results)
    with figure_style():
        figure = Figure(figsize=(7.2, 5.6), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, (partition, title) in zip(panels.flat, PANELS.items(), strict=True):
            _draw_panel(axes, shown[partition])
            axes.set_title(title, fontsize=9)
        panels[0, 0].set_yticks(range(len(ROWS)), list(ROWS.values()))
        panels[0, 0].invert_yaxis()
        for axes in panels[1]:
            axes.set_xlabel("difference in test AUC, 95 % interval", fontsize=8)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _draw_panel(axes: Axes, differences: Mapping[str, tuple[Estimate, str]]) -> None:
    axes.axvline(0, color="0.6", linewidth=0.8, zorder=1)
    for row, name in enumerate(ROWS):
        if name not in differences:
            continue
        estimate, verdict = differences[name]
        colour = SERIES[1] if verdict in DECIDED else INK
        axes.barh(row, 2 * estimate.floor, left=-estimate.floor, height=0.55, color="0.9", zorder=0)
        axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.4)
        face = colour if verdict in DECIDED else "white"
        axes.plot(estimate.mean, row, "o", color=colour, markerfacecolor=face, markersize=5)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", labelsize=8, length=0)


def _legend() -> list[Line2D | Patch]:
    open_circle = {"marker": "o", "markerfacecolor": "white", "markersize": 5}
    return [
        Line2D([], [], color=SERIES[1], marker="o", markersize=5, label="decided (Holm, 5 %)"),
        Line2D([], [], color=INK, **open_circle, label="not decided, or no treatment"),
        Patch(color="0.9", label="floor: no number of splits decides less"),
    ]


def main() -> None:
    """Draw it."""
    results = by_cell(read_rows(HEAD, "run"))
    if not results:
        raise SystemExit("docs/data/work-run.csv is not there: run the study first")
    save_figure(work_figure(results), FILE)


if __name__ == "__main__":
    main()
