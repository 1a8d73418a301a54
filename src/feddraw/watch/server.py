"""The page and its data over HTTP: on this machine only unless asked otherwise, and only for who
has the key.

Other users of the machine can reach its loopback address, too, but run folders are private. So the
page itself holds nothing, and its data are given to whoever sends the key that `feddraw watch`
printed behind the `#` of the address. No file is served by its name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from feddraw import __version__
from feddraw.analysis.palette import css_variables
from feddraw.analysis.web_page import page_policy_digest, read_page_file
from feddraw.data.image_cache import cache_folder
from feddraw.errors import UserError
from feddraw.system.file_writing import PRIVATE, make_folder
from feddraw.text import safe_line
from feddraw.watch.followed_folder import FollowedFolder
from feddraw.watch.overview import overview_of_runs
from feddraw.watch.run_documents import run_detail

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORTS = range(20_000, 32_000)  # below those that systems give to outgoing connections
KEY_HEADER = "X-Feddraw-Key"
IDLE_SECONDS = 30.0  # seconds after which a silent connection is closed


def require_loopback(host: str, expose: bool) -> None:
    if host not in LOOPBACK and not expose:
        why = f"--host {host} shows the runs to other machines, unencrypted"
        raise UserError(
            f"{why}: add --expose if you mean it, or leave --host out and use an SSH tunnel"
        )


def usual_watch_port(folder: Path) -> int:
    """The same for the same folder, so that an open page finds a server that was started again."""
    digest = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).digest()
    return PORTS[int.from_bytes(digest[:4], "big") % len(PORTS)]


def own_watch_key() -> str:
    """One for each user of the machine, kept in the cache's folder where only its owner can read
    it.
    """
    path = cache_folder() / "watch.key"
    with suppress(OSError, ValueError):
        kept = path.read_text(encoding="ascii").strip()
        if len(kept) >= 16:
            return kept
    key = secrets.token_urlsafe(16)
    with suppress(OSError):  # where it cannot be kept, it holds for this server only
        make_folder(path.parent)
        path.unlink(missing_ok=True)
        path.touch(mode=PRIVATE, exist_ok=False)
        path.write_text(key, encoding="ascii")
    return key


@cache
def _style_and_script() -> tuple[str, str]:
    chart = read_page_file("analysis", "chart.js")
    script = f"\n{chart}\n{read_page_file('watch', 'watch.js')}"
    chart_style = read_page_file("analysis", "chart.css")
    style = f"\n{css_variables()}{chart_style}{read_page_file('watch', 'watch.css')}"
    return style, script


def watch_page() -> str:
    """The whole page as one text: it asks only the server it came from, and shows nothing without
    its key.
    """
    style, script = _style_and_script()
    text = read_page_file("watch", "watch.html").replace("VERSION", __version__)
    text = text.replace('<link rel="stylesheet" href="watch.css">', f"<style>{style}</style>")
    return text.replace('<script src="watch.js"></script>', f"<script>{script}</script>")


def watch_policy() -> str:
    """What the page may do: run its own script, and ask its own server."""
    style, script = map(page_policy_digest, _style_and_script())
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class WatchServer(ThreadingHTTPServer):
    """Follows a folder, and answers the page."""

    daemon_threads = True
    allow_reuse_port = False  # or two servers could share a port, and a page would reach either

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int | None = None, key: str = ""
    ) -> None:
        if not folder.is_dir():
            raise UserError(
                f"no folder {folder}: give the folder of a run, of a study or of a Flower server"
            )
        self.followed = FollowedFolder(folder)
        self.title = safe_line(str(folder))
        self.key = key or own_watch_key()
        self.instance = secrets.token_hex(8)
        self.lock = threading.Lock()
        self.host = host
        self.closed = False
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._bind(host, usual_watch_port(folder) if port is None else port, fixed=port is not None)
        self.page = watch_page().encode()
        self.page_hash = hashlib.sha256(self.page).hexdigest()[:12]

    def _bind(self, host: str, port: int, *, fixed: bool) -> None:
        try:
            super().__init__((host, port), WatchHandler)
        except OverflowError:
            raise UserError(f"--port takes a number from 0 to 65535, not {port}") from None
        except OSError as error:
            if not fixed and port:
                self._bind(host, 0, fixed=False)
                return
            raise UserError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
            ) from None

    def server_bind(self) -> None:
        """Without the look-up of this machine's name, which may take long and is not needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name = self.host
        self.server_port = int(self.server_address[1])

    def server_close(self) -> None:
        self.closed = True
        super().server_close()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/#key={self.key}"

    def knows(self, host: str) -> bool:
        """Whether a request was meant for us: another name that leads here is somebody's trick (DNS
        rebinding).
        """
        try:
            address = urlsplit(f"//{host}")
            name = address.hostname or ""
            port = address.port or 80
        except ValueError:
            return False
        if port != self.server_port:
            return False
        return name in (*LOOPBACK, self.host) or (
            self.host not in LOOPBACK and _is_ip_address(name)
        )

    def state(self, since: int, instance: str) -> dict[str, Any]:
        """What has changed since a version; everything for a page that knew another server."""
        with self.lock:
            self.followed.look()
            known = since if instance == self.instance else -1
            overview = overview_of_runs(self.followed, known)
            return {
                "instance": self.instance,
                "page": self.page_hash,
                "title": self.title,
                "now": time.time(),
                **overview,
            }

    def run(self, number: int) -> tuple[str, dict[str, Any]] | None:
        """One run's version as an ETag, and all that the page shows of it."""
        with self.lock:
            for run in self.followed.runs.values():
                if run.number == number:
                    return f'"{self.instance}-{run.number}-{run.version}"', run_detail(run)
        return None


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class WatchHandler(BaseHTTPRequestHandler):
    """Three addresses: the page, the state of all runs, one run."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "feddraw", ""
    timeout = IDLE_SECONDS
    HEADERS: ClassVar[Mapping[str, str]] = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }

    def do_GET(self) -> None:
        if self.server.closed:  # a connection that is left from before
            self.close_connection = True
            return
        try:
            self._answer()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the page is gone

    do_HEAD = do_GET

    def _answer(self) -> None:
        address = urlsplit("")
        with suppress(ValueError):  # what is no address is an empty one
            address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        key = self.headers.get(KEY_HEADER, "")
        if not self.server.knows(self.headers.get("Host", "")):
            self._send(421, "text/plain", b"this server is not meant by that name\n")
        elif address.path == "/":
            policy = {"Content-Security-Policy": watch_policy()}
            self._send(200, "text/html; charset=utf-8", self.server.page, policy)
        elif address.path not in ("/state", "/run"):
            self._send(404, "text/plain", b"nothing here\n")
        elif not hmac.compare_digest(key.encode(), self.server.key.encode()):
            self._send(403, "text/plain", b"open the address that feddraw watch printed\n")
        elif address.path == "/state":
            since = _whole_number(query.get("since"))
            self._json(self.server.state(since, query.get("instance", "")))
        else:
            self._answer_run(_whole_number(query.get("id")))

    def _answer_run(self, number: int) -> None:
        answer = self.server.run(number)
        if answer is None:
            self._send(404, "text/plain", b"no such run\n")
            return
        version, document = answer
        if self.headers.get("If-None-Match") == version:
            self._send(304, "application/json", b"", {"ETag": version})
        else:
            self._json(document, {"ETag": version})

    def _json(self, document: Any, more: Mapping[str, str] | None = None) -> None:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        self._send(200, "application/json", text.encode(), more)

    def _send(
        self, code: int, kind: str, body: bytes, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(code)
        for name, value in {**self.HEADERS, **(more or {}), "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass  # one line per second would bury everything else


def _whole_number(text: str | None) -> int:
    try:
        return int(text or -1)
    except ValueError:
        return -1
