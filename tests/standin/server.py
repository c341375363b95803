"""A stand-in for the W&B server on loopback: enough of its private protocol for runs, media, artifacts and workspaces.

Written for wandb 0.31. An operation that it does not know is answered with an empty object and reported in ``unknown``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from standin.operations import OPERATIONS
from standin.records import StoredArtifact, StoredRun

ENTITY = "standin"
API_KEY = "5" * 40

Json = dict[str, Any]


class StandIn:
    """The server; use it as a context manager.

    ``fail(path, status)`` answers the next request below ``path`` with an error; ``down()`` refuses connections until
    ``up()``.
    """

    entity = ENTITY

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.artifacts: dict[str, StoredArtifact] = {}
        self.blobs: dict[str, bytes] = {}  # uploads by URL path
        self.views: dict[str, Json] = {}
        self.unknown: list[str] = []
        self.operations: list[str] = []
        self.requests: deque[tuple[str, str, int]] = deque(maxlen=10_000)
        self.lock = threading.RLock()
        self._faults: list[tuple[str, int]] = []
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> StandIn:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes wandb talk to this server."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": API_KEY,
            "WANDB_ENTITY": ENTITY,
            "WANDB_MODE": "online",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SILENT": "true",
        }

    def up(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"standin": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections: the network is lost."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def is_down(self) -> bool:
        return self._server is None

    def fail(self, path: str, status: int) -> None:
        """Answer the next request whose path starts with ``path`` with this status."""
        with self.lock:
            self._faults.append((path, status))

    def fault(self, path: str) -> int | None:
        """Status that this request must fail with."""
        with self.lock:
            found = next((fault for fault in self._faults if path.startswith(fault[0])), None)
            if found is None:
                return None
            self._faults.remove(found)
            return found[1]

    def run(self, name: str) -> StoredRun:
        with self.lock:
            return self.runs[name]

    def wait_for(self, condition: Any, seconds: float = 20.0) -> bool:
        """Wait until ``condition()`` holds; False when it does not in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.05)
        return False

    def artifact_files(self, artifact: StoredArtifact) -> dict[str, bytes]:
        """Files of an artifact by path, found by the MD5 that its manifest gives."""
        by_md5 = {base64.b64encode(hashlib.md5(data).digest()).decode(): data for data in self.blobs.values()}
        return {path: by_md5[digest] for path, digest in artifact.entries.items()}


class _Handler(BaseHTTPRequestHandler):
    standin: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        data = self.standin.blobs.get(path)
        self._answer(404 if data is None else 200, data or b"")

    def do_PUT(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        status = self.standin.fault(path)
        if status is None and not self.standin.is_down:
            _store_upload(self.standin, path, body)
        self._answer(status or 200, b"")

    def do_POST(self) -> None:
        body = self._body()
        status = 503 if self.standin.is_down else self.standin.fault(self.path)
        if status is not None:
            self._answer(status, b'{"error": "told to fail"}')
        elif self.path == "/graphql":
            self._answer(200, json.dumps(answer(self.standin, json.loads(body))).encode())
        elif self.path.endswith("/file_stream"):
            _, _, entity, project, run, _ = self.path.split("/")
            self._answer(200, json.dumps(_take_stream(self.standin, entity, project, run, json.loads(body))).encode())
        elif self.path.startswith("/sdk/otel/"):  # W&B's measurements of itself
            self._answer(200, b"{}")
        else:
            self.standin.unknown.append(f"POST {self.path}")
            self._answer(404, b"{}")

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def _answer(self, status: int, data: bytes) -> None:
        self.standin.requests.append((self.command, self.path, status))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.standin.is_down:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _store_upload(standin: StandIn, path: str, body: bytes) -> None:
    with standin.lock:
        standin.blobs[path] = body
        kind, *rest = path.strip("/").split("/")
        if kind == "run-file":
            standin.runs[rest[0]].files["/".join(rest[1:])] = body
        elif kind == "manifest":
            standin.artifacts[rest[0]].manifest = body


def _take_stream(standin: StandIn, entity: str, project: str, name: str, sent: Json) -> Json:
    with standin.lock:
        run = standin.runs.setdefault(name, StoredRun(entity, project, name))
        for file, chunk in (sent.get("files") or {}).items():
            for place, line in enumerate(chunk["content"]):
                run.lines[file][chunk["offset"] + place] = line
        if sent.get("complete"):
            run.complete, run.exit_code = True, sent.get("exitcode")
    return {"exitcode": None, "limits": {}}


def answer(standin: StandIn, request: Json) -> Json:
    """Answer one GraphQL request by the name of its operation."""
    name = request.get("operationName") or _operation(request["query"])
    with standin.lock:
        standin.operations.append(name)
        handler = OPERATIONS.get(name)
        if handler is None:
            standin.unknown.append(name + "\n" + request["query"] + json.dumps(request.get("variables"))[:2000])
            return {"data": {}}
        return {"data": handler(standin, request.get("variables") or {})}


def _operation(query: str) -> str:
    found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
    return found[1] if found else "anonymous"
