"""Which client a node is: a name belongs to the node that first answered under it, unless the
operator decides.

A node is identified by its registered key if the SuperLink has one, else by its node id, never by
what it reports about itself. Where the operator gives a list of sites, only that list decides.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.serverapp import Grid

from feddraw.errors import UserError
from feddraw.flower.reply_intake import Reply
from feddraw.text import safe_line

log = logging.getLogger("flwr")

NODE_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
NODE_NUMBER = re.compile(r"node \d+")


def node_fingerprint(public_key: bytes) -> str:
    """A public key's fingerprint as `ssh-keygen -l` prints it; of other bytes, their hash in the
    same form.
    """
    try:
        shown = load_pem_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        blob = base64.b64decode(shown.split()[1])
    except (ValueError, TypeError, UnsupportedAlgorithm):
        blob = public_key
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


class Roster:
    """Names, and the nodes they belong to."""

    def __init__(self, sites: Mapping[str, str | int] | None = None) -> None:
        self.names: list[
            str
        ] = []  # of clients that have answered; the index is the client's number
        self.called: dict[
            str, str
        ] = {}  # by name, what the client last called itself, which is how it knows itself
        self._listed = _roster_of_sites(sites or {})  # identity to name, by the operator's word
        self._identity_of_name: dict[str, str] = {}  # name to identity
        self._name_of_identity: dict[str, str] = {}  # the same from identity to name
        self._identities: dict[int, str] = {}  # of the nodes that were seen in this run

    def meet(self, grid: Grid) -> None:
        """Read the keys of the connected nodes; a node without a key is identified by its
        number.
        """
        if not hasattr(grid, "get_nodes"):
            if keys := [
                name for who, name in self._listed.items() if NODE_FINGERPRINT.fullmatch(who)
            ]:
                why = (
                    f"sites: {keys[0]} is given by its key, but this Flower version does not report"
                    " keys"
                )
                raise UserError(f"{why}: pip install 'flwr>=1.38', or give node ids")
            return
        for info in grid.get_nodes():
            key = bytes(info.public_key)
            self._identities[info.node_id] = (
                node_fingerprint(key) if key else f"node {info.node_id}"
            )

    def identity(self, node: int) -> str:
        return self._identities.get(node, f"node {node}")

    def name_of(self, node: int) -> str | None:
        """The name that belongs to a node, if it has one yet."""
        if self._listed:
            return self._listed.get(self.identity(node)) or self._listed.get(f"node {node}")
        return self._name_of_identity.get(self.identity(node))

    def label(self, node: int) -> str:
        """A node's name in the ledger."""
        return self.name_of(node) or f"node {node}"

    def number(self, node: int) -> int | None:
        name = self.name_of(node)
        return self.names.index(name) if name in self.names else None

    def knows_any(self, nodes: Iterable[int]) -> bool:
        """Whether a node that answered before is among these, where that matters."""
        return (
            bool(self._listed)
            or not self._identity_of_name
            or any(self.name_of(node) for node in nodes)
        )

    def recognize(self, answers: Sequence[Reply]) -> tuple[list[Reply], dict[int, str]]:
        """Answers under the names that belong to their nodes, and, by node, why others are refused.

        New clients get their numbers in their own order.
        """
        names = {answer.node: self.name_of(answer.node) for answer in answers}
        alike = Counter(
            (names[answer.node], names[answer.node] or answer.name) for answer in answers
        )
        recognized, refused = [], {}
        for answer in answers:
            own = names[answer.node]
            if reason := self._refusal(answer, own, alike[own, own or answer.name]):
                refused[answer.node] = reason
            else:
                recognized.append(replace(answer, name=own or answer.name))
                self.called[own or answer.name] = answer.name
        for answer in recognized:
            self._bind_name(answer.name, self.identity(answer.node))
        return recognized, refused

    def _bind_name(self, name: str, identity: str) -> None:
        self._identity_of_name[name], self._name_of_identity[identity] = identity, name
        if name not in self.names:
            self.names.append(name)

    def _refusal(self, answer: Reply, own: str | None, nodes: int) -> str:
        """Why an answer is refused; one that only uses a new name is logged and counts under the
        old name.
        """
        claimed, unnamed = answer.name, f"node {answer.node}"
        if own is None and self._listed:
            return f"its key {self.identity(answer.node)} is not on the operator's list of sites"
        if own != claimed and (
            claimed in self._identity_of_name or claimed in self._listed.values()
        ):
            return f"it answers as {claimed}, which is another node's name"
        if own is None and NODE_NUMBER.fullmatch(claimed) and claimed != unnamed:
            return f"it answers as {claimed}, which is another node's number"
        if nodes > 1:
            return f"{nodes} nodes answer as {own or claimed}"
        if own is not None and claimed not in (own, unnamed):
            log.warning(
                "%s now calls itself %s: it counts as %s", *map(safe_line, (own, claimed, own))
            )
        return ""

    def for_checkpoint(self) -> dict[str, Any]:
        return {
            "clients": list(self.names),
            "owners": dict(self._identity_of_name),
            "called": dict(self.called),
        }

    def restore(self, kept: Mapping[str, Any], *, rebind: bool = False) -> None:
        """Clients keep their numbers; with `rebind` the names are free for whoever answers under
        them first.
        """
        self.names = [str(name) for name in kept["clients"]]
        self.called = {str(name): str(own) for name, own in kept.get("called", {}).items()}
        self._identity_of_name, self._name_of_identity = {}, {}
        for name, identity in () if rebind else kept.get("owners", {}).items():
            self._bind_name(str(name), str(identity))


def _roster_of_sites(sites: Mapping[str, str | int]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, given in sites.items():
        who = str(given).strip()
        if not (NODE_FINGERPRINT.fullmatch(who) or who.isdecimal()):
            fingerprint = "a key's fingerprint (SHA256:…, as ssh-keygen -lf KEY.pub prints it)"
            raise UserError(f"sites: {name} = {given!s:.60} is neither {fingerprint} nor a node id")
        identity = f"node {who}" if who.isdecimal() else who
        if identity in found:
            raise UserError(f"sites: {found[identity]} and {name} have the same key or node id")
        found[identity] = name
    return found


def read_roster(text: str) -> dict[str, str]:
    """`North=SHA256:…,South=SHA256:…` as a mapping."""
    pairs = [item.rpartition("=") for item in text.split(",") if item.strip()]
    if bad := [who for name, _, who in pairs if not name.strip()]:
        raise UserError(f"sites takes NAME=FINGERPRINT with commas between, not '{bad[0]:.60}'")
    return {name.strip(): who.strip() for name, _, who in pairs}
