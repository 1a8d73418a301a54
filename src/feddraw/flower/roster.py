"""Which client a node is, and whether it may take part at all.

A node is identified by its registered key if the SuperLink has one, else by its node id, never by
what it reports about itself. The SuperLink tells both before anything is sent. Where the operator
gives a list of sites, only that list decides: other nodes are no part of the federation. Without a
list every node may take part, and a name belongs to the node that first answered under it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.serverapp import Grid

from feddraw.errors import UserError
from feddraw.flower.reply_intake import Reply
from feddraw.text import safe_line

log = logging.getLogger("flwr")

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
NODE_NUMBER = re.compile(r"node \d+")
LONG_NODE_NUMBER = re.compile(r"node \d+(\d{6})")


def node_fingerprint(public_key: bytes) -> str:
    """A public key's fingerprint as `ssh-keygen -l` prints it; of other bytes, their hash in the
    same form.
    """
    try:
        key = load_pem_public_key(public_key)
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        hashed = base64.b64decode(line.split()[1])
    except (ValueError, TypeError, UnsupportedAlgorithm):
        hashed = public_key
    digest = base64.b64encode(hashlib.sha256(hashed).digest())
    return "SHA256:" + digest.decode().rstrip("=")


def name_in_log(client: str) -> str:
    """A client's name in a line of the log. A node without a name has the last six digits of its
    id (`node …271828`), which are enough to find it in the ledger and in Flower's list.
    """
    return safe_line(LONG_NODE_NUMBER.sub(r"node …\1", client))


@dataclass(frozen=True)
class RosterRecord:
    """What a checkpoint keeps of a roster."""

    names: Sequence[str]  # of the clients, by their numbers
    owners: Mapping[str, str]  # name to the identity of its node
    called: Mapping[str, str]  # name to what the client last called itself
    listed: Mapping[str, str]  # the operator's list of sites, name to identity; empty: none


class Roster:
    """Names, and the nodes they belong to."""

    def __init__(self, sites: Mapping[str, str | int] | None = None) -> None:
        # of the clients that have answered; the index is the client's number
        self.names: list[str] = []
        # by name, what the client last called itself, which is how it knows itself
        self.called: dict[str, str] = {}
        self._listed = _names_by_identity(sites or {})  # by the operator's word
        self._identity_of_name: dict[str, str] = {}
        self._name_of_identity: dict[str, str] = {}
        self._identities: dict[int, str] = {}  # of the nodes that were seen in this run
        self._reported_strangers: set[str] = set()  # by identity, so that each is logged once

    def meet(self, grid: Grid) -> None:
        """Read the keys of the connected nodes; a node without a key is identified by its
        number.
        """
        if not hasattr(grid, "get_nodes"):
            self._refuse_sites_given_by_key()
            return
        for info in grid.get_nodes():
            key = bytes(info.public_key)
            identity = node_fingerprint(key) if key else f"node {info.node_id}"
            self._identities[info.node_id] = identity

    def _refuse_sites_given_by_key(self) -> None:
        for identity, name in self._listed.items():
            if FINGERPRINT.fullmatch(identity):
                raise UserError(
                    f"sites: {name} is given by its key, but this Flower version does not report"
                    " keys: pip install 'flwr>=1.38', or give node ids"
                )

    @property
    def listed_names(self) -> list[str]:
        """The names on the operator's list; none where there is no list."""
        return list(self._listed.values())

    def admitted(self, nodes: Iterable[int]) -> list[int]:
        """Those of the nodes that may take part: with a list of sites, only the nodes on it."""
        if not self._listed:
            return list(nodes)
        admitted = []
        for node in nodes:
            if self.name_of(node) is None:
                self._report_stranger(node)
            else:
                admitted.append(node)
        return admitted

    def _report_stranger(self, node: int) -> None:
        identity = self.identity(node)
        if identity in self._reported_strangers:
            return
        self._reported_strangers.add(identity)
        log.warning(
            "node %d (%s) is connected and not on the operator's list of sites: nothing is sent to"
            " it",
            node,
            identity,
        )

    def identity(self, node: int) -> str:
        """A node's key as a fingerprint, else its number."""
        return self._identities.get(node, f"node {node}")

    def name_of(self, node: int) -> str | None:
        """The name that belongs to a node, if it has one yet."""
        identity = self.identity(node)
        if self._listed:
            return self._listed.get(identity) or self._listed.get(f"node {node}")
        return self._name_of_identity.get(identity)

    def label(self, node: int) -> str:
        """A node's name in the ledger."""
        return self.name_of(node) or f"node {node}"

    def number(self, node: int) -> int | None:
        """The number of the client that a node is; None before it has answered."""
        name = self.name_of(node)
        return self.names.index(name) if name in self.names else None

    def knows_any(self, nodes: Iterable[int]) -> bool:
        """Whether a node that answered before is among these, where that matters."""
        if self._listed or not self._identity_of_name:
            return True
        return any(self.name_of(node) for node in nodes)

    def recognize(self, replies: Sequence[Reply]) -> tuple[list[Reply], dict[int, str]]:
        """Replies under the names that belong to their nodes, and, by node, why others are refused.

        A name that nobody has yet belongs to the node whose reply came first. The replies keep
        their order, which is that of the clients.
        """
        accepted: dict[int, Reply] = {}
        refused: dict[int, str] = {}
        answered: set[str] = set()
        for reply in sorted(replies, key=lambda reply: reply.arrival):
            owned = self.name_of(reply.node)
            name = owned or reply.name
            reason = self._refusal(reply, owned)
            if not reason and name in answered:
                reason = f"another node has already answered as {name}"
            if reason:
                refused[reply.node] = reason
                continue
            answered.add(name)
            accepted[reply.node] = replace(reply, name=name)
            self.called[name] = reply.name
            self._bind(name, self.identity(reply.node))
        return [accepted[reply.node] for reply in replies if reply.node in accepted], refused

    def enroll(self, replies: Iterable[Reply]) -> None:
        """Give the clients that answer for the first time their numbers, in this order."""
        for reply in replies:
            if reply.name not in self.names:
                self.names.append(reply.name)

    def _bind(self, name: str, identity: str) -> None:
        self._identity_of_name[name] = identity
        self._name_of_identity[identity] = name

    def _refusal(self, reply: Reply, owned: str | None) -> str:
        """Why a reply is refused, or nothing.

        A node that only uses a new name is logged, and counts under its old one.
        """
        claimed = reply.name
        unnamed = f"node {reply.node}"
        taken = claimed in self._identity_of_name or claimed in self._listed.values()
        if owned is None and self._listed:
            return f"its key {self.identity(reply.node)} is not on the operator's list of sites"
        if claimed != owned and taken:
            return f"it answers as {claimed}, which is another node's name"
        if claimed not in (owned, unnamed) and NODE_NUMBER.fullmatch(claimed):
            return f"it answers as {claimed}, which is another node's number"
        if owned is not None and claimed not in (owned, unnamed):
            old_name = name_in_log(owned)
            log.warning(
                "%s now calls itself %s: it counts as %s", old_name, name_in_log(claimed), old_name
            )
        return ""

    def record(self) -> RosterRecord:
        """What a checkpoint keeps."""
        return RosterRecord(
            names=list(self.names),
            owners=dict(self._identity_of_name),
            called=dict(self.called),
            listed={name: identity for identity, name in self._listed.items()},
        )

    def restore(self, record: RosterRecord, *, rebind: bool = False) -> None:
        """Clients keep their numbers; with `rebind` the names are free for whoever answers under
        them first.
        """
        self.names = [str(name) for name in record.names]
        self.called = {str(name): str(called) for name, called in record.called.items()}
        self._identity_of_name = {}
        self._name_of_identity = {}
        if not rebind:
            for name, identity in record.owners.items():
                self._bind(str(name), str(identity))


def _names_by_identity(sites: Mapping[str, str | int]) -> dict[str, str]:
    """The operator's list of sites as identity to name."""
    names: dict[str, str] = {}
    for name, node_or_key in sites.items():
        text = str(node_or_key).strip()
        if not (FINGERPRINT.fullmatch(text) or text.isdecimal()):
            raise UserError(
                f"sites: {name} = {node_or_key!s:.60} is neither a key's fingerprint (SHA256:…, as"
                " ssh-keygen -lf KEY.pub prints it) nor a node id"
            )
        identity = f"node {text}" if text.isdecimal() else text
        if identity in names:
            raise UserError(f"sites: {names[identity]} and {name} have the same key or node id")
        names[identity] = name
    return names


def read_roster(text: str) -> dict[str, str]:
    """`North=SHA256:…,South=SHA256:…` as a mapping."""
    sites: dict[str, str] = {}
    for item in text.split(","):
        if not item.strip():
            continue
        name, _, key = item.rpartition("=")
        if not name.strip():
            raise UserError(f"sites takes NAME=FINGERPRINT with commas between, not '{key:.60}'")
        sites[name.strip()] = key.strip()
    return sites
