"""`feddraw heterogeneity`: how much the sites differ, before anyone trains for days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from feddraw.cli.options import DataOption, ScenarioOption
from feddraw.cli.progress_bars import counting_bar
from feddraw.cli.run import starting_experiment
from feddraw.cli.terminal import console, print_json, print_line, table
from feddraw.errors import UserError, one_of
from feddraw.text import folder_name, safe_line

if TYPE_CHECKING:
    from feddraw.analysis.site_heterogeneity import GroupHeterogeneity, Heterogeneity, SiteDistance
    from feddraw.experiment.heterogeneity import HeterogeneityOptions
    from feddraw.experiment.settings import Experiment

DOCUMENT = "heterogeneity.json"


@dataclass(frozen=True, eq=False)
class MeasuredSites:
    """How much the sites differ at one or several models."""

    source: dict[str, Any]  # what was measured and how: the first lines of the document
    models: Sequence[Heterogeneity]  # by round, at least one
    notes: Sequence[str] = ()  # on sites that lack a class

    @property
    def name(self) -> str:
        """For the folder that it is written to."""
        return f"heterogeneity-{self.source['scenario'].replace(':', '.')}-{self.source['seed']}"

    def first_and_last(self) -> list[Heterogeneity]:
        """The two models that are shown in full; one, where only one was measured."""
        first, *later = self.models
        return [first, *later[-1:]]


def heterogeneity(
    source: Annotated[
        Path | None,
        Argument(
            help="Experiment file, or folder of a run of method random_effects.", show_default=False
        ),
    ] = None,
    data: Annotated[str | None, DataOption] = None,
    scenario: Annotated[str | None, ScenarioOption] = None,
    model: Annotated[
        str | None, Option(help="compact, densenet121, or package.module:function.")
    ] = None,
    size: Annotated[int | None, Option(help="Height and width of the images in pixels.")] = None,
    scale: Annotated[
        float | None, Option(help="Size of the scenario, 1 = as in the paper.")
    ] = None,
    seed: Annotated[
        int | None, Option(help="Seed of the initial model, the partition and the batches.")
    ] = None,
    rounds: Annotated[int, Option(help="Measure again after this many rounds of FedAvg.")] = 0,
    batches: Annotated[int, Option(help="Maximum number of batches per site.")] = 16,
    batch_size: Annotated[int, Option(help="Images in a batch; a site needs two batches.")] = 16,
    layer: Annotated[
        str, Option(help="Gradients to use: of the classifier, or of all layers.")
    ] = "classifier",
    mode: Annotated[
        str, Option(help="Batch normalisation: train, or eval as a sensitivity check.")
    ] = "train",
    permutations: Annotated[
        int, Option(help="Permutations of batches between sites, for p; 0 for none.")
    ] = 999,
    replicates: Annotated[
        int, Option(help="Bootstrap replicates for intervals; 0 for none.")
    ] = 1000,
    out: Annotated[
        Path | None,
        Option(help="Folder (default: a new runs/heterogeneity-SCENARIO-SEED; none with --json)."),
    ] = None,
    set_: Annotated[
        list[str] | None, Option("--set", help="KEY=VALUE: change any setting (repeatable).")
    ] = None,
    trust: Annotated[
        bool, Option("--trust", help="Allow code that the experiment file names.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure how much the sites differ, and which weights that speaks for."""
    from feddraw.analysis.site_heterogeneity import verdict_on
    from feddraw.core import Measurement
    from feddraw.experiment.completion import complete_settings
    from feddraw.experiment.heterogeneity import HeterogeneityOptions
    from feddraw.experiment.settings import parse_settings

    typed = {
        "data": data,
        "scenario": scenario,
        "model": model,
        "data.size": size,
        "scenario.scale": scale,
        "seed": seed,
    }
    changes = {name: value for name, value in typed.items() if value is not None} | parse_settings(
        set_ or []
    )
    if source is not None and source.is_dir():
        if changes:
            raise UserError(
                f"{source} is a run that was carried out: its settings cannot be changed here"
            )
        measured = _measured_in_run(source)
        folder = out
    else:
        if source is None and data is not None and scenario is None and Path(data).exists():
            # A table of one's own: the sites are in it.
            changes = {"data": data, "scenario": "by_site"} | changes
        experiment = complete_settings(
            starting_experiment(source, None, None, trust).with_settings(changes)
        )
        options = HeterogeneityOptions(
            measurement=Measurement(
                batches=batches,
                batch_size=batch_size,
                every=1,
                evaluation=one_of("mode", mode, ("train", "eval")) == "eval",
            ),
            layer=layer,
            rounds=rounds,
            permutations=permutations,
            replicates=replicates,
        )
        measured = _measured_before_training(experiment, options)
        folder = out or (None if json else _unused_folder(measured.name))
    verdict = verdict_on(measured.models[-1], measured.source.get("batch_size"))
    document = measured.source | {
        "measured": [asdict(model) for model in measured.models],
        "verdict": asdict(verdict),
    }
    replaced = folder is not None and (folder / DOCUMENT).exists()
    written = [] if folder is None else _write_heterogeneity(folder, document, measured)
    if json:
        print_json(document)
        return
    show_heterogeneity(measured)
    print_line("")
    for sentence in verdict.in_sentences():
        print_line(sentence)
    if written:
        note = ", in place of an earlier measurement" if replaced else ""
        print_line(f"written to {', '.join(map(str, written))}{note}")


def _unused_folder(name: str) -> Path:
    """The folder below runs, with a number behind it where that is taken."""
    from feddraw.results.find_runs import numbered_where_taken

    return numbered_where_taken(Path("runs") / folder_name(name))


def _measured_before_training(
    experiment: Experiment, options: HeterogeneityOptions
) -> MeasuredSites:
    """At the initial model, and after some rounds where the options say so."""
    from feddraw.experiment.heterogeneity import measure_heterogeneity

    notes: list[str] = []
    with counting_bar(console(stderr=True), prefix="", announced=False) as report_progress:
        models = list(
            measure_heterogeneity(
                experiment,
                options,
                progress=report_progress,
                on_setup=lambda prepared: notes.extend(prepared.class_notes()),
            )
        )
    measurement = options.measurement
    source = {
        "data": experiment.section("data")[0],
        "scenario": experiment.section("scenario")[0],
        "model": experiment.section("model")[0],
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "layer": options.layer,
        "mode": "eval" if measurement.evaluation else "train",
        "batches": measurement.batches,
        "batch_size": measurement.batch_size,
    }
    return MeasuredSites(source, models, notes)


def _measured_in_run(folder: Path) -> MeasuredSites:
    """What a run of the method random_effects measured in its rounds."""
    from feddraw.analysis.site_heterogeneity import site_distances_in_ledger
    from feddraw.results.recorded_run import read_run

    run = read_run(folder)
    if not run.ledger.rounds:
        raise UserError(
            f"{folder} has no weights.csv: give an experiment file, or the folder of a run"
        )
    rounds = run.planned or run.ledger.rounds
    models = site_distances_in_ledger(run.ledger, rounds)
    if not models:
        raise UserError(
            f"no round of {folder} has a measurement: run it with the method random_effects"
        )
    source: dict[str, Any] = {"run": str(folder)}
    if not run.of_server:
        source["data"] = run.names.data
        source["scenario"] = run.names.scenario
        source["model"] = run.names.model
        source["method"] = run.names.method
    source["seed"] = run.names.seed
    source["rounds"] = rounds
    return MeasuredSites(source, models)


def _write_heterogeneity(
    folder: Path, document: dict[str, Any], measured: MeasuredSites
) -> list[Path]:
    """The document, and the forest plot twice; gives the files."""
    from json import dumps

    from feddraw.analysis.forest_plot import forest_figure
    from feddraw.analysis.plots import save_figure
    from feddraw.system.file_writing import make_folder, write_errors_told, write_whole

    with write_errors_told(folder):
        make_folder(folder)
    files = [folder / name for name in (DOCUMENT, "heterogeneity.png", "heterogeneity.svg")]
    write_whole(files[0], (dumps(document, indent=2, allow_nan=False) + "\n").encode())
    figure = forest_figure(measured.first_and_last())
    for file in files[1:]:
        save_figure(figure, file)
    return files


def show_heterogeneity(measured: MeasuredSites) -> None:
    """Q in words, the sites, the groups of parameters; of a run only the first and the last round
    in full.
    """
    from feddraw.analysis.forest_plot import after_rounds
    from feddraw.analysis.site_heterogeneity import site_distances_in_words
    from feddraw.data.synthetic import is_synthetic

    out = console()
    source = measured.source
    models = measured.models
    note = " (synthetic)" if is_synthetic(str(source.get("data"))) else ""
    names = ", ".join(
        str(source[key]) for key in ("run", "scenario", "data") if source.get(key) is not None
    )
    sites = len(models[-1].sites)
    out.print(safe_line(f"{names}{note}, seed {source.get('seed')}: {sites} sites"))
    for note in measured.notes:
        out.print(f"note: {safe_line(note)}", markup=False)
    if len(models) > 2:
        rows = [[str(model.round), *_heterogeneity_numbers(model.overall)[:-1]] for model in models]
        out.print(table(["round", "Q", "expected", "I²", "rho"], rows))
    for model in measured.first_and_last():
        out.print(
            "",
            safe_line(f"{after_rounds(model.round)}: {site_distances_in_words(model.overall)}"),
            sep="\n",
        )
        columns = ["site", "images", "measured", "distance", "95 % interval"]
        two_batches = 2 * source.get("batch_size", 0)
        rows = [_site_distance_row(site, two_batches) for site in model.sites]
        out.print(table([*columns, "FedAvg", "random effects", "FedDRAW", "uniform"], rows))
        groups = [*model.layers, *model.findings]
        if groups:
            rows = [
                [
                    group.name,
                    str(group.sites),
                    *_heterogeneity_numbers(group),
                    _p_text(group.holm_p),
                ]
                for group in groups
            ]
            header = ["parameters", "sites", "Q", "expected", "I²", "rho", "p", "p (Holm)"]
            out.print(table(header, rows))
    out.print(
        "distance: squared, from the other sites' mean gradient, corrected for sampling (0: no"
        " farther than chance), in variances of one image's gradient. FedDRAW: mean over its rounds"
        " if all sites are equally similar."
    )
    groups = [*models[-1].layers, *models[-1].findings]
    if groups and "all" not in [group.name for group in groups]:
        out.print(
            "Sites label different findings: a finding is compared among the sites that label it,"
            " the classifier in the findings that all label, and the body of the network, which"
            " learns what a site labels, not at all."
        )
    if any(group.holm_p is not None for group in groups):
        last = safe_line(f"{models[-1].overall.name}, {after_rounds(models[-1].round)}")
        out.print(
            f"p (Holm): corrected for the {len(groups)} tests of its table. The verdict rests on"
            f" one test alone: {last}."
        )


def _heterogeneity_numbers(group: GroupHeterogeneity) -> list[str]:
    return [
        f"{group.q:.1f}",
        f"{group.expected:.1f}",
        f"{100 * group.i_squared:.0f} %",
        f"{group.rho:.3g}",
        _p_text(group.p),
    ]


def _p_text(p: float | None) -> str:
    return "" if p is None else f"{p:.3g}"


def _site_distance_row(site: SiteDistance, two_batches: int) -> list[str]:
    """`two_batches`: how many images they are, too few to resample."""
    distance = "" if site.distance is None else f"{site.distance:.4f}"
    interval = "" if site.low is None or site.high is None else f"{site.low:.4f} to {site.high:.4f}"
    if site.measured and site.measured == two_batches:
        interval = "not computable"
    images = [f"{site.images:,}", f"{site.measured:,}" if site.measured else "none"]
    weights = [
        f"{site.weights[rule]:.3f}" for rule in ("fedavg", "random_effects", "feddraw", "uniform")
    ]
    return [site.site, *images, distance, interval, *weights]
