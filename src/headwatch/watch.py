"""``headwatch watch``: a page on loopback that follows a run's store while training goes on; no account, no network."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from headwatch.report.feed import Feed

__all__ = ["WatchServer", "serve"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WatchServer(ThreadingHTTPServer):
    """Serves one run's page to this machine alone.

    Two addresses answer, ``/`` and ``/news.json``; no file is ever served by its name. A request that names another
    host is refused, so that a web page elsewhere cannot read the run through the reader's browser (DNS rebinding).

    Args:
        path: the run's directory, or one that holds exactly one run; it may be empty yet.
        port: 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, path: str | Path, port: int = 0) -> None:
        self.feed = Feed(path)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/"


def serve(path: str | Path, port: int = 0) -> WatchServer:
    """A server for the run; ``serve_forever()`` starts it.

    Raises:
        FileNotFoundError: no such directory.
        OSError: the port is taken.
    """
    if not Path(path).is_dir():
        raise FileNotFoundError(f"{path} is not a directory; expected a run, or the directory that a run will be in.")
    try:
        return WatchServer(path, port)
    except OSError as error:
        raise OSError(
            f"port {port} cannot be used ({error.strerror}); choose another with --port, or 0 for any."
        ) from error


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version = "headwatch"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._from_here():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is for the machine that it runs on.")
            return
        parts = urlsplit(self.path)
        if parts.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.feed.page())
        elif parts.path == "/news.json":
            self._answer(HTTPStatus.OK, "application/json", self._news(parts.query))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is only one page here: /")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line each."""

    def _from_here(self) -> bool:
        try:
            return urlsplit("//" + self.headers.get("Host", "")).hostname in _LOOPBACK
        except ValueError:
            return False

    def _news(self, query: str) -> str:
        known = {name: _count_and_step(values[0]) for name, values in parse_qs(query).items()}
        return json.dumps(self.server.feed.news(known), allow_nan=False)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        for name, value in {
            **_HEADERS,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _count_and_step(text: str) -> tuple[int, int]:
    """``"11:300"`` as (11, 300); anything else as (0, -1), which no store continues."""
    count, _, step = text.partition(":")
    try:
        return int(count), int(step)
    except ValueError:
        return 0, -1
