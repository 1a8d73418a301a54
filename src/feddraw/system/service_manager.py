"""Messages to the service manager that started this process (systemd's notification protocol)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

SOCKET_VARIABLE = "NOTIFY_SOCKET"


class ServiceManager:
    """Where this process says how it is; without a service manager it says nothing."""

    def __init__(self, address: str | None) -> None:
        # systemd writes the first byte of an abstract address as @
        self._address = "\0" + address[1:] if address and address[0] == "@" else address

    @classmethod
    def of_this_process(cls) -> ServiceManager:
        """The one that the environment names. Processes that are started later do not inherit it:
        only this one speaks for the service.
        """
        return cls(os.environ.pop(SOCKET_VARIABLE, None))

    def ready(self) -> None:
        """The service has started."""
        self._send("READY=1")

    def alive(self) -> None:
        """The service works; systemd restarts it where this stays away for `WatchdogSec`."""
        self._send("WATCHDOG=1")

    def status(self, line: str) -> None:
        """What `systemctl status` shows."""
        self._send(f"STATUS={line}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A service manager that does not listen is no reason to end, and a busy one none to wait.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.setblocking(False)
            door.sendto(message.encode(), self._address)
