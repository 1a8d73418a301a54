"""`feddraw heterogeneity`: how much the sites differ, before anyone trains for days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
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
    from feddraw.experiment.settings import Experiment


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
        Option(help="Folder (default: runs/heterogeneity-SCENARIO-SEED; none with --json)."),
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
    from feddraw.experiment.settings import complete, parse_settings

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
        found, about = _measured_in_run(source)
        folder = out
    else:
        if source is None and data is not None and scenario is None and Path(data).exists():
            # A table of one's own: the sites are in it.
            changes = {
                "data": data,
                "scenario": "by_site",
            } | changes
        experiment = complete(starting_experiment(source, None, None, trust).with_settings(changes))
        how = (batches, batch_size, layer, mode)
        found, about = _heterogeneity_of_experiment(
            experiment, rounds, how, permutations, replicates
        )
        name = f"heterogeneity-{about['scenario'].replace(':', '.')}-{about['seed']}"
        folder = out or (None if json else Path("runs") / folder_name(name))
    verdict = verdict_on(found[-1], about.get("batch_size"))
    document = about | {"measured": [asdict(one) for one in found], "verdict": asdict(verdict)}
    written = _write_heterogeneity(folder, document, found) if folder is not None else []
    if json:
        print_json(document)
        return
    show_heterogeneity(found, about)
    print_line("")
    for sentence in verdict.in_sentences():
        print_line(sentence)
    if written:
        print_line(f"written to {', '.join(map(str, written))}")


def _heterogeneity_of_experiment(
    experiment: Experiment,
    rounds: int,
    how: tuple[int, int, str, str],
    permutations: int,
    replicates: int,
) -> tuple[list[Heterogeneity], dict[str, Any]]:
    from feddraw.core import Measurement
    from feddraw.experiment.heterogeneity import HeterogeneityOptions, measure_heterogeneity

    batches, batch_size, layer, mode = how
    measurement = Measurement(
        batches, batch_size, 1, one_of("mode", mode, ("train", "eval")) == "eval"
    )
    wanted = HeterogeneityOptions(measurement, layer, rounds, permutations, replicates)
    with counting_bar(console(stderr=True), prefix="", announced=False) as report_progress:
        found = list(measure_heterogeneity(experiment, wanted, progress=report_progress))
    names = {part: experiment.section(part)[0] for part in ("data", "scenario", "model")}
    about = names | {
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "layer": layer,
        "mode": mode,
    }
    return found, about | {"batches": batches, "batch_size": batch_size}


def _measured_in_run(folder: Path) -> tuple[list[Heterogeneity], dict[str, Any]]:
    from feddraw.analysis.site_heterogeneity import site_distances_in_ledger
    from feddraw.results.recorded_run import read_run

    run = read_run(folder)
    if not run.ledger.rounds:
        raise UserError(
            f"{folder} has no weights.csv: give an experiment file, or the folder of a run"
        )
    rounds = run.planned or run.ledger.rounds
    found = site_distances_in_ledger(run.ledger, rounds)
    if not found:
        raise UserError(
            f"no round of {folder} has a measurement: run it with the method random_effects"
        )
    about: dict[str, Any] = {"run": str(folder)}
    if not run.of_server:
        names = run.names
        about |= {"data": names.data, "scenario": names.scenario}
        about |= {"model": names.model, "method": names.method}
    return found, about | {"seed": run.names.seed, "rounds": rounds}


def _write_heterogeneity(
    folder: Path, document: dict[str, Any], found: Sequence[Heterogeneity]
) -> list[Path]:
    from json import dumps

    from feddraw.analysis.forest_plot import forest_figure
    from feddraw.analysis.plots import save_figure
    from feddraw.system.file_writing import make_folder, write_errors_told, write_whole

    with write_errors_told(folder):
        make_folder(folder)
    files = [folder / f"heterogeneity.{ending}" for ending in ("json", "png", "svg")]
    write_whole(files[0], (dumps(document, indent=2, allow_nan=False) + "\n").encode())
    figure = forest_figure(found[-2:] if "run" not in document else [found[0], *found[1:][-1:]])
    for file in files[1:]:
        save_figure(figure, file)
    return files


def show_heterogeneity(found: Sequence[Heterogeneity], about: dict[str, Any]) -> None:
    """Q in words, the sites, the groups of parameters; of a run only the first and the last round
    in full.
    """
    from feddraw.analysis.forest_plot import after_rounds
    from feddraw.analysis.site_heterogeneity import site_distances_in_words

    out = console()
    note = " (synthetic)" if about.get("data") == "phantom" else ""
    source = ", ".join(
        str(about[key]) for key in ("run", "scenario", "data") if about.get(key) is not None
    )
    out.print(safe_line(f"{source}{note}, seed {about.get('seed')}: {len(found[-1].sites)} sites"))
    if len(found) > 2:
        rows = [[str(one.round), *_heterogeneity_numbers(one.overall)[:-1]] for one in found]
        out.print(table(["round", "Q", "expected", "I²", "rho"], rows))
    for one in [found[0], *found[1:][-1:]]:
        out.print(
            "",
            safe_line(f"{after_rounds(one.round)}: {site_distances_in_words(one.overall)}"),
            sep="\n",
        )
        columns = ["site", "images", "measured", "distance", "95 % interval"]
        rows = [_site_distance_row(site) for site in one.sites]
        out.print(table([*columns, "FedAvg", "random effects", "FedDRAW", "uniform"], rows))
        if one.layers or one.findings:
            groups = [
                [group.name, *_heterogeneity_numbers(group)]
                for group in (*one.layers, *one.findings)
            ]
            out.print(table(["parameters", "Q", "expected", "I²", "rho", "p"], groups))
    out.print(
        "distance: squared, from the other sites' mean gradient, corrected for sampling (0: no"
        " farther than chance), in variances of one image's gradient. FedDRAW: mean over its rounds"
        " if all sites are equally similar."
    )


def _heterogeneity_numbers(group: GroupHeterogeneity) -> list[str]:
    p = "" if group.p is None else f"{group.p:.3g}"
    return [
        f"{group.q:.1f}",
        f"{group.expected:.1f}",
        f"{100 * group.i_squared:.0f} %",
        f"{group.rho:.3g}",
        p,
    ]


def _site_distance_row(site: SiteDistance) -> list[str]:
    distance = "" if site.distance is None else f"{site.distance:.4f}"
    interval = "" if site.low is None or site.high is None else f"{site.low:.4f} to {site.high:.4f}"
    images = [f"{site.images:,}", f"{site.measured:,}" if site.measured else "none"]
    weights = [
        f"{site.weights[rule]:.3f}" for rule in ("fedavg", "random_effects", "feddraw", "uniform")
    ]
    return [site.site, *images, distance, interval, *weights]
