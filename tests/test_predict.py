"""`feddraw predict`: the scores of a run's own evaluation for the same pixels in files."""

from __future__ import annotations

import csv
import io
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from feddraw.cli import app
from feddraw.errors import RunFailed, UserError
from feddraw.experiment import prediction
from feddraw.experiment.run_preparation import open_experiment_data
from feddraw.experiment.running import run
from feddraw.experiment.trained_model import load_trained
from feddraw.results.recorded_run import read_run
from feddraw.system import workers
from feddraw.system.workers import Worker, WorkerDied, ask_in_process, in_workers, serve
from small import small

EXPERIMENT = small(rounds=2, **{"keep.tail": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its test images as files."""
    place = tmp_path_factory.mktemp("predict")
    run(EXPERIMENT, place / "run")
    dataset = open_experiment_data(EXPERIMENT)
    (place / "images" / "below").mkdir(parents=True)
    for number, row in enumerate(dataset.rows["test"]):
        Image.fromarray(dataset.images[row]).save(place / "images" / "below" / f"{number:03d}.png")
    return place


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def typed(*words: object):
    return CliRunner().invoke(app, ["predict", *map(str, words)])


@pytest.mark.parametrize("model", ["last", "tail"])
def test_files_get_the_scores_that_the_run_itself_gave_these_images(
    folder: Path, model: str
) -> None:
    done = typed(
        folder / "run", folder / "images", "--model", model, "--out", folder / f"{model}.csv"
    )
    assert done.exit_code == 0, done.output
    rows = table((folder / f"{model}.csv").read_text())
    found = read_run(folder / "run").models[model]
    scores = np.array([[float(row[name]) for name in found.findings] for row in rows])
    assert np.allclose(scores, found.predictions().scores, atol=1e-6)
    limits = [float(found.metrics.test.thresholds[name]) for name in found.findings]
    calls = [[int(row[f"{name} call"]) for name in found.findings] for row in rows]
    assert np.array_equal(calls, scores >= limits)
    assert rows[0]["image"].endswith("below/000.png")
    assert not any(row["problem"] for row in rows)


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_done(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    good = folder / "images" / "below" / "000.png"
    done = typed(folder / "run", tmp_path / "broken.png", good, "--out", tmp_path / "scores.csv")
    assert isinstance(done.exception, Exception)
    assert "1 of 2 images could not be scored" in str(done.exception)
    bad, fine = table((tmp_path / "scores.csv").read_text())
    assert bad["problem"] == "not a PNG, JPEG or DICOM image"
    assert not any(value for key, value in bad.items() if key not in ("image", "problem"))
    assert fine["Edema"]
    assert not fine["problem"]
    assert "not scored:" in done.stderr
    assert "broken.png" in done.stderr


def test_a_table_names_images_of_its_own_folder_only(folder: Path) -> None:
    for content in (
        "path\nbelow/001.png\n../../secret.png\n",
        "id,file\n7,below/001.png\n8,/etc/passwd\n",
    ):
        sheet = folder / "images" / "table.csv"
        sheet.write_text(content)
        inside, outside = prediction.find_images_to_predict([sheet])
        assert inside.path == folder / "images" / "below" / "001.png"
        assert outside.path is None
        found = prediction.predict_images(folder / "run", [inside, outside])
        assert found.problems == {1: "not a path inside the table's folder, or one with '..' in it"}
        sheet.unlink()


def test_jpeg_and_dicom_of_any_size_are_prepared_as_in_training(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pydicom")
    from test_imaging import save_dicom

    big = Image.open(folder / "images" / "below" / "000.png").resize((200, 240))
    big.save(tmp_path / "big.jpg", quality=95)
    save_dicom(tmp_path / "big.dcm", np.asarray(big).astype(np.uint16))
    found = prediction.predict_images(folder / "run", prediction.find_images_to_predict([tmp_path]))
    assert not found.problems
    assert np.isfinite(found.scores).all()


def test_several_processes_give_the_same_scores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKERS_PAY", 0.0)
    images = 3 * prediction.find_images_to_predict([folder / "images"])
    alone, together = (
        prediction.predict_images(folder / "run", images, workers=count) for count in (1, 2)
    )
    assert np.array_equal(alone.scores, together.scores)


def test_a_worker_that_dies_is_told_and_nothing_is_said_to_be_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(job, items, count, **words):
        return in_workers(killed, items, count, **words)

    monkeypatch.setattr(workers, "WORKERS_PAY", 0.0)
    monkeypatch.setattr(workers, "in_workers", died)
    images = 3 * prediction.find_images_to_predict([folder / "images"])
    with pytest.raises(
        RunFailed, match=r"that scored images was killed \(SIGKILL\).*no scores were written"
    ):
        prediction.predict_images(folder / "run", images, workers=2)


def test_the_scores_never_take_the_place_of_an_image_or_of_the_table_that_names_it(
    folder: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    shutil.copy(folder / "images" / "below" / "000.png", image)
    table = tmp_path / "table.csv"
    table.write_text("path\nimage.png\n")
    before = image.read_bytes(), table.read_bytes()
    for source, out in ((image, image), (tmp_path, image), (table, table), (table, image)):
        done = typed(folder / "run", source, "--out", out)
        assert isinstance(done.exception, UserError)
        assert "is read, so the scores cannot be written to it" in str(done.exception)
    assert (image.read_bytes(), table.read_bytes()) == before


def test_a_place_for_the_table_is_made_or_refused_before_anything_is_scored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = folder / "images" / "below" / "000.png"
    assert typed(folder / "run", image, "--out", tmp_path / "new" / "scores.csv").exit_code == 0
    assert (tmp_path / "new" / "scores.csv").is_file()
    monkeypatch.setattr(prediction, "predict_images", None)
    done = typed(folder / "run", image, "--out", tmp_path / "new")
    assert isinstance(done.exception, UserError)
    assert "Is a directory" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "nowhere"), "no file or folder nowhere"),
        (("run", "images", "--model", "best"), "kept no model 'best'"),
        (("run", "images", "--model", "first"), "must be one of last, best, tail"),
        (("", "images"), "is not the folder of a run: there are 1 below it"),
        (("run", "empty"), "no PNG, JPEG or DICOM file in"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], says: str) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    paths = [
        folder / words[0],
        Path(words[1]) if words[1] == "nowhere" else folder / words[1],
        *words[2:],
    ]
    done = typed(*paths)
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)


def test_the_normalisation_of_the_training_is_written_down_and_used(folder: Path) -> None:
    dataset = open_experiment_data(EXPERIMENT)
    found = load_trained(folder / "run")
    assert (found.mean, found.std) == (dataset.mean, dataset.std)
    assert found.run.partition["normalization"] == [dataset.mean, dataset.std]


def test_a_worker_that_died_before_its_next_request_says_of_what() -> None:
    worker = Worker(serve, abs)
    worker.send(-1)
    assert worker.receive() == 1
    worker.process.kill()
    worker.process.join()
    with pytest.raises(WorkerDied, match=r"a worker was killed \(SIGKILL\); out of memory\?"):
        worker.send(1)


def killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Unspeakable(Exception):
    """It cannot be made again of what it says."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)


def failing(item: int) -> int:
    if item == 2:
        raise OSError(28, "No space left on device")
    if item == 3:
        raise Unspeakable(3, "too odd")
    return 10 * item


def test_what_a_job_raises_is_raised_in_the_parent_with_its_traceback() -> None:
    assert sorted(in_workers(failing, [4, 5, 6], 2, doing="tried", then="stop")) == [
        (4, 40),
        (5, 50),
        (6, 60),
    ]
    with pytest.raises(OSError, match="No space left") as error:
        list(in_workers(failing, [1, 2], 2, doing="tried", then="stop"))
    assert "in failing" in error.value.__notes__[0]
    with pytest.raises(RunFailed, match="Unspeakable: too odd"):
        ask_in_process(failing, 3)
