"""Studies: what a file means, what is skipped, what happens to runs that fail, and a kill that
changes nothing.
"""

from __future__ import annotations

import csv
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from feddraw.data.image_cache import CHUNK
from feddraw.errors import UserError
from feddraw.report import ReportSettings, write_report
from feddraw.study.plan import read_study, shard_of
from feddraw.study.results_table import ResultTable
from feddraw.study.run_study import run_study
from typed import typed

TINY = """
rounds = 2
seed = [0, 1]
method = ["feddraw", "uniform"]
[data]
name = "phantom"
size = 28
train = 120
validation = 60
test = 60
[scenario]
name = "quantity"
clients = 2
[model]
name = "compact"
growth = 8
[training]
epochs = 1
batch_size = 32
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="tiny.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def names(path, **options):
    return [planned.name for planned in read_study(path, **options)]


def rows(path):
    with path.open(newline="") as lines:
        return {
            row["run"]: {k: v for k, v in row.items() if k != "seconds"}
            for row in csv.DictReader(lines)
        }


# ----------------------------------------------------------------------------------------- the file


def test_lists_are_multiplied_out_with_the_seed_slowest(file):
    assert names(
        file('seed = [0, 1]\nscenario = ["CHM-2", "CHM-5"]\nmethod = ["fedavg", "uniform"]')
    ) == [
        "CHM-2_fedavg_seed=0",
        "CHM-2_uniform_seed=0",
        "CHM-5_fedavg_seed=0",
        "CHM-5_uniform_seed=0",
        "CHM-2_fedavg_seed=1",
        "CHM-2_uniform_seed=1",
        "CHM-5_fedavg_seed=1",
        "CHM-5_uniform_seed=1",
    ]


def test_a_method_may_come_with_settings_and_lists_inside(file):
    found = read_study(
        file(
            'method = ["feddraw", {name = "feddraw", eta = [0.1, 0.2]}]\n[training]\nlr = [1e-3,'
            " 1e-2]"
        )
    )
    assert [planned.name for planned in found][2:] == [
        "CHM-2_feddraw,eta=0.1_lr=0.001_seed=0",
        "CHM-2_feddraw,eta=0.1_lr=0.01_seed=0",
        "CHM-2_feddraw,eta=0.2_lr=0.001_seed=0",
        "CHM-2_feddraw,eta=0.2_lr=0.01_seed=0",
    ]
    assert found[2].experiment.method["eta"] == 0.1
    assert found[3].experiment.training.lr == 0.01
    assert found[2].label == {
        "scenario": "CHM-2",
        "method": "feddraw,eta=0.1",
        "training.lr": "0.001",
    }


def test_cases_are_alternatives_on_top_of_what_they_share(file):
    text = (
        'seed = 3\n[[case]]\nscenario = ["CHM-1", "CHM-2"]\n[[case]]\nscenario = "iid"\nmethod ='
        ' "uniform"'
    )
    found = read_study(file(text))
    assert [planned.name for planned in found] == [
        "CHM-1_feddraw_seed=3",
        "CHM-2_feddraw_seed=3",
        "iid_uniform_seed=3",
    ]
    assert found[2].experiment.scenario["scale"] == 1.0


def test_the_label_of_a_case_is_what_tables_call_it(file):
    text = (
        'method = "uniform"\n[[case]]\nlabel = "far apart"\nscenario = {name = "dirichlet", alpha ='
        " 0.1}\n"
    )
    plain, labelled = (
        read_study(file(t))[0] for t in (text.replace('label = "far apart"\n', ""), text)
    )
    assert (labelled.name, labelled.label["scenario"]) == ("far-apart_uniform_seed=0", "far apart")
    assert labelled.key == plain.key


def test_a_list_inside_a_list_is_a_value(file):
    (only,) = read_study(file('[data]\nname = "chestmnist"\nfindings = [["Edema", "Hernia"]]'))
    assert only.experiment.data["findings"] == ["Edema", "Hernia"]


def test_the_studies_that_come_with_the_package_can_be_read(request):
    found = {
        path.stem: read_study(path, trust=True)
        for path in (request.config.rootpath / "studies").glob("*.toml")
    }
    assert len(found["paper"]) == 8 * 12 * 5
    assert len(found["nih-replication"]) == 5 * 5 * 11
    assert {planned.experiment.training.lr for planned in found["paper"]} == {1e-5}


def test_the_key_of_a_run_does_not_depend_on_where_its_archive_lies(file):
    (one,) = read_study(file(""), {"data": "chestmnist", "data.path": "/here/a.npz"})
    (same,) = read_study(
        file(""), {"data": "chestmnist", "data.path": "elsewhere/b.npz", "engine": "serial"}
    )
    (other,) = read_study(file("seed = 1"), {"data": "chestmnist", "data.path": "/here/a.npz"})
    assert one.key == same.key != other.key


def test_own_data_of_one_name_in_two_folders_have_two_keys(file):
    north, south = read_study(file('data = ["north/x.npz", "south/x.npz"]'))
    assert north.key != south.key


def test_two_settings_with_one_last_word_are_named_in_full(file):
    varied = "[training]\nclip = [0.0, 1.0]\n"
    assert names(file(varied)) == ["CHM-2_feddraw_clip=0.0_seed=0", "CHM-2_feddraw_clip=1.0_seed=0"]
    assert names(file(varied + "[gate]\nclip = [0.0, 2.0]")) == [
        f"CHM-2_feddraw_training.clip={one}_gate.clip={two}_seed=0"
        for one in (0.0, 1.0)
        for two in (0.0, 2.0)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "method = ['fedavg', 'fedavg']": "asks for CHM-2_fedavg_seed=0 more than once",
        "methods = ['fedavg']": "did you mean method",
        "preset = 'desktop'": "desktop",
        "[case]\nseed = 1": r"\[\[case\]\]",
        "method = 'mylab.rules:ours'": "add --trust",
        "rounds = ['ten']": "rounds",
        "seed = []": "seed is an empty list",
    }.items(),
)
def test_a_mistake_in_the_file_is_one_line(file, text, message):
    with pytest.raises(UserError, match=message):
        read_study(file(text))


def test_shards_share_the_runs_out(file):
    runs = read_study(file("seed = [0, 1, 2, 3, 4]"))
    parts = [shard_of(runs, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(run.name for part in parts for run in part) == sorted(run.name for run in runs)
    for wrong in ("0/3", "4/3", "1", "1/0", "a/b"):
        with pytest.raises(UserError, match="--shard takes"):
            shard_of(runs, wrong)


# ----------------------------------------------------------------------------------------- the work


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(TINY)
    runs = read_study(folder / "tiny.toml")
    events = list(run_study(runs, folder / "out", 2, [ResultTable(folder / "out" / "runs.csv")]))
    assert [event.kind for event in events if event.kind in ("finished", "failed")] == [
        "finished"
    ] * 4
    return folder


def test_a_finished_study_has_a_line_for_every_run(whole):
    found = rows(whole / "out" / "runs.csv")
    assert len(found) == 4
    for row in found.values():
        assert 0 <= float(row["auc"]) <= 1
        assert row["scenario"] == "quantity"
        assert float(row["auc Edema"]) >= 0


def test_runs_of_one_seed_have_the_same_partition_under_every_method(whole):
    found = rows(whole / "out" / "runs.csv")
    assert (
        found["quantity_feddraw_seed=0"]["partition"]
        == found["quantity_uniform_seed=0"]["partition"]
    )


def test_finished_runs_are_skipped_and_so_are_those_in_a_table(whole, tmp_path):
    runs = read_study(whole / "tiny.toml")
    again = list(run_study(runs, whole / "out", 2, []))
    assert [event.kind for event in again] == ["skipped"] * 4
    table = ResultTable(whole / "out" / "runs.csv")
    elsewhere = list(
        run_study(runs, tmp_path / "out", 2, [ResultTable(tmp_path / "new.csv"), table])
    )
    assert [event.kind for event in elsewhere] == ["skipped"] * 4
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_told_and_does_not_stop_the_others(file, tmp_path):
    text = TINY.replace('seed = [0, 1]\nmethod = ["feddraw", "uniform"]', 'method = ["uniform"]')
    path = file(text.replace("clients = 2", "clients = [2, 500]"))
    table = ResultTable(tmp_path / "runs.csv")
    events = list(run_study(read_study(path), tmp_path / "out", 1, [table]))
    ended = {event.kind: event for event in events if event.kind in ("finished", "failed")}
    assert "500" in ended["failed"].run
    assert "500" in ended["failed"].text
    assert len(table.rows) == 1
    retried = [event.kind for event in run_study(read_study(path), tmp_path / "out", 1, [table])]
    assert [kind for kind in retried if kind != "progress"] == ["skipped", "started", "failed"]


def test_other_settings_under_the_same_name_are_refused(whole):
    changed = read_study(whole / "tiny.toml", {"training.lr": 0.5})
    events = list(run_study(changed, whole / "out", 1, []))
    assert all(event.kind == "failed" and "training.lr" in event.text for event in events)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """More images than one process prepares alone, not prepared yet."""
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "archive"
    folder.mkdir()
    lines = ["path,split,Opacity"]
    for number in range(2 * CHUNK):
        grey = np.full((16, 16), 60 + 120 * (number % 2), np.uint8)
        Image.fromarray(grey).save(folder / f"{number}.png")
        lines.append(
            f"{number}.png,{('train', 'train', 'val', 'test')[number // 2 % 4]},{number % 2}"
        )
    (folder / "clinic.csv").write_text("\n".join(lines) + "\n")
    return folder


def on_archive(archive):
    data = TINY[TINY.index("[data]") : TINY.index("[scenario]")]
    return (
        TINY.replace(data, f'[data]\nname = "{archive}"\nsize = 28\n')
        .replace("[0, 1]", "[0]")
        .replace("rounds = 2", "rounds = 1")
    )


def test_images_that_are_not_prepared_yet_are_prepared_once_before_the_runs(
    archive, file, tmp_path
):
    told = []
    runs = read_study(file(on_archive(archive)))
    events = list(run_study(runs, tmp_path / "out", 2, [], lambda *progress: told.append(progress)))
    assert [event.text for event in events if event.kind == "failed"] == []
    assert [event.kind for event in events if event.kind == "finished"] == ["finished"] * 2
    assert told[-1] == ("clinic", 2 * CHUNK, 2 * CHUNK)


def test_the_command_names_the_images_that_it_prepares(archive, file, tmp_path):
    path = str(file(on_archive(archive)))
    done = typed("study", path, "--out", "out", "--workers", "1", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("data: clinic\n") == 1


def test_runs_whose_images_cannot_be_used_fail_with_the_reason(archive, file, tmp_path):
    (archive / "3.png").write_bytes(b"not a picture")
    events = list(run_study(read_study(file(on_archive(archive))), tmp_path / "out", 1, []))
    assert [event.kind for event in events] == ["failed"] * 2
    assert all("3.png" in event.text for event in events)


def test_the_command_says_that_a_table_of_finished_runs_is_new_and_what_to_do_where_runs_fail(
    file, tmp_path
):
    path = str(file(TINY))
    words = ("study", path, "--out", "out", "--workers", "1", "--set", "rounds=1")
    done = typed(*words, "--done", "mistyped.csv", folder=tmp_path)
    assert done.stdout.startswith("note: there is no mistyped.csv yet: it skips no run")
    assert "4 runs finished in" in done.stdout
    again = typed(*words[:-1], "rounds=2", folder=tmp_path)
    assert again.stderr.splitlines()[-1] == (
        "feddraw: 4 of 4 runs failed: correct what is said above, and start the study again to"
        " retry them"
    )


def test_a_worker_process_prepares_images_alone(archive, tmp_path):
    work = f"open_dataset({str(archive)!r}, size=28, options=dict(workers=2))"
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\nfrom feddraw.data.dataset_by_name import open_dataset\n"
        f"def work(): {work}\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.Process(target=work, daemon=True)\n"
        "    process.start(); process.join(); raise SystemExit(process.exitcode)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("log", ["fresh folder", "log that cannot be written"])
def test_why_a_run_failed_is_told_whatever_becomes_of_the_log(file, in_tmp, log):
    (in_tmp / "own_images.py").write_text(
        "def make(size):\n    raise ValueError('the disk is on fire')\n"
    )
    path = file('method = "uniform"\ndata = "own_images:make"')
    if log != "fresh folder":
        (in_tmp / "out" / "failures.log").mkdir(parents=True)
    *_, event = run_study(read_study(path, trust=True), in_tmp / "out", 1, [])
    assert (event.kind, event.text.partition(";")[0]) == (
        "failed",
        "ValueError: the disk is on fire",
    )
    if log == "fresh folder":
        assert "in make" in (in_tmp / "out" / "failures.log").read_text()


def _add_rows(path, barrier, number):
    table = ResultTable(path)  # all have read it before the first adds to it
    barrier.wait(30)
    for row in range(10):
        table.add(
            [{"key": f"{number}-{row}", "run": f"{number}-{row}", "auc": 0.5, f"auc {number}": 0.5}]
        )


def test_eight_processes_that_share_a_table_lose_no_row(tmp_path):
    fork = multiprocessing.get_context("fork")
    barrier, path = fork.Barrier(8), tmp_path / "new" / "done.csv"
    processes = [
        fork.Process(target=_add_rows, args=(path, barrier, number)) for number in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    found = rows(path)
    assert set(found) == {f"{number}-{row}" for number in range(8) for row in range(10)}
    assert all(row[f"auc {key[0]}"] == "0.5" for key, row in found.items())
    assert [file.name for file in path.parent.iterdir()] == ["done.csv"]


def test_a_report_in_the_studys_folder_leaves_its_table_alone(whole):
    before = (whole / "out" / "runs.csv").read_bytes()
    write_report([whole / "out"], settings=ReportSettings(replicates=0))
    assert (whole / "out" / "runs.csv").read_bytes() == before
    assert [
        event.kind for event in run_study(read_study(whole / "tiny.toml"), whole / "out", 1, [])
    ] == ["skipped"] * 4


def test_kept_models_and_altered_sites_have_columns_in_the_table(file, tmp_path):
    text = TINY.replace("[0, 1]", "5").replace('["feddraw", "uniform"]', '"uniform"')
    text = 'keep = { tail = 2 }\ncorruption = { gamma = "C2=2" }\ntest_every_round = true\n' + text
    planned = read_study(file(text.replace("test = 60", "test = 60\nseed = -1")))
    table = ResultTable(tmp_path / "table.csv")
    assert [event.kind for event in run_study(planned, tmp_path / "runs", 1, [table])][
        -1
    ] == "finished"
    (row,) = rows(tmp_path / "table.csv").values()
    assert 0 < float(row["auc_of_tail"]) < 1
    site, *curve = row["auc_by_site_by_round"].split()
    assert site == "C2"
    assert len(curve) == len(row["auc_by_round"].split()) == 2
