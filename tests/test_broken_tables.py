"""Tables as hospitals have them: each mistake is one line that names the cell, column or path, and
nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddraw.data.dataset import SPLITS
from feddraw.data.dataset_by_name import open_dataset
from feddraw.data.label_cells import NO_COLUMN
from feddraw.data.label_table import LabelColumns, TableIntake, describe_row_problems
from feddraw.data.own_tables import TableSettings, find_tables, image_root, read_own_tables
from feddraw.errors import UserError
from feddraw.experiment.init_own_data import experiment_file_text, plan_first_run
from feddraw.experiment.inspect_own_data import InspectedData, inspect_data

IMAGES = 40
Cells = Sequence[object]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny images that all tables here name."""
    folder = tmp_path_factory.mktemp("ward")
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 16, 16), dtype=np.uint8)
    (folder / "scans").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "scans" / f"{number:02d}.png")
    (folder / "scans" / "broken.png").write_text("no image")
    (folder / "scans" / "folder.png").mkdir()
    (folder / "scans" / "link.png").symlink_to("nothing.png")
    return folder


def column(*values: object) -> list[object]:
    """These, over and over."""
    return [values[number % len(values)] for number in range(IMAGES)]


def with_first(column: Cells, *first: object) -> list[object]:
    return [*first, *column[len(first) :]]


PATHS = [f"scans/{number:02d}.png" for number in range(IMAGES)]
EDEMA = column(0, 1, 0, 0)


def write(folder: Path, columns: dict[str, Cells], name: str = "table.csv") -> Path:
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path = folder / name
    path.write_text("\n".join([",".join(columns), *rows, ""]), encoding="utf-8")
    return path


def seen(folder: Path, columns: dict[str, Cells]) -> InspectedData:
    return inspect_data(write(folder, columns), folder / "x.toml")


REFUSED: dict[str, tuple[dict[str, Cells], str]] = {
    "no path column": (
        {"weight": column(60, 70), "Edema": EDEMA},
        "no column with image paths; it has weight, Edema",
    ),
    "no finding": (
        {"file": PATHS, "age": range(IMAGES)},
        r"no column of labels .*: age holds '0', '1', '2', …",
    ),
    "1 and 2": (
        {"file": PATHS, "Edema": column(1, 2), "view": column(1, 2)},
        "several columns that may name classes: Edema and view: say which with --class-column",
    ),
    "all blank": ({"file": PATHS, "Edema": column("", "NA")}, "Edema blank in every row"),
    "free text": (
        {"file": PATHS, "Edema": [f"report {n}" for n in range(IMAGES)]},
        "Edema holds 'report 0'",
    ),
    "two columns": ({"file": PATHS, "Edema": EDEMA, "Edema ": EDEMA}, "two columns called"),
    "wrong folder": (
        {"file": [f"gone/{n}.png" for n in range(IMAGES)], "Edema": EDEMA},
        r"none of its 40 images was found; tried .*gone/0.png, .*scans/gone/0.png: .*--images",
    ),
    "paths out of the folder": (
        {"file": column("../../etc/passwd.png"), "Edema": EDEMA},
        "no row that can be used: table.csv line 2 with '..' in the path, which is refused also",
    ),
    "unreadable": (
        {"file": with_first(["scans/broken.png"] * IMAGES), "Edema": EDEMA},
        "scans/broken.png: not a PNG",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_used_is_refused_in_one_line(name: str, images: Path) -> None:
    columns, message = REFUSED[name]
    before = sorted(images.rglob("*"))
    with pytest.raises(UserError, match=message) as refused:
        seen(images, columns)
    assert "\n" not in str(refused.value)
    assert sorted(path for path in images.rglob("*") if path.name != "table.csv") == [
        path for path in before if path.name != "table.csv"
    ]


MISTAKES: dict[str, tuple[dict[str, Cells], str]] = {
    "a number that is no label": ({"Edema": with_first(EDEMA, 7)}, "line 2: Edema is '7'"),
    "a word that is no label": (
        {"Edema": with_first(EDEMA, 0, "see report")},
        "line 3: Edema is 'see report'",
    ),
    "a path twice": (
        {"file": with_first(PATHS, PATHS[5])},
        "1 with a duplicate path and a contradictory label (table.csv line 7",
    ),
    "a blank path": (
        {"file": with_first(PATHS, "")},
        "1 without a path (table.csv line 2",
    ),
    "a path that leaves": ({"file": with_first(PATHS, "../x.png")}, "(table.csv line 2: ../x.png)"),
    "a folder": (
        {"file": with_first(PATHS, "scans/folder.png")},
        "folder.png, which is a folder)",
    ),
    "a link to nothing": (
        {"file": with_first(PATHS, "scans/link.png")},
        "link.png, a link that leads to no file)",
    ),
    "a missing file": (
        {"file": with_first(PATHS, "scans/77.png")},
        "without a file (scans/77.png: tried",
    ),
    "an ending in capitals": (
        {"file": with_first(PATHS, "scans/00.PNG")},
        "scans/00.PNG, there is 00.png",
    ),
    "no ending": ({"file": with_first(PATHS, "scans/00")}, "scans/00, there is 00.png"),
    "an unknown split": (
        {"split": with_first(column("train", "test", "val"), "exam")},
        "line 2: 'exam'",
    ),
    "a blank split": ({"split": with_first(column("train", "test", "val"), "")}, "line 2: ''"),
    "a cell too many": ({"Edema": with_first(EDEMA, "0,1")}, "line 2: 3 cells for 2 columns"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_row_that_cannot_be_used_is_named_and_the_others_are_kept(
    name: str, images: Path
) -> None:
    columns, message = MISTAKES[name]
    found = seen(images, {"file": PATHS, "Edema": EDEMA} | columns)
    said = describe_row_problems("table", found.unusable_rows, IMAGES)
    assert message in said
    assert "\n" not in said
    assert len(found.unusable_rows) == 1
    assert len(found.table.labels) == IMAGES - 1
    with pytest.raises(UserError, match=re.escape(message)):
        open_dataset(str(images / "table.csv"), size=16, options={"workers": 1})
    kept = open_dataset(
        str(images / "table.csv"), size=16, options={"workers": 1, "skip_bad": True}
    )
    assert sum(map(len, kept.rows.values())) == IMAGES - 1


# ----------------------------------------------------------------------------------- read, and told


READ: dict[
    str, tuple[Cells, list[int], str]
] = {  # values, their meaning (-9 unknown), what is said
    "0/2": (column(0, 2, ""), [0, 1, -9], "Edema is read with '2' as present"),
    "yes/no": (
        column("no", "Yes", "NA"),
        [0, 1, -9],
        "'no' as absent, 'Yes' as present, 'NA' as blank",
    ),
    "True/False": (column("False", "True"), [0, 1], "'False' as absent, 'True' as present"),
    "Y/N": (
        column("N", "Y", "n/a"),
        [0, 1, -9],
        "'N' as absent, 'Y' as present, 'n/a' as blank",
    ),
    "positive/negative": (
        column("negative", "positive"),
        [0, 1],
        "'negative' as absent, 'positive' as present",
    ),
    "uncertain": (
        column(0, 1, -1, "u", "uncertain", "-1.0"),
        [0, 1, -9, -9, -9, -9],
        "'u' as uncertain",
    ),
    "NaN": (column(0, 1, "nan"), [0, 1, -9], "'nan' as blank"),
    "decimals": (column("0.00", "1.00"), [0, 1], ""),
    "WAHR/FALSCH": (column("FALSCH", "WAHR"), [0, 1], "'FALSCH' as absent, 'WAHR' as present"),
}


@pytest.mark.parametrize("name", READ)
def test_an_odd_column_is_read_where_it_can_be_read_in_one_way_and_told(
    name: str, images: Path
) -> None:
    values, meaning, message = READ[name]
    found = seen(images, {"file": PATHS, "Edema": values})
    labels = found.table.labels
    known = np.ones_like(labels.values, bool) if labels.known is None else labels.known
    got = np.where(known, labels.values.astype(int), -9)[:, 0]
    assert got.tolist() == [meaning[number % len(meaning)] for number in range(IMAGES)]
    assert message in " ".join(found.guesses)
    assert found.table.problems == ()


def test_no_column_is_dropped_in_silence_and_names_stay_those_of_the_table(images: Path) -> None:
    columns = {
        "file": PATHS,
        "Edema": EDEMA,
        "effusion_left": EDEMA,
        "age": range(IMAGES),
        "note": column("", "x y"),
    }
    found = seen(images, columns | {"grade": column(0, 1, 2), "": range(IMAGES)})
    assert found.table.labels.findings == ("Edema", "effusion_left")
    (said,) = found.guesses
    assert (
        "findings are Edema, effusion_left; not used: (unnamed) (has no name); age (holds '0', '1',"
        " '2', …)" in said
    )
    assert "note (holds 'x y')" in said
    assert "grade (14 of 40 entries" in said or "grade (13 of 40 entries" in said


def test_a_column_of_crosses_is_told_how_to_become_a_finding(images: Path) -> None:
    (said,) = seen(images, {"file": PATHS, "Edema": EDEMA, "Mass": column("x", "", "")}).guesses
    assert "Mass (holds 'x' or nothing: write 1 and 0 if it is a finding)" in said


def test_policies_are_settings_for_all_findings_or_each(images: Path) -> None:
    path = write(
        images, {"file": PATHS, "Edema": column(0, 1, "", -1), "Mass": column(1, "", 0, -1)}
    )

    def first_rows(**policies: object) -> list[list[float]]:
        labels = read_own_tables([path], TableSettings(**policies)).labels  # type: ignore[arg-type]
        return labels.targets()[:4].tolist()

    nan = pytest.approx(np.nan, nan_ok=True)
    assert first_rows() == [[0, 1], [1, nan], [nan, 0], [nan, nan]]
    assert first_rows(blank="negative") == [[0, 1], [1, 0], [0, 0], [nan, nan]]
    assert first_rows(blank={"Mass": "positive"}, uncertain="negative") == [
        [0, 1],
        [1, 1],
        [nan, 0],
        [0, 0],
    ]
    with pytest.raises(
        UserError, match=r"blank.Edema must be one of unknown, negative, positive, not maybe"
    ):
        first_rows(blank={"Edema": "maybe"})
    with pytest.raises(UserError, match=r"data.blank must be one of unknown, .*, not maybe"):
        first_rows(blank="maybe")
    with pytest.raises(UserError, match="no 'Edeema' among the findings: did you mean Edema"):
        first_rows(blank={"Edeema": "unknown"})
    with pytest.raises(UserError, match="uncertain must be unknown, negative or positive"):
        first_rows(uncertain=["unknown"])


@pytest.mark.parametrize("option", ["blank", "uncertain"])
def test_a_data_set_of_ones_own_cannot_make_negatives_of_unknown_labels_by_a_wrong_word(
    option: str,
) -> None:
    intake = TableIntake(["Edema"])
    intake.add("a.png", [""], LabelColumns({"Edema": 0}), "line 2", split=0)
    meanings = {"blank": {"Edema": "unknown"}, "uncertain": {"Edema": "unknown"}}
    assert not intake.table(**meanings).labels.known.any()
    with pytest.raises(
        UserError,
        match=rf"^{option}.Edema must be one of unknown, negative, positive, not dontknow$",
    ):
        intake.table(**meanings | {option: {"Edema": "dontknow"}})


# -------------------------------------------------------------------------------------------- sites


def test_a_tiny_site_is_left_out_by_name_and_the_others_are_kept(images: Path) -> None:
    site = with_first(column("North", "South"), "Tiny", "Tiny", "")
    found = seen(images, {"file": PATHS, "Edema": EDEMA, "hospital": site})
    text = experiment_file_text(found, plan_first_run(found), "feddraw init table.csv", "x.toml")
    assert 'name = "by_site"' in text
    assert re.search(r"left out, under 8 training images: .*Tiny \d", text)
    assert "(no site) 1" in text
    alone = seen(images, {"file": PATHS, "Edema": EDEMA, "hospital": column(*range(20))})
    text = experiment_file_text(alone, plan_first_run(alone), "feddraw init table.csv", "x.toml")
    assert "fewer than two sites have 8 training images" in text
    assert "split into 4 simulated clients of unequal size" in text


def test_tables_of_several_sites_may_have_different_findings(images: Path) -> None:
    half = IMAGES // 2
    north = write(
        images, {"file": PATHS[:half], "patient": range(half), "Edema": EDEMA[:half]}, "north.csv"
    )
    columns = {
        "image": PATHS[half:],
        "patient": range(half),
        "Mass": column("yes", "no")[:half],
        "Edema": [""] * half,
    }
    south = write(images, columns, "south.csv")
    table = read_own_tables([north, south], root=images)
    labels = table.labels
    assert labels.findings == ("Edema", "Mass")
    assert labels.sites is not None
    assert labels.known is not None
    assert labels.patients is not None
    assert set(labels.sites) == {"north", "south"}
    assert labels.known[:half].all(axis=0).tolist() == [True, False]
    assert labels.known[half:].all(axis=0).tolist() == [False, True]
    assert (
        len(set(labels.patients)) == IMAGES
    )  # patient 3 of one hospital is not patient 3 of the other
    mass = read_own_tables([north, south], TableSettings(findings=["Mass"]), root=images)
    assert mass.labels.findings == ("Mass",)
    with pytest.raises(
        UserError, match=r"no column called Masss in north.csv, south.csv; they have Edema"
    ):
        read_own_tables([north, south], TableSettings(findings=["Edema", "Masss"]), root=images)
    with pytest.raises(UserError, match=r"no column called Masss in north.csv, south.csv"):
        read_own_tables([north, south], TableSettings(findings="Edema, Masss"), root=images)
    settings = TableSettings(findings="Edema, Rib", missing_columns="unknown")
    texts = read_own_tables([north, south], settings, root=images)
    assert texts.labels.findings == (
        "Edema",
        "Rib",
    )  # every site of a federation has the same, whatever it labels
    columns = {
        "image": PATHS[half:],
        "patient": range(half),
        "Mass": column(1, 0)[:half],
        "edema": EDEMA[half:],
    }
    spelled = write(images, columns, "south2.csv")
    with pytest.raises(
        UserError,
        match=r"'Edema' in north.csv and 'edema' in south2.csv look like one finding: give both",
    ):
        read_own_tables([north, spelled], root=images)
    settings = TableSettings(findings=["Edema", "Mass", "Rib"], missing_columns="unknown")
    listed = read_own_tables([north, spelled], settings, root=images)
    assert listed.labels.findings == ("Edema", "Mass", "Rib")
    assert listed.labels.known is not None
    assert not listed.labels.known[:, 2].any()
    settings = TableSettings(blank="negative")
    negative = read_own_tables([north, south], settings, root=images).labels
    assert (
        negative.known is not None
    )  # the column that a site lacks is unknown there, its blank cells are negative
    assert negative.known.tolist() == [[True, False]] * half + [[False, True]] * half
    spelled.unlink()
    found = inspect_data([north, south], images / "x.toml")
    assert list(found.unlabelled()) == ["Mass at north", "Edema at south"]
    assert [counts[NO_COLUMN] for counts in found.marks().values()] == [half, half]
    assert 'south.csv"]' in experiment_file_text(
        found, plan_first_run(found), "feddraw init", "x.toml"
    )
    write(images, {"image": PATHS[half:], "Mass": column(1, 0)[:half]}, "south.csv")
    with pytest.raises(
        UserError, match=r"north.csv has a column for the patient and south.csv has none"
    ):
        read_own_tables([north, south], root=images)
    for path in (north, south):
        path.unlink()


def test_two_tables_of_one_name_are_two_sites(tmp_path: Path) -> None:
    paths = [tmp_path / site / "data" / "labels.csv" for site in "AB"]
    for path in paths:
        path.parent.mkdir(parents=True)
        write(path.parent, {"file": PATHS, "patient": range(IMAGES), "Edema": EDEMA}, path.name)
    labels = read_own_tables(paths, root=tmp_path).labels
    assert labels.sites is not None
    assert labels.patients is not None
    assert set(labels.sites) == {"A/data/labels", "B/data/labels"}
    assert len(set(labels.patients)) == len(labels) == 2 * IMAGES


def test_listed_tables_may_be_named_from_here_or_in_full_but_none_twice(in_tmp: Path) -> None:
    for site in ("north", "south"):
        (in_tmp / site).mkdir()
        write(in_tmp / site, {"file": PATHS, "Edema": EDEMA})
    found = find_tables(["north/table.csv", str(in_tmp / "south" / "table.csv")])
    assert image_root(found) == in_tmp
    for again in ("./north", str(in_tmp / "north" / "table.csv")):
        with pytest.raises(UserError, match=r"data\.path names .*north/table\.csv twice"):
            find_tables(["north/table.csv", again])


# ------------------------------------------------------------------------------------------- splits


def test_rare_findings_reach_every_split_and_patients_stay_whole(images: Path) -> None:
    rare = with_first(column(0), 1, 0, 1, 0, 1)
    patients = [number // 2 for number in range(IMAGES)]
    for seed in range(5):
        path = write(images, {"file": PATHS, "patient": patients, "Rare": rare, "Edema": EDEMA})
        table = read_own_tables([path], TableSettings(seed=seed))
        parts = [table.split == number for number in range(len(SPLITS))]
        assert [int(table.labels.values[part, 0].sum()) for part in parts] == [1, 1, 1]
        assert [int(part.sum()) for part in parts] == pytest.approx([28, 4, 8], abs=2)
        edema = [table.labels.values[part, 1].sum() for part in parts]
        assert edema == pytest.approx([7, 1, 2], abs=1)
        assert table.labels.patients is not None
        shared = {*zip(table.labels.patients.tolist(), table.split.tolist(), strict=True)}
        assert len(shared) == len(set(patients))


def test_blank_patients_are_not_one_patient_and_shared_patients_are_told(images: Path) -> None:
    path = write(
        images, {"file": PATHS, "patient": with_first(range(IMAGES), "", "", ""), "Edema": EDEMA}
    )
    table = read_own_tables([path])
    assert table.labels.patients is not None
    assert len(set(table.labels.patients.tolist())) == IMAGES
    assert "3 images have no patient id: each counts as a separate patient" in " ".join(table.notes)
    split = column("train", "train", "val", "test")
    path = write(
        images, {"file": PATHS, "patient": column(*range(10)), "split": split, "Edema": EDEMA}
    )
    assert "patients are in more than one split" in " ".join(read_own_tables([path]).notes)


def test_a_patient_in_three_splits_is_told_once(images: Path) -> None:
    patients, split = (
        with_first(range(IMAGES), 0, 0, 0),
        with_first(column("train"), "train", "val", "test"),
    )
    path = write(images, {"file": PATHS, "patient": patients, "split": split, "Edema": EDEMA})
    assert any(
        note.startswith("1 patients are in more than one split")
        for note in read_own_tables([path]).notes
    )


def test_a_spreadsheet_or_another_encoding_says_how_to_save_it(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match="is a spreadsheet, not a CSV: save it as CSV in UTF-8"):
        inspect_data(tmp_path / "table.xlsx", tmp_path / "x.toml")
    (tmp_path / "table.csv").write_bytes("file,Ödem\na.png,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as UTF-8 text: save it as CSV UTF-8"):
        inspect_data(tmp_path / "table.csv", tmp_path / "x.toml")
    (tmp_path / "table.csv").write_text("file,Edema\n")
    with pytest.raises(UserError, match="has a header but no rows"):
        inspect_data(tmp_path / "table.csv", tmp_path / "x.toml")


def test_init_and_run_call_the_sites_of_several_tables_alike(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "b").mkdir()
    for folder, name in ((images, "one.csv"), (images / "b", "one.csv")):
        write(folder, {"file": [str(images / path) for path in PATHS], "Edema": EDEMA}, name)
    monkeypatch.chdir(images)
    found = inspect_data(
        [Path("one.csv"), images / "b" / "one.csv"], Path("x.toml"), images=str(images)
    )
    settings = TableSettings(images=str(images))
    opened = read_own_tables(find_tables(["one.csv", "b/one.csv"]), settings, root=images)
    assert opened.labels.sites is not None
    assert set(found.sites) <= set(opened.labels.sites.tolist())


ROWS = [f"{path};{'AB'[number % 2]};{number};{number % 3 % 2}" for number, path in enumerate(PATHS)]
HEADER = "path;site;patient;Edema"
SPREADSHEETS = {
    "blank rows below": [HEADER, *ROWS, ";;;", " ;;;"],
    "the line that names the separator": ["sep=;", HEADER, *ROWS],
    "a name in two lines": ['path;site;"patient\nid";Edema', *ROWS],
}


@pytest.mark.parametrize("name", SPREADSHEETS)
def test_what_spreadsheets_add_to_a_table_is_read(name: str, images: Path) -> None:
    table = images / "export.csv"
    table.write_text("\n".join([*SPREADSHEETS[name], ""]), encoding="utf-8")
    found = inspect_data(table, images / "x.toml")
    assert found.unusable_rows == ()
    assert len(found.table.labels) == IMAGES
    assert found.columns["site"] == "site"
    assert found.columns["patient"].split() in (["patient"], ["patient", "id"])


def test_lines_are_counted_as_an_editor_does(images: Path) -> None:
    table = images / "export.csv"
    table.write_text("\n".join(["sep=;", HEADER, *ROWS, "scans/00.png;A;0;1", ""]))
    (duplicate,) = inspect_data(table, images / "x.toml").unusable_rows
    assert duplicate.where == f"export.csv line {IMAGES + 3}"


NO_HEADER = {
    "a title": (["Export of 2024;;;", HEADER, *ROWS], "its first line must hold column names"),
    "no header": (ROWS, r"has no column names, its first line holds scans/00.png"),
    "nothing": ([], "is empty"),
}


@pytest.mark.parametrize("name", NO_HEADER)
def test_a_table_without_column_names_is_told_so(name: str, images: Path) -> None:
    lines, message = NO_HEADER[name]
    table = images / "export.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        inspect_data(table, images / "x.toml")


def test_german_columns_and_cells_are_found(images: Path) -> None:
    columns = {
        "Bilddatei": PATHS,
        "Klinik": column("K\u00f6ln", "Ko\u0308ln", "Bonn"),  # one name in two spellings of ö
        "Patientennummer": range(IMAGES),
        "\u00d6dem": column("ja", "nein", "?", "j"),
    }
    found = seen(images, columns)
    kinds = {"path": "Bilddatei", "site": "Klinik", "patient": "Patientennummer"}
    assert {kind: found.columns[kind] for kind in kinds} == kinds
    assert sorted(found.sites) == ["Bonn", "K\u00f6ln"]
    assert "'?' as uncertain" in " ".join(found.guesses)
    decomposed = seen(images, {"file": PATHS, "O\u0308dem": EDEMA})
    assert decomposed.table.labels.findings == ("\u00d6dem",)


def test_entries_that_keep_a_column_from_being_a_finding_are_shown(images: Path) -> None:
    found = seen(images, {"file": PATHS, "Edema": EDEMA, "Mass": column(0, 1, "+")})
    assert "Mass (13 of 40 entries are not labels, such as '+')" in " ".join(found.guesses)
