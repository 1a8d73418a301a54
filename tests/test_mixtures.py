"""`A+B`: which pairs are accepted, and that each half of a mixture has the settings it would have
alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from feddraw import catalog
from feddraw.cli.listing import listed_methods
from feddraw.core import Joint, Method, Server, why_not_first, why_not_second
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment, make_method, parse_settings
from feddraw.experiment.verify import verify
from feddraw.study.plan import read_study
from small import small
from tiny import covering, method_of, server_of, weighting_of

NAMES = catalog.names("methods")
FIRST = [name for name in NAMES if not why_not_first(method_of(name))]
SECOND = [name for name in NAMES if not why_not_second(method_of(name))]
# These make the model themselves, so they take another's local rule only.
JOINT = [name for name in FIRST if isinstance(method_of(name).aggregation, Joint)]
WEIGHTINGS = [name for name in FIRST if name not in JOINT]


def made(method: Any) -> Method:
    return make_method(Experiment(method=method))


def test_the_list_of_methods_says_which_half_each_can_be() -> None:
    listed = {row["name"]: row["in A+B"] for row in listed_methods()}
    for name in NAMES:
        halves = [half for half, names in (("A", FIRST), ("B", SECOND)) if name in names]
        assert listed[name] == (" or ".join(halves) or "neither"), name


def test_every_pair_is_made_of_its_halves_or_refused() -> None:
    alone = {name: made(name) for name in NAMES}
    for first, second in itertools.permutations(NAMES, 2):
        pair = f"{first}+{second}"
        if first in WEIGHTINGS and second in SECOND:
            mixture = made(pair)
            assert weighting_of(mixture) == weighting_of(alone[first]), pair
            assert mixture.local == alone[second].local, pair
            assert server_of(mixture) == server_of(alone[second]), pair
        elif first in JOINT and second in SECOND and type(server_of(alone[second])) is Server:
            mixture = made(pair)
            assert mixture.aggregation == alone[first].aggregation, pair
            assert mixture.local == alone[second].local, pair
        else:
            with pytest.raises(UserError, match=rf"^{first}\+{second}: ({first}|{second}) \w+ "):
                made(pair)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("feddraw+krum", "krum is a weighting only"),
        ("feddraw+median", "median makes model and weights together, so it takes no weights"),
        ("fedlaw+fedadam", "fedlaw makes the model itself, so the server rule of fedadam would"),
        ("ldawa+scaffold", "ldawa makes the model itself, so the server rule of scaffold would"),
        ("feddraw+ldawa", "ldawa makes model and weights together, so it takes no weights"),
        ("feddraw+afl", "afl is a weighting only"),
        ("fedprox+moon", "fedprox has no weighting of its own"),
        ("feddraw+alone", "alone never trains on the common model"),
        ("feddraw+centralised", "centralised trains in one place"),
        ("centralised+fedprox", "centralised trains in one place"),
        ("fedprox+fedprox", "mixes a method with itself: write fedprox"),
    ],
)
def test_a_pair_that_cannot_mean_what_its_name_says_is_refused_with_the_reason(
    name: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        made(name)


def test_a_setting_can_make_a_pair_meaningful() -> None:
    shares = made({"name": "fedlaw+fedadam", "shrink": False})
    assert weighting_of(shares) == weighting_of(made({"name": "fedlaw", "shrink": False}))
    mixture = made({"name": "feddraw+afl", "show": "mean"})
    assert server_of(mixture) == server_of(made({"name": "afl", "show": "mean"}))


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(("first", "second"), covering(WEIGHTINGS, SECOND))
def test_each_half_is_recorded_with_its_own_defaults(first: str, second: str) -> None:
    recorded = complete_settings(Experiment(method=f"{first}+{second}"))
    mixture = make_method(recorded)
    assert weighting_of(mixture) == weighting_of(made(first))
    assert (mixture.local, server_of(mixture)) == (made(second).local, server_of(made(second)))
    assert complete_settings(recorded) == recorded
    assert Experiment.of(recorded.table()) == recorded


def test_defaults_that_were_swapped_before() -> None:
    assert weighting_of(made("fedadp+feddyn")).alpha == 5.0
    assert weighting_of(made("fedeba+moon")).temperature == 0.1
    both: Any = {"name": "fedawa+fedlaw", "fedlaw.shrink": False}
    with pytest.raises(UserError, match="fedlaw is a weighting only"):
        made(both)
    assert complete_settings(Experiment(method="fedadp+feddyn")).method == {
        "name": "fedadp+feddyn",
        "fedadp.alpha": 5.0,
        "feddyn.alpha": 0.01,
        "show": "sent",
    }


def test_a_plain_name_that_both_halves_have_is_refused_and_the_message_says_what_to_write() -> None:
    with pytest.raises(
        UserError,
        match=r"both halves of fedadp\+feddyn have a setting 'alpha': write fedadp.alpha or ",
    ):
        made({"name": "fedadp+feddyn", "alpha": 1.0})


def test_a_setting_of_what_the_mixture_does_not_take_is_refused() -> None:
    for method in (
        {"name": "feddraw+scaffold", "weights": "samples"},
        {"name": "feddraw+fedmgda", "epsilon": 0.5},
        {"name": "afl+fedprox", "show": "mean"},
    ):
        with pytest.raises(UserError, match="changes nothing in"):
            made(method)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="fedprox's setting 'mu' is given twice"):
        made({"name": "feddraw+fedprox", "mu": 0.1, "fedprox.mu": 0.2})


def test_every_way_of_setting_one_half_gives_the_same_method(tmp_path: Path) -> None:
    from feddraw.flower.settings import read_run_config

    wanted = complete_settings(
        Experiment(method={"name": "fedadp+feddyn", "fedadp.alpha": 4.0})
    ).method
    typed = Experiment().with_settings(
        {"method": "fedadp+feddyn"} | parse_settings(["method.fedadp.alpha=4.0"])
    )
    assert complete_settings(typed).method == wanted
    assert (
        read_run_config({"method": "fedadp+feddyn", "set": "method.fedadp.alpha=4.0"})[0].method
        == wanted
    )
    assert (
        read_run_config({"method.name": "fedadp+feddyn", "method.fedadp.alpha": 4.0})[0].method
        == wanted
    )
    file = tmp_path / "experiment.toml"
    file.write_text('[method]\nname = "fedadp+feddyn"\nfedadp.alpha = 4.0\n')
    assert complete_settings(Experiment.read(file)).method == wanted
    study = tmp_path / "study.toml"
    study.write_text('[method]\nname = "fedadp+feddyn"\nfedadp.alpha = [4.0, 5.0]\n')
    planned = read_study(study)
    settings = [run.completed.section("method")[1] for run in planned]
    assert [method["fedadp.alpha"] for method in settings] == [4.0, 5.0]
    assert len({one.label["method"] for one in planned}) == 2


def test_a_recorded_setting_can_be_changed_with_or_without_the_methods_name(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(complete_settings(Experiment(method="feddraw+fedprox")).table()))
    for path in ("method.mu", "method.fedprox.mu"):
        changed = complete_settings(Experiment.read(file).with_settings({path: 0.5}))
        assert changed.section("method")[1]["mu"] == 0.5


def test_a_mixture_resumes_and_verifies_from_what_it_recorded(tmp_path: Path) -> None:
    experiment = small(**{"method": "fedadp+feddyn", "method.fedadp.alpha": 4.0, "rounds": 2})
    rounds = iterate(experiment, tmp_path / "run")
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    recorded = Experiment.read(tmp_path / "run" / "experiment.toml")
    assert make_method(recorded) == make_method(experiment)
    assert [result.round for result in run(recorded, tmp_path / "run", resume=True)] == [1]
    assert verify(tmp_path / "run").same
