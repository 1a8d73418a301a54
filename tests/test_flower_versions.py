"""What older Flowers lack is told with the version that has it; what they have works there too."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest
from flwr.serverapp import Grid

from feddraw.errors import UserError
from feddraw.experiment.running import run
from feddraw.flower.roster import Roster
from small import small
from test_flower_deployment import FILES, script, settings

KEY = f"SHA256:{'a' * 43}"


class OlderGrid:
    """A Grid as before 1.38: nodes have no keys."""

    def get_node_ids(self) -> list[int]:
        return [7]


def test_a_list_of_keys_is_refused_where_flower_does_not_tell_them_and_node_ids_still_count() -> (
    None
):
    with pytest.raises(UserError, match=r"North is given by its key, .* pip install 'flwr>=1\.38'"):
        Roster({"North": KEY}).meet(OlderGrid())  # type: ignore[arg-type]
    roster = Roster({"North": 7})
    roster.meet(OlderGrid())  # type: ignore[arg-type]
    assert roster.name_of(7) == "North"


def test_a_flower_without_the_seam_says_which_version_signatures_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "feddraw.flower.supernode", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.supernode", None)
    with pytest.raises(UserError, match=r"signatures need Flower 1\.41\.0, and this is"):
        import_module("feddraw.flower.supernode")


# -------------------------------------------------------------------------------- this Flower's own


def test_this_flower_tells_the_keys_of_its_nodes() -> None:
    if not hasattr(Grid, "get_nodes"):
        pytest.skip("sites are known by their keys from Flower 1.38 on; here by their node ids")


def test_this_flower_lets_sites_check_signatures() -> None:
    try:
        import_module("feddraw.flower.supernode").refuse_unknown_flower()
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.skipif("FEDDRAW_MATRIX" not in os.environ, reason="`make matrix` runs it")
def test_a_superlink_and_three_supernodes_of_this_flower_give_the_bits_of_the_serial_engine(
    tmp_path: Path,
) -> None:
    with script().federation(tmp_path / "federation", secure=False) as made:
        for number in range(3):
            made.supernode(f"node{number}", f"partition-id={number}")
        said = made.run(
            f'{settings(rounds=2)} nodes=3 wait=300.0 timeout=300.0 out="run"', timeout=600
        )
    assert "round 2/2: C1 0.333  C2 0.333  C3 0.333" in said
    list(run(small(rounds=2), tmp_path / "serial"))
    for name in FILES:
        assert (tmp_path / "federation" / "run" / name).read_bytes() == (
            tmp_path / "serial" / name
        ).read_bytes()
