"""Every message of a secure round, taken in hand: sent twice, out of turn, in part, as another
type, after a restart, too large, or in place of another's.

A server that lies to North gets a refusal, the same answer once more, or what the table of
docs/privacy.md names; afterwards the honest round goes on, and its sum is right. A site that lies
(West) is refused by name and the others go on, or there is no sum and the model stays as it was.
Nothing ends in a traceback.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from feddraw.errors import RunFailed, UserError
from feddraw.flower import secure_messages, secure_site_memory
from feddraw.flower.array_records import pack_array
from feddraw.flower.evaluation_record import TakenEvaluations
from feddraw.flower.secure_server import SecureRounds
from feddraw.methods.feddisco import feddisco
from feddraw.methods.feddyn import feddyn
from feddraw.methods.fednova import fednova
from feddraw.secure.rounds.counts_part import CountingRules, CountsPart
from feddraw.secure.rounds.driver import Opened, Rules, SecureRound
from feddraw.secure.rounds.in_process import InProcess, Secure
from feddraw.secure.rounds.messages import (
    Add,
    Again,
    Answer,
    Keys,
    Masked,
    Meet,
    Refusal,
    Request,
    Reveal,
    Sign,
    Weigh,
)
from feddraw.secure.rounds.site import (
    MemoryOfProcess,
    Offer,
    Part,
    SecureSite,
    SiteFacts,
    SiteSettings,
)
from feddraw.secure.rounds.terms import Announcement, Party, Terms
from feddraw.secure.rounds.training_rules import TrainingRules
from feddraw.secure.sums.message_fields import pack_fields, unpack_fields
from feddraw.secure.sums.session import SessionId
from feddraw.server.gate import Gate
from feddraw.server.policy import Policy
from feddraw.server.round import Round, RoundResult
from feddraw.server.state_dict import layout_of_arrays
from test_secure_attacks import (
    LONG,
    MODEL,
    SITES,
    Federation,
    met,
    offered,
    refused,
    strategy_of_sites,
    terms,
)
from tiny import cohort_of

METHOD = feddisco(a=0.1)
TERMS = terms(  # has every message
    METHOD, policy=Policy(cap_times=1.5), sums=("first", "moves"), clear_weights=True
)
COUNTS = Terms("evaluate", ("counts",), 0, 3, findings=2, reading={"classifier": "head"})
AGREED = {"train": TERMS, "evaluate": COUNTS}
OTHER_MODEL = MODEL + np.float32(1)


class EveryMessage(Federation):
    """Sites whose app answers what FedDisco asks for."""

    def _train(self, message: Message, context: Context) -> Message:
        reply = super()._train(message, context)
        labels = np.array([4 + int(context.node_config["partition-id"]), 6], np.float32)
        reply.content["extra"] = ArrayRecord({"labels": pack_array(labels)})
        return reply


def stage_of(request: Request | None) -> str:
    """How a message is called here."""
    if request is None:
        return "Offer"
    return " ".join((type(request).__name__, getattr(request, "sum", ""))).strip()


Tamper = Callable[[str, RecordDict], None]  # the name of a message, and what is about to be sent


@dataclass(eq=False)
class Wire:
    """An honest server's transport; `before` and `after` see each of North's messages."""

    federation: Federation
    kind: str = "train"
    before: Tamper = lambda stage, content: None
    after: Tamper = lambda stage, content: None
    sent: dict[str, RecordDict] = field(default_factory=dict)  # to North, by name
    answers: dict[str, RecordDict] = field(default_factory=dict)  # of North

    def ask(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Answer]]:
        for site, request in requests.items():
            content = secure_messages.request_to_records(request)
            try:
                reply = self._send(site, stage_of(request), content)
                yield site, secure_messages.answer_of_records(type(request), reply)
            except UserError as error:
                yield site, Refusal(str(error))

    def _send(self, site: str, stage: str, content: RecordDict) -> RecordDict:
        if site != "North":
            return self.federation.send(site, content, self.kind)
        self.before(stage, content)
        answer = self.federation.send(site, content, self.kind)
        self.sent[stage] = content
        self.answers[stage] = answer
        self.after(stage, content)
        return answer

    def play(self, model: Any = MODEL) -> Opened:
        """A whole round."""
        agreed = AGREED[self.kind]
        keys = {}
        for site in SITES:
            offer = offered(model=model, kind=self.kind, agreed=agreed)
            keys[site] = secure_messages.keys_of_records(self._send(site, "Offer", offer))
        layout = layout_of_arrays({"head.weight": MODEL}, "head")
        state = {"weighting": {}, "server": {}}
        rules: Rules = TrainingRules(METHOD, Gate(), layout, state)
        if self.kind == "evaluate":
            rules = CountingRules(agreed.findings)
        round = SecureRound(agreed, self, rules)
        opened = round.run(SITES, keys)
        assert round.left_out == {}
        return opened


STAGES = (
    "Offer",
    "Meet",
    "Add first",
    "Sign first",
    "Reveal first",
    "Weigh",
    "Add moves",
    "Sign moves",
    "Reveal moves",
)
COUNTING = ("Offer", "Meet", "Add counts", "Sign counts", "Reveal counts")
STAGES_OF_KIND = {"train": STAGES, "evaluate": COUNTING}
both_kinds = pytest.mark.parametrize("kind", STAGES_OF_KIND)


@pytest.fixture
def sites(tmp_path: Path) -> EveryMessage:
    return EveryMessage(tmp_path / "sites", clear_weights=True)


@dataclass(eq=False)
class Attempts:
    """Lies to North, each in a world of its own: what it remembers is put back afterwards."""

    federation: Federation
    kind: str = "train"
    outcomes: dict[str, set[str]] = field(default_factory=dict)  # by message

    def attempt(self, stage: str, content: RecordDict) -> RecordDict | None:
        """What North answers; None where it refuses."""
        folder = Path(str(self.federation.contexts["North"].node_config["memory"]))
        kept = folder.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, kept)
        runs = list(self.federation.runs)
        try:
            answer = self.federation.send("North", content, self.kind)
        except UserError as error:
            self.outcomes.setdefault(stage, set()).add(f"refused: {error!s:.60}")
            answer = None
        else:
            self.outcomes.setdefault(stage, set()).add("answered")
            says_only_what_is_listed(answer)
        shutil.rmtree(folder, ignore_errors=True)
        if kept.exists():
            kept.rename(folder)
        self.federation.runs[:] = runs
        return answer


def says_only_what_is_listed(answer: RecordDict) -> None:
    """The table of docs/privacy.md: name, size, findings labelled, own weight and steps; nothing to
    an evaluation that is not secure.
    """
    if "metrics" in answer:
        assert set(answer) == {"metrics"}
        assert dict(answer.metric_records["metrics"]) == {}
        return
    assert set(answer) <= {"secure", "client", "words"}
    facts = json.loads(str(answer.config_records["secure"]["facts"]))
    assert set(facts) <= {"digest", "size", "labelled", "signatures", "statement"}
    if facts.get("statement"):
        assert set(json.loads(facts["statement"])) == {"own_weights", "steps"}


def same_request(one: RecordDict, other: RecordDict) -> bool:
    """A list of survivors is the same in every round."""
    return set(one) == set(other) and all(one[name] == other[name] for name in one)


def same_answer(one: RecordDict | None, other: RecordDict) -> bool:
    return one is not None and all(one[name] == other[name] for name in ("secure",))


# ------------------------------------------------------------------------------ a server that lies


@both_kinds
def test_a_message_that_comes_again_gets_nothing_new(sites: EveryMessage, kind: str) -> None:
    """Replay: at once, and after every later message; the offer makes fresh keys until all meet."""
    attempts = Attempts(sites, kind)
    wire = Wire(sites, kind)
    stages = STAGES_OF_KIND[kind]

    def again(stage: str, content: RecordDict) -> None:
        for earlier, message in list(wire.sent.items()):
            answer = attempts.attempt(f"{earlier} after {stage}", message)
            fresh_keys = earlier == "Offer" and stages.index(stage) < stages.index("Meet")
            assert fresh_keys or answer is None or same_answer(answer, wire.answers[earlier])

    wire.after = again
    opened = wire.play()
    assert opened.survivors == tuple(sorted(SITES))
    assert sorted(site for site, _, _ in sites.runs) == sorted(SITES)
    answered = {lie for lie, outcome in attempts.outcomes.items() if "answered" in outcome}
    signing = {f"{stage} after {stage}" for stage in stages if stage.startswith("Sign")}
    assert answered == {"Offer after Offer"} | signing


@both_kinds
@pytest.mark.parametrize("order", ["same", "other"])
def test_messages_of_another_round_are_refused_at_every_stage(
    sites: EveryMessage, order: str, kind: str
) -> None:
    """Split view and reordering: the same sites and terms, another model; in turn, or not."""
    rehearsal = Wire(sites, kind)
    rehearsal.play(OTHER_MODEL)
    attempts = Attempts(sites, kind)
    wire = Wire(sites, kind)

    def elsewhere(stage: str, content: RecordDict) -> None:
        for other, message in rehearsal.sent.items():
            if (other == stage) == (order == "same") and not same_request(message, content):
                answer = attempts.attempt(f"{other} before {stage}", message)
                signed = wire.answers.get(other) if other.startswith("Sign") else None
                assert answer is None or (signed is not None and same_answer(answer, signed))

    wire.before = elsewhere
    assert len(wire.play().survivors) == 4
    assert len(sites.runs) == 8


def fewer(request: Request) -> Iterator[Request]:
    """Requests that show too few others."""
    if isinstance(request, Meet):
        for names in (("North",), ("North", "East"), ()):
            yield Meet({s: {n: keys[n] for n in names} for s, keys in request.keys.items()})
            yield Meet(
                {
                    s: {n: k if n in names else b"" for n, k in keys.items()}
                    for s, keys in request.keys.items()
                }
            )
        *earlier, last = request.keys
        yield Meet({"another": request.keys[last]})
        for sum in earlier:
            yield Meet({last: request.keys[last]})
            yield Meet({**request.keys, sum: {n: request.keys[sum][n] for n in SITES[:3]}})
    if isinstance(request, Weigh | Add):
        parties = request.announcement.parties
        for some in (parties[:1], parties[:2], parties[2:], ()):
            yield replace(request, announcement=replace(request.announcement, parties=some))
    if isinstance(request, Add):
        for names in (("East",), ()):
            yield replace(request, shares={name: request.shares[name] for name in names})
    if isinstance(request, Sign | Reveal):
        for survivors in (("North",), ("North", "East"), SITES[1:], ()):
            yield replace(request, survivors=survivors)
    if isinstance(request, Reveal):
        for names in (("North",), ("North", "East"), ()):
            yield replace(request, signatures={name: request.signatures[name] for name in names})


@both_kinds
def test_a_message_about_too_few_others_is_refused(sites: EveryMessage, kind: str) -> None:
    attempts = Attempts(sites, kind)

    def subsets(stage: str, content: RecordDict) -> None:
        if stage != "Offer":
            for request in fewer(secure_messages.request_of_records(content)):
                lie = secure_messages.request_to_records(request)
                assert attempts.attempt(stage, lie) is None, request

    assert len(Wire(sites, kind, before=subsets).play().survivors) == 4
    assert set(attempts.outcomes) == set(STAGES_OF_KIND[kind][1:])


EVERY = 1 if LONG else 31  # of the retyped messages, how many are sent
JUNK: tuple[Any, ...] = (None, True, -1, float("nan"), 10**400, "x", "\ud800", [], [[1]], {"a": 1})


def retyped(value: Any, junk: Any) -> Iterator[Any]:
    """The value with junk in each of its places."""
    yield junk
    if isinstance(value, dict):
        for name, part in value.items():
            for changed in retyped(part, junk):
                yield {**value, name: changed}
        yield {**value, "more": junk}
    elif isinstance(value, list):
        for place, part in enumerate(value[:2]):
            for changed in retyped(part, junk):
                yield [*value[:place], changed, *value[place + 1 :]]
    elif isinstance(value, str) and value.startswith("{"):
        for changed in retyped(json.loads(value), junk):
            yield json.dumps(changed)


def retyped_records(content: RecordDict, junk: Any) -> Iterator[RecordDict]:
    config = dict(content.config_records["config"])
    others = {name: record for name, record in content.items() if name != "config"}
    orders = json.loads(str(config["feddraw"]))
    for changed in retyped(orders["secure"], junk):
        text = json.dumps({**orders, "secure": changed})
        yield RecordDict({**others, "config": ConfigRecord({**config, "feddraw": text})})
    for name in ("names", "contents"):
        for other in ([], [b"", b"x"], ["x", "x"], [1], b"x", 1.5):
            yield RecordDict({**others, "config": ConfigRecord({**config, name: other})})


@both_kinds
def test_messages_of_other_types_are_refused_in_one_line(sites: EveryMessage, kind: str) -> None:
    attempts = Attempts(sites, kind)
    numbers = iter(range(10**6))

    def retype(stage: str, content: RecordDict) -> None:
        for junk in JUNK:
            for lie in retyped_records(content, junk):
                if next(numbers) % EVERY == 0:  # others at every stage
                    attempts.attempt(stage, lie)

    assert len(Wire(sites, kind, before=retype).play().survivors) == 4
    assert set(attempts.outcomes) == set(STAGES_OF_KIND[kind])


@both_kinds
def test_a_restart_before_every_message_changes_nothing(sites: EveryMessage, kind: str) -> None:
    attempts = Attempts(sites, kind)
    wire = Wire(sites, kind)

    def restart(stage: str, content: RecordDict) -> None:
        in_a_process_of_its_own()
        for context in sites.contexts.values():
            context.state = RecordDict()
        for earlier, message in wire.sent.items():
            if (earlier, stage) != ("Offer", "Meet"):
                answer = attempts.attempt(f"{earlier} before {stage}", message)
                assert answer is None or same_answer(answer, wire.answers[earlier])

    wire.before = restart
    assert len(wire.play().survivors) == 4
    assert len(sites.runs) == 4


@both_kinds
@pytest.mark.parametrize("size", [10**4])
def test_messages_that_are_too_large_are_refused(sites: EveryMessage, size: int, kind: str) -> None:
    attempts = Attempts(sites, kind)
    strangers = [f"Ghost {number}" for number in range(size)]

    def enlarge(stage: str, content: RecordDict) -> None:
        if stage == "Offer":
            text = str(content.config_records["config"]["feddraw"])
            for depth in (100, 300, 500, 900, 10**5):
                deep = text.replace('"head"', "[" * depth + "]" * depth)
                lie = {"arrays": content["arrays"], "config": ConfigRecord({"feddraw": deep})}
                attempts.attempt(stage, RecordDict(lie))
            reading = {"size": "num-examples", "classifier": strangers}
            wide = replace(AGREED[kind], reading=reading)
            attempts.attempt(stage, offered(kind=kind, agreed=wide))
            return
        request = secure_messages.request_of_records(content)
        lies: list[Request] = []
        if isinstance(request, Meet):
            more = dict.fromkeys(strangers, b"x" * 324)
            lies += [Meet({s: {**keys, **more} for s, keys in request.keys.items()})]
            empty = dict.fromkeys(strangers, b"")
            lies += [Meet({s: {**keys, **empty} for s, keys in request.keys.items()})]
        if isinstance(request, Weigh | Add):
            told = replace(request.announcement, concluded=(0.5,) * size)
            crowd = tuple(replace(told.parties[0], name=name) for name in strangers)
            lies.append(replace(request, announcement=replace(told, parties=told.parties + crowd)))
        if isinstance(request, Add):
            lies.append(replace(request, shares=dict.fromkeys(strangers, b"x")))
        if isinstance(request, Sign | Reveal):
            lies.append(replace(request, survivors=(*request.survivors, *strangers)))
        if isinstance(request, Reveal):
            lies.append(replace(request, signatures=dict.fromkeys(strangers, b"x" * 64)))
        for lie in lies:
            assert attempts.attempt(stage, secure_messages.request_to_records(lie)) is None

    assert len(Wire(sites, kind, before=enlarge).play().survivors) == 4


# ------------------------------------------------------ what an app sees, and nobody has agreed on


def in_a_process_of_its_own() -> None:
    """What sites of one process share is gone: the next message finds its site's own disk only."""
    secure_site_memory.SHARED.__init__()  # type: ignore[misc]


CHANGES: dict[str, Callable[[Context], None]] = {
    "another run": lambda context: setattr(context, "run_id", 2),
    "other settings": lambda context: setattr(context, "run_config", {"lr": 0.0}),
}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_site_meets_the_others_in_the_run_that_it_agreed_to(
    tmp_path: Path, change: Callable[[Context], None], apart: bool
) -> None:
    """All agree on the same; South meets the others under a change."""
    sites = Federation(tmp_path / "sites")
    request = met({site: sites.offer(site) for site in SITES})
    change(sites.contexts["South"])
    reasons = {}
    for site in SITES:
        if apart:
            in_a_process_of_its_own()
        try:
            sites.ask(site, request)
        except UserError as error:
            reasons[site] = str(error)
    assert reasons.keys() == {"South"}
    assert "another run" in reasons["South"]
    assert "South" not in {site for site, _, _ in sites.runs}


def test_a_site_meets_the_others_by_the_kind_of_message_that_it_agreed_to(
    tmp_path: Path,
) -> None:
    """Flower apps have several functions for one kind: `train`, `train.gently`."""
    sites = Federation(tmp_path / "sites")
    sites.app.train("gently")(sites._train)
    keys = {site: sites.offer(site) for site in SITES}
    request = secure_messages.request_to_records(met(keys))
    with refused("another run"):
        sites.send("South", request, "train.gently")
    assert sites.runs == []


def test_an_app_sees_nothing_of_a_message_that_was_not_agreed_on(tmp_path: Path) -> None:
    """An app may take the group for the round, and a text for what it says, in whatever order."""
    sites = Federation(tmp_path / "sites")
    seen: dict[str, Any] = {}
    train = sites._train

    def look(message: Message, context: Context) -> Message:
        about = message.metadata
        records = {
            name: [(tensor, array.dtype, array.data) for tensor, array in record.items()]
            for name, record in message.content.array_records.items()
        }
        text = json.loads(str(message.content.config_records["config"]["feddraw"]))
        text.pop("client-seed")
        seen[SITES[int(context.node_config["partition-id"])]] = (
            (about.run_id, about.group_id, about.ttl, about.message_id, about.src_node_id),
            records,
            json.dumps(text),
            message.content.config_records["config"].keys(),
        )
        return train(message, context)

    sites.app = type(sites.app)(mods=list(sites.app._mods))
    sites.app.train()(look)
    layers = {"a": MODEL, "b": OTHER_MODEL}
    order = {"frozen": secure_messages.frozen_digest(layers)}
    keys = {}
    for site in SITES:
        names = reversed(layers) if site == "South" else layers
        record = ArrayRecord({name: Array(np.asfortranarray(layers[name])) for name in names})
        if site != "South":
            record = ArrayRecord({name: pack_array(layers[name]) for name in names})
        orders = order | {"b": {"x": 1, "y": 2}, "a": 1}
        if site == "South":
            orders = dict(reversed((order | {"b": {"y": 2, "x": 1}, "a": 1}).items()))
        content = offered(orders=orders, more={"frozen": record})
        keys[site] = secure_messages.keys_of_records(sites.send(site, content))
    assert len({one.digest for one in keys.values()}) == 1
    request = secure_messages.request_to_records(met(keys))
    for site in SITES:
        in_a_process_of_its_own()
        group, ttl = ("999", 5.0) if site == "South" else ("1 1", 60.0)
        context = sites.contexts[site]
        message = Message(request, context.node_id, "train", group_id=group, ttl=ttl)
        sites.app(message, context)
    assert all(view == seen["North"] for view in seen.values())
    assert seen["North"][0][1] == "2"


def test_frozen_layers_reach_every_site_whoever_held_them_before(tmp_path: Path) -> None:
    """Sites of one process share what was offered; the layers come to some of them only."""
    for holder in ("North", "South"):
        sites = Federation(tmp_path / holder)
        got = []
        train = sites._train
        sites.app = type(sites.app)(mods=list(sites.app._mods))

        def look(message: Message, context: Context, got: Any = got, train: Any = train) -> Message:
            got.append("frozen" in message.content)
            reply: Message = train(message, context)
            return reply

        sites.app.train()(look)
        layers = {"a": MODEL}
        order = {"frozen": secure_messages.frozen_digest(layers)}
        record = {"frozen": ArrayRecord({"a": pack_array(MODEL)})}
        keys = {
            site: sites.offer(site, orders=order, more={} if site == holder else record)
            for site in SITES
        }
        for site in SITES:
            sites.ask(site, met(keys))
        assert got == [True] * 4


def test_the_text_of_an_error_about_an_apps_answer_stays_at_the_site(tmp_path: Path) -> None:
    sites = Federation(tmp_path / "sites")
    train = sites._train

    def careless(message: Message, context: Context) -> Message:
        reply = train(message, context)
        reply.content["client"] = ConfigRecord({"labelled": "patient 4711"})
        reply.content["metrics"]["num-examples"] = float("nan")
        return reply

    sites.app = type(sites.app)(mods=list(sites.app._mods))
    sites.app.train()(careless)
    with pytest.raises(UserError) as error:
        sites.meet()
    assert "own log says why" in str(error.value)
    assert "4711" not in str(error.value)
    assert "nan" not in str(error.value)


# -------------------------------------------------------------------- terms that no site should take


BAD_TERMS: dict[str, tuple[Any, str]] = {
    "a cap that is no number": (terms(policy=Policy(cap=float("nan"))), "must be a share"),
    "a floor below zero": (terms(policy=Policy(floor=-1.0)), "must be a share"),
    "fixed weights above one": (terms(policy=Policy(fixed="North=7")), "policy.fixed"),
    "a cap on FedNova": (terms(fednova(), policy=Policy(cap_times=1.5)), "cannot limit"),
    "FedDyn with other weights than equal ones": (
        terms(feddyn(), policy=Policy(fixed="North=0.5")),
        "what each client remembers",
    ),
    "a reading that is no table": (replace(terms(), reading="size"), "are tables"),
    "a method that is no table": (replace(terms(), method=[]), "are tables"),
    "a rule of another kind": (
        replace(terms(), method={**terms().method, "server": {"rule": "fedavg:fedavg"}}),
        "not known here",
    ),
    "a rule with its own word on what it reveals": (
        replace(
            terms(),
            method={
                **terms().method,
                "weighting": {"rule": "fedcav:FedCavWeighting", "reveals": ""},
            },
        ),
        "not known here|would give away",
    ),
    "evaluations of a million findings": (
        Terms("evaluate", ("counts",), 0, 3, findings=10**6),
        "findings in the server's terms",
    ),
}


@pytest.mark.parametrize(("agreed", "why"), BAD_TERMS.values(), ids=BAD_TERMS)
def test_terms_that_no_honest_server_sends_are_refused(
    sites: EveryMessage, agreed: Terms, why: str
) -> None:
    content = offered(kind=agreed.kind, agreed=agreed)
    with refused(why):
        sites.send("South", content, agreed.kind)


def test_a_refused_message_leaves_a_site_in_memory_as_it_was() -> None:
    """At a second attempt other members are named: the site refuses, and masks nothing for them."""
    keys = {name: Ed25519PrivateKey.generate() for name in SITES}
    directory = {name: key.public_key() for name, key in keys.items()}
    sites = {
        name: SecureSite(SiteSettings(name, key, directory), MemoryOfProcess())
        for name, key in keys.items()
    }
    offer = Offer(terms(), b"d" * 32, b"w" * 32)
    work = Sized()
    first = met({name: site.offer(offer) for name, site in sites.items()})
    for site in sites.values():
        site.answer(first, work)
    again = Again(offer.digest, 1)
    fresh = {name: sites[name].answer(again, work) for name in SITES[:3]}
    others = met(fresh, SITES[:3])  # type: ignore[arg-type]
    shares = {}
    for name in SITES[:3]:
        with refused("other members"):
            sites[name].answer(others, work)
    told = Announcement(terms(), tuple(Party(name, 5.0) for name in SITES[:3]))
    for name in SITES[:3]:
        with refused("is asked to mask"):
            sites[name].answer(Add("moves", told, shares), work)


def test_a_site_that_was_not_told_of_the_others_takes_part_in_a_second_attempt() -> None:
    """Its message with everyone's keys was lost: it has run nothing, and is not refused for it."""
    key = Ed25519PrivateKey.generate()
    settings = SiteSettings("North", key, {"North": key.public_key()})
    site = SecureSite(settings, MemoryOfProcess())
    offer = Offer(terms(), b"d" * 32, b"w" * 32)
    first = site.offer(offer)
    fresh = site.answer(Again(offer.digest, 1), Sized())
    assert isinstance(fresh, Keys)
    assert fresh.digest == first.digest
    assert fresh.keys != first.keys
    with refused("agreed to another round since, or to none"):
        site.answer(Again(b"e" * 32, 2), Sized())


class Sized:
    """A site's work that says its size."""

    def run(self) -> SiteFacts:
        return SiteFacts(5.0)

    def part(self, announcement: Announcement) -> Part:
        return CountsPart(np.ones(4, np.uint64))

    def forget(self) -> None:
        pass


# -------------------------------------------------------------------------------- a site that lies

KEYS = {name: Ed25519PrivateKey.generate() for name in SITES}
LIAR = "East"  # the first of all in the order in which they are asked
Lie = Callable[[str, Answer], Answer | None]  # the message that is answered, the honest answer


class Lying(InProcess):
    """The transport, with one site that answers what it likes."""

    lie: ClassVar[Lie]

    def offer(self, offer: Offer, round: SecureRound) -> dict[str, Keys]:
        keys = super().offer(offer, round)
        answer = type(self).lie("Offer", keys.pop(LIAR))
        if isinstance(answer, Keys):
            return {LIAR: answer, **keys}
        return keys

    def ask(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Answer]]:
        for name, answer in super().ask(requests):
            told = type(self).lie(stage_of(requests[name]), answer) if name == LIAR else answer
            if told is not None:
                yield name, told


def round_with(lie: Lie, monkeypatch: pytest.MonkeyPatch, number: int = 1) -> RoundResult:
    """A round of four sites, of which one lies; it ends without a traceback."""
    names = (LIAR, *(name for name in SITES if name != LIAR))
    rng = np.random.default_rng(1)
    sent = rng.normal(size=6).astype(np.float32)
    rows = sent + 0.1 * rng.normal(size=(4, 6)).astype(np.float32)
    labels = np.tile(np.array([[5, 4], [5, 5], [4, 5], [6, 5]], np.float32), 3)
    extra = [{"labels": labels[n]} for n in range(4)]
    cohort = cohort_of(rows, [20, 20, 30, 40], sent=sent, steps=[3, 3, 4, 5], extra=extra)
    updates = [replace(update, metrics={"loss": 0.5}) for update in cohort.updates]
    collect = Secure(names, [20, 20, 30, 40], policy=Policy(cap_times=1.5), clear_weights=True)
    directory = {name: key.public_key() for name, key in KEYS.items()}
    for name, key in KEYS.items():
        collect._sites[name] = SecureSite(SiteSettings(name, key, directory), MemoryOfProcess())
    monkeypatch.setattr("feddraw.secure.rounds.in_process.InProcess", Lying)
    monkeypatch.setattr(Lying, "lie", staticmethod(lie), raising=False)
    state = METHOD.init(cohort.sent)
    result = collect(Round(number, 15, cohort.sent, METHOD, state, names, range(4)), updates)
    assert np.isfinite(result.next_model.params).all()
    if not result.weights:
        assert np.array_equal(result.next_model.params, sent)
    return result


def counted(result: RoundResult) -> tuple[str, ...]:
    return tuple(sorted(result.weights))


ALL, ONE_REFUSED, NO_SUM = tuple(sorted(SITES)), ("North", "South", "West"), ()


def in_records(stage: str, change: Callable[[RecordDict], RecordDict]) -> Lie:
    """The answer to one message is changed on the wire, and read as Flower's server reads it."""
    kinds: dict[str, type] = {"Offer": Again, "Meet": Meet, "Weigh": Weigh}
    kinds |= {f"{kind.__name__} {sum}": kind for kind in (Add, Sign, Reveal) for sum in TERMS.sums}

    def lie(asked: str, answer: Answer) -> Answer:
        if asked != stage:
            return answer
        try:
            changed = change(secure_messages.answer_to_records(answer))
            return secure_messages.answer_of_records(kinds[stage], changed)
        except UserError as error:
            return Refusal(str(error))

    return lie


Change = Callable[[RecordDict], RecordDict]
Kept = Mapping[str, RecordDict]  # answers of another round, by message


def with_record(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def apply(content: RecordDict) -> RecordDict:
        record = ConfigRecord(change(dict(content.config_records["secure"])))
        return RecordDict({**content, "secure": record})

    return apply


def with_words(change: Callable[[Any], Any]) -> Change:
    def apply(content: RecordDict) -> RecordDict:
        words = content.array_records["words"]["words"].numpy()
        return RecordDict({**content, "words": ArrayRecord({"words": pack_array(change(words))})})

    return apply


def replayed(kept: Kept, stage: str) -> Iterator[Change]:
    yield lambda content: kept[stage]


def reordered(kept: Kept, stage: str) -> Iterator[Change]:
    for other, content in kept.items():
        if other != stage:
            yield lambda _, content=content: content


def cut(kept: Kept, stage: str) -> Iterator[Change]:
    yield lambda content: RecordDict()
    if "names" in kept[stage].config_records["secure"]:
        yield with_record(lambda r: {"facts": r["facts"]})
        yield with_record(lambda r: {**r, "names": r["names"][1:]})
        yield with_record(lambda r: {**r, "contents": r["contents"][1:]})
        yield with_record(lambda r: {**r, "names": r["names"][1:], "contents": r["contents"][1:]})
    if stage.startswith("Add"):
        yield with_words(lambda words: words[:-1])


def of_other_types(kept: Kept, stage: str) -> Iterator[Change]:
    facts = json.loads(str(kept[stage].config_records["secure"]["facts"]))
    for junk in JUNK:
        for number, changed in enumerate(retyped(facts, junk)):
            if LONG or (number + len(str(junk))) % 5 == 0:
                text = json.dumps(changed)
                yield with_record(lambda r, text=text: {**r, "facts": text})
    if stage.startswith("Add"):
        for dtype in (np.float64, np.int64, np.uint8):
            yield with_words(lambda words, dtype=dtype: words.astype(dtype))
        yield with_words(lambda words: words.reshape(1, -1))


def too_large(kept: Kept, stage: str) -> Iterator[Change]:
    many = [f"Ghost {number}" for number in range(10**4)]
    yield with_record(lambda r: {**r, "names": many, "contents": [b"x"] * len(many)})
    yield with_record(lambda r: {**r, "facts": "[" * 10**5})
    yield with_record(lambda r: {**r, "facts": "9" * 10**5})
    if stage.startswith("Add"):
        yield with_words(lambda words: np.append(words, np.zeros(10**5, np.uint64)))


@pytest.mark.parametrize("manipulation", [replayed, reordered, cut, of_other_types, too_large])
def test_an_answer_that_is_changed_is_refused_by_name_and_the_others_go_on(
    manipulation: Callable[[Kept, str], Iterator[Change]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, RecordDict] = {}

    def keep(stage: str, answer: Answer) -> Answer:
        kept[stage] = secure_messages.answer_to_records(answer)
        return answer

    assert counted(round_with(keep, monkeypatch, number=2)) == ALL
    assert set(kept) == set(STAGES)
    for stage in STAGES:
        for change in manipulation(kept, stage):
            result = round_with(in_records(stage, change), monkeypatch)
            assert counted(result) in (ONE_REFUSED, ALL), (stage, result.ledger)
            if manipulation is cut and stage.startswith(("Offer", "Meet", "Add")):
                assert counted(result) == ONE_REFUSED, stage


def with_keys_of_no_use(stage: str, answer: Answer) -> Answer:
    """X25519 keys of small order, signed as they should be: nobody can agree on a mask with them."""
    if stage != "Offer" or not isinstance(answer, Keys):
        return answer
    keys = {}
    for sum, content in answer.keys.items():
        signer, _, masking, commitment, _ = unpack_fields(content, 5)
        fields = (signer, bytes(32), masking, commitment)
        statement = SessionId(answer.digest, f"train: {sum}").statement("keys", LIAR, *fields)
        keys[sum] = pack_fields(*fields, KEYS[LIAR].sign(statement))
    return Keys(answer.digest, keys)


def with_words_of(change: Callable[[Any], Any], sum: str) -> Lie:
    """Other words, under the liar's own seal, which it computes as its code would."""

    def lie(stage: str, answer: Answer) -> Answer:
        if stage != f"Add {sum}" or not isinstance(answer, Masked):
            return answer
        return Masked(change(answer.words), None, answer.statement)

    return lie


LIES: dict[str, tuple[Lie, tuple[str, ...]]] = {
    "keys of small order": (with_keys_of_no_use, ONE_REFUSED),
    "fewer words, before all others": (with_words_of(lambda w: w[:-1], "moves"), ONE_REFUSED),
    "no words": (with_words_of(lambda w: w[:0], "moves"), ONE_REFUSED),
    "more words of the first sum": (
        with_words_of(lambda w: np.append(w, w), "first"),
        ONE_REFUSED,
    ),
    "other words than its weight": (with_words_of(lambda w: w + np.uint64(1), "moves"), NO_SUM),
    "a first sum of noise": (
        with_words_of(lambda w: w + np.uint64(2**63 + 12345), "first"),
        ALL,  # under weights that are not the rule's, within the policy
    ),
    "a first sum that is zero or below": (
        with_words_of(lambda w: w - np.uint64(2**50), "first"),
        ALL,
    ),
}


@pytest.mark.parametrize(("lie", "outcome"), LIES.values(), ids=LIES)
def test_a_site_whose_code_lies_breaks_no_model(
    lie: Lie, outcome: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = round_with(lie, monkeypatch)
    assert counted(result) == outcome, [entry.status for entry in result.ledger]


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_that_falls_silent_at_any_message_stops_nobody(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = round_with(lambda asked, answer: None if asked == stage else answer, monkeypatch)
    in_the_sum = stage in ("Sign moves", "Reveal moves")
    assert counted(result) == (ALL if in_the_sum else ONE_REFUSED)


def test_whatever_a_site_answers_to_an_evaluation_the_others_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each round South puts something else in the place of one of its numbers or texts."""
    federation = Federation(tmp_path / "sites")
    honest = Wire(federation, "evaluate")
    honest.play()
    lies = []
    for stage in COUNTING:
        facts = json.loads(str(honest.answers[stage].config_records["secure"]["facts"]))
        lies += [(stage, lie) for junk in (*JUNK, 1e300) for lie in retyped(facts, junk)]
    lies = lies[:: 1 if LONG else 61]
    under_way = iter(lies)
    current = [lies[0]]

    def answer(message: Message, context: Context) -> Message:
        reply = federation.app(message, context)
        if message.metadata.message_type != "evaluate" or context.node_id != 1003:
            return reply
        order = secure_messages.secure_order_in(message.content) or {}
        stage = order.get("stage", "offer").capitalize()
        if stage == "Offer":
            current[0] = next(under_way)
        asked, facts = current[0]
        if asked.partition(" ")[0] == stage:
            record = dict(reply.content.config_records["secure"])
            reply.content["secure"] = ConfigRecord(record | {"facts": json.dumps(facts)})
        return reply

    counted: list[TakenEvaluations] = []
    count = SecureRounds.count

    def watched(rounds: SecureRounds, *given: Any) -> TakenEvaluations:
        counted.append(count(rounds, *given))
        return counted[-1]

    monkeypatch.setattr(SecureRounds, "count", watched)
    options = {"findings": ["a", "b"], "masked_counts": True}
    strategy_of_sites(federation, answer, rounds=len(lies), **options)
    assert len(counted) == len(lies)
    for lie, result in zip(lies, counted, strict=True):
        assert {"North", "East", "West"} <= {site.client for site in result.sites}, lie
        (content,) = result.contents
        images = content.metric_records["metrics"]["num-examples"]
        assert images == 5 * len(result.sites), lie


# ------------------------------------------------------------ two rounds of one site, one in the other


def in_run(sites: Federation, number: int) -> None:
    """The run that all further messages belong to."""
    for context in sites.contexts.values():
        context.run_id = number
    in_a_process_of_its_own()


@pytest.mark.parametrize("run", [1, 2], ids=["another model", "another run of Flower"])
def test_a_round_within_a_round_leaves_the_outer_one_closed_for_good(
    sites: EveryMessage, run: int
) -> None:
    """A second digest before every message, between `Sign` and `Reveal` too: the inner round gives
    its sum, and no site says anything more about the outer one.
    """
    stages = STAGES[1:] if LONG else ("Add first", "Reveal moves")
    for number, stage in enumerate(stages):
        model = MODEL + np.float32(10 + number)
        begun: list[RecordDict] = []

        def inner_round(
            now: str,
            content: RecordDict,
            stage: str = stage,
            model: Any = model,
            begun: list[RecordDict] = begun,
        ) -> None:
            if now == stage and not begun:
                begun.append(content)
                in_run(sites, run)
                inner = Wire(sites).play(OTHER_MODEL - model if run == 1 else model)
                assert len(inner.survivors) == 4
                in_run(sites, 1)

        outer = Wire(sites, before=inner_round)
        with pytest.raises((RunFailed, UserError), match=r"are needed|needs at least 3"):
            outer.play(model)
        assert stage not in outer.sent
