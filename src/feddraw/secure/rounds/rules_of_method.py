"""What a secure round asks of a method's rules: the only place that looks at their kinds.

A method that works under secure sums has a weighting by which each client scores itself
(`SelfScored`), and a server rule that needs weighted means only.
"""

from __future__ import annotations

import math

import numpy as np

from feddraw.core import (
    ClientView,
    Factored,
    Facts,
    Joint,
    Layout,
    Method,
    ScoredByOutput,
    SelfScored,
    Server,
    StandingMean,
    own_output_weight,
    own_weight,
    own_weight_range,
    secure_sums,
    weights_show_updates,
    why_not_secure,
)
from feddraw.errors import UserError
from feddraw.secure.rounds.terms import (
    FIRST_SUM,
    LEAST_SHARE_SUMMED,
    MOVES_SUM,
    Announcement,
    Numbers,
)
from feddraw.server.policy import Policy

SMALLEST_WEIGHT = LEAST_SHARE_SUMMED  # mean weight of those in a sum
SAME_LABELS = (
    "where weights are hidden, a secure sum needs clients that label the same findings: the sum of"
    " the weights of a finding that not all label would show the others' weights (clear_weights ="
    " true, which each site must allow, takes them)"
)


def check_method(method: Method) -> None:
    """Refuse a method that needs more than sums."""
    if why := why_not_secure(method):
        raise UserError(f"this method cannot run under secure sums: {why}")


def check_policy(method: Method, policy: Policy, *, clear_weights: bool) -> None:
    """Refuse limits on weights that nobody sees."""
    if policy.limits_weights and weights_show_updates(method) and not clear_weights:
        raise UserError(
            "under secure sums this method's weights are hidden, and a policy cannot limit what is"
            " hidden: limit sizes only (policy.max_size, max_size_times), or set clear_weights ="
            " true, which each site must allow"
        )


def weights_in_clear(method: Method, announcement: Announcement) -> bool:
    """Whether clients say their weights in clear: all have agreed to it, or the weights follow from
    what is announced, as FedDRAW's do in its first and last round.
    """
    if announcement.terms.clear_weights or not weights_show_updates(method):
        return True
    if secure_sums(method) == 2 and not announcement.concluded:
        return False
    rule = weighting_of(method)
    facts = announcement.facts
    ranges = [rule.score_range(facts, place) for place in range(len(facts.sizes))]
    return all(low == high for low, high in ranges)


def sums_of(method: Method) -> tuple[str, ...]:
    """The names of a round's sums, in their order."""
    return (FIRST_SUM, MOVES_SUM) if secure_sums(method) == 2 else (MOVES_SUM,)


def weighting_of(method: Method) -> SelfScored:
    """The rule by which each client weighs itself."""
    aggregation = method.aggregation
    if isinstance(aggregation, Joint) or not isinstance(aggregation.weighting, SelfScored):
        raise UserError(f"this method cannot run under secure sums: {why_not_secure(method)}")
    return aggregation.weighting


def server_of(method: Method) -> Server:
    """The rule that makes the step."""
    aggregation = method.aggregation
    if isinstance(aggregation, Joint):
        raise UserError(f"this method cannot run under secure sums: {why_not_secure(method)}")
    return aggregation.server


def factored_server(method: Method) -> Factored | None:
    """The server rule, if it multiplies each move with what only its client knows."""
    server = server_of(method)
    return server if isinstance(server, Factored) else None


def separate_outputs(method: Method, layout: Layout, facts: Facts) -> tuple[int, ...]:
    """The outputs of the classifier that are weighted separately: by the rule, or because not all
    clients label the finding.
    """
    if isinstance(weighting_of(method), ScoredByOutput):
        return tuple(range(layout.outputs))
    if facts.labelled is None:
        return ()
    return tuple(np.flatnonzero(~facts.labelled.all(axis=0)).tolist())


def weights_of_client(
    method: Method, client: ClientView, facts: Facts, place: int, outputs: tuple[int, ...]
) -> Numbers:
    """A client's own weights: for the whole model, then for each of these outputs."""
    rule = weighting_of(method)
    whole = own_weight(rule, client, facts, place)
    by_output = []
    for output in outputs:
        if isinstance(rule, ScoredByOutput):
            by_output.append(own_output_weight(rule, client, output, facts, place))
        else:
            labels_it = facts.labelled is None or bool(facts.labelled[place, output])
            by_output.append(whole if labels_it else 0.0)
    return (whole, *by_output)


def ranges_of_client(
    method: Method, own_weights: Numbers, facts: Facts, place: int, outputs: tuple[int, ...]
) -> list[tuple[float, float]]:
    """Between which numbers each of a client's weights lies: more it cannot claim.
    `own_weights` are empty where they are hidden.
    """
    rule = weighting_of(method)
    whole = own_weight_range(rule, facts, place)
    ranges = [whole]
    for output in outputs:
        among, mine = facts.labelling(output, place)
        if mine is None:
            ranges.append((0.0, 0.0))
        elif isinstance(rule, ScoredByOutput):
            ranges.append(own_weight_range(rule, among, mine))
        else:
            ranges.append((own_weights[0], own_weights[0]) if own_weights else whole)
    return ranges


def why_all_labels_are_needed(method: Method) -> str:
    """Why every client must label all findings under this method; empty where it need not."""
    server = server_of(method)
    if isinstance(server, Factored):
        return (
            "under secure sums this method needs clients that label all findings: summed for each"
            " finding, the clients' factors would show that of one who does not label it"
        )
    if isinstance(server, StandingMean) and server.averages == "moves":
        return "this method needs all clients' moves everywhere, and some do not label all findings"
    return ""


def check_labels(method: Method, announcement: Announcement) -> None:
    """Refuse labels that do not fit the server rule, or that would show a hidden weight."""
    if announcement.labelled is None:
        return
    if why := why_all_labels_are_needed(method):
        raise UserError(why)
    if labelling_unlike_most(method, announcement):
        raise UserError(SAME_LABELS)


def labelling_unlike_most(method: Method, announcement: Announcement) -> list[str]:
    """Where weights are hidden, the names of clients that label other findings than most.

    The weights of a row are summed over those that label its finding, beside those of the whole
    model over all: the difference would be the weights of the few that do not label it.
    """
    labelled = announcement.labelled
    if labelled is None or weights_in_clear(method, announcement):
        return []
    most = 2 * labelled.sum(axis=0) > len(labelled)
    unlike = np.flatnonzero((labelled != most).any(axis=1)).tolist()
    return [announcement.parties[place].name for place in unlike]


def why_weights_do_not_fit(method: Method, facts: Facts) -> str:
    """Why sizes and settings allow weights that are too small to be exact; empty where they do
    not, or where it is known only when the weights are.
    """
    if secure_sums(method) == 2 and not len(facts.concluded):
        return ""
    rule = weighting_of(method)
    ranges = [rule.score_range(facts, place) for place in range(len(facts.sizes))]
    lowest = min(low for low, _ in ranges)
    highest = max(high for _, high in ranges)
    if not math.isfinite(lowest) or lowest - highest >= math.log(SMALLEST_WEIGHT):
        return ""
    return (
        f"in round {facts.round} a client may weigh {math.exp(lowest - highest):.2g} of another: a"
        f" secure sum is exact to {SMALLEST_WEIGHT:.2g}; choose milder settings (FedDRAW: a smaller"
        " beta_max), or leave out tiny clients"
    )


def check_weights_fit_sum(method: Method, announcement: Announcement) -> None:
    """Refuse labels that do not fit the rule, and settings and sizes that allow weights too small
    to be exact.
    """
    check_labels(method, announcement)
    if why := why_weights_do_not_fit(method, announcement.facts):
        raise UserError(why)
