"""A stand-in W&B server per test, and runs that talk to it alone."""

from __future__ import annotations

import contextlib

import pytest

from standin.server import API_KEY, ENTITY, StandIn

wandb = pytest.importorskip("wandb")
from wandb.sdk.lib import module  # noqa: E402  after the check that there is a wandb

QUICK = {
    "init_timeout": 20,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "console": "off",
    "x_file_stream_transmit_interval": 1,  # whole seconds: a fraction counts as unset, which is 15
    **{f"x_{what}_retry_wait_min_seconds": 1 for what in ("file_stream", "file_transfer", "graphql")},
    **{f"x_{what}_retry_wait_max_seconds": 1 for what in ("file_stream", "file_transfer", "graphql")},
}


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The server; at the end every operation must have been known."""
    wandb.teardown()  # an earlier test's wandb-core has its own environment
    with StandIn() as standin:
        for name, value in {**standin.environment, "WANDB_DIR": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        yield standin
        _leave()
    assert standin.unknown == [], "the stand-in does not know these operations: " + "\n".join(standin.unknown)


def _leave():
    """Forget the runs, also when a test has killed wandb-core: ``wandb.run`` must not reach the next test."""
    with contextlib.suppress(ConnectionError):
        wandb.teardown()
    if wandb.run is not None:
        module.unset_globals()


@pytest.fixture
def start(server, tmp_path):
    """Starts a run on the server: ``start(finish_timeout=3, id=..., resume="must")``."""

    def begin(*, id=None, resume=None, finish_timeout=40.0):
        own = wandb.Settings(base_url=server.url, api_key=API_KEY, finish_timeout=finish_timeout, **QUICK)
        return wandb.init(project="p", entity=ENTITY, mode="online", dir=tmp_path, id=id, resume=resume, settings=own)

    return begin
