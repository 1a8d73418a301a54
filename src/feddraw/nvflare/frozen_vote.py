"""The vote on frozen layers: which tensors of the job's model are not trained.

`Site` sends only those that are, with a digest of its frozen layers. What more than half of the
sites name is the job's, so that one site cannot cut the model; those that name something else are
refused. The first round in which most name a digest decides, with the names of the tensors too
where the sent model still has the frozen layers; the next model goes out without them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from nvflare.app_common.abstract.fl_model import FLModel

from feddraw.errors import UserError
from feddraw.nvflare.model_meta import FROZEN, unpack_meta
from feddraw.nvflare.stop_rules import logged_failure
from feddraw.server.state_dict import Arrays
from feddraw.text import one_line, safe_line
from feddraw.training.own_frozen_layers import frozen_digest

log = logging.getLogger("feddraw.nvflare")


def named_digest(model: FLModel) -> str:
    """The digest of the frozen layers that a site names; empty where it names none."""
    try:
        return one_line(unpack_meta(model.meta).get(FROZEN, ""), 64)
    except UserError:
        return ""


def majority_digest(digests: Mapping[str, str]) -> str:
    """What more than half of the sites name; empty where they name none. `digests` has what each
    site names. Without a majority for one of them, the job ends.
    """
    if not digests:
        return ""
    digest, sites = Counter(digests.values()).most_common(1)[0]
    if 2 * sites > len(digests):
        if digest:
            log.info("frozen layers: SHA-256 %s at %d of %d", digest, sites, len(digests))
        return digest
    naming = [name for name in sorted(digests) if digests[name]]
    if 2 * len(naming) <= len(digests):
        return ""
    shown = ", ".join(f"{name} {digests[name]}" for name in naming[:3])
    raise logged_failure(
        "the sites' networks have different frozen layers, so their models cannot be averaged"
        f" ({safe_line(shown)}): build all from the same file, or begin with a model that has"
        " the frozen tensors"
    )


def sites_with_others(digests: Mapping[str, str], agreed: str) -> dict[str, str]:
    """Why each site is refused whose frozen layers are not the agreed ones."""
    return {
        name: f"its frozen layers are {_in_words(digest)}, the job's are of {agreed}"
        for name, digest in digests.items()
        if digest != agreed
    }


def without_frozen(sent: Arrays, models: Mapping[str, FLModel], agreed: str) -> Arrays:
    """The sent model without the tensors that some site leaves out and whose digest is the agreed
    one; all of it where the frozen layers are not in it. `models` are those that may count.
    """
    for model in models.values():
        params = model.params
        trained = set(params) if isinstance(params, Mapping) else set(sent)
        frozen = {key: array for key, array in sent.items() if key not in trained}
        if frozen and frozen_digest(frozen) == agreed:
            return {key: array for key, array in sent.items() if key in trained}
    return sent


def _in_words(digest: str) -> str:
    return f"of SHA-256 {digest}" if digest else "not named"
