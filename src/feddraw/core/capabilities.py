"""What a method can do, and why not: averaging, streaming, secure sums, a policy, combining.

Each answer is empty where it can, and else a reason in words. It follows from the kinds of a
method's rules (`SelfScored`, `Factored`, `Joint`, …) and from what they need; nothing else in the
package decides it.
"""

from __future__ import annotations

from feddraw.core.exchange import ASKED, HELD
from feddraw.core.local import Local, OnItsOwn
from feddraw.core.method import Method
from feddraw.core.server import Factored, Joint, Server, StandingMean
from feddraw.core.weighting import (
    AfterFirstSum,
    BySize,
    Equal,
    ScoredByOutput,
    Selection,
    SelfScored,
    Weighting,
)


def why_not_averaged(method: Method) -> str:
    """Why no client ever gets a model that is made of several clients' models: then weights, if
    the ledger has any, make no difference.
    """
    if method.centralised:
        return "all images were in one place"
    if isinstance(method.local, OnItsOwn):
        return "each client went on from its own model"
    return ""


def why_not_streaming(method: Method) -> str:
    """Why updates cannot be added up one by one as they come."""
    if isinstance(method.aggregation, Joint):
        return "its model is made from all updates at once"
    weighting = method.aggregation.weighting
    server = method.aggregation.server
    if not isinstance(weighting, SelfScored):
        return "a client's weight depends on the other clients' updates"
    if isinstance(weighting, AfterFirstSum):
        return "a client's weight needs a sum over all clients first"
    if isinstance(weighting, ScoredByOutput):
        return "each output of the classifier has weights of its own"
    if isinstance(server, Factored):
        return "its server rule multiplies moves by what follows from all clients"
    if isinstance(server, StandingMean):
        return "its server rule sums updates by other numbers than the weights"
    if server.needs.layers == "all":
        return "its server rule needs every client's parameters"
    return ""


def why_not_secure(method: Method) -> str:
    """Why it cannot run where the server sees sums over clients only (docs/privacy.md)."""
    if method.centralised:
        return "all images are in one place, so there is nothing to add up"
    if isinstance(method.aggregation, Joint):
        return "its model is made from every client's parameters"
    weighting = method.aggregation.weighting
    server = method.aggregation.server
    if reason := _why_weighting_not_secure(weighting):
        return reason
    if server.needs.layers == "all":
        return "its server rule needs every client's parameters"
    if any(extra.holds != "numbers" for extra in method.local.sends):
        return (
            "what its clients send beside the model points where their moves do, and its sum "
            "beside the weighted one can leave a single client's as their difference"
        )
    if isinstance(server, Factored) and isinstance(weighting, ScoredByOutput):
        return (
            "it sums each client's factor once for every output, under other weights, and enough "
            "such sums would give away each client's factor"
        )
    if HELD.name in method.asks:
        return "under unequal weights the server needs what each client remembers by its own share"
    return ""


def _why_weighting_not_secure(weighting: Weighting) -> str:
    if not isinstance(weighting, SelfScored):
        return "a client's weight depends on the other clients' updates"
    if isinstance(weighting, AfterFirstSum) and weighting.contributes != "numbers":
        return (
            f"its first sum is of {weighting.contributes}, and beside the weighted sum of moves it "
            "can leave a single client's as their difference"
        )
    if weighting.reveals:
        return f"a client's own weight, which it says in clear, would give away {weighting.reveals}"
    return ""


def secure_sums(method: Method) -> int:
    """How many masked sums a round takes; 0 where the method is not secure."""
    if why_not_secure(method) or isinstance(method.aggregation, Joint):
        return 0
    return 2 if isinstance(method.aggregation.weighting, AfterFirstSum) else 1


def weights_show_updates(method: Method) -> bool:
    """Whether a client's weight depends on more than its size, steps and labelled findings, which
    it says anyway: then it tells something of its update or its data (docs/privacy.md).
    """
    if isinstance(method.aggregation, Joint):
        return True
    needs = method.aggregation.weighting.needs
    return needs.layers != "none" or bool(needs.asks)


def why_no_policy(method: Method) -> str:
    """Why limits on the weights would not limit how much a client counts."""
    if isinstance(method.aggregation, Joint):
        return "its rule makes model and weights together, and takes no others"
    if isinstance(method.aggregation.weighting, Selection):
        return "it selects clients, and limits would bring in those that it left out"
    if isinstance(method.aggregation.server, Factored):
        return (
            "its server rule turns weights into coefficients by numbers that the clients report "
            "themselves"
        )
    return ""


def why_no_clipping(method: Method) -> str:
    """Why the server cannot shorten a client's move and count the rest."""
    if isinstance(method.aggregation, Joint):
        return ""
    server = method.aggregation.server
    if isinstance(server, StandingMean) and server.averages == "moves":
        return (
            "its clients remember their whole moves, of which the server keeps the mean, and "
            "clipped ones have another"
        )
    return ""


def why_not_first(method: Method) -> str:
    """Why a method cannot be A in `A+B`, which gives its weighting."""
    if method.centralised:
        return "trains in one place, so there are no clients to weigh"
    if isinstance(method.aggregation, Joint):
        return ""  # it has no weighting to give, and takes the other's local rule instead
    if _weighs_by_own_clients(method):
        return "weighs by what only its own clients send, so it cannot come first"
    if isinstance(method.aggregation.weighting, BySize | Equal) and not only_weighs(method):
        return "has no weighting of its own, so it cannot come first: use fedavg or uniform instead"
    return ""


def why_not_second(method: Method) -> str:
    """Why a method cannot be B in `A+B`, which gives its local and server rules."""
    if method.centralised:
        return "trains in one place, so there are no clients to weigh"
    if isinstance(method.local, OnItsOwn):
        return "never trains on the common model, so it cannot come second"
    if isinstance(method.aggregation, Joint):
        return "makes model and weights together, so it takes no weights and cannot come second"
    if _weighs_by_own_clients(method):
        return "changes its clients for its own weights only, so it cannot come second"
    if only_weighs(method):
        return "is a weighting only, so it cannot come second"
    return ""


def why_not_recombined(method: Method) -> str:
    """Why no model can be made of some of a round's updates, as if the others had not been sent."""
    if method.centralised:
        return "all images are in one place, so no site sends an update"
    if isinstance(method.local, OnItsOwn):
        return "each site trains alone, so no model is made of their updates"
    if type(method.local).personal is not Local.personal:
        return "each site ends with a model of its own, and what it remembers is not in its updates"
    return ""


def _weighs_by_own_clients(method: Method) -> bool:
    """Whether its weighting asks for what only its own local rule sends."""
    if isinstance(method.aggregation, Joint):
        return False
    asks = method.aggregation.weighting.needs.asks
    return any(extra.name not in ASKED for extra in asks)


def only_weighs(method: Method) -> bool:
    """Whether only the weighting of a method differs from plain averaging."""
    if method.centralised or isinstance(method.aggregation, Joint):
        return False
    plain_server = type(method.aggregation.server) is Server
    return plain_server and type(method.local) is Local
