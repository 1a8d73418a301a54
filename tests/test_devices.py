"""Where and how precisely a network is trained: `training.device`, `training.amp`,
`training.compile`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import tiny
from feddraw.core import Correction
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.device_placement import (
    devices_record,
    place_workers,
    places_for_clients,
    places_for_runs,
    survey_devices,
    worker_memory,
)
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment
from feddraw.experiment.verify import verify
from feddraw.results.checkpoint import model_digest
from feddraw.results.run_folder import toml_values
from feddraw.study.plan import planned_run, read_study
from feddraw.study.run_study import run_study
from feddraw.study.worker_pool import RunOutcome, WorkerPool
from feddraw.system.file_reading import read_json, read_jsonl
from feddraw.training import device_memory, devices
from feddraw.training.augment import augment
from feddraw.training.device_memory import GPU_CONTEXT, image_memory, memory_shortage, out_of_memory
from feddraw.training.devices import WorkerPlace
from feddraw.training.image_feed import CopiedToDevice, KeptOnDevice
from feddraw.training.loop import Examples, LocalTraining, fit, loss_over_known
from feddraw.training.network import Network
from feddraw.training.optimizers import make_optimizer
from feddraw.training.reproducibility import compute_exactly, seeded_torch
from feddraw.training.settings import Training
from small import small


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_in_a_line(tmp_path):
    with pytest.raises(
        UserError, match=r"training\.device is cuda, but torch finds no such device here: use cpu"
    ):
        next(iterate(small().with_settings({"training.device": "cuda"}), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:x", "CPU"])
def test_other_devices_are_refused(device):
    with pytest.raises(UserError, match=r"training\.device must be cpu, cuda"):
        next(iterate(small().with_settings({"training.device": device})))


@pytest.mark.parametrize("amp", ["bf16", "fp16"])  # the second through a gradient scaler
def test_half_precision_learns_as_whole_precision_does(amp):
    whole = [result.loss for result in run(small())]
    half = [result.loss for result in run(small().with_settings({"training.amp": amp}))]
    assert half != whole
    assert half == pytest.approx(whole, abs=0.03)


@pytest.mark.parametrize(("overflows", "counted"), [({0}, 2), ({0, 1, 2}, 1)])  # of three batches
def test_a_step_that_float16_cannot_hold_is_none(overflows, counted):
    training = Training(epochs=1, batch_size=8, optimizer="sgd", lr=1e-2, amp="fp16")
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), "1", training)
    before, drift, batch = network.read().params, np.ones(len(network.params), np.float32), count()

    def loss(logits, targets):
        return logits.mean() * (1e38 if next(batch) in overflows else 0.0)

    how = LocalTraining(training, loss, seed=0, correction=Correction(drift=drift))
    optimizer = make_optimizer(network, training)
    steps, _ = fit(network, optimizer, tiny.examples(), np.arange(24), how)
    assert steps == counted  # one at the least, that nothing is divided by zero
    moved = 1e-2 * (3 - len(overflows))
    np.testing.assert_allclose(before - network.read().params, moved, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_float16_on_a_gpu_learns_as_whole_precision_does():
    settings = {"training.amp": "fp16", "training.device": "cuda"}
    whole, half = (
        [result.loss for result in run(small().with_settings(s))] for s in ({}, settings)
    )
    assert half == pytest.approx(whole, abs=0.03)


@pytest.mark.skipif(
    "FEDDRAW_COMPILE" not in os.environ, reason="a minute and a C++ compiler: set FEDDRAW_COMPILE"
)
def test_a_compiled_network_learns_the_same():
    plain, fast = (
        [r.loss for r in run(small(rounds=1).with_settings({"training.compile": c}))]
        for c in (False, True)
    )
    assert fast == pytest.approx(plain, abs=1e-3)


# ---------------------------------------------------------------------------------------- placement


def gpus(*free_gb):
    return {
        f"cuda:{n}": {"type": "cuda", "free": int(gb * 1e9), "memory": int(24e9)}
        for n, gb in enumerate(free_gb)
    }


@pytest.mark.parametrize(
    ("free", "workers", "need", "most", "expected"),
    [
        ((24, 24), 0, 10.0, 99, [0, 1, 0, 1]),  # two fit on each
        ((24, 9), 0, 10.0, 99, [0, 1, 0]),  # one is tried in any case
        ((80, 80), 0, 1.0, 99, [0, 1] * 4),  # no more than four, however much memory
        ((24, 24), 3, 10.0, 99, [0, 1, 0]),
        ((24, 24), 1, 10.0, 99, [0]),
        ((24, 24), 0, 10.0, 3, [0, 1, 0]),  # no more than have work
    ],
)
def test_workers_go_to_devices_in_turn_as_memory_allows(
    free, workers, need, most, expected, monkeypatch
):
    monkeypatch.setattr("feddraw.experiment.device_placement.cores", lambda: 64)
    placed = place_workers([*gpus(*free)], workers, int(need * 1e9), gpus(*free), most)
    assert [place.device for place in placed] == [f"cuda:{number}" for number in expected]


def test_more_workers_than_memory_holds_are_lowered_and_it_is_said():
    with pytest.warns(
        UserWarning,
        match=r"5 workers need 10\.0 GB each, but free memory is cuda:0 24\.0 GB: starting 2",
    ):
        assert len(place_workers(["cuda:0"], 5, int(10e9), gpus(24), 99)) == 2


def test_images_get_what_training_leaves_of_a_device_and_equal_shares_of_it():
    placed = place_workers(["cuda:0"], 2, int(10e9), gpus(24), 99)
    assert {place.images for place in placed} == {int(0.92 * 24e9) // 2 - int(10e9)}
    assert place_workers(["cuda:0"], 1, int(30e9), gpus(24), 99)[0].images == 0


def fake_gpus(monkeypatch, *free_gb):
    """A torch.cuda that says it has GPUs; nothing can be computed on them."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "device_count", lambda: len(free_gb))
    memory = {torch.device("cuda", n): (int(gb * 1e9), int(24e9)) for n, gb in enumerate(free_gb)}
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: memory[torch.device(device)])
    about = SimpleNamespace(name="A GPU", major=8, minor=0)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr("feddraw.experiment.device_placement.survey_devices_apart", survey_devices)
    monkeypatch.setattr("feddraw.experiment.device_placement.cores", lambda: 8)


def test_a_run_and_a_study_are_placed_on_all_gpus(monkeypatch):
    fake_gpus(monkeypatch, 24, 1.5)
    placed = places_for_clients(small(engine="processes", devices="all"), 99)
    assert [place.device for place in placed] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:0",
    ]
    large = small().with_settings({"model.growth": 64, "data.size": 224, "training.batch_size": 64})
    placed = places_for_runs([large, small()] * 9, devices="all")  # the largest decides
    assert [place.device for place in placed] == ["cuda:0", "cuda:1", "cuda:0", "cuda:0"]
    assert [
        place.device
        for place in places_for_runs([small(**{"training.device": "cuda:1"})], workers=1)
    ] == ["cuda:1"]


def test_the_environment_says_what_a_gpu_is_and_how_it_computes(monkeypatch):
    fake_gpus(monkeypatch, 24, 24)
    monkeypatch.setattr("feddraw.training.devices._nvidia_driver", lambda: "550.54.15")
    experiment = small(engine="processes", devices="cuda:1").with_settings({"training.tf32": True})
    found = devices_record(experiment, [WorkerPlace("cuda:1")] * 2)
    about = {"name": "A GPU", "capability": "8.0", "memory_gb": 24.0, "workers": 2}
    assert found["devices"] == [{"device": "cuda:1", "type": "cuda"} | about]
    assert set(found["cuda"]) == {"driver", "cuda", "cudnn", "tf32", "cublas_workspace"}
    assert (found["cuda"]["driver"], found["cuda"]["tf32"]) == ("550.54.15", True)


@pytest.mark.parametrize(
    ("devices", "words"),
    [("cuda:0,gpu", "devices must be cpu, cuda"), ("cpu:1,cpu:1", "names a device twice")],
)
def test_devices_that_make_no_sense_are_refused(devices, words):
    with pytest.raises(UserError, match=words):
        prepare(small(devices=devices, engine="processes"))


def test_the_first_gpu_has_two_names_and_is_one_device(monkeypatch):
    fake_gpus(monkeypatch, 24, 24)
    assert devices.devices_here("cuda") == ["cuda:0"]
    with pytest.raises(UserError, match="names a device twice"):
        devices.devices_here("cuda,cuda:0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_all_gpus_of_a_machine_without_one_are_said_in_a_line():
    with pytest.raises(UserError, match=r"devices = all, but torch finds no GPU here: use cpu"):
        next(iterate(small(devices="all")))


def test_one_process_trains_on_one_device():
    with pytest.raises(
        UserError, match=r"engine serial trains on one device, not on 2: use engine processes"
    ):
        next(iterate(small(devices="cpu:0,cpu:1")))


def test_memory_of_a_step_is_reckoned_without_taking_it():
    small_one, large = (
        worker_memory(small().with_settings({"training.batch_size": b})) for b in (32, 64)
    )
    assert 1.2 < (large - GPU_CONTEXT) / (small_one - GPU_CONTEXT) < 2
    paper = worker_memory(
        Experiment.preset("paper").with_settings({"data": "phantom", "model.weights": "none"})
    )
    assert 7e9 < paper < 13e9


# -------------------------------------------------------------------------------------- two devices


@pytest.fixture(scope="module")
def whole():
    return run(small(rounds=2))


def test_two_devices_give_the_bits_of_one(tmp_path, whole):
    placed = run(small(rounds=2, engine="processes", devices="cpu:0,cpu:1"), tmp_path / "run")
    assert placed.last.model.params.tobytes() == whole.last.model.params.tobytes()
    assert placed.metrics == whole.metrics
    said = read_json(tmp_path / "run" / "environment.json")["devices"]
    assert said == [{"device": f"cpu:{n}", "type": "cpu", "workers": 1} for n in (0, 1)]


def test_a_study_on_two_devices_gives_the_bits_of_one_and_says_which_run_was_where(tmp_path):
    path = tmp_path / "study.toml"
    path.write_bytes(
        tomli_w.dumps(toml_values(small(rounds=1).table() | {"seed": [0, 1]})).encode()
    )
    runs = read_study(path)
    places = places_for_runs([planned.experiment for planned in runs], devices="cpu:0,cpu:1")
    assert [place.device for place in places] == ["cpu:0", "cpu:1"]
    assert [
        event.kind
        for event in run_study(runs, tmp_path / "out", places, [])
        if event.kind != "progress"
    ] == [
        *["started"] * 2,
        *["finished"] * 2,
    ]
    for number, planned in enumerate(runs):
        folder = tmp_path / "out" / planned.name
        assert read_json(folder / "environment.json")["devices"][0]["device"] == f"cpu:{number}"
        assert read_jsonl(folder / "rounds.jsonl")[-1]["model"] == model_digest(
            run(planned.experiment).last.model
        )
    assert verify(tmp_path / "out" / runs[1].name, changes={"devices": "cpu:0"}).same


# ------------------------------------------------------------------------------------------- images


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return Examples(
        rng.integers(0, 256, (9, 8, 8), dtype=np.uint8), rng.random((9, 2), dtype=np.float32)
    )


@pytest.mark.parametrize(("room", "kind"), [(10**6, KeptOnDevice), (0, CopiedToDevice)])
def test_images_that_are_kept_on_a_device_or_copied_give_the_same_batches(
    room, kind, pictures, monkeypatch
):
    device = torch.device("cpu:1")
    monkeypatch.setitem(device_memory._IMAGE_MEMORY, device, room)
    chosen = [np.array([7, 0, 3]), np.array([1, 2]), np.array([8, 8, 4]), np.array([5])]
    expected = [pictures.batch(rows) for rows in chosen]
    found = list(
        pictures.batches(iter(chosen), device)
    )  # all are kept: a buffer that is filled anew must not show
    for one, other in zip(found, expected, strict=True):
        assert [tensor.tolist() for tensor in one] == [tensor.tolist() for tensor in other]
    assert isinstance(pictures._feeds[device], kind)


def test_room_for_images_is_planned_once_and_not_by_what_the_last_run_left(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(device_memory, "_IMAGE_MEMORY", {})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(20e9), int(24e9)))
    assert image_memory(device) == int(10e9)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(2e9), int(24e9)))
    assert image_memory(device) == int(10e9)
    device_memory.allot_image_memory(WorkerPlace("cuda:0", 7))
    assert image_memory(device) == 7


class Log(list):
    """A torch.cuda that writes down what is asked of its streams."""

    def __init__(self, monkeypatch):
        log, cuda = self, torch.cuda

        class Stream:
            def __init__(self, *_):
                self.name = "copies"

            def wait_event(self, event):
                log.append(f"computation waits for copy {event.number}")

        class Event:
            made = 0

            def __init__(self):
                self.number, Event.made = Event.made, Event.made + 1

            def record(self, stream):
                log.append(f"copy {self.number} on the way")

            def synchronize(self):
                log.append(f"buffer of copy {self.number} free")

        monkeypatch.setattr(cuda, "Stream", Stream)
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(cuda, "current_stream", lambda _: Stream())
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
        empty, to = torch.empty, torch.Tensor.to
        monkeypatch.setattr(
            torch,
            "empty",
            lambda *a, pin_memory, **k: self.append(f"pinned {pin_memory}") or empty(*a, **k),
        )
        monkeypatch.setattr(
            torch.Tensor, "to", lambda part, *a, **k: part.clone() if k else to(part, *a)
        )


def test_a_batch_is_copied_while_the_one_before_is_computed_on(monkeypatch):
    log = Log(monkeypatch)
    feed = CopiedToDevice(torch.device("cuda", 0), [np.arange(10)])
    for number, (values,) in enumerate(feed([np.array([n, n + 1]) for n in range(4)])):
        assert values.tolist() == [number, number + 1]
        log.append(f"step {number}")
    assert log == [
        "pinned True",
        "copy 0 on the way",
        "pinned True",
        "copy 1 on the way",
        "computation waits for copy 0",
        "step 0",
        "buffer of copy 0 free",
        "copy 2 on the way",
        "computation waits for copy 1",
        "step 1",
        "buffer of copy 1 free",
        "copy 3 on the way",
        "computation waits for copy 2",
        "step 2",
        "computation waits for copy 3",
        "step 3",
    ]


def test_augmentation_happens_where_the_images_are():
    generator = torch.Generator().manual_seed(0)
    images = torch.empty(4, 1, 8, 8, device="meta")
    assert augment(images, generator).device.type == "meta"
    with FakeTensorMode():  # any tensor that it made elsewhere could not be mixed with these
        assert (
            augment(torch.empty(4, 1, 8, 8, device="cpu"), torch.Generator()).shape == images.shape
        )


def test_a_step_asks_nothing_of_a_device_that_knows_all_labels(monkeypatch, pictures):
    assert pictures.complete
    monkeypatch.setattr(torch.Tensor, "isnan", lambda _: pytest.fail("the device was asked"))
    assert (
        loss_over_known(
            torch.nn.functional.mse_loss, torch.ones(2, 2), torch.zeros(2, 2), complete=True
        )
        == 1
    )


# -------------------------------------------------------------------------------------------- exact


def test_a_gpu_is_told_to_compute_the_same_way_every_time(monkeypatch):
    told, cudnn = [], SimpleNamespace(benchmark=True, deterministic=False, allow_tf32=True)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul := SimpleNamespace(allow_tf32=True))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *a, **k: told.append((a, k)))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    filled = torch.utils.deterministic.fill_uninitialized_memory
    compute_exactly(torch.device("cuda", 1), tf32=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", filled)
    assert told == [torch.device("cuda", 1), ((True,), {"warn_only": True})]
    assert (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32) == (
        False,
        True,
        False,
        False,
    )
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    compute_exactly(torch.device("cuda", 1), tf32=True)
    assert (cudnn.allow_tf32, matmul.allow_tf32) == (True, True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", filled)


def test_the_generator_of_the_device_itself_is_seeded_and_put_back(monkeypatch):
    generators = [torch.Generator().manual_seed(n) for n in (5, 6)]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    before = [one.get_state() for one in generators]
    with seeded_torch(3, torch.device("cuda", 1)):
        assert generators[1].initial_seed() == 3
        assert generators[0].initial_seed() == 5
        torch.rand(2, generator=generators[1])
    assert all(
        torch.equal(one.get_state(), old) for one, old in zip(generators, before, strict=True)
    )


# ---------------------------------------------------------------------------------------- no memory


def came_first(mark: Path) -> bool:
    """Whether this process is the one that made the file, of several that try at once."""
    try:
        with mark.open("x") as made:
            made.write(str(os.getpid()))
    except FileExistsError:
        return mark.read_text() == str(os.getpid())
    return True


class Hungry(torch.nn.Module):
    """A network whose first process finds no memory."""

    classifier_name = "classifier"

    def __init__(self, classes):
        super().__init__()
        self.classifier = torch.nn.Linear(28 * 28, classes)

    def forward(self, images):
        if self.training and came_first(Path("eaten")):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return self.classifier(images.flatten(1))


def hungry(classes: int) -> torch.nn.Module:
    return Hungry(classes)


def test_a_worker_without_memory_leaves_its_client_to_the_others_and_the_bits_stay(in_tmp):
    experiment = small(rounds=1, model=f"{__name__}:hungry", engine="processes", workers=2)
    with pytest.warns(UserWarning, match="cpu has no memory for 2 workers: going on with 1"):
        found = run(experiment).last.model.params
    assert (
        found.tobytes()
        == run(experiment.with_settings({"engine": "serial"})).last.model.params.tobytes()
    )


class Full:
    """A worker of a study that found no memory; its process and its pipe."""

    def __init__(self):
        self.pipe = self.process = self

    def receive(self):
        return RunOutcome("no memory", "cuda:0 (24 GB) ran out of memory: lower workers")

    def close(self):
        self.gone = True

    terminate = join = close


def test_a_run_without_memory_waits_for_the_others_of_its_device_and_the_last_fails_in_a_line(
    tmp_path,
):
    pool, planned = WorkerPool(tmp_path, []), planned_run(small(), {})
    first, second, elsewhere = workers = [Full() for _ in range(3)]
    devices = ("cuda:0", "cuda:0", "cuda:1")
    pool._workers = dict(zip(workers, map(WorkerPlace, devices), strict=True))
    pool._busy[first] = planned
    (event,) = pool._receive(first, admit=bool)
    assert (event.kind, event.text) == (
        "progress",
        "waits: cuda:0 has no memory for 2 runs at once",
    )
    assert first.gone
    assert (list(pool._workers), pool._waiting) == ([second, elsewhere], [planned])
    pool._busy[second] = planned
    (event,) = pool._receive(second, admit=bool)
    assert (event.kind, event.text) == ("failed", "cuda:0 (24 GB) ran out of memory: lower workers")
    assert list(pool._workers) == [second, elsewhere]


def test_the_only_run_without_memory_fails_in_a_line_that_says_what_to_lower(in_tmp):
    with pytest.raises(
        RunFailed, match=r"^it ran out of memory: try fewer workers or smaller batches$"
    ):
        run(small(rounds=1, model=f"{__name__}:hungry"))


def test_a_gpu_without_memory_is_one_line_that_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, int(24e9)))
    assert (
        memory_shortage(torch.device("cuda", 1), 64)
        == "cuda:1 (24 GB) ran out of memory: lower workers, training.batch_size (now 64) or"
        " data.size, or set training.amp=bf16"
    )
    for error in (
        MemoryError(),
        torch.cuda.OutOfMemoryError("x"),
        RuntimeError("CUDA error: out of memory"),
    ):
        assert out_of_memory(error)
    assert not out_of_memory(RuntimeError("shapes differ"))


def test_a_run_whose_worker_died_before_it_began_is_done_by_another(tmp_path):
    pool = WorkerPool(tmp_path, [WorkerPlace()])
    try:
        (worker,) = pool._workers
        worker.process.kill()
        worker.process.join()
        runs = [planned_run(small(rounds=1, seed=seed), {}) for seed in (0, 1)]
        ended = [
            event for event in pool.run(runs, admit=bool) if event.kind in ("finished", "failed")
        ]
    finally:
        pool.stop()
    assert [event.kind for event in ended] == ["finished", "finished"]
