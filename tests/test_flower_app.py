"""The ready Flower app: the same experiment, the same numbers, the same folder; sites with folders
of their own.
"""

from __future__ import annotations

import csv
import inspect
import json
import logging
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from PIL import Image
from typer.testing import CliRunner

from feddraw.analysis import metrics
from feddraw.cli import app as feddraw
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.flower import score_histograms, server_app, settings
from feddraw.flower.array_records import model_to_arrays
from feddraw.flower.client_app import app
from feddraw.flower.in_process_grid import InProcessGrid
from feddraw.flower.run_ending import WHAT_TO_DO, end_in_one_line, reason_kept
from feddraw.flower.server_app import serve_flower_run
from feddraw.flower.settings import read_run_config
from feddraw.flower.strategy import MethodStrategy
from feddraw.methods.scaffold import scaffold
from feddraw.report.markdown import render_markdown
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.outcome_settings import dotted_settings
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.results.run_folder import RunFolder
from feddraw.results.score_counts import read_score_counts
from feddraw.secure.sums.signing_keys import new_signing_key, site_directory_line
from feddraw.system.file_reading import read_csv, read_json, read_jsonl
from feddraw.tasks.findings import Findings
from feddraw.watch.followed_folder import FollowedFolder
from small import small

READY_APP = Path(
    str(resources.files("feddraw") / "flower" / "deployment" / "app" / "pyproject.toml")
)

KEPT = {"keep.best": True, "keep.tail": 2}
NODES = [{"partition-id": number} for number in range(3)]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def config(**changes: Any) -> dict[str, Any]:
    """The tests' small experiment as Flower passes settings on: flat, by their dotted paths."""
    federation = {
        name: changes.pop(name)
        for name in ("out", "resume", "wait", "nodes", "fraction", "validation")
        if name in changes
    }
    settings = dotted_settings(small(**changes).table())
    return (
        {"nodes": 3}
        | {key: value for key, value in settings.items() if not isinstance(value, list)}
        | federation
    )


def carry_out(settings: dict[str, Any], nodes: Any = NODES, arrive: Any = None) -> Any:
    return serve_flower_run(InProcessGrid(app, nodes, settings, arrive), settings)


@pytest.mark.parametrize("method", ["feddraw", "scaffold", "moon", "random_effects"])
def test_the_app_writes_the_folder_that_run_writes(method: str, tmp_path: Path) -> None:
    """Bit for bit: the models, the ledger, the metrics."""
    list(run(small(method=method, rounds=2, **KEPT), tmp_path / "run"))
    carry_out(config(method=method, rounds=2, out=str(tmp_path / "flower"), **KEPT))
    models = ("model.safetensors", "model-best.safetensors", "model-tail.safetensors")
    for name in (*models, "weights.csv", "metrics.json", "predictions.safetensors"):
        ours, theirs = (tmp_path / folder / name for folder in ("run", "flower"))
        assert ours.read_bytes() == theirs.read_bytes(), name
    ours, theirs = (read_jsonl(tmp_path / folder / "rounds.jsonl") for folder in ("run", "flower"))
    assert [line["validation"] for line in ours] == [line["validation"] for line in theirs]


def test_the_app_evaluates_holdouts_and_the_test_images_after_every_round_as_run_does(
    tmp_path: Path,
) -> None:
    changes = {"method": "fedavg", "rounds": 2, "test_every_round": True, "holdout": 0.2}
    list(run(small(**changes), tmp_path / "run"))
    carry_out(config(out=str(tmp_path / "flower"), **changes))
    ours, theirs = (read_jsonl(tmp_path / folder / "rounds.jsonl") for folder in ("run", "flower"))
    assert all("test" in line for line in ours)
    for name in ("validation", "test", "clients"):
        assert [line.get(name) for line in ours] == [line.get(name) for line in theirs], name
    assert [set(line) for line in ours] == [set(line) for line in theirs]
    found = read_json(tmp_path / "flower" / "metrics.json")
    assert all("holdout" in own for own in found["clients"].values())
    assert len(found["clients"]) == 3
    assert found == read_json(tmp_path / "run" / "metrics.json")


def keyed(nodes: Any, names: Any, folder: Path) -> list[dict[str, Any]]:
    """The nodes with a signing key each, and the file of all their public keys."""
    folder.mkdir()
    lines = [site_directory_line(name, new_signing_key(folder / f"{name}.key")) for name in names]
    (folder / "sites.toml").write_text("\n".join(lines))
    common = {"sites": str(folder / "sites.toml"), "memory": str(folder / "memory")}
    common |= {"simulated": True}
    return [
        node | common | {"key": str(folder / f"{name}.key")}
        for node, name in zip(nodes, names, strict=True)
    ]


def test_the_app_under_secure_sums_writes_the_folder_that_run_writes_under_them(
    tmp_path: Path,
) -> None:
    list(run(small(rounds=2, secure=True), tmp_path / "run"))
    secured = config(rounds=2, out=str(tmp_path / "flower"), secure=True) | {
        "site_keys": str(tmp_path / "k/sites.toml")
    }
    carry_out(secured, keyed(NODES, ("C1", "C2", "C3"), tmp_path / "k"))
    for name in ("model.safetensors", "weights.csv", "metrics.json"):
        ours, theirs = (tmp_path / folder / name for folder in ("run", "flower"))
        assert ours.read_bytes() == theirs.read_bytes(), name


def test_a_server_killed_between_rounds_and_started_again_gives_the_same_folder(
    tmp_path: Path,
) -> None:
    settings = config(method="scaffold", out=str(tmp_path / "whole"), **KEPT)
    carry_out(settings)

    def killed(replies: Any) -> Any:
        if replies[0].metadata.group_id == "2":
            raise RunFailed("the server is gone")
        return replies

    settings["out"] = str(tmp_path / "killed")
    with pytest.raises(RunFailed, match="gone"):
        carry_out(settings, arrive=killed)
    with pytest.raises(UserError, match="already used"):
        carry_out(settings)
    with pytest.raises(UserError, match="was run with rounds = 3, not 4"):
        carry_out(settings | {"resume": True, "rounds": 4})
    carry_out(settings | {"resume": True})
    for name in (
        "model.safetensors",
        "model-best.safetensors",
        "model-tail.safetensors",
        "weights.csv",
        "metrics.json",
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert [line["round"] for line in read_jsonl(tmp_path / "killed" / "rounds.jsonl")] == [0, 1, 2]


def test_a_server_that_finds_its_folder_used_when_it_gets_the_lock_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(server_app.ServerEvaluation):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            list(
                run(small(method="fedavg", rounds=1), tmp_path / "run")
            )  # another process, while data are opened

    monkeypatch.setattr(server_app, "ServerEvaluation", Late)
    with pytest.raises(UserError, match="is already used"):
        carry_out(config(method="scaffold", out=str(tmp_path / "run")))
    assert "scaffold" not in (tmp_path / "run" / "experiment.toml").read_text()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(UserError, match="another process is using"),
    ):
        MethodStrategy(scaffold(), folder=tmp_path / "run", resume=True).start(
            InProcessGrid(app, NODES, {}), model_to_arrays(prepare(small()).initial)
        )


def test_settings_are_those_of_an_experiment() -> None:
    experiment, federation = read_run_config(
        config(rounds=7, wait=5.0) | {"set": "method.beta_max=2 training.lr=0.01", "seed": ""}
    )
    assert (experiment.rounds, experiment.seed, experiment.training.lr) == (7, 0, 0.01)
    assert experiment.section("method")[1]["beta_max"] == 2
    assert federation.wait == 5.0
    with pytest.raises(UserError, match="did you mean rounds"):
        read_run_config({"ronds": 3})
    with pytest.raises(UserError, match="nodes must be a whole number"):
        read_run_config({"nodes": "three"})


def test_sites_with_their_own_folders_are_told_how_many_equal_steps_to_take() -> None:
    equal_steps = {"data.name": "folder", "data.findings": "Edema", "training.work": "steps"}
    with pytest.raises(UserError, match=r"needs training\.steps for sites with their own folders"):
        read_run_config(equal_steps)
    experiment, _ = read_run_config(equal_steps | {"training.steps": 9})
    assert experiment.training.steps == 9


@pytest.mark.parametrize(
    "given", [{"data": "phantom", "data.size": 28}, {"data.size": 28, "data": "phantom"}]
)
def test_a_section_may_be_named_before_and_after_its_settings(given: dict[str, Any]) -> None:
    name, options = read_run_config(given)[0].section("data")
    assert (name, options["size"]) == ("phantom", 28)


def test_code_that_the_settings_name_is_not_imported_unless_a_site_allows_it(
    tmp_path: Path,
) -> None:
    settings = config(rounds=1) | {"model.name": "os:abort"}
    settings.pop("model.growth")
    with pytest.raises(UserError, match="name code to import"):
        carry_out(settings)


def test_a_node_without_data_and_one_of_a_wrong_partition_are_named() -> None:
    strategy = carry_out(config(rounds=1), [*NODES[:2], {"partition-id": 9}, {}])
    status = [entry.status for entry in strategy.history[0].ledger]
    assert status[:2] == ["weighted", "weighted"]
    assert "partition 9 is not among the scenario's 3 clients" in status[2]
    assert "this node has no data" in status[3]


# -------------------------------------------------------------------------------------- own folders


def hospital(folder: Path, images: int, seed: int) -> str:
    """A CSV and PNG files: bright images have the finding."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    rows = []
    for number in range(images):
        opaque, enlarged = rng.integers(0, 2, 2)
        pixels = rng.normal(90 + 60 * opaque, 25, (16, 16))
        pixels[:, :8] += 40 * enlarged
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        split = ("train", "train", "train", "val", "test")[number % 5]
        kind = "enlarged" if enlarged else ("clear", "opaque")[opaque]
        if number % 6 == 0:
            kind = "opaque"  # a class that cannot be seen: not all calls are right
        sex = "FM"[number // 5 % 2]
        rows.append(
            {
                "path": f"{number}.png",
                "split": split,
                "Opacity": opaque,
                "Enlarged": enlarged,
                "kind": kind,
                "sex": sex,
            }
        )
    with (folder / "images.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(folder)


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = {"North": 60, "East": 40, "South": 40}
    return [
        {"data": hospital(tmp_path / name, images, seed), "client": name}
        for seed, (name, images) in enumerate(sizes.items())
    ]


def folders(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.name": "folder",
        "data.size": 16,
        "data.findings": "Opacity,Enlarged",
        "data.normalize": "measured",
        "model.name": "compact",
        "model.growth": 8,
        "method.name": "feddraw",
        "training.batch_size": 8,
        "training.epochs": 4,
        "rounds": 4,
        "nodes": 3,
        "out": str(tmp_path / "run"),
    } | changes


def test_sites_with_folders_of_their_own_train_and_are_judged_by_pooled_counts(
    hospitals: Any, tmp_path: Path
) -> None:
    strategy = carry_out(folders(tmp_path), hospitals)
    assert strategy.clients == ["East", "North", "South"]
    assert strategy.history[0].weights["North"] == pytest.approx(36 / 84)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["test"]["auc"]["macro"] > 0.8
    assert {line["client"] for line in read_csv(tmp_path / "run" / "weights.csv")} == {
        "North",
        "East",
        "South",
    }


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "secure"])
def test_the_last_rounds_counts_by_subgroup_are_in_the_folder(
    secure: bool, hospitals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_histograms, "LEAST_PATIENTS", 2)
    made = []
    score_counts = server_app.ServerEvaluation._score_counts
    monkeypatch.setattr(
        server_app.ServerEvaluation,
        "_score_counts",
        lambda *given: made.append(score_counts(*given)) or made[-1],
    )
    names = ("North", "East", "South")
    nodes = keyed(hospitals, names, tmp_path / "keys") if secure else hospitals
    few = {"rounds": 2, "secure": secure, "training.epochs": 1}
    if not secure:
        few["data.subgroups"] = "sex: F, M"
    carry_out(folders(tmp_path, **few), nodes)
    assert len(made) == 1, "only of the last round"
    counts = read_score_counts(tmp_path / "run")
    assert counts is not None
    assert counts.secure == secure
    assert set(counts.by_site) == (set() if secure else set(names))
    assert counts.by_split["test"].sum() == 2 * (12 + 8 + 8)
    by_sex = {value: of_sex.sum() for _, value, of_sex in counts.subgroups("test")}
    if secure:
        assert not by_sex
    else:
        assert by_sex == {"F": 2 * (6 + 4 + 4), "M": 2 * (6 + 4 + 4), "other": 0}
        of_sites = [of_site["test"] for of_site in counts.by_site.values()]
        assert np.array_equal(sum(of_sites), counts.by_split["test"])
    metrics = read_json(tmp_path / "run" / "metrics.json")
    area = score_histograms.histogram_auc(*counts.by_split["test"][:, 0])
    assert metrics["test"]["auc"]["per_class"]["Opacity"] == area


def test_subgroups_of_a_federation_are_named_beforehand(hospitals: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must mean the same by sex: name its values"):
        carry_out(folders(tmp_path, **{"data.subgroups": "sex"}), hospitals)


def test_under_secure_sums_no_site_counts_subgroups(hospitals: Any, tmp_path: Path) -> None:
    """Where one site alone has enough patients of a subgroup, the sum would be its own counts."""
    asked = folders(tmp_path, **{"data.subgroups": "sex: F, M", "secure": True})
    with pytest.raises(UserError, match="under secure sums sites count no subgroups"):
        carry_out(asked, hospitals)
    assert not settings.subgroups_of_own_folders(settings.read_run_config(asked)[0])


def lost_evaluations(*groups: str) -> Any:
    """No site's evaluation of these rounds arrives; they are counted from 1."""

    def arrive(replies: Any) -> Any:
        about = replies[0].metadata
        return (
            []
            if about.message_type.startswith("evaluate") and about.group_id in groups
            else replies
        )

    return arrive


def test_a_round_without_any_sites_evaluation_has_no_metrics_of_the_round_before(
    hospitals: Any, tmp_path: Path
) -> None:
    settings = folders(tmp_path, rounds=3, **{"training.epochs": 1})
    carry_out(settings, hospitals, lost_evaluations("2", "3"))
    first, *others = read_jsonl(tmp_path / "run" / "rounds.jsonl")
    assert first["validation"]["macro"] > 0
    assert len(others) == 2
    last = read_json(tmp_path / "run" / "metrics.json")
    assert all("validation" not in line and "test" not in line for line in (*others, last))


@pytest.mark.parametrize("round", ["1", "2"])
def test_a_server_killed_in_an_evaluation_asks_the_sites_for_it_again(
    round: str, hospitals: Any, tmp_path: Path
) -> None:
    settings = folders(tmp_path, rounds=2, **{"training.epochs": 1})
    carry_out(settings | {"out": str(tmp_path / "whole")}, hospitals)

    def killed(replies: Any) -> Any:
        if (
            replies[0].metadata.message_type.startswith("evaluate")
            and replies[0].metadata.group_id == round
        ):
            raise RunFailed("the server is gone")
        return replies

    with pytest.raises(RunFailed, match="gone"):
        carry_out(settings, hospitals, killed)
    carry_out(settings | {"resume": True}, hospitals)
    whole, resumed = (read_json(tmp_path / folder / "metrics.json") for folder in ("whole", "run"))
    assert whole["test"]["auc"]["macro"] > 0
    assert resumed == whole
    lines = [read_jsonl(tmp_path / folder / "rounds.jsonl") for folder in ("whole", "run")]
    assert [line["validation"] for line in lines[0]] == [line["validation"] for line in lines[1]]


def test_under_secure_sums_the_sites_counts_are_added_up_under_masks(
    hospitals: Any, tmp_path: Path
) -> None:
    seen: list[RecordDict] = []

    def arrive(replies: Any) -> Any:
        seen.extend(reply.content for reply in replies if not reply.has_error())
        return replies

    nodes = keyed(hospitals, ("North", "East", "South"), tmp_path / "keys")
    carry_out(folders(tmp_path, rounds=1, secure=True), nodes, arrive)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["test"]["auc"]["macro"] > 0.5
    assert [set(content.array_records) for content in seen].count(
        {"words"}
    ) == 6  # of training, of evaluation
    assert len(seen) == (5 + 5) * 3  # limits on sizes need no exchange of their own
    assert not any(content.metric_records for content in seen)


def test_classes_are_evaluated_under_secure_sums_as_in_the_clear(
    hospitals: Any, tmp_path: Path
) -> None:
    """The same calls of the same model from the sites' counts, which no secure server sees."""
    names = ("North", "East", "South")
    few = {
        "data.class_column": "kind",
        "data.classes": "clear,enlarged,opaque",
        "rounds": 2,
        "training.epochs": 5,
        "training.lr": 0.005,
    }
    settings = {key: value for key, value in folders(tmp_path).items() if key != "data.findings"}
    settings |= few
    carry_out(settings | {"out": str(tmp_path / "clear")}, hospitals)
    nodes = keyed(hospitals, names, tmp_path / "keys")
    carry_out(settings | {"out": str(tmp_path / "secure"), "secure": True}, nodes)
    clear, secure = (read_run(tmp_path / folder).metrics.test for folder in ("clear", "secure"))
    calls = np.array(clear.confusion)
    assert calls.sum() == 12 + 8 + 8
    assert calls.sum(axis=0).all(), "every class is called"
    assert calls.trace() < calls.sum(), "not all calls are right"
    assert secure.confusion == clear.confusion
    for metric in ("accuracy", "balanced_accuracy", "f1", "kappa"):
        assert secure.of(metric).macro == clear.of(metric).macro, metric
    assert secure.auc.macro == pytest.approx(clear.auc.macro, abs=0.01)
    in_clear, in_sum = (read_score_counts(tmp_path / folder) for folder in ("clear", "secure"))
    assert in_clear is not None
    assert in_sum is not None
    assert set(in_clear.calls_by_site) == set(names)
    assert not in_sum.calls_by_site
    of_sites = [calls["test"] for calls in in_clear.calls_by_site.values()]
    assert np.array_equal(sum(of_sites), in_sum.calls_by_split["test"])
    assert np.array_equal(in_sum.calls_by_split["test"], calls)

    recorded = compute_report(
        collect_runs([tmp_path / "clear"]), settings=ReportSettings(replicates=0), command=""
    )
    text = render_markdown(compose_report(recorded, "A title"), "figures")
    assert "no threshold" not in text
    assert "at each site" in text
    rows = text.split("PPV")[1].splitlines()
    for place, name in enumerate(("clear", "enlarged", "opaque")):
        right, images, called = calls[place, place], calls[place].sum(), calls[:, place].sum()
        of_others = calls.sum() - images - called + right
        expected = [
            right / images,
            of_others / (calls.sum() - images),
            right / called,
            of_others / (calls.sum() - called),
        ]
        (row,) = [row for row in rows if row.startswith(f"| {name} | {images} / ")]
        shown = [float(cell.split()[0]) for cell in row.strip("| ").split(" | ")[3:]]
        assert shown == pytest.approx(expected, abs=6e-4), name


def test_counts_added_up_as_rows_of_numbers_are_those_of_one_site_with_all_images() -> None:
    rng, truth = np.random.default_rng(0), np.random.default_rng(1).integers(0, 2, (60, 3))
    scores = rng.uniform(size=(60, 3))
    parts = [
        score_histograms.count_by_score(scores[part], truth[part])
        for part in np.split(np.arange(60), 3)
    ]
    sites = [
        RecordDict(
            {"metrics": MetricRecord(score_histograms.histograms_to_metrics("test", one, [1]))}
        )
        for one in parts
    ]
    total = sum(
        (score_histograms.histograms_to_words(site, 3) for site in sites),
        np.zeros(score_histograms.words_of(3), np.uint64),
    )
    found = [RecordDict({"metrics": score_histograms.histograms_from_words(total, 3)})]
    assert np.array_equal(
        score_histograms.add_up_histograms(found, "test", 3),
        score_histograms.count_by_score(scores, truth),
    )
    assert score_histograms.findings_with_broken_scores(found, "test", 3) == [1]
    assert not score_histograms.add_up_histograms(found, "validation", 3).any()


def test_secure_sums_of_two_nodes_are_refused(hospitals: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 3 clients, and nodes = 2 would begin with fewer"):
        carry_out(folders(tmp_path, secure=True, nodes=2), hospitals)


def test_a_server_with_images_of_its_own_judges_on_them(hospitals: Any, tmp_path: Path) -> None:
    settings = folders(tmp_path, rounds=1, validation=hospitals[2]["data"], nodes=2)
    carry_out(settings, hospitals[:2])
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(found["test"]["auc"]["per_class"]) == {"Opacity", "Enlarged"}
    assert (tmp_path / "run" / "predictions.safetensors").is_file()


def test_findings_must_be_named_where_every_site_has_its_own_table(
    hospitals: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"need data\.findings"):
        carry_out(folders(tmp_path, **{"data.findings": ""}), hospitals)


def test_one_finding_is_named_like_several(hospitals: Any, tmp_path: Path) -> None:
    strategy = carry_out(
        folders(tmp_path, rounds=1, **{"data.findings": "Opacity", "training.epochs": 1}), hospitals
    )
    assert [entry.status for entry in strategy.history[0].ledger] == ["weighted"] * 3
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(found["test"]["auc"]["per_class"]) == ["Opacity"]


def test_sites_may_spell_a_finding_in_different_ways(hospitals: Any, tmp_path: Path) -> None:
    """`Effusion` has a longer name in the paper, which nobody here has typed."""
    spellings = ("Effusion", "pleural_effusion", "Pleural Effusion")
    for site, spelling in zip(hospitals, spellings, strict=True):
        table = Path(site["data"]) / "images.csv"
        table.write_text(table.read_text().replace("Opacity", spelling))
    changes = {"data.findings": "Effusion,Enlarged", "training.epochs": 1}
    strategy = carry_out(folders(tmp_path, rounds=1, **changes), hospitals)
    assert [entry.status for entry in strategy.history[0].ledger] == ["weighted"] * 3
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(found["test"]["auc"]["per_class"]) == ["Effusion", "Enlarged"]


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("Edema", ["Edema"]),
        ("Edema, pleural effusion", ["Edema", "pleural effusion"]),
        (["Edema"], ["Edema"]),
    ],
)
def test_findings_are_names_with_commas(given: Any, means: list[str]) -> None:
    experiment, _ = read_run_config({"data.name": "folder", "data.findings": given})
    assert settings.findings_of_own_folders(experiment) == means


@pytest.mark.parametrize("given", ["all", "Edema,,Mass", 3])
def test_findings_that_name_nothing_are_refused_in_a_line(given: Any) -> None:
    with pytest.raises(UserError, match=r"findings"):
        settings.findings_of_own_folders(
            read_run_config({"data.name": "folder", "data.findings": given})[0]
        )


def test_pooled_counts_give_the_auc_of_all_images_and_not_a_mean_of_means() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (900, 2))
    scores = 1 / (1 + np.exp(-(rng.normal(size=(900, 2)) + truth * [0.5, 2.0])))
    scores[600:] *= (
        0.3  # one site's scores are lower, so that a mean of its own AUC hides what the pool shows
    )
    parts = np.split(np.arange(900), [500, 600])
    contents = [
        RecordDict(
            {
                "metrics": MetricRecord(
                    score_histograms.histograms_to_metrics(
                        "validation", score_histograms.count_by_score(scores[p], truth[p])
                    )
                )
            }
        )
        for p in parts
    ]
    found = score_histograms.merged_histogram_metrics(contents, ("a", "b"), Findings()).validation
    for place, name in enumerate("ab"):
        exact = metrics.auc(scores[:, place], truth[:, place])
        assert found.auc.per_class[name] == pytest.approx(exact, abs=2e-3)
        threshold = metrics.best_threshold(scores[:, place], truth[:, place])
        best = np.prod(metrics.rates(scores[:, place], truth[:, place], threshold)) ** 0.5
        assert found.gm.per_class[name] == pytest.approx(best, abs=0.01)
    mean = np.mean([metrics.auc(scores[p, 1], truth[p, 1]) for p in parts])
    assert abs(found.auc.per_class["b"] - mean) > 0.01


def test_unless_told_otherwise_a_run_waits_for_every_client_of_the_scenario(tmp_path: Path) -> None:
    """Without one of them the bits would not be those of `feddraw run`."""
    settings = config(rounds=1, wait=0.1, nodes=0)
    with pytest.raises(RunFailed, match=r"only 2 of 3 nodes were connected within 0\.1 s"):
        carry_out(settings, NODES[:2])
    assert len(carry_out(settings).history[0].ledger) == 3


def test_a_run_that_ends_for_lack_of_nodes_names_who_is_missing_in_its_folder_and_on_the_page(
    hospitals: Any, tmp_path: Path
) -> None:
    settings = folders(tmp_path, rounds=3, wait=0.1, **{"training.epochs": 1})
    settings["sites"] = "North=1001,East=1002,South=1003,West=1004"

    def leave(replies: Any) -> Any:
        about = replies[0].metadata
        if about.group_id == "2" and about.message_type.startswith("train"):
            del grid.contexts[1003]
        return replies

    grid = InProcessGrid(app, hospitals, settings, leave)
    with pytest.raises(RunFailed) as ended:
        serve_flower_run(grid, settings)
    reason = str(ended.value)
    assert "only 2 of 3 nodes were connected within 0.1 s. Missing: South (last counted" in reason
    assert "West (has not counted yet)" in reason
    assert "nodes=… of the ready app" in reason
    folder = FollowedFolder(tmp_path / "run")
    folder.look()
    (shown,) = folder.runs.values()
    assert shown.state == "stopped"
    assert reason in shown.why
    explained = CliRunner().invoke(feddraw, ["explain", str(tmp_path / "run")]).output
    assert reason in " ".join(explained.split())
    back = settings | {"resume": True}
    serve_flower_run(InProcessGrid(app, hospitals, back), back)
    assert not (tmp_path / "run" / "stopped.json").exists()


def test_a_round_waits_for_all_listed_sites_unless_the_settings_name_a_number(
    hospitals: Any, tmp_path: Path
) -> None:
    settings = folders(tmp_path, rounds=1, wait=0.1, nodes=0, **{"training.epochs": 1})
    settings["sites"] = "North=1001,East=1002,South=1003,West=1004"
    with pytest.raises(RunFailed, match=r"only 3 of 4 nodes .* Missing: West"):
        carry_out(settings, hospitals)
    strategy = carry_out(settings | {"nodes": 2, "resume": True}, hospitals)
    assert set(strategy.history[0].weights) == {"North", "East", "South"}


def test_what_to_do_names_settings_that_the_ready_app_and_a_strategy_have() -> None:
    named = set(re.findall(r"(\w+)=", WHAT_TO_DO))
    of_strategies = {"min_available_nodes", "min_train_nodes"}
    assert of_strategies <= inspect.signature(MethodStrategy).parameters.keys()
    of_the_app = tomllib.loads(READY_APP.read_text())["tool"]["flwr"]["app"]["config"]
    assert named - of_strategies == {"nodes", "wait", "resume"}
    assert named - of_strategies <= of_the_app.keys()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UserError("the table has no column Edema"), "the table has no column Edema"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
    ],
)
def test_whatever_ends_a_run_stands_in_its_folder(
    error: Exception, reason: str, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(type(error)), reason_kept(folder, lambda: ""):
        raise error
    assert read_json(tmp_path / "stopped.json")["reason"] == reason


def test_flower_logs_the_end_of_a_run_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    end_in_one_line()
    try:
        raise RunFailed("only 2 of 3 nodes")
    except RunFailed as failure:
        logging.getLogger("flwr").error("%s raised an exception", "ServerApp", exc_info=failure)
    assert caplog.messages == ["The run has ended: only 2 of 3 nodes"]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_fraction_of_the_nodes_trains_in_a_round_but_never_one_alone(nodes: int) -> None:
    strategy = carry_out(config(method="fedavg", rounds=2, nodes=nodes, fraction=0.34))
    assert [
        [entry.status for entry in done.ledger].count("weighted") for done in strategy.history
    ] == [2, 2]


def test_the_record_counts_the_nodes_that_a_round_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddraw.core.sums.WORTH_COMPILING", 3 * 1000)
    carry_out(config(rounds=1, nodes=0, out=str(tmp_path)))
    assert not read_json(tmp_path / "environment.json")["sums"].startswith("numpy: fewer than")
