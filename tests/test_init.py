"""`feddraw init`: from somebody's table or folder to an experiment file that runs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddraw.data.finding_counts import ClientCounts, class_notes
from feddraw.data.image_folder import require_pydicom_for
from feddraw.errors import UserError
from feddraw.experiment.init_own_data import experiment_file_text, plan_first_run
from feddraw.experiment.inspect_own_data import inspect_data
from feddraw.experiment.own_images import try_images
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.report import ReportSettings, write_report
from typed import typed

SITES = ["North\n[method]", "South", "Ærø"]  # a name must not become a setting


def write_images(folder: Path, names: Sequence[str], size: int = 40) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (len(names), size, size), dtype=np.uint8)
    for name, image in zip(names, pixels, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def own_table(folder: Path, findings: Sequence[str], images: int = 80) -> Path:
    names = [f"scans/{number:03d}.png" for number in range(images)]
    write_images(folder, names)
    rng = np.random.default_rng(1)
    rows = [
        [name, f"P{number // 2}", SITES[number % 5 % 3], *rng.integers(0, 2, len(findings))]
        for number, name in enumerate(names)
    ]
    return write_table(
        folder / "ward 7.csv", ["Image Path", "Patient ID", "Hospital", *findings], rows
    )


def test_a_table_becomes_an_experiment_that_runs_and_speaks_of_the_users_findings(
    tmp_path: Path,
) -> None:
    own_table(tmp_path, ["Fracture", "Pacemaker"])
    done = typed("init", "ward 7.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for expected in (
        "Image Path",
        "Patient ID",
        "Hospital",
        "Fracture",
        "South",
        "feddraw run 'ward 7.toml'",
    ):
        assert expected in done.stdout
    ran = typed(
        "run", "ward 7.toml", "--rounds", "1", "--engine", "serial", "--out", "run", folder=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert "Pacemaker" in ran.stdout
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(metrics["test"]["auc"]["per_class"]) == ["Fracture", "Pacemaker"]
    ledger = (tmp_path / "run" / "weights.csv").read_text()
    assert "Ærø" in ledger

    before = (tmp_path / "ward 7.toml").read_bytes()
    again = typed("init", "ward 7.csv", folder=tmp_path)
    assert again.returncode == 2
    assert (
        again.stderr.strip()
        == "feddraw: ward 7.toml already exists: choose another name with --out, or delete it"
    )
    assert (tmp_path / "ward 7.toml").read_bytes() == before


@pytest.mark.parametrize("count", [1, 20])
def test_any_number_of_findings_trains(count: int, in_tmp: Path) -> None:
    sheet = own_table(in_tmp, [f"Sign {number}" for number in range(count)])
    found = inspect_data(Path(sheet.name), Path("x.toml"))
    Path("x.toml").write_text(
        experiment_file_text(found, plan_first_run(found), "feddraw init", "x.toml"),
        encoding="utf-8",
    )
    experiment = Experiment.read(Path("x.toml"))
    small = {"rounds": 1, "training.epochs": 1, "engine": "serial", "model.growth": 8}
    (result,) = run(experiment.with_settings(small))
    assert len(result.metrics.test.auc.per_class) == count


def test_a_column_of_class_names_is_written_out_as_a_column_a_class(in_tmp: Path) -> None:
    names = [f"{number}.png" for number in range(12)]
    write_images(in_tmp, names)
    words = ["normal", "mass|device", "mass", "No Finding"]
    rows = [[name, words[number % 4], 60 + number] for number, name in enumerate(names)]
    write_table(in_tmp / "list.csv", ["file", "Diagnosis", "age"], rows)
    done = typed("init", "list.csv", "--out", "own.toml", folder=in_tmp)
    assert done.returncode == 0, done.stderr
    assert Path("own-labels.csv").read_text().splitlines()[:3] == [
        "file,device,mass",
        "0.png,0,0",
        "1.png,1,1",
    ]
    assert Experiment.read(Path("own.toml")).section("data")[1]["findings"] == ["device", "mass"]
    assert "wrote own-labels.csv and own.toml: read own.toml" in done.stdout
    said = " ".join(done.stdout.split())
    assert "names in the column Diagnosis that say no finding: No Finding and normal" in said


def test_a_folder_with_a_subfolder_a_class_needs_no_table(in_tmp: Path) -> None:
    kinds = [("train", 8), ("val", 2), ("test", 4)]
    write_images(
        in_tmp / "xrays",
        [
            f"{part}/{kind}/{n}.png"
            for part, count in kinds
            for kind in ("NORMAL", "PNEUMONIA")
            for n in range(count)
        ],
    )
    found = inspect_data(Path("xrays"), Path("xrays.toml"))
    assert found.positives() == {"NORMAL": [8, 2, 4], "PNEUMONIA": [8, 2, 4]}
    assert found.table.labels.task == "classes"
    assert found.sizes() == [16, 4, 8]
    assert typed("init", "xrays", folder=in_tmp).returncode == 0
    small = {"rounds": 1, "training.epochs": 1, "engine": "serial", "scenario.clients": 2}
    assert list(run(Experiment.read(Path("xrays.toml")).with_settings(small)))


def test_the_plan_fits_the_data_and_the_machine(in_tmp: Path) -> None:
    found = inspect_data(Path(own_table(in_tmp, ["Fracture"]).name), Path("x.toml"))
    assert plan_first_run(found, processors=2).size == 32  # never larger than the images
    assert (
        plan_first_run(found, processors=2).batch_size == 8
    )  # a small client still fills some batches
    assert (
        plan_first_run(found, processors=1).minutes >= plan_first_run(found, processors=2).minutes
    )


def test_rows_that_cannot_be_used_are_counted(in_tmp: Path) -> None:
    own_table(in_tmp, ["Fracture"])
    Path("scans/003.png").unlink()
    done = typed("init", "ward 7.csv", folder=in_tmp)
    assert "of 80 images 1 without a file (scans/003.png: tried scans/003.png)" in done.stdout
    assert "true leaves out the row that cannot be used" in Path("ward 7.toml").read_text()
    *_, last = done.stdout.splitlines()
    assert "feddraw run 'ward 7.toml' --set data.skip_bad=true  or" in last


def test_folders_of_sites_make_clients_and_what_is_no_image_is_named(in_tmp: Path) -> None:
    names = [
        f"{site}/{kind}/{n}.png"
        for site in ("east", "west")
        for kind in ("normal", "mass")
        for n in range(15)
    ]
    write_images(in_tmp / "xrays", names)
    Path("xrays/east/mass/scan.tif").write_bytes(b"II*")
    Path("xrays/east/mass/.DS_Store").write_bytes(b"")
    Path("xrays/east/mass/._0.png").write_bytes(b"written by macOS")
    Path("xrays/north/mass").mkdir(parents=True)
    Path("xrays/west/edema").mkdir()
    write_images(in_tmp / "xrays", [f"west/.trash/mass/{n}.png" for n in range(2)])
    write_images(in_tmp / "xrays", ["cover.png"])
    done = typed("init", "xrays", folder=in_tmp)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "the class of an image is the folder that it is in; its site is the folder above" in said
    assert "1 file is not PNG, JPEG or DICOM and not used: 1 .tif" in said
    assert "1 hidden file is not used: ._0.png" in said
    assert "no image that can be used is in north and west/edema" in said
    assert "hidden folders are not used: west/.trash (2 images)" in said
    assert "1 image is in no class's folder and not used: cover.png" in said
    assert "cannot be read" not in said
    assert "each site is a client: east" in said
    assert Experiment.read(Path("xrays.toml")).section("scenario")[0] == "by_site"


def test_folders_of_patients_below_folders_of_classes_are_no_sites(in_tmp: Path) -> None:
    write_images(in_tmp / "xrays", ["mass/P1/0.png", "mass/P2/0.png", "other/P3/0.png"])
    assert inspect_data(Path("xrays"), Path("xrays.toml")).columns["site"] == ""


def table_of_the_run(folder: Path, table: str, *settings: str) -> str:
    """What `run` prints before training: the images of each split."""
    few = ["--rounds", "1", "--epochs", "1", "--engine", "serial", "--out", "run", "--set"]
    done = typed("run", table, *few, "data.size=16", *settings, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def test_init_counts_the_images_that_the_command_it_ends_with_trains_on(in_tmp: Path) -> None:
    path = own_table(in_tmp, ["Fracture"])
    rows = list(csv.reader(path.open(encoding="utf-8")))
    of_aeroe = [row[0] for row in rows if row[2] == "Ærø"]
    for name in [*of_aeroe, "scans/000.png", "scans/006.png"]:
        Path(name).unlink()
    Path("scans/001.png").write_bytes(b"")
    done = typed("init", "ward 7.csv", folder=in_tmp)
    counted = re.search(r"all images +(\d+) +(\d+) +(\d+)", done.stdout)
    assert counted is not None
    assert sum(map(int, counted.groups())) == 80 - len(of_aeroe) - 3
    assert "left out, under 8 training images: Ærø 0" in " ".join(done.stdout.split())
    trained = table_of_the_run(in_tmp, "ward 7.toml", "--set", "data.skip_bad=true")
    assert re.search(r"all images +{} +{} +{}".format(*counted.groups()), trained)


def test_the_column_of_groups_is_shown_and_written(in_tmp: Path) -> None:
    write_images(in_tmp, [f"{n}.png" for n in range(40)])
    rows = [[f"{n}.png", "MW"[n % 2], n // 2 % 2] for n in range(40)]
    write_table(in_tmp / "t.csv", ["path", "Geschlecht", "Edema"], rows)
    done = typed("init", "t.csv", folder=in_tmp)
    assert re.search(r"group +Geschlecht", done.stdout)
    assert Experiment.read(Path("t.toml")).section("data")[1]["group_column"] == "Geschlecht"


def test_blank_may_mean_something_else_for_each_finding_as_the_written_file_says(
    in_tmp: Path,
) -> None:
    write_images(in_tmp, [f"{n}.png" for n in range(60)])
    rows = [[f"{n}.png", n % 2 or "", n // 2 % 2 or ""] for n in range(60)]
    write_table(in_tmp / "t.csv", ["path", "Edema", "Mass"], rows)
    typed("init", "t.csv", folder=in_tmp)
    text = Path("t.toml").read_text()
    assert '{ "Edema" = "negative" }' in text
    blank = 'data.blank={ "Edema" = "negative", Mass = "positive" }'
    trained = table_of_the_run(in_tmp, "t.toml", "--set", blank)
    assert re.search(r"Edema[ †]+\d+ / \d+ +\d+ / \d+ +\d+ / \d+", trained)
    assert re.search(r"Mass[ †]+42 / 0 ", trained)


def test_what_is_no_table_is_named_and_shown_as_it_is_typed(in_tmp: Path) -> None:
    write_images(in_tmp, ["a scan.png"])
    own_table(in_tmp, ["Fracture"])
    asked = typed("init", "a scan.png", folder=in_tmp)
    assert "a scan.png is an image: give the table that names it, or its folder" in asked.stderr
    for command in ("run", "compare"):
        asked = typed(command, "ward 7.csv", folder=in_tmp)
        assert "feddraw init 'ward 7.csv' writes one" in asked.stderr


def test_images_that_cannot_be_read_are_left_out_by_the_command_that_init_ends_with(
    in_tmp: Path,
) -> None:
    own_table(in_tmp, ["Fracture"])
    Path("scans/003.png").write_bytes(b"")
    whole = Path("scans/004.png").read_bytes()
    Path("scans/004.png").write_bytes(whole[: len(whole) // 2])
    done = typed("init", "ward 7.csv", folder=in_tmp)
    said = " ".join(done.stdout.split())
    assert "of 80 images 2 that cannot be read (scans/003.png: the file is empty" in said
    assert "feddraw run 'ward 7.toml' --set data.skip_bad=true or" in said
    few = ["--rounds", "1", "--epochs", "1", "--engine", "serial", "--out", "run"]
    trained = typed("run", "ward 7.toml", "--set", "data.skip_bad=true", *few, folder=in_tmp)
    assert trained.returncode == 0, trained.stderr


def test_images_that_init_had_no_time_to_open_are_not_called_readable(in_tmp: Path) -> None:
    write_images(in_tmp, ["a.png", "b.png"])
    assert try_images(in_tmp, ["a.png", "b.png"], seconds=-1.0) == ([], {})
    problems, facts = try_images(in_tmp, ["a.png", "b.png"])
    assert not problems
    assert facts.keys() == {"a.png", "b.png"}


def test_two_spellings_of_a_site_are_pointed_out(in_tmp: Path) -> None:
    names = [f"{number}.png" for number in range(40)]
    write_images(in_tmp, names)
    sites = ["North", " North ", "north", "South"]
    rows = [[name, sites[n % 4], n // 4 % 2] for n, name in enumerate(names)]
    write_table(in_tmp / "ward.csv", ["path", "site", "Mass"], [*rows, ["", "South", 1]])
    said = " ".join(typed("init", "ward.csv", folder=in_tmp).stdout.split())
    assert "North and north are read as 2 sites: is it one?" in said
    assert "1 without a path (ward.csv line 42)" in said


def test_a_site_with_one_class_only_is_named_from_init_to_the_report(in_tmp: Path) -> None:
    names = [f"scans/{number:03}.png" for number in range(90)]
    write_images(in_tmp, names)
    rows = []
    for number, name in enumerate(names):
        site = "ABC"[number % 3]
        label = 0 if site == "C" else (number // 3) % 2
        rows.append([name, f"P{number}", site, label])
    write_table(in_tmp / "ward.csv", ["path", "patient", "site", "Edema"], rows)
    done = typed("init", "ward.csv", folder=in_tmp)
    assert re.search(
        r"note: C has one class only: \d+ images \(\d+ % of all\), none shows", done.stdout
    )
    assert "A has one class" not in done.stdout
    measured = typed("heterogeneity", "ward.toml", "--batch-size", "4", folder=in_tmp)
    assert "note: C has one class only" in measured.stdout, measured.stderr
    few = ["--rounds", "1", "--epochs", "1", "--engine", "serial", "--out", "run"]
    few += ["--set", "holdout=0.2"]
    trained = typed("run", "ward.toml", *few, folder=in_tmp)
    assert "note: C has one class only" in trained.stdout, trained.stderr
    explained = typed("explain", "run", folder=in_tmp)
    assert "- C has one class only" in explained.stdout, explained.stderr
    assert "those held back included" in " ".join(explained.stdout.split())
    page = write_report(
        [Path("run")], Path("report"), settings=ReportSettings(replicates=0)
    ).page.read_text()
    assert "C has one class only" in page


def test_yes_and_no_are_read_in_german_and_french_and_a_contradiction_is_named(
    in_tmp: Path,
) -> None:
    names = [f"{number}.png" for number in range(40)]
    write_images(in_tmp, names)
    rows = [
        [name, ["ja", "Nein"][n % 2], ["oui", "non"][n // 2 % 2]] for n, name in enumerate(names)
    ]
    again = [["0.png", "ja", "oui"], ["1.png", "ja", "oui"]]
    write_table(in_tmp / "ward.csv", ["path", "Mass", "Edema"], [*rows, *again])
    done = typed("init", "ward.csv", folder=in_tmp)
    said = " ".join(done.stdout.split())
    assert "Mass is read with 'ja' as present, 'Nein' as absent" in said, done.stderr
    assert "1 with a duplicate path (ward.csv line 42: 0.png)" in said
    contradictory = "1 with a duplicate path and a contradictory label"
    assert f"{contradictory} (ward.csv line 43: 1.png, Mass" in said
    assert "data.skip_bad leaves them out; of rows with one path the first counts" in said
    assert "no column with patients was found (data.patient_column)" in said


def test_dicom_without_an_ending_needs_pydicom_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "IM0001").write_bytes(bytes(128) + b"DICM")
    monkeypatch.setattr("feddraw.data.image_folder.installed", lambda name: False)
    with pytest.raises(UserError, match="pip install"):
        require_pydicom_for([tmp_path / "IM0001"])
    require_pydicom_for([tmp_path / "film.png"])


def test_findings_of_which_a_site_has_one_class_are_named_by_site() -> None:
    findings = ["Edema", "Mass", "Nodule", "Hernia", "Fibrosis"]
    both = ClientCounts("A", 10, [10] * 5, [5] * 5)
    some = ClientCounts("B", 10, [10, 10, 10, 10, 10], [5, 0, 10, 0, 0])
    unlabelled = ClientCounts("C", 10, [10, 0, 10, 10, 10], [5, 0, 5, 5, 10])
    alike = ClientCounts("D", 10, [10] * 5, [0] * 5)
    one_class, partly = class_notes([both, some, unlabelled, alike], findings)
    assert one_class.startswith("D has one class only")
    assert partly == (
        "no positive training image of a finding: B (Mass, Hernia and Fibrosis); no negative"
        " training image of a finding: B (Nodule), C (Fibrosis)"
    )
    assert class_notes([both, both], findings) == []


def test_data_show_takes_the_experiment_file_and_the_names_of_its_settings(in_tmp: Path) -> None:
    own_table(in_tmp, ["Fracture"])
    Path("scans/003.png").unlink()
    assert typed("init", "ward 7.csv", folder=in_tmp).returncode == 0
    shown = typed("data", "show", "ward 7.toml", "--set", "data.skip_bad=true", folder=in_tmp)
    assert shown.returncode == 0, shown.stderr
    assert Path("contact-sheet.png").is_file()
    assert "in place of" not in shown.stdout
    again = typed("data", "show", "ward 7.toml", "--skip-bad", folder=in_tmp)
    assert again.returncode == 0
    assert "contact-sheet.png, in place of an earlier file" in again.stdout
    refused = typed("data", "show", "ward 7.toml", folder=in_tmp)
    assert "without a file" in refused.stderr


def mistakes(folder: Path) -> dict[str, str]:
    write_table(folder / "words.csv", ["name", "remark"], [["a", "b"]])
    write_table(folder / "gone.csv", ["path", "Fracture"], [["a.png", 1], ["b.png", 0]])
    write_table(
        folder / "train.csv", ["Path", "Frontal/Lateral", "Edema"], [["a.jpg", "Frontal", 1]]
    )
    (folder / "empty").mkdir()
    (folder / "x.npz").write_bytes(b"")
    (folder / "below").mkdir()
    (folder / "x.zip").write_bytes(b"PK")
    (folder / "below/x.toml").write_text("rounds = 1\n")
    return {
        "x.zip": "is an archive: unpack it and give the folder or its table",
        "below/x.toml": "is an experiment file already: feddraw run below/x.toml",
        "nothing.csv": "no file or folder nothing.csv",
        "words.csv": "has no column with image paths; it has name, remark",
        "gone.csv": (
            "none of its 2 images was found; tried a.png, below/a.png, empty/a.png: give their folder with"
        ),
        "train.csv": "is a known archive: feddraw run --data chexpert --set data.path=.",
        "empty": "0 classes in 0 labelled images",
        "x.npz": "needs no experiment file: feddraw run --data x.npz",
    }


def test_what_cannot_be_surveyed_is_refused_in_a_line_and_nothing_is_written(in_tmp: Path) -> None:
    for name, message in mistakes(in_tmp).items():
        with pytest.raises(UserError) as refused:
            inspect_data(Path(name), Path("x.toml"))
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
    assert typed("init", "empty", "--out", "x.yaml", folder=in_tmp).stderr.startswith(
        "feddraw: an experiment file ends"
    )
    assert not list(in_tmp.glob("*.toml"))


def test_a_path_that_lies_beside_the_experiment_file_and_not_here_is_found_and_named(
    tmp_path: Path,
) -> None:
    ward = tmp_path / "ward"
    ward.mkdir()
    own_table(ward, ["Fracture"])
    assert typed("init", "ward 7.csv", "--out", "a.toml", folder=ward).returncode == 0
    done = typed("run", "ward/a.toml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "feddraw: no file or folder ward 7.csv: a CSV, or a folder with one CSV, is needed (looked"
        f" for in {tmp_path}, where the command was typed; it lies beside ward/a.toml: write"
        " ward/ward 7.csv in that file, or type the command in ward)\n"
    )
    nowhere = typed("run", "ward/a.toml", "--set", "data.path=no.csv", folder=tmp_path)
    assert nowhere.stderr.endswith(f"(looked for in {tmp_path}, where the command was typed)\n")
    images = ["--set", "data.path=ward/ward 7.csv", "--set", "data.images=scans"]
    wrong_images = typed("run", "ward/a.toml", *images, folder=tmp_path)
    assert "no folder scans, from which the paths in the table start" in wrong_images.stderr
    assert "write ward/scans in that file" in wrong_images.stderr


def test_a_second_row_that_contradicts_in_site_patient_or_split_is_no_plain_duplicate(
    in_tmp: Path,
) -> None:
    names = [f"{number}.png" for number in range(40)]
    write_images(in_tmp, names)
    rows = [
        [name, "AB"[n % 2], f"P{n}", "train" if n % 4 else "test", n // 2 % 2]
        for n, name in enumerate(names)
    ]
    again = [
        ["1.png", "A", "P1", "train", 0],
        ["2.png", "A", "P9", "test", 0],
        ["3.png", "B", "P3", "train", 1],
        ["5.png", "", "P5", "train", 0],
    ]
    header = ["path", "site", "patient", "split", "Mass"]
    write_table(in_tmp / "ward.csv", header, [*rows, *again])
    done = typed("init", "ward.csv", folder=in_tmp)
    said = " ".join(done.stdout.split())
    start = "with a duplicate path"
    site = f"1 {start} and a contradictory site (ward.csv line 42: 1.png, site A and before B)"
    assert site in said, done.stderr
    assert f"{start} and a contradictory label, patient and split (ward.csv line 43: 2.png" in said
    assert "Mass, patient P9 and before P2, split test and before train)" in said
    assert f"2 {start} (ward.csv line 44: 3.png; ward.csv line 45: 5.png)" in said
