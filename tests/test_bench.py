"""The bench's document has what its readers count on, and a system that is not there is said not to
be there.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main, pythons_of_systems
from benchmarks.speed import (
    document,
    frozen_part,
    growth,
    made_up_model,
    peer_task,
    printed_table,
    rivals,
    round_overhead,
    server_memory,
    server_step,
    short_runs,
    timing,
    workloads,
)
from benchmarks.speed.timing import TimingSession, median_interval, ratio_of_times
from feddraw.errors import RunFailed, UserError

TINY = peer_task.PeerTask(hidden=8, clients=2, steps=1)


def test_the_interval_of_a_median_leaves_out_what_the_binomial_law_allows():
    assert median_interval(range(1, 21)) == {
        "median": 10.5,
        "low": 6,
        "high": 15,
    }  # 95.9 %; one more would make 88.5 %
    assert median_interval(range(1, 7)) == {"median": 3.5, "low": 1, "high": 6}
    assert median_interval([2.0]) == {"median": 2.0, "low": 2.0, "high": 2.0}


def test_blocks_alternate_and_the_first_only_warms_up():
    order: list[str] = []

    def work_of(name):
        return lambda: order.append(name) or float(len(order))

    samples = TimingSession(blocks=3).interleave("", {"a": work_of("a"), "b": work_of("b")})
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert samples == {"a": [4, 5, 8], "b": [3, 6, 7]}
    assert ratio_of_times([2, 4, 6], [1, 2, 3])["median"] == 2


def test_the_command_prints_the_keys_of_the_contract_and_why_a_system_is_missing(
    monkeypatch, capsys
):
    def not_installed(python, package):
        raise RunFailed("no")

    monkeypatch.setattr(rivals, "_rival_version", not_installed)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    main(["--only", "flower", "--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    keys = {
        "machine",
        "overhead_serial",
        "speedup_two_workers",
        "server_over_floor",
        "flower_over_ours",
    }
    assert keys <= found.keys()
    assert found["server_over_floor"].keys() == {"fedavg", "feddraw"}
    assert found["missing"] == {"flower": "no"}
    assert ("Flower on Ray, two CPUs ÷ ours", "not here", "no", "") in printed_table.printed_rows(
        found["parts"]
    )


def test_figures_of_the_server_become_lines_and_files(tmp_path):
    part = server_step.measure_server_step(TimingSession(blocks=1), parameters=40_000)
    found = document.bench_document({"server": part})
    for one in found["server_over_floor"].values():
        assert one.keys() == {"median", "low", "high"}
        assert 0 < one["low"] <= one["median"] <= one["high"] < math.inf
    written = document.write_bench_files(found, tmp_path)
    assert document.read_measured_parts(tmp_path) == json.loads(json.dumps(found["parts"]))
    assert "FedDRAW with gate and ledger" in written[1].read_text()


def test_a_run_on_features_is_measured_with_its_memory_and_every_bar_has_a_line(
    tmp_path, monkeypatch
):
    sizes = (300, 200)
    file = tmp_path / "features.npy"
    frozen_part._write_made_up_features(file, sum(sizes))
    monkeypatch.setattr(frozen_part, "ROUNDS", 1)
    ratio = frozen_part._runs_over_matrix(TimingSession(blocks=4), file, sizes)
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"] < math.inf
    memory = frozen_part.memory_of_run(file)
    assert memory["touched"] == file.stat().st_size - 128  # without the header of the file
    part = {
        "title": "DenseNet121",
        "features": sum(sizes),
        "images_over_features": ratio,
        "first_over_bare_and_warm": ratio,
        "feature_pass_over_bare": ratio,
        "training_over_bare": ratio,
        "memory_over_touched": 1.0,
    }
    bars = [bar for _, _, _, bar in printed_table.printed_rows({"frozen": part})]
    assert bars == ["at least 200", "at most 1.15", "at most 1.11", "at most 1.3", "at most 1.2"]


def test_growth_is_drawn(tmp_path):
    point = growth.run_of_size(clients=2, rounds=1, pixels=28, hidden=8, stream=True)
    part = {"clients": {way: [point | {"value": 2}] for way in growth.SUMMED}}
    found = document.bench_document({"growth": {"blocks": 1} | part})
    assert [path.name for path in document.write_bench_files(found, tmp_path)[2:]] == [
        "growth.svg",
        "growth.png",
    ]
    assert all(point[key] > 0 for key in ("seconds", "megabytes", "parameters"))


def test_our_round_does_the_peers_steps(monkeypatch):
    trainer = rivals.trainer_beside_rivals(TINY)
    assert [len(shard) for shard in trainer.shards] == [peer_task.BATCH] * 2
    with rivals.our_round_beside_rivals(TINY, 1) as own:
        assert own() > 0
    pixels, targets = peer_task.random_pictures(40)
    (x, y), _ = peer_task.tensors(TINY)
    np.testing.assert_allclose(x[:, 0], (pixels[:20] / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)
    assert np.array_equal(y, targets[:20])


def test_a_peer_that_cannot_be_imported_says_so():
    rival = rivals.Rival("Nobody", "flower", "with_nobody.py", "nobody", 1)
    with (
        pytest.raises(RunFailed, match="No such file"),
        rivals.running_rival(rival, sys.executable, TINY),
    ):
        pass


def test_a_system_has_the_python_that_is_named_for_it(monkeypatch):
    monkeypatch.setenv("FEDDRAW_PYTHON_OF_PFL", "/pfl/bin/python")
    named = pythons_of_systems([f"flower={sys.executable}"])
    assert named == {"pfl": "/pfl/bin/python", "flower": sys.executable}
    with pytest.raises(UserError, match="systems"):
        pythons_of_systems(["nobody=/bin/python"])
    with pytest.raises(UserError, match="existing Python"):
        pythons_of_systems(["flower"])


def test_every_peers_script_is_in_the_checkout_and_finds_its_work(monkeypatch, tmp_path):
    assert {rival.script for rival in rivals.RIVALS.values()} <= {
        path.name for path in rivals.RIVAL_SCRIPTS.iterdir()
    }
    scripts = tmp_path / "peers"
    scripts.mkdir()
    (scripts / "echo.py").write_text(
        "from peer_task import Bench, task\nassert task().clients == 2\nfor _ in Bench().rounds():"
        " pass\n"
    )
    monkeypatch.setattr(rivals, "RIVAL_SCRIPTS", scripts)
    with rivals.running_rival(
        rivals.Rival("echo", "", "echo.py", "", 1), sys.executable, TINY
    ) as peer:
        assert peer.round() >= 0


def test_a_server_of_many_streams_in_little_memory():
    few, many = (
        server_memory.server_memory_of_round(clients, 1, made_up_model.made_up_model(40_000))
        for clients in (2, 20)
    )
    assert few["megabytes"] > 0
    assert many["megabytes"] < few["megabytes"] + 20
    found = timing.measured_in_own_process(
        "benchmarks.speed.server_memory", "2"
    )  # as docs/howto.md calls it
    assert found["seconds"] > 0


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(UserError, match="rounds"):
        document.chosen_parts(["round"])
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(UserError, match="not a document"):
        document.read_measured_parts(tmp_path)
    assert document.chosen_parts(["rivals"]) == list(rivals.RIVALS)


def test_the_page_shows_the_figures_of_the_file_beside_it():
    docs = Path(__file__).parent.parent / "docs"
    measured = json.loads((docs / "data" / "bench.json").read_text())
    assert printed_table.bench_markdown(measured) in (docs / "scale.md").read_text()
    for key in ("overhead_serial", "speedup_two_workers", "flower_over_ours"):
        assert measured[key].keys() == {"median", "low", "high"}


def test_a_bare_process_trains_its_half_of_the_clients_and_says_how_long_it_took(monkeypatch):
    seen: list[int] = []
    bare_loop = round_overhead.bare_loop
    monkeypatch.setattr(
        round_overhead, "bare_loop", lambda t, m: seen.append(len(t.shards)) or bare_loop(t, m)
    )
    here, there = multiprocessing.Pipe()
    monkeypatch.setattr(round_overhead, "serve", lambda pipe, answer: pipe.send(answer("round")))
    round_overhead._bare_process(there, workloads.Workload("tiny", "compact", 16, 3, 1, 4), 0)
    assert here.recv() > 0
    assert seen == [2]


def test_scripts_and_studies_of_short_runs_have_the_same_work(monkeypatch, tmp_path):
    given = short_runs.short_experiments(2)
    assert [experiment.seed for experiment in given] == [0, 1]
    here, there = multiprocessing.Pipe()
    short_runs._script_of_short_runs(there, [given[0].table()], str(tmp_path))
    assert here.recv()
    assert (tmp_path / "0" / "metrics.json").is_file()


def test_two_processes_beside_ours_become_lines():
    one = {"median": 1.0, "low": 0.9, "high": 1.1}
    ratios = ("overhead_serial", "speedup_two_workers", "two_bare_over_two_workers")
    rounds = {"small": {"title": "t"} | dict.fromkeys(ratios, one)}
    study = {"title": "40 runs", "two_scripts_over_study": one}
    lines = printed_table.printed_rows({"rounds": rounds, "study": study})
    assert [
        line[3] for line in lines if "two bare processes" in line[0] or "two scripts" in line[0]
    ] == [
        "at least 0.97",
        "at least 0.97",
    ]
