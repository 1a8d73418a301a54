"""The same bits under every engine, and what happens when a worker does not come back."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from feddraw.core import Extra, Job, Local
from feddraw.engines.processes import Processes
from feddraw.engines.serial import Serial
from feddraw.errors import RunFailed, UserError
from feddraw.experiment.device_placement import places_for_clients
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import run
from feddraw.experiment.settings import Experiment
from feddraw.methods.fedavg import fedavg
from feddraw.system.shared_memory import SharedArrays, attach_shared
from feddraw.system.workers import WorkerDied
from small import small
from tiny import NAMES, bench, federate, kinds_of_client, method_of, same

LONG = "FEDDRAW_LONG" in os.environ  # every kind and number, at seconds each


def final(experiment: Any) -> Any:
    *_, last = run(experiment)
    return last


def same_bits(one: Any, other: Any) -> bool:
    arrays = ("params", "buffers", "counters")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in arrays)


@pytest.fixture(scope="module")
def serial() -> Any:
    return final(small())


@pytest.mark.usefixtures("fresh_workers")
@pytest.mark.parametrize("workers", [1, 3] if LONG else [2])
def test_workers_give_the_bits_of_the_serial_engine(serial: Any, workers: int) -> None:
    result = final(small(engine="processes", workers=workers))
    assert same_bits(result.model, serial.model)
    assert result.ledger == serial.ledger or repr(result.ledger) == repr(
        serial.ledger
    )  # NaN is not itself
    assert result.metrics == serial.metrics


def kinds_of_traffic() -> list[str]:
    """A method for every kind of memory and of vectors that cross the border of a process."""
    methods = {name: method_of(name) for name in kinds_of_client()}
    return list(
        {
            (frozenset(method.local.keeps.values()), frozenset(method.sends.values())): name
            for name, method in methods.items()
        }.values()
    )


@pytest.mark.parametrize("method", kinds_of_client() if LONG else kinds_of_traffic())
def test_every_kind_of_client_gives_the_same_bits_in_worker_processes(method: str) -> None:
    workers = 2 if method_of(method).local.keeps else 1  # memory may move between workers
    ours, theirs = (
        final(small(method=method, rounds=2, engine=e, workers=workers))
        for e in ("serial", "processes")
    )
    assert same_bits(ours.next_model, theirs.next_model)
    assert ours.metrics == theirs.metrics


@pytest.mark.parametrize(
    "settings",
    [
        {"training.optimizer": "adam", "training.augment": True, "training.label_smoothing": 0.05},
        {"training.optimizer": "sgd", "training.momentum": 0.9, "training.clip": 0.5},
    ],
    ids=["adam, augmentation, smoothing", "sgd, clipping"],
)
def test_a_persistent_optimiser_gives_the_same_bits_with_two_workers(
    settings: dict[str, Any],
) -> None:
    settings = settings | {"training.persist_optimizer": True, "rounds": 2}
    one, two = final(small(**settings)), final(small(**settings, engine="processes", workers=2))
    assert same_bits(one.model, two.model)
    assert not same_bits(
        one.model, final(small(**settings | {"training.persist_optimizer": False})).model
    )


class Reversed(Serial):
    """Clients that answer in the other order."""

    def train(self, jobs: Any, *, in_turn: bool = False) -> Any:
        updates = [replace(update) for update in super().train(jobs)]
        yield from reversed(updates)


def test_the_order_of_arrival_changes_no_bit(serial: Any) -> None:
    setup = prepare(small())
    engine = Reversed(setup.trainer)
    loop = {"rounds": 3, "seed": setup.experiment.seed}
    *_, last = federate(setup.initial, setup.method, engine, setup.clients, **loop)
    assert same_bits(last.model, serial.model)


def test_one_seed_gives_every_method_the_same_start_and_partition() -> None:
    one, two = prepare(small(method="feddraw")), prepare(small(method="moon"))
    assert same_bits(one.initial, two.initial)
    assert one.partition.sha256 == two.partition.sha256


def test_another_seed_gives_another_model_and_another_partition() -> None:
    one, two = prepare(small()), prepare(small(seed=1))
    assert not same_bits(one.initial, two.initial)
    assert one.partition.sha256 != two.partition.sha256


def test_the_partition_seed_moves_only_the_partition() -> None:
    one, two = prepare(small()), prepare(small(partition_seed=1))
    assert same_bits(one.initial, two.initial)
    assert one.partition.sha256 != two.partition.sha256


def dropout(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes)
    )


def test_a_network_that_draws_random_numbers_gives_the_same_bits_with_two_workers() -> None:
    settings = {"model": "test_engines:dropout", "rounds": 2}
    sys.path.insert(0, str(Path(__file__).parent))
    assert same_bits(
        final(small(**settings)).model,
        final(small(**settings, engine="processes", workers=2)).model,
    )


def test_a_killed_worker_is_noticed_at_once_and_named_with_its_client() -> None:
    setup = prepare(small(rounds=50))
    engine = Processes(setup.trainer, 2, setup.clients)
    try:
        loop = federate(setup.initial, setup.method, engine, setup.clients, rounds=50, seed=0)
        next(loop)
        threading.Timer(
            0.05, os.kill, (next(iter(engine._workers)).process.pid, signal.SIGKILL)
        ).start()
        with pytest.raises(RunFailed, match=r"a worker was killed \(SIGKILL\) while"):
            list(loop)
    finally:
        engine.close()


SLOW_TO_IMPORT = """
import os, time
from feddraw.system.workers import Worker, serve, stop_workers

if __name__ != "__main__":  # the worker, which imports this file again
    open("importing", "w").close()
    time.sleep(2)
else:
    try:
        worker = Worker(serve, abs)
        time.sleep(30)
    except KeyboardInterrupt:
        print("stopped")
    worker.send(-5)
    print(worker.receive())
    stop_workers([worker])
"""


def test_ctrl_c_while_a_worker_starts_is_its_parents_business(tmp_path: Path) -> None:
    """A terminal sends it to both; the worker would answer with the traceback of an import."""
    (tmp_path / "script.py").write_text(SLOW_TO_IMPORT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        signal.signal(signal.SIGINT, before)
        until = time.monotonic() + 20
        while not (tmp_path / "importing").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said, trouble = process.communicate(timeout=30)
    assert trouble == ""
    assert said.split() == ["stopped", "5"]


def test_an_error_inside_a_worker_names_the_client() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    with pytest.raises(RunFailed, match=r"training client C\d failed: ValueError: no more"):
        final(small(model="test_engines:failing", engine="processes", workers=2))


class Failing(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(28 * 28, classes)

    def forward(self, x: Any) -> Any:
        if self.training:
            raise ValueError("no more")
        return self.head(x.flatten(1))


def failing(classes: int) -> nn.Module:
    return Failing(classes)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all shared memory that is made in a test."""
    names: list[str] = []

    def noted(*, create: bool, size: int) -> SharedMemory:
        block = SharedMemory(create=create, size=size)
        names.append(block.name)
        return block

    monkeypatch.setattr("feddraw.system.shared_memory.SharedMemory", noted)
    return names


def all_freed(names: list[str]) -> bool:
    for name in names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)
    return bool(names)


def test_shared_memory_is_freed(blocks: list[str]) -> None:
    final(small(engine="processes", workers=2, rounds=1))
    assert all_freed(blocks)


def test_shared_memory_of_an_engine_that_cannot_start_is_freed(
    blocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise RunFailed("no shared memory")

    monkeypatch.setattr(SharedArrays, "publish", full)
    with pytest.raises(RunFailed, match="no shared memory"):
        Processes(bench(fedavg()).trainer, 1, NAMES)
    assert all_freed(blocks)


def test_shared_memory_is_taken_at_once_or_refused(
    blocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    shared = SharedArrays()
    try:
        with pytest.raises(
            RunFailed, match=r"no shared memory for 4 MB .*No space left.*: try engine = serial"
        ):
            shared.empty((1000, 1000), np.float32)
        shared.empty((1000, 1000), np.float32, sparse=True)
    finally:
        shared.close()
    assert all_freed(blocks)
    assert len(blocks) == 2


def test_a_worker_without_shared_memory_is_told_what_to_do() -> None:
    death = WorkerDied(-signal.SIGBUS)
    assert death.how == "was killed (SIGBUS)"
    assert "/dev/shm" in death.advice


def test_others_read_the_part_of_a_mapped_file_that_was_published(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(6, 2))
    whole = np.load(tmp_path / "a.npy", mmap_mode="r")
    shared = SharedArrays()
    try:
        for array in (whole, whole[4:], whole[::2], whole[:, 1]):
            np.testing.assert_array_equal(attach_shared(shared.publish(array)), array)
        assert shared.publish(whole).file
    finally:
        shared.close()


def test_predictions_do_not_depend_on_the_engine() -> None:
    setup = prepare(small())
    rows = np.arange(0, 400, 3)
    engine = Processes(setup.trainer, 2, setup.clients)
    try:
        scores = engine.predict(setup.initial, rows)
    finally:
        engine.close()
    assert scores.tobytes() == Serial(setup.trainer).predict(setup.initial, rows).tobytes()


@pytest.mark.parametrize(
    ("workers", "clients", "started"), [(0, 3, 2), (2, 3, 2), (5, 3, 3), (100_000, 10**6, 8)]
)
def test_no_more_workers_start_than_there_is_work_for_and_cores_can_use(
    workers: int, clients: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddraw.system.workers.cores", lambda: 2)
    monkeypatch.setattr("feddraw.experiment.device_placement.cores", lambda: 2)
    with warnings.catch_warnings(record=True) as told:
        found = places_for_clients(small(engine="processes", workers=workers), clients)
        assert len(found) == started
    assert [str(workers) in str(one.message) for one in told] == (
        [True] if workers > started else []
    )


def test_an_engine_may_be_anyones_function_and_a_file_that_names_it_must_be_trusted(
    tmp_path, monkeypatch
):
    code = (
        "from feddraw.engines.serial import Serial\ndef engine(prepared, workers): return"
        " Serial(prepared.trainer)\n"
    )
    (tmp_path / "own_engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ours, theirs = (
        list(run(small(rounds=1, engine=name)))[-1] for name in ("serial", "own_engine:engine")
    )
    assert same(ours.model, theirs.model)
    (tmp_path / "experiment.toml").write_text('engine = "own_engine:engine"\n')
    with pytest.raises(UserError, match=r"names code to import \(engine = own_engine:engine\)"):
        Experiment.read(tmp_path / "experiment.toml")
    assert Experiment.read(tmp_path / "experiment.toml", trust=True).engine == "own_engine:engine"


class Listening(Local):
    """Sends how many vectors it was sent beside the model."""

    sends = (Extra("heard", "number"),)

    def end(self, job: Any, update: Any, memory: Any, client: Any) -> Any:
        return {"heard": np.array([float(len(job.broadcast))])}, {}


def test_a_broadcast_of_one_round_is_not_there_in_the_next() -> None:
    setup = prepare(small())
    engine = Processes(replace(setup.trainer, local=Listening()), 1, setup.clients)
    vector = np.zeros(len(setup.initial.params), np.float32)
    try:
        heard = []
        for round, broadcast in enumerate(({"sent": vector}, {}, {"sent": vector})):
            (update,) = engine.train([Job(round, 3, 0, 1, setup.initial, broadcast)])
            heard.append(float(update.extra["heard"][0]))
    finally:
        engine.close()
    assert heard == [1.0, 0.0, 1.0]
