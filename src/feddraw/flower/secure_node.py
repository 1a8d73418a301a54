"""A node under secure sums: who it is by its --node-config, and what it insists on before its app
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import ConfigRecord, Context

from feddraw.core import Method, weights_show_updates, why_not_secure
from feddraw.errors import UserError
from feddraw.flower import job_orders
from feddraw.flower.frozen_layers import FROZEN
from feddraw.flower.method_as_text import method_from_text
from feddraw.flower.secure_messages import OfferedWork, RecordNames
from feddraw.secure.rounds import rules_of_method
from feddraw.secure.rounds.site import SiteSettings
from feddraw.secure.rounds.terms import TRAIN, Terms
from feddraw.secure.sums.one_time_keys import derived_key
from feddraw.secure.sums.session import FEWEST_SUMMED
from feddraw.secure.sums.signing_keys import read_site_directory, read_site_key, site_of_key
from feddraw.server.policy import read_policy
from feddraw.text import one_line

NO_KEY = (
    "secure sums need a signing key, and this node has none: make one with `feddraw site key FILE`,"
    " and name it with key=… in the --node-config"
)
SEED_LABEL = "seed of local training"


@dataclass(frozen=True)
class SecureNode:
    """A node with its key and the keys of all sites, and what it insists on."""

    settings: SiteSettings
    number: int | None  # of its partition, where it has one
    names: RecordNames  # of the records that its app takes
    size_key: str  # the metric that says how many images it has
    clear_weights: bool  # it says its own weight, also where this tells of its update
    least_effort: float  # share of its steps below which it does not train
    simulated: bool  # its data are the run's own, and so may its seeds be

    @staticmethod
    def of(context: Context) -> SecureNode:
        node = context.node_config
        if not node.get("key"):
            raise UserError(NO_KEY)
        key = read_site_key(Path(str(node["key"])))
        directory = read_site_directory(Path(str(node["sites"]))) if node.get("sites") else None
        number = node.get("partition-id")
        number = number if isinstance(number, int) else None
        if directory is not None:
            name = site_of_key(directory, key.public_key())
        else:
            unnamed = f"node {context.node_id}" if number is None else f"partition {number}"
            name = one_line(node.get("client") or unnamed)
        stated = node.get("client")
        if stated and one_line(stated) != name:
            raise UserError(
                f"this site calls itself {one_line(stated)}, but its key is that of {name}"
            )
        policy = read_policy(Path(str(node["policy"]))) if node.get("policy") else None
        fewest = int(node.get("fewest", FEWEST_SUMMED))
        return SecureNode(
            settings=SiteSettings(name, key, directory, fewest, policy),
            number=number,
            names=RecordNames(str(node.get("arrays", "arrays")), str(node.get("config", "config"))),
            size_key=str(node.get("size", "num-examples")),
            clear_weights=node.get("clear_weights") is True,
            least_effort=float(node.get("effort", 1.0)),
            simulated=node.get("simulated") is True,
        )

    def introduction(self, holds_frozen: str = "") -> ConfigRecord:
        """Who it is, and the digest of the frozen layers that it holds, where the server asks."""
        record = ConfigRecord({"name": self.settings.name})
        if self.number is not None:
            record["number"] = self.number
        if holds_frozen:
            record[FROZEN] = holds_frozen
        return record

    def check(self, offered: OfferedWork) -> None:
        """Refuse what this site does not train on."""
        orders = job_orders.read_orders(offered.content)
        effort = orders.get("effort", 1.0)
        if not (isinstance(effort, int | float) and effort >= self.least_effort):
            raise UserError("the server asks for less effort than this site's own limit")
        if effort > 1:
            raise UserError("the server asks for more steps than training has")
        if offered.terms.kind == TRAIN:
            method = method_of_terms(offered.terms)
            if why := why_not_secure(method):
                raise UserError(f"this method cannot run under secure sums: {why}")
            if offered.terms.sums != rules_of_method.sums_of(method):
                raise UserError("the server names other sums than its method has")
            self._check_weights(method, offered.terms)
            if offered.terms.reading.get("size") != self.size_key:
                raise UserError(
                    f"the server weighs by another number than this site's {self.size_key}"
                )

    def _check_weights(self, method: Method, terms: Terms) -> None:
        """Refuse a policy that does not fit, and to say a weight that tells of this site's
        update.
        """
        terms.limits.check_method(method)
        rules_of_method.check_policy(method, terms.limits, clear_weights=terms.clear_weights)
        if terms.clear_weights and weights_show_updates(method) and not self.clear_weights:
            raise UserError(
                "the server asks for this site's weight in clear, which tells of its update: it"
                " takes part where weights are hidden (clear_weights=true in the --node-config"
                " allows it)"
            )

    def seed(self, work: bytes) -> int:
        """Of local training: from a secret of this site's, and different for all that it trains
        on.
        """
        secret = derived_key(self.settings.key.private_bytes_raw(), work, SEED_LABEL)
        return int.from_bytes(secret[:8], "little") >> 1 | 1


def method_of_terms(terms: Terms) -> Method:
    """The method, under the policy of the same terms, whatever the server says about that."""
    method = method_from_text(terms.method)
    return replace(method, limited=method.limited or terms.limits.limits_weights)
