"""Secure sums over a real SuperLink, with TLS, keys and a node that is killed in mid-round.

`make test-federation`.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needed import KEY_TOOLS, LONG, wait_until_connected
from test_deployments import expect_bits
from test_strangers import PROJECT

from feddraw.system.file_reading import read_csv
from test_flower import QUICKSTART
from test_flower_deployment import script, settings

LOCAL = script()
pytestmark = [LONG, KEY_TOOLS]

SITES = ("C1", "C2", "C3", "C4")

# All that reaches the server, as it comes out of Flower's own Grid, goes to a file; nothing else
# differs from the quickstart but the strategy's arguments.
RECORDER = """
import numpy as np
from pathlib import Path

def record(grid, folder=Path({folder!r})):
    pull = grid.pull_messages
    def pulled(identities):
        for message in (found := list(pull(identities))):
            content = {{}} if message.has_error() else message.content
            with (folder / "arrived").open("ab") as file:
                for name, one in content.items():
                    for key, value in one.items():
                        parts = value if isinstance(value, list) else [value]
                        for part in parts:
                            data = getattr(part, "data", part)
                            file.write(data if isinstance(data, bytes) else repr(data).encode())
                        if hasattr(value, "numpy"):
                            np.save(folder / f"array-{{len(list(folder.glob('array-*')))}}.npy", value.numpy())
        return found
    grid.pull_messages = pulled
    return grid
"""

# Between the app and the mod: what the app would have sent, and what it got.
SPY = """
import numpy as np
from pathlib import Path

def spy(message, context, app, folder=Path({folder!r})):
    reply = app(message, context)
    if message.metadata.message_type == "train":
        who, at = context.node_config["partition-id"], message.content["config"]["server-round"]
        for whose, content in (("sent", message.content), ("own", reply.content)):
            arrays = {{name: array.numpy() for name, array in content["arrays"].items()}}
            np.savez(folder / f"{{whose}}-{{who}}-{{at}}.npz", **arrays)
    return reply
"""


def quickstart(folder: Path) -> Path:
    """Flower's quickstart: its training code as it is, with the mod at the clients and
    `secure=True` at the server.
    """
    app = folder / "app"
    shutil.copytree(QUICKSTART, app)
    project = PROJECT.replace("canary:server", "server_app:app").replace(
        "canary:client", "client_app:app"
    )
    (app / "pyproject.toml").write_text(project.replace("seconds = 0", "num-server-rounds = 2"))
    (app / "recorder.py").write_text(RECORDER.format(folder=str(folder)))
    (app / "spy.py").write_text(SPY.format(folder=str(folder)))
    changed(app / "client_app.py", "app = ClientApp()", "app = ClientApp(mods=[secure_mod, spy])")
    changed(
        app / "client_app.py",
        "from task import",
        "from spy import spy\nfrom feddraw.flower import secure_mod\nfrom task import",
    )
    ours = (
        f"fraction_evaluate=1.0, secure=True, min_available_nodes=3, folder={str(folder / 'run')!r}"
    )
    changed(app / "server_app.py", "fraction_evaluate=1.0", ours)
    changed(app / "server_app.py", "        grid=grid,", "        grid=record(grid), timeout=300,")
    changed(
        app / "server_app.py",
        "from task import Net",
        "from recorder import record\nfrom task import Net",
    )
    changed(app / "server_app.py", 'm["accuracy"]', 'm.get("accuracy")')
    return app


def changed(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, before
    file.write_text(text.replace(before, after))


def federation(folder: Path) -> Any:
    return LOCAL.federation(folder, behind_nginx=LOCAL.NGINX is not None, secure_sums=True)


def secured(made: Any) -> None:
    """A node for each site; the operator's file has the public keys of all."""
    made.invite(*SITES)
    for number, site in enumerate(SITES):
        made.supernode(site, f"partition-id={number} simulated=true")
    wait_until_connected(made, *SITES)


def kill_at(made: Any, node: str, message: int) -> None:
    """Kill a node as soon as it has received so many messages."""
    while made.log(node).count("Received") < message:
        time.sleep(0.02)
    os.killpg(made.processes[node].pid, signal.SIGKILL)


def test_an_unchanged_app_trains_while_a_node_is_killed_in_mid_round_and_no_model_reaches_the_server(
    tmp_path: Path,
) -> None:
    app = quickstart(tmp_path)
    with federation(tmp_path / "federation") as made:
        made.sign(app)
        secured(made)
        killer = threading.Thread(
            target=kill_at, args=(made, "C4", 3), daemon=True
        )  # asked for its masked words
        killer.start()
        said = made.run("num-server-rounds=2", timeout=1800, app=app)
        assert not killer.is_alive()
    status = {
        (line["round"], line["client"]): line["status"]
        for line in read_csv(tmp_path / "run" / "weights.csv")
    }
    assert status["0", "C4"] == "missing", said
    assert [status[round, site] for round in "01" for site in SITES[:3]] == ["weighted"] * 6
    weights = {
        line["client"]: float(line["weight"])
        for line in read_csv(tmp_path / "run" / "weights.csv")[:3]
    }
    assert weights == pytest.approx({"C1": 160 / 240, "C2": 40 / 240, "C3": 40 / 240})
    expect_no_model(tmp_path)


def expect_no_model(folder: Path) -> None:
    """Nothing that reached the server holds a client's model or move, nor looks like it."""
    arrived = (folder / "arrived").read_bytes()
    vectors = [np.load(file) for file in sorted(folder.glob("array-*"))]
    assert len(vectors) == 6  # three sites, two rounds: the killed one had sent none
    assert {vector.dtype for vector in vectors} == {np.dtype(np.uint64)}
    own = sorted(folder.glob("own-*.npz"))
    assert len(own) == 7
    for file in own:
        model, sent = np.load(file), np.load(file.with_name(file.name.replace("own", "sent")))
        for name in model.files:
            for tensor in (model[name], model[name] - sent[name]):
                assert tensor.size < 4 or tensor.tobytes()[:32] not in arrived, (file.name, name)
        floats = [
            name
            for name in model.files
            if model[name].dtype == np.float32 and "running" not in name
        ]
        move = np.concatenate([(model[name] - sent[name]).ravel() for name in floats])
        for vector in vectors:
            words = vector[: len(move)].view(np.int64).astype(np.float64)
            assert abs(np.corrcoef(words, move)[0, 1]) < 6 / np.sqrt(len(move))


def test_the_ready_app_under_secure_sums_gives_the_bits_of_the_serial_engine(
    tmp_path: Path,
) -> None:
    small = {"rounds": 2, "secure": True, "scenario.clients": 4}
    with federation(tmp_path / "federation") as made:
        secured(made)
        made.run(f'{settings(**small)} nodes=4 timeout=300.0 out="run"', timeout=1800)
    expect_bits(tmp_path / "federation" / "run", tmp_path / "serial", **small)
