"""A secure sum of clients that are all in this process: the simulation's, and what tests compare
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddraw.secure.sums.client import SecureSumClient
from feddraw.secure.sums.fixed_point import Words
from feddraw.secure.sums.server import SERVER_STAGES, SecureSumServer
from feddraw.secure.sums.session import Session
from feddraw.secure.sums.signing_keys import SiteDirectory


class InProcessSecureSum:
    """One secure sum of clients that are all in this process; each gives its words when it has
    them.

    `drops` names clients that fall silent and the stage (0 to 4) from which on they do. `approve`
    is what each client asks before it signs who is in the sum; where it raises, there is no sum.
    """

    def __init__(
        self,
        session: Session,
        keys: Mapping[str, Ed25519PrivateKey],
        directory: SiteDirectory | None,
        drops: Mapping[str, int] | None = None,
        *,
        agreed: bytes = b"",
        approve: Callable[[Sequence[str]], None] = lambda survivors: None,
    ) -> None:
        self._silent, self._agreed, self._approve = drops or {}, agreed, approve
        self.server = SecureSumServer(session, directory)
        self.server.agreed = agreed
        self._clients = {
            name: SecureSumClient(session, name, keys[name], directory) for name in session.members
        }
        for name in self._active(0, session.members):
            self.server.take_advertised(name, self._clients[name].advertise())
        advertised = self.server.advertised
        for name in self._active(1, [name for name, content in advertised.items() if content]):
            self.server.take_shares(name, self._clients[name].share(advertised))
        self._waiting = set(self._active(2, self.server.sharers))

    def _active(self, stage: int, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._silent.get(name, len(SERVER_STAGES)) > stage]

    def add(self, name: str, words: Words) -> bool:
        """Mask a client's words where they are and add them; False where the client has fallen
        silent.
        """
        if name not in self._waiting:
            return False
        self._waiting.remove(name)
        shares = self.server.shares_for(name)
        masked = self._clients[name].mask(shares, words, in_place=True, agreed=self._agreed)
        self.server.take_masked(name, masked)
        return True

    def total(self) -> Words:
        """The sum, once all have added theirs; `SecureSumFailed` if too few are left."""
        survivors = self.server.survivors
        for name in self._active(3, survivors):
            self._approve(survivors)
            self.server.take_signature(name, self._clients[name].sign(survivors))
        signatures = self.server.signatures
        for name in self._active(4, signatures):
            self.server.take_revealed(name, self._clients[name].reveal(survivors, signatures))
        return self.server.total()
