"""ChestMNIST, CheXpert, ChestX-ray14 and own folders, each from a miniature of its archive, and the
real ones.
"""

import csv
import gzip
import io
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddraw.data import csv_sheet, npz_archive
from feddraw.data.dataset import SPLITS
from feddraw.data.dataset_by_name import dataset_names, open_dataset, read_training_labels
from feddraw.data.datasets import chestmnist
from feddraw.data.datasets.nih import read_nih_table
from feddraw.data.finding_names import CHESTXRAY14_FINDINGS, PAPER_FINDINGS
from feddraw.data.image_settings import PAPER_MEAN, PAPER_STD
from feddraw.errors import UserError
from test_imaging import film, save_dicom

OBSERVATIONS = [
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDDRAW_CACHE", str(folder))
    return folder


@pytest.fixture
def no_data_folder(monkeypatch):
    monkeypatch.delenv("FEDDRAW_DATA", raising=False)


def save(path: Path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(film(48, 40, seed)).save(path)


def write(path: Path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def opened(name, size=16, **options):
    return open_dataset(str(name), size=size, options={"workers": 1, **options})


def says(name, text, **options):
    """Opening fails with one line that has this text."""
    with pytest.raises(UserError, match=text) as caught:
        opened(name, **options)
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------------- .npz


def arrays(side=16, columns=14, **changes):
    rng = np.random.default_rng(0)
    found = {}
    for split, count in (("train", 12), ("val", 4), ("test", 5)):
        found[f"{split}_images"] = rng.integers(0, 256, (count, side, side), dtype=np.uint8)
        found[f"{split}_labels"] = rng.integers(0, 2, (count, columns), dtype=np.uint8)
    return found | changes


def archive(path: Path, **changes) -> Path:
    np.savez_compressed(path, **arrays(**changes))
    return path


def test_an_npz_gives_the_five_findings_in_the_papers_order(tmp_path):
    dataset = opened(archive(tmp_path / "a.npz"))
    raw = arrays()
    assert dataset.findings == PAPER_FINDINGS
    assert (dataset.training_labels().values == raw["train_labels"][:, [0, 9, 2, 1, 8]]).all()
    assert (dataset.images[dataset.rows["test"]] == raw["test_images"]).all()
    assert {split: len(rows) for split, rows in dataset.rows.items()} == {
        "train": 12,
        "validation": 4,
        "test": 5,
    }
    assert isinstance(dataset.images, np.memmap)
    assert (dataset.mean, dataset.std) == (PAPER_MEAN, PAPER_STD)


def test_findings_can_be_all_or_chosen(tmp_path):
    file = archive(tmp_path / "a.npz")
    assert opened(file, findings="all").findings == CHESTXRAY14_FINDINGS
    chosen = opened(file, findings=["hernia", "effusion"])
    assert chosen.findings == ("Hernia", "Pleural Effusion")
    assert (chosen.training_labels().values == arrays()["train_labels"][:, [13, 2]]).all()
    says(file, "no finding Fever", findings=["Fever"])
    says(file, "findings must be paper, all, or a list", findings=[])
    says(
        archive(tmp_path / "b.npz", columns=2, classes=np.array(["Effusion", "Pleural Effusion"])),
        "two columns for one",
    )


def test_other_numbers_of_columns_keep_all_with_names_from_the_file(tmp_path):
    assert opened(archive(tmp_path / "a.npz", columns=2)).findings == ("label 0", "label 1")
    named = archive(tmp_path / "b.npz", columns=2, classes=np.array(["edema", "Tubes"]))
    assert opened(named, findings="all").findings == ("Edema", "Tubes")
    in_bytes = archive(tmp_path / "c.npz", columns=2, classes=np.array([b"edema", b"Tubes"]))
    assert opened(in_bytes, findings="all").findings == ("Edema", "Tubes")


def test_an_npz_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(archive(tmp_path / "a.npz").parent))
    dataset = opened("npz", path="~/a.npz")
    assert (dataset.name, len(dataset.labels)) == ("a", 21)


def test_names_give_the_patient_and_are_stable_without(tmp_path):
    given = {
        f"{s}_names": np.array([f"{p:08d}_{i:03d}.png" for i in range(n)])
        for s, n, p in (("train", 12, 7), ("val", 4, 8), ("test", 5, 9))
    }
    labels = opened(archive(tmp_path / "a.npz", **given)).labels
    assert set(labels.patients) == {"00000007", "00000008", "00000009"}
    plain = opened(archive(tmp_path / "b.npz")).labels
    assert plain.patients is None
    assert list(plain.names[:2]) == ["train_0000000", "train_0000001"]
    assert (np.sort(plain.names[:12]) == plain.names[:12]).all()


def test_another_size_is_resized_and_said(tmp_path):
    told = []
    dataset = open_dataset(
        str(archive(tmp_path / "a.npz")),
        size=8,
        options={},
        progress=lambda *news: told.append(news[0]),
    )
    assert dataset.images.shape == (21, 8, 8)
    assert "a, resized from 16 to 8 px" in told
    assert (
        abs(
            dataset.images.mean()
            - np.concatenate([arrays()[f"{s}_images"] for s in npz_archive.SPLIT_PREFIXES]).mean()
        )
        < 2
    )


def test_mean_and_deviation_can_be_measured_or_given(tmp_path):
    file = archive(tmp_path / "a.npz")
    train = arrays()["train_images"] / 255
    measured = opened(file, normalize="measured")
    assert (measured.mean, measured.std) == pytest.approx((train.mean(), train.std()))
    given = opened(file, normalize=[0.4, 0.3])
    assert (given.mean, given.std) == (0.4, 0.3)
    for wrong in ("mesured", 0.5, [0.5, 0], [0.5, "x"]):
        says(file, "normalize must be", normalize=wrong)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"val_labels": np.zeros((4, 3), np.uint8)}, "as many columns in every split"),
        ({"val_images": np.zeros((3, 16, 16), np.uint8)}, "val_images is uint8"),
        ({"test_images": np.zeros((5, 16, 16), np.float32)}, "test_images is float32"),
        ({"test_images": np.zeros((5, 16, 16, 3), np.uint8)}, "square images of bytes"),
        ({"train_labels": np.array([["1"] * 14] * 12)}, "tables of numbers"),
        ({"train_labels": np.array([[None] * 14] * 12)}, "no plain array"),
        (
            {
                "train_names": np.array(["a"]),
                "val_names": np.array(["b"]),
                "test_names": np.array(["c"]),
            },
            "one of names",
        ),
        ({"classes": np.array(["Edema"])}, "names 1 classes for 14 columns"),
    ],
)
def test_an_npz_of_another_layout_says_what_is_wrong(tmp_path, changes, text):
    says(archive(tmp_path / "a.npz", **changes), text)


def test_missing_arrays_and_images_are_told(tmp_path):
    np.savez(tmp_path / "a.npz", train_images=np.zeros((1, 8, 8), np.uint8))
    says(tmp_path / "a.npz", "no train_labels, val_labels, test_labels")
    np.savez(
        tmp_path / "b.npz", **{name: array for name, array in arrays().items() if "labels" in name}
    )
    says(tmp_path / "b.npz", "labels but no images")
    assert len(read_training_labels(tmp_path / "b.npz")) == 12


def test_labels_outside_0_and_1_are_counted_and_can_be_left_out(tmp_path):
    labels = arrays()["train_labels"]
    labels[3, 9] = 2
    file = archive(tmp_path / "a.npz", train_labels=labels)
    says(file, r"of 21 images 1 with a label outside 0 and 1 \(train_0000003\)")
    dataset = opened(file, skip_bad=True)
    assert list(dataset.rows["train"]) == [0, 1, 2, *range(4, 12)]
    assert "train_0000003" in (Path(dataset.images.filename).parent / "skipped.csv").read_text()


def test_a_damaged_or_foreign_npz_is_one_line(tmp_path):
    whole = archive(tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    says(tmp_path / "cut.npz", "not a readable .npz")
    (tmp_path / "text.npz").write_text("hello")
    says(tmp_path / "text.npz", "not a readable .npz")
    spoilt = bytearray(whole)
    spoilt[3000:3100] = bytes(100)
    (tmp_path / "spoilt.npz").write_bytes(spoilt)
    says(tmp_path / "spoilt.npz", "damaged|not a readable")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(npz_archive, "copy_member", lambda *_: pytest.fail("unpacked"))
    big = np.zeros((12, 4000, 4000), np.uint8)
    says(archive(tmp_path / "a.npz", train_images=big), "would unpack from")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 14)}
    )
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as file:
        for split in npz_archive.SPLIT_PREFIXES:
            file.writestr(f"{split}_labels.npy", header.getvalue() + b"\0" * 100)
    says(tmp_path / "lie.npz", "not as long as it says")


# --------------------------------------------------------------------------------------- ChestMNIST


def test_chestmnist_takes_the_smallest_archive_that_is_large_enough(tmp_path):
    archive(tmp_path / "chestmnist_64.npz", side=64)
    dataset = opened("chestmnist", size=32, path=str(tmp_path))
    assert dataset.name == "chestmnist"
    assert dataset.size == 32
    says("chestmnist", "no chestmnist_128.npz at .*zenodo", size=100, path=str(tmp_path))


def test_chestmnist_is_found_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDRAW_DATA", str(tmp_path))
    archive(tmp_path / "chestmnist.npz", side=28)
    assert opened("chestmnist", size=28).size == 28


def test_chestmnist_without_network_is_one_line(no_data_folder, monkeypatch):
    import pooch

    def offline(*_, **__):
        raise ConnectionError("Max retries exceeded\nwith a long story")

    monkeypatch.setattr(pooch, "retrieve", offline)
    says(
        "chestmnist",
        "cannot download chestmnist.npz .*fetch https://zenodo.org.*PATH/chestmnist.npz",
    )


def test_a_download_with_another_hash_is_refused(tmp_path, monkeypatch, no_data_folder):
    import pooch

    archive(tmp_path / "other.npz", side=28)

    def download(url, output, _):
        Path(output).write_bytes((tmp_path / "other.npz").read_bytes())

    monkeypatch.setattr(pooch, "HTTPDownloader", lambda **_: download)
    says("chestmnist", "cannot download chestmnist.npz .*hash")
    md5 = pooch.file_hash(str(tmp_path / "other.npz"), "md5")
    monkeypatch.setitem(chestmnist.ARCHIVES, 28, ("chestmnist.npz", md5))
    assert opened("chestmnist", size=28).size == 28


# ----------------------------------------------------------------------------------------- CheXpert


def marked(**marks):
    """A row's fourteen observations, blank where not given."""
    return [marks.get(name.replace(" ", "_"), "") for name in OBSERVATIONS]


HEADER = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *OBSERVATIONS]


def chexpert_rows(release, split, patients):
    """Two frontal images and a lateral one of each patient."""
    views = [
        ("view1_frontal", "Frontal"),
        ("view2_lateral", "Lateral"),
        ("view3_frontal", "Frontal"),
    ]
    return [
        [
            f"{release}/{split}/patient{patient:05d}/study1/{view}.jpg",
            "Male",
            "60",
            kind,
            "AP",
            *marked(Atelectasis="-1.0", Cardiomegaly="-1.0", Edema="1.0", Consolidation="0.0"),
        ]
        for patient in patients
        for view, kind in views
    ]


def chexpert_folder(
    root: Path, release="CheXpert-v1.0-small", train=range(1, 6), images=True
) -> Path:
    folder = root / release
    rows = {
        "train": chexpert_rows(release, "train", train),
        "valid": chexpert_rows(release, "valid", [64540, 64541]),
    }
    for split, lines in rows.items():
        write(folder / f"{split}.csv", HEADER, lines)
    tests = [f"CheXpert-v1.0/test/patient{patient}/study1" for patient in (64741, 64742)]
    write(
        folder / "groundtruth.csv",
        ["Study", *OBSERVATIONS],
        [[study, *marked(Edema="1")] for study in tests],
    )
    files = [row[0].partition("/")[2] for split in rows.values() for row in split]
    files += [
        f"{study.partition('/')[2]}/{view}.jpg"
        for study in tests
        for view in ("view1_frontal", "view2_lateral")
    ]
    for seed, file in enumerate(files if images else []):
        save(folder / file, seed)
    return folder


def test_chexpert_is_frontal_with_the_papers_uncertainty_policy(tmp_path):
    dataset = opened("chexpert", path=str(chexpert_folder(tmp_path)))
    assert {split: len(rows) for split, rows in dataset.rows.items()} == {
        "train": 10,
        "validation": 4,
        "test": 2,
    }
    assert dataset.findings == PAPER_FINDINGS
    assert (dataset.training_labels().values == [1, 1, 0, 0, 0]).all()
    assert (dataset.training_labels().uncertain == 2).all()
    assert (dataset.labels.values[dataset.rows["test"]] == [0, 1, 0, 0, 0]).all()
    assert dataset.labels.names[0] == "train/patient00001/study1/view1_frontal.jpg"
    assert dataset.labels.patients[0] == "patient00001"
    assert not any("lateral" in name for name in dataset.labels.names)
    assert dataset.images.reshape(len(dataset.images), -1).std(axis=1).min() > 0


def test_the_policy_of_each_finding_can_be_set(tmp_path):
    path = str(chexpert_folder(tmp_path))
    dataset = opened(
        "chexpert", path=path, uncertain={"Atelectasis": "negative", "cardiomegaly": "positive"}
    )
    assert (dataset.training_labels().values == [0, 1, 0, 1, 0]).all()
    dataset = opened("chexpert", path=path, uncertain={"cardiomegaly": "positive"})
    assert (dataset.training_labels().values == [1, 1, 0, 1, 0]).all()
    assert (
        opened("chexpert", path=path, uncertain="negative").training_labels().values
        == [0, 1, 0, 0, 0]
    ).all()
    masked = opened("chexpert", path=path, uncertain="unknown", blank="unknown").training_labels()
    assert (masked.values == [0, 1, 0, 0, 0]).all()
    assert (masked.known == [False, True, False, False, True]).all()
    says("chexpert", "uncertain must be unknown, negative or positive", path=path, uncertain=3)
    says(
        "chexpert",
        "uncertain.Edema must be one of unknown, neg.* not maybe",
        path=path,
        uncertain={"Edema": "maybe"},
    )
    says(
        "chexpert",
        "no 'Oedema' among the findings: did you mean Edema",
        path=path,
        uncertain={"Oedema": "positive"},
    )


def test_both_releases_have_the_same_names_and_so_the_same_partitions(tmp_path):
    small = opened("chexpert", path=str(chexpert_folder(tmp_path)))
    full = opened("chexpert", path=str(chexpert_folder(tmp_path, "CheXpert-v1.0")))
    assert (small.labels.names == full.labels.names).all()


def test_the_full_releases_batch_folders_are_found(tmp_path):
    folder = chexpert_folder(tmp_path, "CheXpert-v1.0")
    first = folder / "CheXpert-v1.0 batch 1 (validate & csv)"
    first.mkdir()
    for name in ("train.csv", "valid.csv", "valid"):
        (folder / name).rename(first / name)
    (folder / "train").rename(
        folder / "CheXpert-v1.0 batch 2 (train 1)"
    )  # patients without a folder train
    assert len(opened("chexpert", path=str(folder)).rows["train"]) == 10


def test_test_labels_by_image_need_no_view_column(tmp_path):
    folder = chexpert_folder(tmp_path)
    (folder / "groundtruth.csv").unlink()
    rows = [
        [f"test/patient64741/study1/{view}.jpg", *marked()]
        for view in ("view1_frontal", "view2_lateral")
    ]
    write(folder / "test_labels.csv", ["Path", *OBSERVATIONS], rows)
    assert len(opened("chexpert", path=str(folder)).rows["test"]) == 1


def test_without_test_labels_a_share_of_patients_can_be_carved_out(tmp_path):
    folder = chexpert_folder(tmp_path)
    (folder / "groundtruth.csv").unlink()
    says("chexpert", "no test labels: .*groundtruth.csv.*carve_test", path=str(folder))
    says("chexpert", "must be from 0 to below 1, not 2", path=str(folder), carve_test=2)
    dataset = opened("chexpert", path=str(folder), carve_test=0.2)
    patients = {split: set(dataset.labels.patients[rows]) for split, rows in dataset.rows.items()}
    assert len(dataset.rows["test"]) == 2
    assert not patients["train"] & patients["test"]


def test_a_missing_chexpert_says_where_to_get_it_and_what_is_expected(tmp_path, no_data_folder):
    says(
        "chexpert",
        "train.csv, valid.csv and the images .*https://aimi.stanford.edu",
        path=str(tmp_path),
    )


def test_rows_without_a_file_are_counted_named_and_can_be_left_out(tmp_path, caplog):
    folder = chexpert_folder(tmp_path)
    gone = "train/patient00002/study1/view1_frontal.jpg"
    (folder / gone).unlink()
    says("chexpert", rf"of 16 images 1 without a file \({gone}: tried .*{gone}\)", path=str(folder))
    dataset = opened("chexpert", path=str(folder), skip_bad=True)
    assert len(dataset.rows["train"]) == 9
    assert gone not in dataset.labels.names
    assert "1 image left out, listed in" in caplog.text


def test_rows_of_an_image_that_has_several_are_not_counted_as_images(tmp_path, caplog):
    folder = chexpert_folder(tmp_path)
    rows = chexpert_rows("CheXpert-v1.0-small", "train", range(1, 6))
    rows += [rows[0], rows[0]]
    write(folder / "train.csv", HEADER, rows)
    says("chexpert", "2 with a duplicate path", path=str(folder))
    opened("chexpert", path=str(folder), skip_bad=True)
    assert "2 rows left out, listed in" in caplog.text


def test_bad_labels_duplicates_and_strange_paths_are_all_named(tmp_path):
    folder = chexpert_folder(tmp_path)
    rows = chexpert_rows("CheXpert-v1.0-small", "train", range(1, 6))
    rows[0][HEADER.index("Edema")] = "2.0"
    rows[3][HEADER.index("Edema")] = "yes"
    rows.append(rows[5])
    rows.append(["../../etc/passwd", "", "", "Frontal", "", *marked()])
    write(folder / "train.csv", HEADER, rows)
    with pytest.raises(UserError) as caught:
        opened("chexpert", path=str(folder))
    text = str(caught.value)
    assert (
        "2 with a value that is not a label (train.csv line 2: Edema is '2.0'; train.csv line 5"
        in text
    )
    assert "1 with a duplicate path (train.csv line 17" in text
    assert "1 with a path that is not CheXpert's (train.csv line 18: ../../etc/passwd)" in text
    assert len(opened("chexpert", path=str(folder), skip_bad=True).rows["train"]) == 8


def test_wrong_columns_are_named(tmp_path):
    folder = chexpert_folder(tmp_path)
    write(
        folder / "valid.csv",
        ["Path", "Frontal/Lateral", "Edema"],
        [["valid/patient1/study1/a_frontal.jpg", "Frontal", "1"]],
    )
    says(
        "chexpert",
        "valid.csv has no finding Atelectasis, Pleural Effusion, Cardiomegaly, Consolidation; it"
        " has Edema",
        path=str(folder),
    )


def test_unreadable_images_are_counted_named_and_can_be_left_out(tmp_path):
    folder = chexpert_folder(tmp_path)
    bad = [f"train/patient0000{number}/study1/view1_frontal.jpg" for number in (1, 2)]
    (folder / bad[0]).write_text("no image")
    (folder / bad[1]).write_bytes((folder / bad[1]).read_bytes()[:300])
    says(
        "chexpert",
        rf"of 16 images 2 that cannot be read \({bad[0]}: not a PNG, JPEG or DICOM image; {bad[1]}",
        path=str(folder),
    )
    dataset = opened("chexpert", path=str(folder), skip_bad=True)
    assert len(dataset.rows["train"]) == 8
    assert not set(bad) & set(dataset.training_labels().names)
    listed = (Path(dataset.images.filename).parent / "skipped.csv").read_text()
    assert all(name in listed for name in bad)


def test_the_training_table_alone_gives_the_same_labels(tmp_path):
    folder = chexpert_folder(tmp_path, images=False)
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress((folder / "train.csv").read_bytes()))
    for table in (folder / "train.csv", packed):
        labels = read_training_labels(table)
        assert len(labels) == 10
        assert (labels.values == [1, 1, 0, 0, 0]).all()
        assert labels.names[0] == "train/patient00001/study1/view1_frontal.jpg"


# ------------------------------------------------------------------------------------- ChestX-ray14


def nih_folder(root: Path, patients=16) -> Path:
    names = [
        f"{patient:08d}_{number:03d}.png" for patient in range(patients) for number in range(2)
    ]
    columns = [
        "Image Index",
        "Finding Labels",
        "Follow-up #",
        "Patient ID",
        "OriginalImage[Width",
        "Height]",
    ]
    kinds = ["No Finding", "Effusion|Edema", "Pleural_Thickening"]
    rows = [[name, kinds[row % 3], "0", "1", "1024", "1024"] for row, name in enumerate(names)]
    write(root / "Data_Entry_2017_v2020.csv", columns, rows)
    (root / "train_val_list.txt").write_text("\n".join(names[:24]))
    (root / "test_list.txt").write_text("\n".join(names[24:]) + "\n")
    for seed, name in enumerate(names):
        save(root / f"images_00{1 + seed % 2}" / "images" / name, seed)
    return root


def test_chestxray14_has_the_official_split_and_a_patient_disjoint_validation(tmp_path):
    dataset = opened("nih", path=str(nih_folder(tmp_path)), validation=0.25)
    assert {split: len(rows) for split, rows in dataset.rows.items()} == {
        "train": 18,
        "validation": 6,
        "test": 8,
    }
    patients = [set(dataset.labels.patients[dataset.rows[split]]) for split in SPLITS]
    assert sum(map(len, patients)) == 16
    assert (dataset.labels.values[1] == [0, 1, 1, 0, 0]).all()
    again = opened("nih", path=str(tmp_path), validation=0.25, seed=0)
    other = opened("nih", path=str(tmp_path), validation=0.25, seed=1)
    assert (again.rows["validation"] == dataset.rows["validation"]).all()
    assert not (other.rows["validation"] == dataset.rows["validation"]).all()
    assert opened("nih", path=str(tmp_path), findings="all").labels.values[:, 12].sum() == 10


def test_chestxray14_names_what_does_not_fit(tmp_path, no_data_folder):
    says(
        "nih",
        "train_val_list.txt, test_list.txt, Data_Entry_2017.*nihcc.app.box.com",
        path=str(tmp_path),
    )
    root = nih_folder(tmp_path)
    table = (root / "Data_Entry_2017_v2020.csv").read_text()
    (root / "Data_Entry_2017_v2020.csv").write_text(
        table.replace("Effusion|Edema", "Effusion|Fever", 1)
    )
    (root / "images_001" / "images" / "00000000_000.png").unlink()
    says(
        "nih",
        r"1 with an unknown finding \(Data_Entry_2017_v2020.csv line 3: Fever\).*1 without a file"
        r" \(00000000_000.png",
        path=str(root),
    )


def test_a_row_with_an_unknown_finding_is_in_the_table(tmp_path):
    write(
        tmp_path / "t.csv",
        ["Image Index", "Finding Labels"],
        [["a.png", "Fever"], ["b.png", "Edema"]],
    )
    table = read_nih_table(
        tmp_path / "t.csv", dict.fromkeys(["a.png", "b.png", "c.png"], 0), "paper", {}
    )
    found = {problem.where: problem.what for problem in table.problems}
    assert found == {
        "t.csv line 2": "with an unknown finding",
        "c.png": "listed but not in the table",
    }


# -------------------------------------------------------------------------------------- own folders


def own_folder(
    root: Path, header=("file", "Edema", "Nodule", "age"), count=20, suffix=".png", **columns
) -> Path:
    rows = []
    for number in range(count):
        name = f"images/{number:03d}{suffix}"
        values = {
            "file": name,
            "Edema": number % 2,
            "Nodule": ["", 1, 0, -1][number % 4],
            "age": 20 + number,
        }
        rows.append([columns[key][number] if key in columns else values[key] for key in header])
        (root / "images").mkdir(parents=True, exist_ok=True)
        if suffix == ".dcm":
            save_dicom(
                root / name,
                film(40, 40, number).astype(np.uint16) * 16,
                ["MONOCHROME1", "MONOCHROME2"][number % 2],
            )
        else:
            save(root / name, number)
    write(root / "table.csv", header, rows)
    return root


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".dcm"])
def test_an_own_folder_needs_only_a_table_and_images(tmp_path, suffix):
    dataset = opened(own_folder(tmp_path, suffix=suffix))
    assert dataset.name == "table"
    assert dataset.findings == ("Edema", "Nodule")  # ages are no labels
    assert (dataset.labels.values[:4] == [[0, 0], [1, 1], [0, 0], [1, 0]]).all()
    assert [len(dataset.rows[split]) for split in SPLITS] == [14, 2, 4]
    assert dataset.images.reshape(20, -1).std(axis=1).min() > 0


def test_split_site_and_patient_columns_are_found_by_their_usual_names(tmp_path):
    split, site = ["train"] * 12 + ["VAL"] * 4 + ["testing"] * 4, ["A", "B"] * 10
    patients = [f"p{number // 2}" for number in range(20)]
    header = ("file", "Hospital", "Patient ID", "split", "Edema")
    dataset = opened(
        own_folder(tmp_path, header, Hospital=site, split=split, **{"Patient ID": patients})
        / "table.csv"
    )
    assert [len(dataset.rows[split]) for split in SPLITS] == [12, 4, 4]
    assert list(dataset.labels.sites[:2]) == ["A", "B"]
    assert list(dataset.labels.patients[:3]) == ["p0", "p0", "p1"]


def test_columns_can_be_named(tmp_path):
    header = ("scan", "who", "Edema", "flag")
    values = {
        "scan": [f"images/{n:03d}.png" for n in range(20)],
        "who": ["x", "y"] * 10,
        "flag": [1] * 20,
    }
    own_folder(tmp_path, header, **values)
    dataset = opened(tmp_path, path_column="scan", site_column="who", findings=["Edema"])
    assert dataset.findings == ("Edema",)
    assert set(dataset.labels.sites) == {"x", "y"}
    says(tmp_path, "no column 'site'; it has scan, who, Edema, flag", site_column="site")


def test_without_a_split_no_patient_is_in_two_parts(tmp_path):
    header = ("file", "patient", "Edema")
    own_folder(tmp_path, header, patient=[f"p{n % 7}" for n in range(20)])
    dataset = opened(tmp_path, shares=[0.5, 0.2, 0.3], seed=4)
    patients = [set(dataset.labels.patients[dataset.rows[split]]) for split in SPLITS]
    assert sum(map(len, patients)) == 7
    says(tmp_path, "shares must be three positive numbers that sum to 1", shares=[1, 2, 3])


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "/etc/passwd", "images/../../secret.png", "C:\\secret.png", "..\\x.png"],
)
def test_paths_cannot_leave_the_folder(tmp_path, path):
    save(tmp_path / "secret.png")
    files = [f"images/{n:03d}.png" for n in range(20)]
    own_folder(tmp_path / "mine", file=[path, *files[1:]])
    why = "1 without a path inside the folder"
    if ".." in path:
        why = "1 with '..' in the path, which is refused also inside the folder: write it without"
    says(tmp_path / "mine", f"{why} .table.csv line 2")


def test_a_path_with_dots_inside_the_folder_is_not_called_outside(tmp_path):
    files = [f"images/{n:03d}.png" for n in range(20)]
    own_folder(tmp_path / "mine", file=["images/../images/000.png", *files[1:]])
    says(tmp_path / "mine", "'..' in the path, which is refused also inside the folder")


def test_a_row_without_a_path_is_named(tmp_path):
    files = [f"images/{n:03d}.png" for n in range(20)]
    own_folder(tmp_path / "mine", file=["", *files[1:]])
    says(tmp_path / "mine", "1 without a path .table.csv line 2")


def test_absolute_paths_into_the_folder_and_backslashes_are_understood(tmp_path):
    files = [str(tmp_path / "images" / f"{n:03d}.png") for n in range(10)]
    files += [f"images\\{n:03d}.png" for n in range(10, 20)]
    assert len(opened(own_folder(tmp_path, file=files)).labels) == 20


def test_mistakes_of_a_table_are_named(tmp_path):
    own_folder(
        tmp_path / "a",
        ("file", "Edema", "split"),
        Edema=["0"] * 19 + ["7"],
        split=["train"] * 19 + ["test"],
    )
    says(tmp_path / "a", "1 with a value that is not a label .table.csv line 21: Edema is '7'")
    own_folder(tmp_path / "b", ("file", "Edema", "split"), split=["train"] * 10 + ["exam"] * 10)
    says(
        tmp_path / "b",
        "10 with a split other than train, validation, test .table.csv line 12: 'exam'.*…",
    )
    own_folder(
        tmp_path / "c", ("file", "Edema"), file=["images/000.png"] * 20, Edema=["1"] * 19 + ["0"]
    )
    says(tmp_path / "c", "18 with a duplicate path .*, 1 with a duplicate path and a contradictory")
    write(tmp_path / "d" / "table.csv", ["file", "age"], [["a.png", "50"]])
    says(tmp_path / "d", "no column of labels")
    write(tmp_path / "e" / "table.csv", ["weight", "age"], [["70", "50"]])
    says(tmp_path / "e", "no column with image paths; it has weight, age")
    own_folder(tmp_path / "f", ("file", "Edema", "split"), split=["train"] * 20)
    says(tmp_path / "f", "has no usable image for test")
    says(
        tmp_path / "a" / "images", "a CSV, or a folder with one CSV in it, is needed; there is none"
    )
    (tmp_path / "g" / "effusion").mkdir(parents=True)
    says(tmp_path / "g", "if its subfolders are classes: feddraw init .*g")


def test_semicolons_byte_order_marks_and_blank_lines_are_read(tmp_path):
    own_folder(tmp_path)
    text = (tmp_path / "table.csv").read_text().replace(",", ";").replace("\n", "\n\n")
    (tmp_path / "table.csv").write_text("\ufeff" + text)
    assert len(opened(tmp_path).labels) == 20


def test_a_table_that_is_none_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_bytes(b"path,Edema\n\xff\xfe,1\n")
    says(tmp_path / "a.csv", "UTF-8")
    (tmp_path / "b.csv").write_text("")
    says(tmp_path / "b.csv", "is empty")
    (tmp_path / "c.csv").write_text("path,Edema\n" + "x" * (csv_sheet.MAX_LINE + 5))
    says(tmp_path / "c.csv", "too long")
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"path,Edema\n" + b"a.png,1\n" * 1000)[:-30])
    says(tmp_path / "d.csv.gz", "cannot read")
    monkeypatch.setattr(csv_sheet, "MAX_TEXT", 1000)
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"path,Edema\n" + b"a.png,1\n" * 1000))
    says(tmp_path / "e.csv.gz", "too long")


# ------------------------------------------------------------------------------------------ by name


def test_names_are_listed_and_wrong_ones_corrected(no_data_folder):
    assert {"chestmnist", "chexpert", "folder", "nih", "npz", "phantom"} <= set(dataset_names())
    says("chexprt", "no 'chexprt' among the data sets: did you mean chexpert?")
    says("nowhere/x.npz", "no file or folder nowhere/x.npz")
    says("folder", "needs path")


def test_wrong_options_are_told_with_the_right_ones(tmp_path):
    file = archive(tmp_path / "a.npz")
    says(
        file,
        "no 'clahee' among the settings of data .*: did you mean clahe?",
        clahee=True,
    )
    says(file, "clahe must be true or false, not 'yes'", clahe="yes")
    says(file, "size must be from 8 to 2048 pixels, not 3", size=3)
    says(file, "workers must be zero or more", workers=-1)


def test_somebodys_own_function_is_a_data_set(tmp_path, monkeypatch):
    (tmp_path / "mylab.py").write_text(
        "from feddraw.data.datasets.phantom import phantom\ndef chests(size, count=5):\n    return"
        " phantom(size=size, train=count, validation=5, test=5)\ndef nothing(size):\n    return"
        " None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mylab", raising=False)
    dataset = open_dataset("mylab:chests", size=32, options={"count": 7})
    assert len(dataset.rows["train"]) == 7
    with pytest.raises(UserError, match=r"must return a .*Dataset, not a NoneType"):
        open_dataset("mylab:nothing", size=32, options={})


# ------------------------------------------------------------------------------------ the real ones


def real(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set")
    return path


def test_the_real_chexpert_table_gives_the_papers_counts():
    labels = read_training_labels(real("FEDDRAW_CHEXPERT_LABELS"))
    assert len(labels) == 191_027
    assert labels.values.sum(axis=0).tolist() == [59_583, 61_493, 76_899, 23_385, 12_983]
    assert (labels.values.max(axis=1) == 0).sum() == 51_052


def test_the_real_chestmnist_labels_give_the_papers_counts():
    labels = read_training_labels(Path(real("FEDDRAW_DATA")) / "chestmnist_labels.npz")
    assert len(labels) == 78_468
    assert labels.values.sum(axis=0).tolist() == [7_996, 1_690, 9_261, 1_950, 3_263]
    assert (labels.values.max(axis=1) == 0).sum() == 59_438


@pytest.mark.parametrize("size", [64, 32])
def test_the_real_sample_works_as_it_is(size):
    dataset = opened(Path(real("FEDDRAW_DATA")) / "nih_sample_64.npz", size=size)
    assert [len(dataset.rows[split]) for split in SPLITS] == [3_544, 410, 1_045]
    assert dataset.training_labels().values.sum(axis=0).tolist() == [323, 73, 325, 136, 148]
    assert len(np.unique(dataset.labels.patients)) == 1_335
    patients = [set(dataset.labels.patients[dataset.rows[split]]) for split in SPLITS]
    assert not patients[0] & (patients[1] | patients[2])
    assert 0.4 < dataset.images.mean() / 255 < 0.6
