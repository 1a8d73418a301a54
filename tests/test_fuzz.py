"""A short fuzz of every reader, the same inputs each time; `make fuzz` is the long one.

What it found is kept below.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))

from guided import attempt, fuzz
from readers import archive, dicom, targets

from feddraw.analysis.site_heterogeneity import site_distances_in_ledger
from feddraw.cli.weights import parse_similarity
from feddraw.core.participation import Participation
from feddraw.data.dataset_by_name import find_dataset, read_training_labels
from feddraw.data.image_cache import read_cache_log
from feddraw.data.imaging import BadImage, Recipe, decode
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.settings import Experiment
from feddraw.models._saved_parameters import read_saved_parameters
from feddraw.report.section_order import compose_report
from feddraw.report.settings import ReportSettings
from feddraw.report.statistics import compute_report
from feddraw.results.recorded_run import read_run
from feddraw.results.run_collection import collect_runs
from feddraw.study.plan import read_study
from run_folders import make_run

NAMES = (
    "experiment.toml",
    "study.toml",
    "label tables",
    "ChestX-ray14's table",
    "tables of results",
    "tables of studies",
    "tables for init",
    "similarities",
    "index lists",
    "run folders",
    "reports",
    "logs on resume",
    "checkpoints",
    "archives (.npz)",
    "pictures",
    "weights files",
    "prepared images",
    *(("Flower replies", "Flower requests") if find_spec("flwr") else ()),
)
SHORT = [name for name in NAMES if name != "reports"]  # half a second each; `make fuzz` has them
INPUTS = 40
FEWER_INPUTS = {"Flower replies": 15}  # sixty seeds come first


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    return tmp_path_factory.mktemp("room")


@pytest.fixture(scope="module")
def readers(room):
    return {target.name: target for target in targets(room)}


def test_every_reader_is_in_the_list(readers):
    assert tuple(readers) == NAMES


@pytest.mark.parametrize("name", SHORT)
def test_a_reader_reads_or_refuses_in_a_line(readers, room, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fuzz(readers[name], room, random.Random(1), inputs=FEWER_INPUTS.get(name, INPUTS))
    assert found.escapes == []
    assert found.refused


@pytest.mark.parametrize("name", SHORT)
def test_good_files_are_read(readers, room, name):
    assert "read" in {attempt(readers[name], data, room) for data in readers[name].seeds}


# ------------------------------------------------------------------------------------ what it found


def refused(text: str, call, *arguments) -> None:
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("method = {name = []}", "method.name must be a name, not []"),
        ("data = {name = 3}", "data.name must be a name, not 3"),
        (f"rounds = {'1' * 5000}", "is not valid TOML: Exceeds the limit"),
        (f"rounds = {'[' * 5000}", "is not valid TOML"),
        ("training = {lr = 1" + "0" * 400 + "}", "TOML: an integer of more than 64 bits"),
        (f"rounds = 0x{'f' * 5000}", "is not valid TOML: an integer of more than 64 bits"),
        (f"seed = [[0o{'7' * 6000}]]", "is not valid TOML: an integer of more than 64 bits"),
        (f"seed = {2**63}", "is not valid TOML: an integer of more than 64 bits"),
        ("training = 3", "training must be a table of settings, not 3"),
        ("data = '" + "n" * 300 + "'", "among the data sets"),
        ("data = '~nobody of that name'", "no home folder ~nobody of that name on this machine"),
        ("a" + ".a" * 30_000 + " = 1", "is not valid TOML: it is nested too deeply"),
        ("'a' " + ". a" * 30_000 + " = 1", "is not valid TOML: it is nested too deeply"),
    ],
)
def test_an_experiment_file_with_values_of_a_strange_kind_is_one_line(tmp_path, content, says):
    (tmp_path / "e.toml").write_text(content)
    refused(says, lambda: complete_settings(Experiment.read(tmp_path / "e.toml")))


def test_a_site_file_with_a_number_that_python_does_not_print_is_one_line(tmp_path):
    pytest.importorskip("flwr")
    from feddraw.flower.exchange_files import SIGNATURE_LINE, SITE_PURPOSE, read_site_file

    file = tmp_path / "north.site"
    fields = f'purpose = "{SITE_PURPOSE}"\nsigning = 0x{"f" * 5000}\n'
    file.write_text(f"{fields}{SIGNATURE_LINE}AAAA\n")
    refused("is not a file of `feddraw site key`", read_site_file, file)


@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_names_with_characters_that_do_not_exist_are_one_line(tmp_path, code):
    names = np.array([code, 65], np.uint32).view("<U1")
    (tmp_path / "x.npz").write_bytes(archive(classes=names))
    refused(
        "is damaged at classes: it holds what is no text", read_training_labels, tmp_path / "x.npz"
    )


def test_a_study_of_more_runs_than_memory_holds_is_one_line(tmp_path):
    lists = "\n".join(
        f"{name} = {list(range(300))}" for name in ("seed", "rounds", "holdout", "folds", "workers")
    )
    (tmp_path / "s.toml").write_text(lists)
    refused("the study has 90,000 runs or more", read_study, tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text("seed = [0, 1]\n" + "[[case]]\n" * 3000)
    refused("the study has 5,002 runs or more", read_study, tmp_path / "s.toml")


def test_a_cache_log_with_an_infinite_number_only_loses_that_line(tmp_path):
    (tmp_path / "log").write_text(
        '{"start": 1e999, "bad": {}}\n{"start": 16, "bad": {"17": "gone"}}\n'
    )
    assert read_cache_log(tmp_path / "log") == {16: {17: "gone"}}


@pytest.mark.parametrize("preset", ["1979-05-27", "[1]", "3"])
def test_a_preset_that_is_no_word_is_one_line(tmp_path, preset):
    (tmp_path / "s.toml").write_text(f"preset = {preset}\n")
    refused("among the presets", read_study, tmp_path / "s.toml")


def test_a_name_that_is_longer_than_any_path_is_no_data_set():
    refused("among the data sets", find_dataset, "n" * 300)
    refused("among the data sets", find_dataset, "n" * 5000)


def test_a_damaged_gz_is_one_line(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(
        b"\x1f\x8b\x08\x00\xd7\x86\xfaj\x02\xff\x1d\xcaK\n\x800\x0c\x05\xc0\x97\xd1\x86"
    )
    refused("cannot read", read_training_labels, tmp_path / "t.csv.gz")


def test_a_quoted_field_with_line_ends_stays_one_line(tmp_path):
    (tmp_path / "t.csv").write_text('path,a\n"../x\ny.png",1\nb.png,0\nc.png,1\n')
    refused("with '..' in the path, which is refused", read_training_labels, tmp_path / "t.csv")


@pytest.mark.parametrize("content", [b"\xf1\xff,1\n", b"1," + b"1" * 200_000 + b"\n"])
def test_similarities_that_are_no_table_are_one_line(tmp_path, content):
    (tmp_path / "s.csv").write_bytes(content)
    with pytest.raises(UserError):
        parse_similarity(str(tmp_path / "s.csv"))


@pytest.mark.parametrize("content", [{"classes": [[1, 2], [3, 4]]}, {"train_images": [1, 2]}])
def test_an_archive_with_arrays_of_another_shape_is_one_line(readers, room, content):
    assert attempt(readers["archives (.npz)"], archive(**content), room) == "refused"


def test_an_archive_with_a_header_that_goes_on_and_on_is_one_line(readers, room):
    wide = np.zeros(2, [(f"a{number}", "u1") for number in range(2000)])
    assert attempt(readers["archives (.npz)"], archive(train_labels=wide), room) == "refused"


@pytest.mark.parametrize("state", [[1, 2], {"features.0.weight": 1}, {1: 2}, 5])
def test_a_weights_file_without_tensors_by_name_is_one_line(tmp_path, state):
    import torch

    torch.save(state, tmp_path / "w.pth")
    refused("it should hold tensors by name", read_saved_parameters, tmp_path / "w.pth")


def test_a_ledger_in_which_every_line_is_another_client_and_round_asks_for_no_memory(tmp_path):
    ledger = make_run(tmp_path / "run", rounds=2) / "weights.csv"
    header = ledger.read_text().splitlines()[0]
    rest = "," * (header.count(",") - 11)  # later columns, all blank
    ledger.write_text(
        "\n".join([header, *(f"{n},C{n},1,1,,,,,,1,1,counted{rest}" for n in range(4000)), ""])
    )
    refused("4000 clients in a ledger of 4000 lines", read_run, tmp_path / "run")


@pytest.mark.parametrize(
    ("old", "new"), [("0.25,weighted", "inf,weighted"), ("0.25,weighted", "1e300,weighted")]
)
def test_a_ledger_with_numbers_that_no_run_gives_is_one_line(tmp_path, old, new):
    ledger = make_run(tmp_path / "run", rounds=2) / "weights.csv"
    ledger.write_text(ledger.read_text().replace(old, new))
    refused("influence beyond 1e+18", read_run, tmp_path / "run")


def test_an_auc_beyond_one_is_one_line(tmp_path):
    metrics = make_run(tmp_path / "run", rounds=2, auc=0.8) / "metrics.json"
    metrics.write_text(metrics.read_text().replace('"macro": 0.8', '"macro": Infinity'))
    refused("auc outside 0 to 1", read_run, tmp_path / "run")


def test_predictions_of_other_shapes_are_none(tmp_path):
    from safetensors.numpy import load_file, save_file

    file = make_run(tmp_path / "run", rounds=2, images=4) / "predictions.safetensors"
    arrays = load_file(file)
    arrays["test.scores"] = arrays["test.scores"][:, :1].copy()
    about = {"classes": ["Atelectasis", "Cardiomegaly", "Effusion"], "test": "x"}
    save_file(arrays, file, {"feddraw": json.dumps(about)})
    assert read_run(tmp_path / "run").predictions() is None


def test_a_round_in_other_digits_is_one_line():
    refused("must read like 'C4=5, C2=3'", Participation(joins="C1=²").check, ("C1",), 3)


def test_a_file_name_that_is_longer_than_any_is_left_out(readers, room):
    table = b"path,Edema\n" + b"n" * 300 + b".png,1\na.png,0\nb.png,1\n"
    assert attempt(readers["tables for init"], table, room) == "read"


def test_prepared_images_with_a_spoilt_header_are_made_again(readers, room):
    data = next(data for data in readers["prepared images"].seeds if data[:1] == b"0")
    assert attempt(readers["prepared images"], data.replace(b", }", b"}}}"), room) == "refused"


def test_a_ledger_that_names_a_round_far_away_asks_for_no_memory(tmp_path):
    make_run(tmp_path / "run", rounds=2)
    ledger = tmp_path / "run" / "weights.csv"
    ledger.write_text(ledger.read_text().replace("\n1,", "\n999999999999,"))
    refused("weights.csv is not as a run writes it", read_run, tmp_path / "run")


@pytest.mark.parametrize("settings", ["seed = 1e999", "rounds = nan", "a" + ".a" * 900 + " = 1"])
def test_a_runs_settings_of_a_strange_kind_are_one_line(tmp_path, settings):
    file = make_run(tmp_path / "run", rounds=2) / "experiment.toml"
    kept = [
        line
        for line in file.read_text().splitlines()
        if line.split(" ")[0] != settings.split(" ")[0]
    ]
    file.write_text("\n".join([settings, *kept]))
    with pytest.raises(UserError):
        read_run(tmp_path / "run")


def test_predictions_without_what_was_tested_are_none(tmp_path):
    run = make_run(tmp_path / "run", rounds=2, images=4)
    file = run / "predictions.safetensors"
    file.write_bytes(file.read_bytes().replace(b'\\"test\\"', b'\\"Test\\"'))
    assert read_run(run).predictions() is None


def test_a_damaged_picture_is_refused_without_remarks_of_the_decoder(readers, room, recwarn):
    for data in readers["pictures"].seeds:
        (room / "picture").write_bytes(data[: len(data) // 2])
        with pytest.raises(BadImage):
            decode(room / "picture")
    assert not recwarn.list


@pytest.mark.skipif(find_spec("pydicom") is None, reason="no pydicom")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x02\x00US\x02\x00\x01\x00", b"\x02\x00US\x02\x00\x08\x00"),  # eight samples a pixel
        (b"MONOCHROME1 ", b"RGB\n\x02\x01        "[:12]),
    ],
)
def test_a_dicom_file_that_is_no_grey_frame_is_one_line(tmp_path, old, new):
    (file,) = dicom()
    assert old in file
    (tmp_path / "x").write_bytes(file.replace(old, new, 1))
    with pytest.raises(BadImage) as error:
        Recipe(8).apply(decode(tmp_path / "x"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("packages", [1e308, True, "x", [1]])
def test_versions_that_are_no_table_do_not_stop_a_report_of_somebody_elses_runs(tmp_path, packages):
    runs = [make_run(tmp_path / name, method=name) for name in ("feddraw", "fedavg")]
    recorded = {"packages": packages, "network": packages, "cuda": packages}
    (runs[0] / "environment.json").write_text(json.dumps(recorded))
    collected = collect_runs([tmp_path])
    made = compute_report(collected, settings=ReportSettings(replicates=5), command="")
    assert compose_report(made, "A report").blocks


@pytest.mark.parametrize("cell", ["1", "-1", "1_0"])
def test_a_measurement_of_which_the_ledger_has_a_part_only_is_passed_over(tmp_path, cell):
    run = make_run(tmp_path / "run")
    with (run / "weights.csv").open() as file:
        rows = list(csv.DictReader(file))
    rows[0]["q"] = cell
    with (run / "weights.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    recorded = read_run(run)
    assert site_distances_in_ledger(recorded.ledger, len(recorded.ledger.status)) == []
