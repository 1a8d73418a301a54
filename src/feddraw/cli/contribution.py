"""`feddraw contribution`: what each site brought to a model, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from feddraw.cli.progress_bars import counting_bar, duration_in_words
from feddraw.cli.terminal import console, print_json, table
from feddraw.text import safe_line

if TYPE_CHECKING:
    from feddraw.experiment.contribution import MeasuredContributions
    from feddraw.results.contribution_file import RunContributions

DOCUMENT = "contribution.json"


def contribution(
    runs: Annotated[
        list[Path],
        Argument(help="Folder of a run, or of runs that differ in their seed.", metavar="RUN..."),
    ],
    retrain: Annotated[
        bool, Option("--retrain", help="Also train once more without each site: the reference.")
    ] = False,
    seeds: Annotated[
        int, Option(help="Trainings with different seeds; those beyond RUN are carried out.")
    ] = 1,
    minutes: Annotated[
        float, Option(help="Time within which trainings begin, seed by seed; 0: no limit.")
    ] = 0.0,
    metric: Annotated[str, Option(help="Metric of the report, such as auc or gm.")] = "auc",
    finding: Annotated[str, Option(help="Of one finding; without it, the mean over all.")] = "",
    replicates: Annotated[int, Option(help="Draws of patients for the intervals.")] = 200,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the run's experiment.toml names.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure what each site contributed to a run, with intervals over patients and trainings.

    Recombines the updates of every round, which the run must have kept (keep.updates = true):
    leave-one-out and Shapley values. With --retrain it also trains without each site. What is
    computed is kept in RUN/contribution; type the same command again to continue.
    """
    from feddraw.analysis.contributions_in_words import contributions_document
    from feddraw.experiment.contribution import Effort, measure_contributions
    from feddraw.experiment.recombination import ContributionOptions

    with counting_bar(console(stderr=True), prefix="", announced=False) as show_progress:
        measured = measure_contributions(
            runs,
            ContributionOptions(metric=metric, finding=finding, replicates=replicates),
            Effort(retrain=retrain, seeds=seeds, minutes=minutes),
            trust=trust,
            progress=show_progress,
        )
    document = contributions_document(measured.by_estimator)
    files = write_contribution_files(runs[0], document, measured)
    if json:
        print_json(document)
        return
    show_contributions(measured)
    names = ", ".join(str(file) for file in files)
    console().print(safe_line(f"written: {names}"))


def write_contribution_files(
    run: Path, document: dict[str, object], measured: MeasuredContributions
) -> list[Path]:
    """The numbers and the forest plot, in the folder of the first run."""
    from json import dumps

    from feddraw.analysis.contribution_plot import contribution_figure
    from feddraw.analysis.contributions_in_words import over_trainings, utility_name
    from feddraw.analysis.plots import save_figure
    from feddraw.results.run_folder import RunFolder
    from feddraw.system.file_writing import write_whole

    folder = RunFolder(run).contribution
    files = [folder / DOCUMENT, folder / "contribution.png"]
    write_whole(files[0], (dumps(document, indent=2, allow_nan=False) + "\n").encode())
    first = next(iter(measured.by_estimator.values()))[0]
    combined = {
        name: contributions
        for name, trainings in measured.by_estimator.items()
        if (contributions := over_trainings(trainings)) is not None
    }
    save_figure(contribution_figure(combined, utility_name(first)), files[1])
    return files


def show_contributions(measured: MeasuredContributions) -> None:
    """A table, the sentences of the estimator in focus, and what could not be had."""
    from feddraw.analysis.contributions_in_words import (
        estimator_in_focus,
        over_trainings,
        sentence_of_site,
        sentences_on_certainty,
        undefined_groups,
        utility_name,
    )
    from feddraw.results.contribution_file import ESTIMATORS

    out = console()
    for name, trainings in measured.by_estimator.items():
        _show_estimator(trainings)
        models = sum(each.models for each in trainings)
        seconds = duration_in_words(sum(each.seconds for each in trainings))
        kind = "trainings" if name == "retrained" else "models evaluated"
        out.print(f"{ESTIMATORS[name]}: {models:,} {kind}, {seconds}")
    focus = estimator_in_focus(measured.by_estimator)
    trainings = measured.by_estimator[focus]
    contributions = over_trainings(trainings)
    assert contributions is not None
    out.print(f"by {ESTIMATORS[focus]}, on all test patients:")
    for site in range(len(contributions.sites)):
        out.print(
            safe_line(f"- {sentence_of_site(contributions, site, utility_name(trainings[0]))}")
        )
    for sentence in sentences_on_certainty(contributions):
        out.print(safe_line(f"- {sentence}"))
    if len(contributions.sites) == 2:
        out.print("- Two sites: without the one, the other trains alone.")
    for group in undefined_groups(trainings):
        out.print(
            safe_line(
                f"note: {utility_name(trainings[0])} is undefined on the images of {group}, which"
                " show one class only"
            )
        )
    for note in measured.notes:
        out.print(safe_line(f"note: {note}"))


def _show_estimator(trainings: Sequence[RunContributions]) -> None:
    """Each site's contribution to the pooled patients' metric, and to that of its own."""
    from feddraw.analysis.contributions_in_words import (
        interval_text,
        over_trainings,
        ranks_text,
        utility_name,
    )
    from feddraw.results.contribution_file import ESTIMATORS

    pooled = over_trainings(trainings)
    assert pooled is not None
    name = ESTIMATORS[trainings[0].estimator]
    columns = [name, f"{utility_name(trainings[0])}, all patients", "rank"]
    own = {site: over_trainings(trainings, site) for site in pooled.sites}
    with_own = any(own.values())
    if with_own:
        columns.append("its own patients")
    rows = []
    for number, site in enumerate(pooled.sites):
        row = [site, interval_text(pooled.estimates[number]), ranks_text(pooled, number)]
        of_own = own[site]
        if with_own:
            row.append("" if of_own is None else interval_text(of_own.estimates[number]))
        rows.append(row)
    console().print(table(columns, rows))
