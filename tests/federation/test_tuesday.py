"""A federation's Tuesday: one federation that lives through what happens to machines, and what its
record says of each event at the end.

Four hospitals with images of their own, TLS, keys, a signed app and a list of sites, as
docs/federation.md describes it. A fifth listed node gives itself the name of the first, and a
sixth is registered but not on the list. `make test-federation`; some ten minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from needed import KEY_TOOLS, LONG, wait_until_connected

from feddraw.results.ledger_table import read_ledger
from feddraw.results.round_log import RoundLine, read_round_log
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.followed_run import FollowedRun
from feddraw.watch.run_documents import run_detail
from test_flower_app import hospital
from test_flower_deployment import script

LOCAL = script()
pytestmark = [LONG, KEY_TOOLS]

HOSPITALS = ("North", "East", "South", "West")
LISTED = (*HOSPITALS, "Twin")  # a second node that calls itself North
REGISTERED = (*LISTED, "Stranger")
ROUNDS = 10
EVENT_PATIENCE = 900.0  # seconds for one event on a machine that is busy with others
ANSWER_TIME = 240.0  # seconds for a round's replies: a node that is gone is missed after some 50


class Tuesday:
    """The federation, its operator, and the hands that kill, stop and mend its parts."""

    def __init__(self, made: Any, data: Path) -> None:
        self.made = made
        self.run = made.folder / "run"
        self.broken_image = data / "West" / "3.png"
        self.config = {name: f'data="{data / name}"' for name in HOSPITALS}
        self.config["Twin"] = f'data="{data / "East"}" client="North"'
        self.config["Stranger"] = f'data="{data / "East"}"'
        self.printed: list[str] = []  # by `flwr run`, as far as it came

    # ------------------------------------------------------------------------------ the operator

    def begin(self, *, resume: bool) -> threading.Thread:
        """`flwr run`, as the operator types it."""
        names = "data.findings=Opacity,Enlarged data.normalize=measured model.growth=8"
        sites = ",".join(f"{name}={self.fingerprint(name)}" for name in LISTED)
        settings = (
            f'rounds={ROUNDS} data.name="folder" data.size=16 training.epochs=1'
            f' training.batch_size=8 set="{names}" nodes=2 wait=600.0 timeout={ANSWER_TIME}'
            f' sites="{sites}" out="{self.run}" resume={str(resume).lower()}'
        )

        def carry_out() -> None:
            with suppress(SystemExit, subprocess.TimeoutExpired):  # the server may be killed
                self.printed.append(self.made.run(settings, timeout=4 * EVENT_PATIENCE))

        thread = threading.Thread(target=carry_out, daemon=True)
        thread.start()
        return thread

    def fingerprint(self, name: str) -> str:
        command = ["ssh-keygen", "-lf", self.made.server / "keys" / f"{name}.pub"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return str(printed.split()[1])

    def lose_the_server(self) -> None:
        """The machine of the SuperLink goes down with all that runs on it."""
        for pid in LOCAL.descendants([self.made.processes["superlink"].pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.made.processes["superlink"].wait()

    def bring_the_server_back(self) -> None:
        """It has no database: the operator registers the keys again, and no hospital does a
        thing.
        """
        self.made.superlink()
        for name in REGISTERED:
            self.made.register(name)

    # ------------------------------------------------------------------------------- at the sites

    def start(self, name: str, *, register: bool = True) -> None:
        self.made.supernode(name, self.config[name], register=register)

    def kill_at_work(self, name: str, kind: str, round: int) -> None:
        """As soon as the node gets this message; it is restarted within seconds."""
        self.wait_for_message(name, kind, round)
        os.killpg(self.made.processes[name].pid, signal.SIGKILL)
        self.made.processes[name].wait()
        self.start(name, register=False)

    def wait_for_message(self, name: str, kind: str, round: int) -> None:
        message = (round, kind)
        self.wait(lambda: message in self.messages(name), f"{name} gets no {message}")

    def messages(self, name: str) -> list[tuple[int, str]]:
        """The round, counted from 0, and the kind of each message that the node has received."""
        log = re.sub(r"\x1b\[[0-9;]*m", "", self.made.log(name))
        met = re.findall(r"ROUND (\d+)\]\nINFO : +Receiving: (train|evaluate) message", log)
        return [(int(server_round) - 1, kind) for server_round, kind in met]

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """A machine that sleeps, with all that runs on it."""
        processes = LOCAL.descendants([self.made.processes[name].pid])
        self._signal(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(processes, signal.SIGCONT)

    @staticmethod
    def _signal(processes: list[int], number: signal.Signals) -> None:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextmanager
    def broken_data(self) -> Iterator[None]:
        """West's storage returns nonsense for one image."""
        whole = self.broken_image.read_bytes()
        self.broken_image.write_bytes(b"no image")
        try:
            yield
        finally:
            self.broken_image.write_bytes(whole)

    # --------------------------------------------------------------------------- what is recorded

    def wait(self, ready: Callable[[], object], otherwise: str) -> None:
        deadline = time.monotonic() + EVENT_PATIENCE
        while not ready():
            logs = "\n".join(self.printed[-1:])
            assert time.monotonic() < deadline, f"{otherwise}\n{logs}"
            time.sleep(0.2)

    def wait_until_trained(self, round: int) -> None:
        self.wait(lambda: (round, "North") in self.ledger(), f"round {round} does not train")

    def wait_until_evaluated(self, round: int) -> None:
        self.wait(lambda: round in self.lines(), f"round {round} is not evaluated")

    def ledger(self) -> dict[tuple[int, str], str]:
        """By round and site, its status."""
        path = self.run / "weights.csv"
        if not path.is_file():
            return {}
        return {(entry.round, entry.client): entry.status for entry in read_ledger(path)}

    def lines(self) -> dict[int, RoundLine]:
        path = self.run / "rounds.jsonl"
        return {line.round: line for line in read_round_log(path)} if path.is_file() else {}

    def evaluations(self, round: int) -> dict[str, str]:
        return {site.client: site.status for site in self.lines()[round].evaluations}

    def watched(self) -> FollowedRun:
        folder = FollowedFolder(self.run)
        folder.look()
        (run,) = folder.runs.values()
        return run


@pytest.fixture
def tuesday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tuesday]:
    monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    for seed, name in enumerate(HOSPITALS):
        hospital(data / name, 40, seed)
    with LOCAL.federation(tmp_path / "federation", behind_nginx=LOCAL.NGINX is not None) as made:
        made.invite(*REGISTERED)
        yield Tuesday(made, data)


def test_a_federation_survives_its_tuesday_and_every_event_is_in_its_record(
    tuesday: Tuesday, tmp_path: Path
) -> None:
    broken_round = live_through_it(tuesday)
    expect_nothing_lost(tuesday)
    expect_each_event_under_its_name(tuesday, broken_round)
    expect_time_of_evaluations(tuesday)
    expect_the_story(tuesday, broken_round, tmp_path)


def live_through_it(tuesday: Tuesday) -> int:
    """Everything that happens; returns the round in which North was stopped and West's data were
    broken.
    """
    for name in ("North", "East", "South", "Twin", "Stranger"):
        tuesday.start(name)
    wait_until_connected(tuesday.made, "North", "East", "South", "Twin", "Stranger")
    tuesday.begin(resume=False)

    tuesday.wait_until_trained(0)
    tuesday.start("West")  # late

    tuesday.kill_at_work("East", "train", 2)
    tuesday.kill_at_work("South", "evaluate", 3)
    wait_until_connected(tuesday.made, "East", "South", "West")

    before = 1 + max(tuesday.lines())  # a round that may have begun without one of them
    tuesday.wait_until_evaluated(before)
    with tuesday.broken_data():
        tuesday.wait_for_message("North", "train", before + 1)
        with tuesday.stopped("North"):
            tuesday.wait_until_trained(before + 1)

    tuesday.wait_for_message("East", "train", before + 2)
    tuesday.lose_the_server()
    tuesday.wait(lambda: tuesday.watched().state == "stopped", "the page does not see it")
    tuesday.bring_the_server_back()
    run = tuesday.begin(resume=True)
    run.join(4 * EVENT_PATIENCE)
    assert (tuesday.run / "metrics.json").is_file(), tuesday.printed
    return before + 1


def expect_nothing_lost(tuesday: Tuesday) -> None:
    """Every round is there once, with a line for every listed site, in ledger and log."""
    entries = read_ledger(tuesday.run / "weights.csv")
    assert len(entries) == len({(entry.round, entry.client) for entry in entries})
    for round in range(ROUNDS):
        clients = {entry.client for entry in entries if entry.round == round}
        assert clients == set(LISTED), round
        assert set(tuesday.evaluations(round)) == set(LISTED), round
        counted = [entry for entry in entries if entry.round == round and entry.weighted]
        assert len(counted) >= 2, round
    last = [tuesday.ledger()[ROUNDS - 1, name].partition(":")[0] for name in HOSPITALS]
    assert last == ["weighted"] * 4  # all are back
    assert [tuesday.evaluations(ROUNDS - 1)[name] for name in HOSPITALS] == ["evaluated"] * 4
    for line in tuesday.lines().values():
        assert line.validation.evaluated


def expect_time_of_evaluations(tuesday: Tuesday) -> None:
    """Of rounds without an interruption, the line has all the time since the line before."""
    lines = tuesday.lines()
    for round in (1, 3):
        real = (lines[round].time - lines[round - 1].time).total_seconds()
        assert 0.8 * real < lines[round].whole_seconds < real + 2


def expect_each_event_under_its_name(tuesday: Tuesday, broken_round: int) -> None:
    ledger = tuesday.ledger()
    assert ledger[0, "West"] == "not connected"
    assert any(ledger[round, "West"].startswith("weighted") for round in (1, 2, 3))
    assert ledger[2, "East"] == "missing"  # killed in training
    assert tuesday.evaluations(3)["South"] == "missing"  # killed in evaluation
    assert ledger[3, "South"].startswith("weighted")  # what it had sent before counts
    assert ledger[broken_round, "North"] == "missing"  # stopped
    broken = ledger[broken_round, "West"]
    assert broken.startswith("refused: its app failed: images: of 40 images 1 that cannot be read")
    assert "3.png: not a PNG, JPEG or DICOM image" in broken
    assert "leave them out with data.skip_bad = true" in broken
    errors = tuesday.made.site("West") / "memory" / "errors.log"
    assert broken.endswith(f"(in full at West: {errors})")
    assert "Traceback" in errors.read_text()
    twins = {ledger[round, "Twin"] for round in range(ROUNDS)}
    assert "refused: it answers as North, which is another node's name" in twins
    assert not any(status.startswith("weighted") for status in twins)
    assert "not on the operator's list of sites" in "".join(tuesday.printed)
    assert "Receiv" not in tuesday.made.log("Stranger")
    assert (0, "train") in tuesday.messages("North")  # whose log has the words that it lacks


def expect_the_story(tuesday: Tuesday, broken_round: int, folder: Path) -> None:
    """`watch` and `explain`, as the operator reads them in the evening."""
    run = tuesday.watched()
    assert run.state == "finished"
    shown = run_detail(run)
    assert {site["client"] for site in shown["evaluations"]} == set(LISTED)
    troubles = {(one["round"], one["client"], one["status"]) for one in shown["trouble"]}
    assert (2, "East", "missing") in troubles
    assert (3, "South", "no evaluation, missing") in troubles
    assert (broken_round, "North", "missing") in troubles
    command = [Path(sys.executable).with_name("feddraw"), "explain", tuesday.run]
    environment = os.environ | {"COLUMNS": "200"}
    printed = subprocess.run(
        command, capture_output=True, check=True, text=True, env=environment, cwd=folder
    ).stdout
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", printed).split())
    assert f"the sites' own folders, {len(LISTED)} clients" in said
    for words in (
        "Asked, but did not answer: ",
        "East in round",
        "Not connected: ",
        "West in round",
        "Refused (it answers as North, which is another node's name): Twin in round",
        "3.png: not a PNG, JPEG or DICOM image",
        "Asked to evaluate, but did not answer: ",
        "Twin never counted.",
    ):
        assert words in said, words
    assert "Stranger" not in said
    assert "more cases" not in said
    command = [*command, "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert {"round": 3, "client": "South", "status": "missing"} in document["not_evaluated"]
