"""The properties that every method must have, checked on made-up updates without training.

`feddraw check-method package.module:function` runs them on anyone's own method, and the tests run
them on every method of the package. Each property is a function that returns nothing, or says in
words what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from feddraw.core import (
    AfterFirstSum,
    Column,
    Entry,
    Extra,
    Facts,
    Joint,
    Layout,
    Method,
    Model,
    SelfScored,
    State,
    Sums,
    Update,
    Vector,
    own_weight,
    own_weight_range,
    why_no_policy,
    why_not_secure,
    why_not_streaming,
)
from feddraw.errors import UserError
from feddraw.server.collectors import (
    CohortSums,
    NotWeightsError,
    Streaming,
    Together,
    weigh_cohort,
)
from feddraw.server.policy import Policy
from feddraw.server.round import Collector, Round, RoundResult
from feddraw.server.status import StatusKind

CLIENTS = ("North", "East", "South", "West", "Centre")
SIZES = (40, 24, 16, 9, 31)
FEATURES = 6
FINDINGS = 3
ROUNDS = 4
CLOSE = 1e-9  # of weights that two ways of computing them may differ by


@dataclass(frozen=True)
class Property:
    """One property of a method, and what was found: empty where it holds."""

    name: str
    wrong: str
    applies: bool = True  # False: the method does not do what the property is about


class MadeUpImages:
    """Labelled images at the server, made up: the loss is a distance to a fixed point."""

    def __init__(self, target: Vector) -> None:
        self._target = target

    def loss(self, model: Model) -> float:
        return float(np.mean((model.params - self._target) ** 2))

    def gradients(self, seed: int) -> Iterator[Callable[[Vector], Vector]]:
        yield lambda params: (2 * (params - self._target) / len(params)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class MadeUpFederation:
    """A sent model, and updates that clients could have trained from it."""

    method: Method
    sent: Model
    updates: tuple[Update, ...]
    state: State = field(default_factory=dict)

    @staticmethod
    def of(method: Method, seed: int = 0) -> MadeUpFederation:
        rng = np.random.default_rng(seed)
        sent = _model(rng, layout(), scale=1.0)
        method.check(sent.layout)
        updates = tuple(
            _update(method, client, size, sent, rng) for client, size in enumerate(SIZES)
        )
        return MadeUpFederation(method, sent, updates, method.init(sent))

    def round(self, number: int = 1, state: State | None = None) -> Round:
        return Round(
            number=number,
            rounds=ROUNDS,
            sent=self.sent,
            method=self.method,
            state=self.state if state is None else state,
            clients=CLIENTS,
            sampled=range(len(CLIENTS)),
        )

    def together(self, policy: Policy | None = None) -> Collector:
        return Together(policy=policy or Policy(), proxy=MadeUpImages(self.sent.params * 0.9))


def layout() -> Layout:
    """A layer, batch norm and a classifier."""
    entries = (
        Entry("body.weight", "param", (FEATURES, 4), 0, "float32"),
        Entry("norm.weight", "param", (FEATURES,), FEATURES * 4, "float32"),
        Entry("norm.running_mean", "buffer", (FEATURES,), 0, "float32"),
        Entry("norm.running_var", "buffer", (FEATURES,), FEATURES, "float32"),
        Entry("norm.num_batches_tracked", "counter", (), 0, "int64"),
        Entry("head.weight", "param", (FINDINGS, FEATURES), FEATURES * 5, "float32"),
        Entry("head.bias", "param", (FINDINGS,), FEATURES * (5 + FINDINGS), "float32"),
    )
    return Layout(entries, "head")


def _model(rng: np.random.Generator, shape: Layout, scale: float) -> Model:
    params = (scale * rng.normal(size=shape.length("param"))).astype(np.float32)
    buffers = np.abs(rng.normal(size=shape.length("buffer"))).astype(np.float32)
    return Model(params, buffers, np.zeros(shape.length("counter"), np.int64), shape)


def _update(
    method: Method, client: int, size: int, sent: Model, rng: np.random.Generator
) -> Update:
    steps = max(1, size // 8)
    move = _model(rng, sent.layout, scale=0.02 * steps)
    model = replace(
        sent,
        params=sent.params + move.params,
        buffers=sent.buffers + 0.1 * move.buffers,
        counters=sent.counters + steps,
    )
    extra = {e.name: _honest(e, sent.layout, rng) for e in method.extras.values()}
    return Update(client, model, size, steps, {"loss": float(rng.uniform(0.2, 0.9))}, extra)


def _honest(extra: Extra, shape: Layout, rng: np.random.Generator) -> Vector:
    """What an honest client could send."""
    length = shape.extent(extra.extent)
    if extra.extent == "groups":
        positives = rng.integers(5, 9, (2, shape.outputs))
        called = rng.integers(0, 5, (2, shape.outputs))
        return np.concatenate([positives.ravel(), called.ravel(), [30, 20]]).astype(np.float32)
    if extra.extent in ("params", "model", "classifier"):
        return (0.01 * rng.normal(size=length)).astype(np.float32)
    low = max(extra.low, 0.5)
    return rng.uniform(low, min(extra.high, low + 4.0), length).astype(np.float32)


# ------------------------------------------------------------------------------ the properties


def weights_are_shares(made: MadeUpFederation) -> str:
    """Weights of a weighted method sum to one, and none is negative."""
    rule = made.method.aggregation
    if isinstance(rule, Joint):
        return ""
    cohort = made.round().cohort(made.updates, MadeUpImages(made.sent.params * 0.9))
    weights, _ = weigh_cohort(rule.weighting, cohort, made.state["weighting"])
    columns = {"weights": weights.values} | {piece.name: piece.values for piece in weights.pieces}
    for name, values in columns.items():
        if values.shape != (len(CLIENTS),):
            return f"{name} of shape {values.shape} for {len(CLIENTS)} clients"
        if not np.isfinite(values).all() or (values < 0).any():
            return f"{name} that are negative or no numbers: {values}"
        if abs(values.sum() - 1) > CLOSE:
            return f"{name} that sum to {values.sum():.12g}, not to 1"
    return ""


def order_does_not_matter(made: MadeUpFederation) -> str:
    """The result does not depend on who answers first."""
    collect = made.together()
    first = collect(made.round(), made.updates)
    second = collect(made.round(), tuple(reversed(made.updates)))
    return _difference(first, second, exactly=True)


def the_same_twice(made: MadeUpFederation) -> str:
    """A second call with the same arguments gives the same bits, and changes no argument."""
    collect = made.together()
    before = made.sent.params.copy(), [update.model.params.copy() for update in made.updates]
    first = collect(made.round(), made.updates)
    second = collect(made.round(), made.updates)
    sent, models = before
    if not np.array_equal(sent, made.sent.params):
        return "the sent model was changed"
    pairs = zip(models, made.updates, strict=True)
    if not all(np.array_equal(model, update.model.params) for model, update in pairs):
        return "a client's model was changed"
    return _difference(first, second, exactly=True)


def state_goes_on(made: MadeUpFederation) -> str:
    """Later rounds work with the state of earlier ones, and give finite models."""
    collect = made.together()
    state = made.state
    for number in range(ROUNDS):
        result = collect(made.round(number, state), made.updates)
        if not np.isfinite(result.model.params).all():
            return f"a model that is not finite after round {number}"
        if not result.weights:
            return f"nobody is weighted in round {number}: {result.ledger[0].status}"
        state = result.state
    return ""


def missing_clients_are_no_trouble(made: MadeUpFederation) -> str:
    """Some of the clients, or one alone, are enough for a round."""
    collect = made.together()
    for present in (made.updates[1:4], made.updates[:1]):
        result = collect(made.round(), present)
        if not np.isfinite(result.model.params).all():
            return f"a model that is not finite with {len(present)} client(s)"
    return ""


def broken_updates_are_refused(made: MadeUpFederation) -> str:
    """An update with a number that is none is refused by name, and the others are aggregated."""
    broken = made.updates[2]
    params = broken.model.params.copy()
    params[0] = np.nan
    spoilt = replace(broken, model=replace(broken.model, params=params))
    result = made.together()(made.round(), (*made.updates[:2], spoilt, *made.updates[3:]))
    entry = result.ledger[2]
    if entry.kind is not StatusKind.REFUSED:
        return f"a model with NaN was {entry.status}"
    if not np.isfinite(result.model.params).all():
        return "the others' model is not finite"
    return ""


def findings_that_some_do_not_label(made: MadeUpFederation) -> str:
    """A row that nobody labels stays as it was sent, to the bit."""
    labelled = np.array([True, True, False])
    updates = [replace(update, labelled=labelled) for update in made.updates]
    result = made.together()(made.round(), updates)
    for row in made.sent.layout.rows_of(2):
        if not np.array_equal(result.next_model.params[row], made.sent.params[row]):
            return "the row of a finding that nobody labels has changed"
    return ""


def steps_are_asked_for(made: MadeUpFederation) -> str:
    """A rule that does not ask for steps works where clients do not tell them."""
    if made.method.needs.steps:
        return ""
    if trouble_with_steps := state_goes_on(made):
        return trouble_with_steps  # then it is not the steps
    updates = [replace(update, steps=None) for update in made.updates]
    result = made.together()(made.round(), updates)
    if not result.weights or not np.isfinite(result.model.params).all():
        status = result.ledger[0].status
        return f"it computes with steps ({status}): declare needs = Needs(steps=True)"
    return ""


def streaming_gives_the_same_weights(made: MadeUpFederation) -> str:
    """Where it streams, adding up one by one gives the weights of all together."""
    if why_not_streaming(made.method):
        return ""
    together = made.together()(made.round(), made.updates)
    streamed = Streaming(SIZES)(made.round(), made.updates)
    return _difference(together, streamed, exactly=False)


def secure_clients_give_the_same_weights(made: MadeUpFederation) -> str:
    """Where it works under secure sums, clients that weigh themselves, within the range that the
    others can check, get the weights of all together.
    """
    rule = made.method.aggregation
    if why_not_secure(made.method) or isinstance(rule, Joint):
        return ""
    weighting = rule.weighting
    if not isinstance(weighting, SelfScored):
        return "it is said to be secure, but its clients cannot score themselves"
    cohort = made.round().cohort(made.updates)
    expected, _ = weigh_cohort(weighting, cohort, made.state["weighting"])
    facts = _facts_after_first_sum(weighting, cohort.facts(), made)
    views = cohort.views()
    own_weights = np.array([own_weight(weighting, views[i], facts, i) for i in range(len(views))])
    for place, weight in enumerate(own_weights):
        low, high = own_weight_range(weighting, facts, place)
        if not low - CLOSE <= weight <= high + CLOSE:
            return (
                f"{CLIENTS[place]} has exp(score) = {weight:.6g} times the reference, outside of"
                f" what score_range allows: {low:.6g} to {high:.6g}"
            )
    apart = np.abs(own_weights / own_weights.sum() - expected.values).max()
    return "" if apart <= CLOSE else f"weights that differ by {apart:.2g}"


def sums_are_all_that_the_server_sees(made: MadeUpFederation) -> str:
    """Where it streams or works under secure sums, the server's step needs no client's model."""
    method = made.method
    rule = method.aggregation
    closed = not why_not_streaming(method) or not why_not_secure(method)
    if isinstance(rule, Joint) or not closed:
        return ""
    cohort = made.round().cohort(made.updates)
    weights, _ = weigh_cohort(rule.weighting, cohort, made.state["weighting"])
    all_updates, _ = CohortSums.measured(rule, cohort, weights)
    sums_only = _SumsOnly(
        cohort=made.round().closed_cohort(
            [replace(update, model=made.sent) for update in made.updates]
        ),
        weights=weights,
        coefficients=all_updates.coefficients,
        total=all_updates.total,
        summed=all_updates,
    )
    expected, _ = rule.server.step(all_updates, made.state["server"])
    params, _ = rule.server.step(sums_only, made.state["server"])
    return "" if np.array_equal(params, expected) else "another model from the sums alone"


@dataclass(frozen=True, eq=False)
class _SumsOnly(Sums):
    """The sums of a round, without the updates that they are over."""

    summed: CohortSums

    def moved_by(self, by: Column, span: slice) -> Vector:
        return self.summed.moved_by(by, span)

    def extra_by(self, name: str, by: Column, span: slice) -> Vector:
        return self.summed.extra_by(name, by, span)


def _facts_after_first_sum(weighting: SelfScored, facts: Facts, made: MadeUpFederation) -> Facts:
    """The facts after the first of two sums, where the rule has two."""
    if not isinstance(weighting, AfterFirstSum):
        return facts
    views = made.round().cohort(made.updates).views()
    places = range(len(views))
    total = np.sum([weighting.contribute(views[i], facts, i) for i in places], axis=0)
    concluded, _, _ = weighting.conclude(total, facts, places, made.state["weighting"])
    return replace(facts, concluded=concluded)


def a_policy_holds(made: MadeUpFederation) -> str:
    """Where it takes a policy, no client is weighted above a cap."""
    if why_no_policy(made.method):
        return ""
    cap = 0.25
    result = made.together(Policy(cap=cap))(made.round(), made.updates)
    allowed = [entry.allowed for entry in result.ledger]
    most = max(allowed)
    return "" if most <= cap + CLOSE else f"a weight of {most:.6g} under a cap of {cap}"


PROPERTIES: Mapping[str, Callable[[MadeUpFederation], str]] = {
    "weights are shares": weights_are_shares,
    "the order of answers does not matter": order_does_not_matter,
    "the same arguments give the same bits": the_same_twice,
    "state goes from round to round": state_goes_on,
    "missing clients are no trouble": missing_clients_are_no_trouble,
    "broken updates are refused by name": broken_updates_are_refused,
    "unlabelled rows stay as they were": findings_that_some_do_not_label,
    "steps are used only where asked for": steps_are_asked_for,
    "streaming gives the same weights": streaming_gives_the_same_weights,
    "self-weighed clients get the same weights": secure_clients_give_the_same_weights,
    "the server needs sums only": sums_are_all_that_the_server_sees,
    "a policy's cap holds": a_policy_holds,
}


def _not_applicable(method: Method) -> set[str]:
    """The properties that are about what this method does not do."""
    streams = not why_not_streaming(method)
    secure = not why_not_secure(method)
    names = set()
    if not streams:
        names.add("streaming gives the same weights")
    if not secure:
        names.add("self-weighed clients get the same weights")
    if not streams and not secure:
        names.add("the server needs sums only")
    if why_no_policy(method):
        names.add("a policy's cap holds")
    return names


def check_method(method: Method) -> list[Property]:
    """Every property, with what is wrong about it; a rule that raises is wrong too.

    A rule that does not return weights is refused: every property would say the same.
    """
    not_applicable = _not_applicable(method)
    properties = []
    for name, check in PROPERTIES.items():
        try:
            wrong = check(MadeUpFederation.of(method))
        except NotWeightsError:
            raise
        except UserError as error:
            wrong = str(error)
        except Exception as error:  # somebody's own code may raise anything
            wrong = f"{type(error).__name__}: {error}"
        properties.append(Property(name, wrong, applies=name not in not_applicable))
    return properties


def _difference(first: RoundResult, second: RoundResult, *, exactly: bool) -> str:
    """What differs between two results of one round."""
    for entry, same_entry in zip(first.ledger, second.ledger, strict=True):
        if abs(entry.weight - same_entry.weight) > (0.0 if exactly else CLOSE):
            return (
                f"{entry.client} has the weight {entry.weight:.12g}, and {same_entry.weight:.12g}"
            )
    if exactly and not np.array_equal(first.model.params, second.model.params):
        return "other bits in the model"
    if not np.allclose(first.model.params, second.model.params, atol=1e-5):
        return "another model"
    return ""


def properties_that_apply(method: Method) -> Sequence[str]:
    """In words, what a method can do beside all updates together."""
    answers = {
        "streaming": why_not_streaming(method),
        "secure sums": why_not_secure(method),
        "a policy": why_no_policy(method),
    }
    return [
        f"{what}: yes" if not why else f"{what}: no, because {why}" for what, why in answers.items()
    ]
