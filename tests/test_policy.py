"""A policy above every rule: the nearest weights within the limits, for every method, and told in
the ledger.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from feddraw import catalog
from feddraw.analysis.explain_weights import explain_run_weights
from feddraw.analysis.weights_in_words import weights_in_sentences
from feddraw.core import Factored, why_no_policy
from feddraw.errors import UserError
from feddraw.experiment.completion import complete_settings
from feddraw.experiment.run_preparation import prepare
from feddraw.experiment.running import iterate, run
from feddraw.experiment.settings import Experiment, make_method
from feddraw.methods.fedavg import fedavg
from feddraw.methods.feddraw import feddraw
from feddraw.methods.feddraw_by_class import feddraw_by_class
from feddraw.report import ReportSettings, write_report
from feddraw.results.recorded_run import read_run
from feddraw.results.run_folder import RunFolder
from feddraw.server.collectors import Streaming
from feddraw.server.policy import Policy, nearest_within_limits, policy_of, read_clause
from feddraw.system.file_reading import read_csv
from small import small
from tiny import SIZES, Altered, bench, same, server_images, train, with_server

FEWER = {"fedlaw": {"epochs": 1}}
METHODS = {
    name: make_method(Experiment(method={"name": name} | FEWER.get(name, {})))
    for name in catalog.names("methods")
}
REFUSED = {"fednova", "qfedavg", "median", "trimmed_mean", "ldawa", "fedlaw", "krum"}
MOST = 10**7  # images that the gate lets a client say


# ----------------------------------------------------------------------------------- the projection


@st.composite
def problems(draw):
    """A point, and limits within which some vector sums to one."""
    count = draw(st.integers(1, 12))
    share = st.floats(0, 1, allow_nan=False, width=32)
    point = np.array(draw(st.lists(st.floats(-2, 2, width=32), min_size=count, max_size=count)))
    inside = np.array(draw(st.lists(share, min_size=count, max_size=count))) + 1e-3
    inside /= inside.sum()
    below, above = (
        np.array(draw(st.lists(share, min_size=count, max_size=count))) for _ in range(2)
    )
    return point, inside * (1 - below), inside + above * (1 - inside)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_projection_keeps_its_optimality_conditions(problem):
    """Karush, Kuhn and Tucker: one shift for all that are free, none smaller at a cap, none larger
    at a floor.
    """
    point, lower, upper = problem
    found = nearest_within_limits(point, lower, upper)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert (found >= lower).all()
    assert (found <= upper).all()
    shift = point - found
    at_lower, at_upper = found == lower, found == upper
    highest = min(
        shift[~at_lower & ~at_upper].tolist() + shift[at_upper & ~at_lower].tolist(), default=np.inf
    )
    lowest = max(
        shift[~at_lower & ~at_upper].tolist() + shift[at_lower & ~at_upper].tolist(),
        default=-np.inf,
    )
    assert lowest <= highest + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_projection_is_that_of_a_general_solver(seed):
    rng = np.random.default_rng(seed)
    inside = rng.dirichlet(np.ones(6))
    lower, upper = inside * rng.random(6), inside + (1 - inside) * rng.random(6) ** 2
    point = rng.dirichlet(np.full(6, 0.3))
    expected = minimize(
        lambda x: ((x - point) ** 2).sum(),
        inside,
        jac=lambda x: 2 * (x - point),
        bounds=list(zip(lower, upper, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x
    assert nearest_within_limits(point, lower, upper) == pytest.approx(expected, abs=1e-6)


def test_weights_within_the_limits_keep_their_bits():
    weights = np.array([0.1, 0.2, 0.7])
    assert nearest_within_limits(weights, np.zeros(3), np.ones(3)) is weights


# ------------------------------------------------------------------------------------- every method


def told(policy, name="feddraw", rounds=3, change=None, **options):
    """A small federation under a policy."""
    engine = Altered(bench(METHODS[name]), change or (lambda updates: updates))
    return train(
        METHODS[name], rounds=rounds, engine=engine, policy=policy, proxy=server_images(), **options
    )


def test_the_methods_that_refuse_a_policy_are_these():
    assert {name for name, method in METHODS.items() if why_no_policy(method)} == REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_method_that_limits_would_not_limit_refuses_a_policy_and_says_why(name):
    with pytest.raises(UserError, match=r"a policy cannot limit the weights of this method: it"):
        complete_settings(small(method=name, **{"policy.cap": 0.5}))
    complete_settings(small(method=name, **{"policy.max_size": 100}))


@pytest.mark.parametrize("name", sorted(METHODS.keys() - REFUSED))
def test_the_limits_hold_for_every_method_that_takes_a_policy(name):
    policy = Policy(floor=0.1, cap_times=1.4, fixed="South=0.15")
    for result in told(policy, name):
        allowed = {entry.client: entry.allowed for entry in result.ledger}
        assert sum(allowed.values()) == pytest.approx(1, abs=1e-9)
        assert allowed["South"] == 0.15
        assert all(0.1 <= share <= 0.35 for share in allowed.values())
        assert {entry.clause for entry in result.ledger if entry.client == "South"} == {"fixed"}
        assert sum(entry.proposed for entry in result.ledger) == pytest.approx(1, abs=1e-9)
        if name != "fedmgda":  # it makes all moves equally long, which its coefficients show
            total = sum(entry.weight for entry in result.ledger)
            assert [entry.weight for entry in result.ledger] == pytest.approx(
                [total * s for s in allowed.values()]
            )


@pytest.mark.parametrize("name", ["feddraw", "scaffold", "fedadam", "feddyn"])
def test_limits_that_nobody_meets_change_no_bit(name):
    for plain, limited in zip(
        told(None, name), told(Policy(cap=0.99, floor=0.001), name), strict=True
    ):
        assert same(plain.next_model, limited.next_model)
        assert [e.status for e in limited.ledger] == ["weighted"] * 4
        assert [e.weight for e in plain.ledger] == [e.weight for e in limited.ledger]


def test_layers_and_classes_with_weights_of_their_own_keep_the_limits():
    policy = Policy(cap_times=1.02)
    result = train(feddraw_by_class(), rounds=3, policy=policy)[1]
    assert result.pieces
    assert all(entry.weight <= 1.02 / 4 for entry in result.pieces)
    assert any(
        entry.clause == "cap_times" and entry.proposed > entry.weight for entry in result.pieces
    )


class BySteps(Factored):
    """A rule of one's own that multiplies moves with what their clients report."""

    def factor(self, client):
        return client.update.steps

    def term(self, client):
        return client.update.steps

    def scale_by(self, mean_term):
        return 1 / mean_term


def test_a_rule_of_ones_own_that_goes_past_the_limits_is_refused():
    method = with_server(fedavg(), BySteps())
    with pytest.raises(UserError, match="a policy cannot limit the weights of this method"):
        Policy(cap=0.4).check_method(method)


# ---------------------------------------------------------------------------------------- the claim


def boasting(size, client=3):
    return lambda updates: [replace(u, size=size) if u.client == client else u for u in updates]


def shares(results, client="West"):
    return [result.weights[client] for result in results]


def test_a_site_that_says_ten_million_images_takes_the_first_round_without_a_policy_and_its_cap_with_one():
    assert shares(told(None, change=boasting(MOST)))[0] > 0.9999
    capped = told(Policy(cap_times=1.6), change=boasting(MOST))
    assert max(shares(capped)) <= 0.4
    west = capped[0].ledger[3]
    assert (west.weight, west.allowed, west.clause) == (0.4, 0.4, "cap_times")
    assert west.proposed > 0.9999
    assert west.status == "weighted: weight held down from 1 to 0.4 by policy.cap_times"


def test_a_largest_believable_size_acts_before_any_rule_sees_sizes():
    believed = told(Policy(max_size=20), change=boasting(MOST))
    honest = told(Policy(max_size=20), change=boasting(20))
    for one, other in zip(believed, honest, strict=True):
        assert same(one.model, other.model)
    west = believed[0].ledger[3]
    assert (west.size, west.status) == (
        20,
        f"weighted: says {MOST} images, 20 count (policy.max_size)",
    )
    by_median = told(Policy(max_size_times=2.0), change=boasting(MOST))
    assert by_median[0].ledger[3].size == 64  # of 40, 24, 16 and ten million the median is 32
    two = train(fedavg(), clients=2, policy=Policy(max_size_times=1.0))[0]
    assert [entry.size for entry in two.ledger] == [40, 24]  # of two clients each moves the median


def test_a_believable_size_holds_in_a_stream_and_limits_on_weights_are_refused_there():
    policy = Policy(max_size=20)
    limited = train(feddraw(), collect=Streaming(SIZES, policy=policy))[0]
    at_once = train(feddraw(), policy=policy)[0]
    assert [entry.size for entry in limited.ledger] == [20, 20, 16, 9]
    assert limited.ledger[0].status == "weighted: says 40 images, 20 count (policy.max_size)"
    assert list(limited.weights.values()) == pytest.approx(list(at_once.weights.values()))
    with pytest.raises(UserError, match="a stream adds an update before all weights are known"):
        Streaming(SIZES, policy=Policy(cap=0.5))
    with pytest.raises(UserError, match="a stream adds an update before all weights are known"):
        complete_settings(small(stream=True, **{"policy.floor": 0.1}))


# ------------------------------------------------------------------------------------- who is there


def test_a_client_that_a_fixed_weight_leaves_nothing_is_not_said_to_be_held_by_a_floor_that_nobody_set():
    result = told(Policy(fixed="North=0.97"))[0]
    assert 0 in result.weights.values()
    assert {entry.clause for entry in result.ledger} == {"fixed", ""}


def test_limits_that_the_clients_present_cannot_keep_are_eased_by_one_factor_and_told():
    result = told(Policy(cap=0.3), change=lambda updates: updates[:2])[0]
    assert result.weights == {"North": 0.5, "East": 0.5}
    assert {e.clause for e in result.ledger[:2]} == {"cap eased"}
    assert result.ledger[0].status == "weighted: too few clients for policy.cap, eased to 0.5"
    alone = told(Policy(fixed="South=0.15"), change=lambda updates: updates[2:3])[0]
    assert (alone.weights, alone.ledger[2].clause) == ({"South": 1.0}, "fixed eased")


def test_a_fixed_share_of_an_absent_client_goes_to_the_others():
    result = told(
        Policy(fixed="South=0.4"), change=lambda updates: [u for u in updates if u.client != 2]
    )[0]
    assert sum(result.weights.values()) == pytest.approx(1)
    assert result.ledger[2].status == "missing"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap": 1.5}, "policy.cap must be a share from 0 to 1"),
        ({"floor": -0.1}, "policy.floor must be a share from 0 to 1"),
        ({"floor_times": 1.2}, "policy.floor_times must be from 0 to 1, not"),
        ({"cap_times": 0.5}, "policy.cap_times must be 0 .no cap. or at least 1"),
        ({"floor": 0.4, "cap": 0.3}, "policy.floor = 0.4 is above policy.cap = 0.3"),
        ({"fixed": "C1=0.7, C2=0.7"}, "policy.fixed adds up to 1.4: it must be at most 1"),
        ({"fixed": "C1"}, "policy.fixed must read like"),
        ({"fixed": "C1=0.1, C1=0.2"}, "each client once"),
        ({"max_size": -1}, "policy.max_size must be a number of images"),
        ({"max_size_times": 0.5}, "policy.max_size_times must be 0 .no limit. or at least 1"),
        ({"cap": float("nan")}, "policy.cap must be a share"),
        ({"caps": 0.5}, "policy has no setting 'caps'"),
        ({"cap": "high"}, "policy.cap must be a number"),
    ],
)
def test_a_policy_that_no_federation_can_keep_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        policy_of(settings)
    if "policy has no" not in message and "a number, not" not in message:
        with pytest.raises(UserError, match=message):
            complete_settings(Experiment(policy=settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy.floor": 0.4},
            (
                r"impossible with 3 clients: their minimum weights add up to 1.2, more than 1:"
                r" lower policy.floor"
            ),
        ),
        (
            {"policy.cap": 0.3},
            (
                r"impossible with 3 clients: their maximum weights add up to 0.9, less than 1:"
                r" raise policy.cap"
            ),
        ),
        ({"policy.fixed": "C1=0.9", "policy.floor": 0.1}, "their minimum weights add up to 1.1"),
        (
            {"policy.floor": 0.3, "policy.fixed": "C1=0.4, C2=0.4", "policy.cap": 0.3},
            "their minimum weights",
        ),
        ({"policy.fixed": "C1=0.3, C2=0.3, C3=0.3"}, r"0\.9.*policy\.fixed"),
        ({"policy.fixed": "C9=0.4"}, "no 'C9' among the clients"),
    ],
)
def test_a_policy_that_these_clients_cannot_keep_is_refused_before_the_first_round(
    settings, message
):
    with pytest.raises(UserError, match=message):
        prepare(small(**settings))


# --------------------------------------------------------------------------------------------- runs


POLICY = {"policy.cap_times": 1.2, "policy.floor": 0.2}


def test_every_engine_gives_the_same_bits_and_a_killed_run_goes_on_to_them(tmp_path, monkeypatch):
    monkeypatch.setattr("feddraw.flower.engine.installed", lambda name: False)
    for engine in ("serial", "processes", "flower"):
        list(run(small(rounds=2, engine=engine, workers=1, **POLICY), tmp_path / engine))
    begun = iterate(small(rounds=2, **POLICY), tmp_path / "killed")
    next(begun)
    begun.close()
    with pytest.raises(UserError, match=r"was run with policy.cap_times = 1.2, not 1.3"):
        list(
            run(
                small(rounds=2, **POLICY | {"policy.cap_times": 1.3}),
                tmp_path / "killed",
                resume=True,
            )
        )
    list(run(small(rounds=2, **POLICY), tmp_path / "killed", resume=True))
    for name in ("model.safetensors", "weights.csv", "metrics.json"):
        files = {
            (tmp_path / f / name).read_bytes() for f in ("serial", "processes", "flower", "killed")
        }
        assert len(files) == 1, name


def test_the_ledger_explain_and_the_report_tell_where_a_policy_decided(tmp_path):
    list(run(small(**POLICY), tmp_path / "run"))
    lines = read_csv(tmp_path / "run" / "weights.csv")
    first = next(line for line in lines if line["client"] == "C1")
    assert (first["weight"], first["allowed"], first["clause"]) == (
        "0.39999999999999997",
        first["weight"],
        "cap_times",
    )
    assert float(first["proposed"]) > 0.5
    found = explain_run_weights(read_run(tmp_path / "run"))
    said = " ".join(weights_in_sentences(found))
    assert "policy.cap_times lowered the weight of C1 in round 0: from 54.6 % to 40.0 %." in said
    assert found.from_policy is not None
    total = found.from_size + found.from_similarity + found.from_policy
    assert total == pytest.approx(found.shares - 1 / 3, abs=1e-9)
    write_report([tmp_path / "run"], tmp_path / "report", settings=ReportSettings(replicates=10))
    assert "A policy limited weights of feddraw" in (tmp_path / "report" / "report.md").read_text()


def test_a_policy_comes_from_a_file_that_all_sites_have(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('[policy]\ncap_times = 2.0\nfixed = "North=0.3"\n')
    assert policy_of(file) == policy_of(str(file)) == Policy(cap_times=2.0, fixed="North=0.3")
    assert policy_of(None) == policy_of("") == Policy()
    (tmp_path / "other.toml").write_text("cap = 0.5\n")
    with pytest.raises(UserError, match=r"other.toml has no section \[policy\]"):
        policy_of(tmp_path / "other.toml")


def test_a_run_folder_without_a_policy_has_blank_columns_for_it(tmp_path: Path):
    list(run(small(rounds=1), tmp_path))
    for line in read_csv(RunFolder(tmp_path).ledger):
        assert (line["proposed"], line["allowed"], line["clause"], line["status"]) == (
            "",
            "",
            "",
            "weighted",
        )


def test_pooled_images_have_no_clients_to_limit():
    (result,) = run(small(method="centralised", rounds=1, **{"policy.cap": 0.5}))
    assert result.ledger[0].status == "weighted"


@pytest.mark.parametrize("text", ["", "cap", "floor_times", "fixed eased", "cap_times unmet"])
def test_a_clause_in_a_ledger_is_read_as_it_was_written(text: str):
    clause = read_clause(text)
    assert ("" if clause is None else str(clause)) == text


@pytest.mark.parametrize("text", ["max_size", "cap ", "cap lifted", "floor unmet", "eased", " "])
def test_a_clause_that_no_policy_has_is_refused(text: str):
    with pytest.raises(ValueError, match=r"clause|Effect"):
        read_clause(text)
