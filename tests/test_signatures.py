"""Apps that the server sends to a site: signed by the operator, or refused before anything of them
is unpacked.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.version import package_version
from flwr.supernode import start_client_internal as loop
from flwr.supernode.nodestate import NodeStateFactory

from feddraw.errors import UserError
from feddraw.flower import app_signatures, supernode
from feddraw.flower.app_signatures import AppBundle, AppRefused, Signatures
from feddraw.flower.in_process_grid import identify_in_process_grid

APP = Path(supernode.__file__).parent / "deployment" / "app"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
OPERATOR = Ed25519PrivateKey.generate()
FIRST = AppBundle(b"the app", "hospital/app", "1.0")
SECOND = AppBundle(b"the app, mended", "hospital/app", "1.1")


def given(
    folder: Path, *bundles: AppBundle, key: Ed25519PrivateKey = OPERATOR, days: float = 30
) -> Signatures:
    """A site's folder with a signature for each bundle, each a day later than the one before."""
    for number, bundle in enumerate(bundles):
        text = app_signatures.sign_bundle(bundle, key, days=days, now=NOW + timedelta(days=number))
        (folder / f"{number}.signature").write_text(text)
    return Signatures(folder, OPERATOR.public_key())


def check(site: Signatures, bundle: AppBundle, now: datetime = NOW + timedelta(days=3)) -> str:
    return site.check(bundle.content, bundle.app, bundle.version, now).version


def test_a_signed_bundle_is_accepted(tmp_path: Path) -> None:
    assert check(given(tmp_path, FIRST), FIRST) == "1.0"


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (replace(FIRST, content=b"the app!"), "has not signed this bundle"),
        (
            replace(FIRST, app="stranger/app"),
            "signed as hospital/app 1.0, not as what the server calls it",
        ),
        (
            replace(FIRST, version="2.0"),
            "signed as hospital/app 1.0, not as what the server calls it",
        ),
        (SECOND, "has not signed this bundle"),
    ],
)
def test_an_altered_renamed_or_unsigned_bundle_is_refused(
    tmp_path: Path, bundle: AppBundle, words: str
) -> None:
    with pytest.raises(AppRefused, match=words):
        check(given(tmp_path, FIRST), bundle)


def test_a_signature_of_another_key_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(AppRefused, match="is not signed with the operator's key"):
        check(given(tmp_path, FIRST, key=Ed25519PrivateKey.generate()), FIRST)


def test_a_signature_ends(tmp_path: Path) -> None:
    site = given(tmp_path, FIRST, days=2)
    assert check(site, FIRST, NOW + timedelta(days=1.9))
    with pytest.raises(
        AppRefused, match="expired at 2026-03-03T00:00:00Z: ask the operator for a new one"
    ):
        check(site, FIRST, NOW + timedelta(days=2))


def test_the_server_cannot_go_back_to_an_older_version_that_was_signed_once(tmp_path: Path) -> None:
    site = given(tmp_path, FIRST, SECOND)
    assert check(site, SECOND) == "1.1"
    with pytest.raises(AppRefused, match=r"hospital/app 1\.0 was replaced by 1\.1"):
        check(site, FIRST)


@pytest.mark.parametrize(
    "change",
    [
        lambda line, signature: (line.replace(b"1.0", b"1.1"), signature),
        lambda line, signature: (line, signature[:-4] + b"AAA="),
        lambda line, signature: (line, b"no base64"),
        lambda line, signature: (line,),
        lambda line, signature: (line, signature, b"more"),
        lambda line, signature: (b" " + line, signature),
    ],
)
def test_a_changed_signature_file_does_not_count(tmp_path: Path, change: Any) -> None:
    site = given(tmp_path, FIRST)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"\n".join(change(*file.read_bytes().splitlines())))
    with pytest.raises(AppRefused, match="is not signed with the operator's key"):
        check(site, FIRST)


@pytest.mark.parametrize(
    "statement",
    [
        [],
        {"app": "hospital/app"},
        {"purpose": "something else"},
        {"expires": 4_000_000_000},
        {"expires": "some day"},
        {"more": "than is known"},
    ],
)
def test_what_the_operators_key_signed_for_another_purpose_does_not_count(
    tmp_path: Path, statement: Any
) -> None:
    whole = json.loads(app_signatures.sign_bundle(FIRST, OPERATOR, days=1, now=NOW).splitlines()[0])
    line = json.dumps(
        whole | statement if len(statement) == 1 and "app" not in statement else statement
    ).encode()
    file = tmp_path / "odd.signature"
    file.write_bytes(line + b"\n" + app_signatures.base64.b64encode(OPERATOR.sign(line)))
    with pytest.raises(UserError, match="this version"):
        app_signatures.read_signed_statement(file, OPERATOR.public_key())


def test_an_endless_signature_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.signature").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="too large"):
        app_signatures.read_signed_statement(tmp_path / "large.signature", OPERATOR.public_key())


# ------------------------------------------------------------------------------------ Flower's seam


def run_of(bundle: AppBundle, **changes: Any) -> Run:
    said = {"fab_id": bundle.app, "fab_version": bundle.version, "fab_hash": bundle.sha256}
    return replace(Run.create_empty(7), **(said | changes))


def receive(
    bundle: AppBundle, run: Run, site: Signatures, *, run_ends: bool = False
) -> SimpleNamespace:
    """What Flower's own loop stores when the server sends a message, a run and its bundle;
    `run_ends` while the message comes.
    """
    identify_in_process_grid(run=run.run_id, node=2)
    stores = ObjectStoreFactory()
    state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
    state.set_node_id(1)
    message = Message(
        RecordDict({"config": ConfigRecord({"a": 1})}), dst_node_id=1, message_type="train"
    )
    message.metadata.__dict__.update(
        _run_id=run.run_id, _message_id=message.object_id, _src_node_id=2
    )
    objects = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}

    def pull_object(_run: int, key: str) -> bytes:
        if run_ends:
            raise RunNotRunningException
        return objects[key]

    answer = supernode.guarded_pull(loop._pull_and_store_message, site)(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=lambda _: run,
        get_fab=lambda fab_hash, _: Fab(fab_hash, bundle.content, {}),
        pull_object=pull_object,
        confirm_message_received=lambda *_: None,
        trusted_entities=None,
    )
    replies = state.get_messages_legacy(is_reply=True)
    errors = [reply.error.reason for reply in replies if reply.has_error()]
    return SimpleNamespace(
        answer=answer,
        bundle=state.get_fab(bundle.sha256),
        run=state.get_run(7),
        errors=errors,
        waiting=state.get_messages_legacy(is_reply=False),
    )


@pytest.fixture(scope="module")
def ready() -> AppBundle:
    return supernode.read_app_bundle(APP)


def now_given(folder: Path, bundle: AppBundle) -> Signatures:
    (folder / "app.signature").write_text(app_signatures.sign_bundle(bundle, OPERATOR, days=1))
    return Signatures(folder, OPERATOR.public_key())


def test_flower_stores_a_signed_app(tmp_path: Path, ready: AppBundle) -> None:
    found = receive(ready, run_of(ready), now_given(tmp_path, ready))
    assert found.bundle.content == ready.content
    assert found.run is not None
    assert found.errors == []
    assert len(found.waiting) == 1


def test_a_message_whose_run_ends_while_it_comes_is_forgotten(
    tmp_path: Path, ready: AppBundle, caplog: pytest.LogCaptureFixture
) -> None:
    """Its app's process would wait for the rest of it for two hours."""
    found = receive(ready, run_of(ready), now_given(tmp_path, ready), run_ends=True)
    assert found.waiting == []
    assert "its run has ended" in caplog.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fab_hash": "0" * 64}, "another bundle than the run names"),
        ({"fab_id": "feddraw/another"}, "not as what the server calls it"),
        ({"fab_version": "../../elsewhere"}, "not as what the server calls it"),
        ({"primary_task_type": TaskType.AGENT_APP}, "sites run client apps only"),
    ],
)
def test_flower_stores_nothing_where_the_run_calls_a_signed_app_something_else(
    tmp_path: Path, ready: AppBundle, changes: Any, words: str
) -> None:
    found = receive(ready, run_of(ready, **changes), now_given(tmp_path, ready))
    assert (found.bundle, found.run, found.answer) == (None, None, 7)
    assert words in found.errors[0]


def test_flower_stores_nothing_of_an_unsigned_app_and_the_server_is_told(
    tmp_path: Path, ready: AppBundle
) -> None:
    altered = replace(ready, content=ready.content + b" ")
    found = receive(altered, run_of(altered), now_given(tmp_path, ready))
    assert (found.bundle, found.run, found.answer) == (None, None, 7)
    assert "the site refuses the app: the operator has not signed this bundle" in found.errors[0]


def test_a_flower_whose_inside_is_not_known_is_refused() -> None:
    supernode.refuse_unknown_flower(package_version)
    with pytest.raises(
        UserError, match=r"signatures cannot be checked with Flower 1\.42\.0, only with 1\.41\.0"
    ):
        supernode.refuse_unknown_flower("1.42.0")


def test_what_is_signed_is_what_flwr_run_sends_from_a_copy_of_the_app(
    tmp_path: Path, ready: AppBundle
) -> None:
    copy = shutil.copytree(APP, tmp_path / "app")
    os.utime(copy / "pyproject.toml", (0, 0))
    assert supernode.read_app_bundle(copy) == ready
