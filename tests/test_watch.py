"""The server behind `feddraw watch`: what it reads, what it tells, and whom it refuses."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from feddraw.errors import UserError
from feddraw.experiment.running import iterate
from feddraw.results.round_log import RoundLine
from feddraw.results.run_collection import collect_runs
from feddraw.results.run_reader import GrowingFile
from feddraw.watch import followed_folder
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.followed_run import FollowedRun
from feddraw.watch.run_documents import run_detail
from feddraw.watch.server import WatchServer, require_loopback, usual_watch_port
from run_folders import log_line, make_run
from small import small

KEY = "a key of a test for the watch"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(followed_folder, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(followed_folder, "SEARCH_EVERY", 0.0)


@pytest.fixture
def study(tmp_path):
    root = tmp_path / "study"
    make_run(root / "a_feddraw_seed=0", rounds=4)
    make_run(root / "a_fedavg_seed=0", method="fedavg", rounds=4, finished=False)
    plan = {
        "runs": ["a_feddraw_seed=0", "a_fedavg_seed=0", "a_uniform_seed=0", "a_alone_seed=0", "b"],
        "workers": 1,
    }
    (root / "plan.json").write_text(
        json.dumps(plan | {"failed": {"a_alone_seed=0": "no memory"}, "left_out": ["b"]})
    )
    return root


@pytest.fixture
def served(study):
    server = WatchServer(study, port=0, key=KEY)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def ask(server, path, *, host=None, key=KEY, method="GET", headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    sent = {
        "Host": host or f"127.0.0.1:{server.server_port}",
        "X-Feddraw-Key": key,
        **dict(headers),
    }
    connection.request(method, path, headers=sent)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def state(server, query="since=-1"):
    answer, body = ask(server, f"/state?{query}")
    assert answer.status == 200
    return json.loads(body)


# ------------------------------------------------------------------------------------------ reading


def test_a_file_is_read_from_where_it_was_left_and_anew_when_it_is_replaced(tmp_path):
    path = tmp_path / "log"
    tail = GrowingFile(path)
    assert tail.added() == (False, "")
    path.write_text("one\ntw")
    assert tail.added() == (True, "one\n")
    path.write_text("one\ntwo\n")
    assert tail.added() == (False, "two\n")
    other = tmp_path / "other"
    other.write_text("new\nlines\n")
    other.replace(path)
    assert tail.added() == (True, "new\nlines\n")
    path.unlink()
    assert tail.added() == (True, "")


def test_a_name_with_a_quotation_mark_does_not_hold_up_the_log(tmp_path):
    run = FollowedRun(make_run(tmp_path / "run", rounds=1, finished=False), "run", 0)
    run.look(None, time.time())
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(log_line(1, client_seconds={'the "A" of 5" ': 1.0})) + "\n")
    assert run.look(None, time.time())
    assert run.rounds[-1].client_seconds == {'the "A" of 5" ': 1.0}


def test_a_run_is_followed_round_by_round(tmp_path):
    run, now = FollowedRun(tmp_path / "run", "run", 0), time.time()
    seen = []
    for _ in iterate(small(rounds=3), tmp_path / "run"):
        assert run.look(None, now)
        seen.append((run.state, run.done))
    assert run.look(None, now) is False
    assert seen == [("running", 1), ("running", 2), ("finished", 3)]
    told = run_detail(run)
    assert told["clients"] == ["C1", "C2", "C3"]
    assert sum(row[-1] for row in told["weights"]) == pytest.approx(1)
    assert sum(told["influence"]) == pytest.approx(1)
    assert told["influence"][0] > told["weights"][0][-1]  # C1 takes more steps than the others
    assert all(row[0] > 0 for row in told["client_seconds"])
    assert set(told["seconds"][0]) == {"training", "aggregation", "evaluation"}
    assert told["summary"]["rounds"] == 3
    assert told["data"] == "phantom"


def test_whether_somebody_works_on_a_run_is_seen_without_taking_its_lock(study):
    followed = FollowedFolder(study)
    followed.look()
    states = {run.name: run.state for run in followed.runs.values()}
    assert states == {"a_feddraw_seed=0": "finished", "a_fedavg_seed=0": "stopped"}
    handle = os.open(study / "a_fedavg_seed=0", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    followed.look()
    os.close(handle)
    assert {run.name: run.state for run in followed.runs.values()}["a_fedavg_seed=0"] == "running"


def test_time_left_is_that_of_the_rounds_to_come_less_what_has_passed():
    run = FollowedRun(Path("nowhere"), "run", 0)
    run.total = 10
    run.rounds = [
        RoundLine(
            round=t,
            loss=1.0,
            seconds={"training": 20.0},
            client_seconds={},
            time=datetime.fromtimestamp(1000 + 20 * t, UTC),
        )
        for t in range(4)
    ]
    assert run.left(1060.0, None) == 120
    assert run.left(1070.0, None) == 110
    assert (
        run.left(9999.0, None) == 100
    )  # a round that takes longer than others may end at any moment
    run.rounds = []
    assert run.left(1060.0, None) is None
    run.began = 1060.0
    assert run.left(1060.0, 2.0) == 20  # as other runs of its kind


def test_a_flower_servers_folder_has_no_settings_but_a_log_and_a_ledger(tmp_path):
    folder = make_run(tmp_path / "server", rounds=2, finished=False)
    (folder / "experiment.toml").unlink()
    lines = [
        json.loads(line) | {"rounds": 2, "seconds": {"training": 3.0}}
        for line in (folder / "rounds.jsonl").open()
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    followed = FollowedFolder(folder)
    followed.look()
    (run,) = followed.runs.values()
    assert (run.name, run.total, run.round_seconds) == ("server", 2, 3.0)


@pytest.mark.parametrize("name", ["rounds.jsonl", "weights.csv", "experiment.toml", "metrics.json"])
@pytest.mark.parametrize(
    "text",
    [
        '{"round": []}\n',
        '{"test": {"auc": 3}}',
        "round,client\n0,a\n",
        "[method]\nname=3\nrounds='x'\n",
        "\x00",
    ],
)
def test_a_damaged_file_is_told_and_does_not_hide_the_other_runs(study, name, text):
    (study / "a_fedavg_seed=0" / name).write_text(text)
    followed = FollowedFolder(study)
    followed.look()
    from feddraw.watch.overview import overview_of_runs

    json.dumps(overview_of_runs(followed, -1), allow_nan=False)
    assert [run.state for run in followed.runs.values() if run.method == "feddraw"] == ["finished"]


@pytest.mark.parametrize("name", ["rounds.jsonl", "weights.csv"])
def test_a_damaged_log_is_told_at_every_look_until_it_is_mended(tmp_path, name):
    folder = make_run(tmp_path / "run")
    (folder / "metrics.json").unlink()
    whole = (folder / name).read_text()
    damaged = whole.replace(
        next(line for line in whole.splitlines()[1:]), '{"round": []}' if "json" in name else "x,y"
    )
    (folder / name).write_text(damaged if "json" in name else whole.replace("\n0,", "\nzero,", 1))
    followed = FollowedFolder(folder)
    for _ in range(3):
        followed.look()
        assert [run.state for run in followed.runs.values()] == ["broken"]
    (folder / name).write_text(whole)
    followed.look()
    assert [run.state for run in followed.runs.values()] == ["stopped"]


def test_a_report_says_how_far_an_unfinished_run_has_come_and_when_it_last_wrote(tmp_path):
    make_run(tmp_path / "whole")
    half = make_run(tmp_path / "half", method="fedavg", finished=False) / "rounds.jsonl"
    lines = [json.loads(line) for line in half.read_text().splitlines()[:3]]
    lines[-1]["validation"]["macro"] = 0.75
    half.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (problem,) = collect_runs([tmp_path]).problems
    assert (
        problem.reason
        == "not finished: 3 of 6 rounds, validation AUC 0.750, last written 2026-11-17 05:54 UTC"
    )


# ------------------------------------------------------------------------------------------ serving


def test_the_state_has_all_runs_and_then_only_what_changed(served, study):
    first = state(served)
    assert {run["name"]: run["state"] for run in first["changed"]}["a_feddraw_seed=0"] == "finished"
    assert first["waiting"] == ["a_uniform_seed=0"]
    assert first["failed"] == {"a_alone_seed=0": "no memory"}
    assert first["counts"] == {"finished": 1, "stopped": 1, "waiting": 1, "failed": 1}
    again = f"since={first['version']}&instance={first['instance']}"
    assert state(served, again)["changed"] == []
    with (study / "a_fedavg_seed=0" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(log_line(4)) + "\n")
    assert [run["name"] for run in state(served, again)["changed"]] == ["a_fedavg_seed=0"]
    assert len(state(served, f"since={first['version']}&instance=another")["changed"]) == 2


def test_a_run_that_failed_after_it_had_begun_says_so_once(served, study):
    name, why = "a_fedavg_seed=0", "no memory left"
    first = state(served)
    plan = json.loads((study / "plan.json").read_text())
    (study / "plan.json").write_text(json.dumps(plan | {"failed": {name: why}}))
    then = state(served, f"since={first['version']}&instance={first['instance']}")
    assert [(run["name"], run["state"], run["why"]) for run in then["changed"]] == [
        (name, "failed", why)
    ]
    assert state(served, f"since={then['version']}&instance={then['instance']}")["changed"] == []


def test_a_run_that_has_not_changed_is_not_sent_again(served):
    number = state(served)["order"][0]
    answer, body = ask(served, f"/run?id={number}")
    assert len(json.loads(body)["weights"]) == 4
    unchanged, body = ask(
        served, f"/run?id={number}", headers=[("If-None-Match", answer.headers["ETag"])]
    )
    assert (unchanged.status, body) == (304, b"")


def test_who_has_no_key_or_means_another_server_gets_nothing(served):
    port = served.server_port
    assert ask(served, "/state", key="")[0].status == 403
    assert ask(served, "/state", key="wrong")[0].status == 403
    assert ask(served, "/run?id=0", key="wrong")[0].status == 403
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1:{port + 1}",
        "127.0.0.1",
        f"127.0.0.1.evil:{port}",
        f"[::1:{port}",
        f"127.0.0.1:{port}x",
    ):
        for path in ("/", "/state"):
            assert ask(served, path, host=host)[0].status == 421
    assert ask(served, "/", host=f"localhost:{port}", key="")[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/plan.json",
        "/plan.json",
        "//etc/passwd",
        "/run?id=../..",
        "/run?id=99",
        "/run",
        "//[x",
    ],
)
def test_no_file_is_served_by_its_name(served, path):
    state(served)
    assert ask(served, path)[0].status == 404


def test_only_reading_is_possible_and_the_page_may_ask_only_this_server(served):
    assert ask(served, "/state", method="POST")[0].status == 501
    answer, body = ask(served, "/", key="")
    policy = answer.headers["Content-Security-Policy"]
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert b"http:" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert KEY.encode() not in body
    assert ask(served, "/", method="HEAD")[1] == b""


def test_names_cannot_break_out_of_the_document(tmp_path):
    make_run(
        tmp_path / "x" / "\x1b[31m<script>",
        clients=["</script>\x1b[1m", "'\"\n", "c", "d"],
        finished=False,
    )
    followed = FollowedFolder(tmp_path / "x")
    followed.look()
    (run,) = followed.runs.values()
    assert "\x1b" not in json.dumps(run_detail(run), ensure_ascii=False)
    assert len(run_detail(run)["clients"]) == 4


def test_three_hundred_runs_are_cheap_to_look_at(tmp_path):
    for number in range(300):
        make_run(tmp_path / "s" / f"{number:03d}", seed=number, rounds=2)
    followed = FollowedFolder(tmp_path / "s")
    followed.look()
    began = time.process_time()
    for _ in range(5):
        followed.look()
    assert (time.process_time() - began) / 5 < 0.25  # 0.03 s when this was written


# -------------------------------------------------------------------------------------- the command


def test_other_interfaces_are_refused_unless_asked_for():
    with pytest.raises(UserError, match="--expose"):
        require_loopback("0.0.0.0", expose=False)
    require_loopback("0.0.0.0", expose=True)
    require_loopback("127.0.0.1", expose=False)


def test_a_server_that_is_open_to_others_answers_to_addresses_but_not_to_names(study):
    with WatchServer(study, host="0.0.0.0", port=0, key=KEY) as server:
        assert server.knows(f"192.168.1.7:{server.server_port}")
        assert not server.knows(f"evil.example:{server.server_port}")


def test_a_folder_has_its_own_port_and_another_one_is_taken_when_it_is_used(study):
    assert usual_watch_port(study) == usual_watch_port(study)
    with WatchServer(study, key=KEY) as first, WatchServer(study, key=KEY) as second:
        assert first.server_port == usual_watch_port(study)
        assert second.server_port != first.server_port
        with pytest.raises(UserError, match="choose another --port"):
            WatchServer(study, port=first.server_port, key=KEY)
    with pytest.raises(UserError, match="no folder"):
        WatchServer(study / "nothing", key=KEY)


def test_the_command_prints_an_address_that_works_and_ends_with_ctrl_c(study, tmp_path):
    environment = os.environ | {"FEDDRAW_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "feddraw", "watch", str(study), "--port", "0"]
    heed = partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # which tests in the background would ignore
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=heed,  # noqa: PLW1509
    ) as process:
        line = process.stdout.readline()
        address, _, key = line.split()[-1].partition("#key=")
        connection = http.client.HTTPConnection(
            address.removeprefix("http://").strip("/"), timeout=10
        )
        connection.request("GET", "/state", headers={"X-Feddraw-Key": key})
        assert json.loads(connection.getresponse().read())["counts"]["finished"] == 1
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert (tmp_path / "cache" / "watch.key").stat().st_mode & 0o077 == 0
