"""W&B: one row per snapshot with every scalar and the picture; at the end the run table's numbers and the store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwatch.metrics import HEADLINE_KEYS
from headwatch.notices import Notices
from headwatch.sinks.artifact import ARTIFACT_TYPE, artifact_name, store_files, within
from headwatch.sinks.pictures import Pictures
from headwatch.sinks.row import Row
from headwatch.sinks.run_table import run_table
from headwatch.sinks.scalars import notes, scalars
from headwatch.sinks.tracked import MAX_KEYS, Metrics

if TYPE_CHECKING:
    from wandb import Run

    from headwatch.alerts import Alert
    from headwatch.snapshot import Snapshot

__all__ = ["WandbSink", "upload_store", "wandb_run_of"]

_Say = Callable[[str, str], None]


def wandb_run_of(logger: object) -> Run | None:
    """The W&B run behind a Lightning logger; None for another logger, and where nothing would be kept: other ranks have
    a dummy experiment, ``WANDB_MODE=disabled`` a run that drops everything.

    ``pytorch_lightning`` and ``lightning.pytorch`` have a ``WandbLogger`` each, so the class is told by its name.
    """
    if "WandbLogger" not in [cls.__name__ for cls in type(logger).__mro__]:
        return None
    run: Any = getattr(logger, "experiment", None)
    return run if isinstance(getattr(run, "id", None), str) and not run.disabled else None


class WandbSink:
    """Sends rows to a W&B run that somebody else created and will finish.

    Each row is one ``run.log`` call without ``step=``, with ``trainer/global_step`` inside. A picture that fails costs
    the picture alone. One thread calls the sink; the training thread may log to the same run meanwhile.

    Args:
        run: the user's run.
        metrics: per-head metrics, see ``scalars``.
        log_heads: False sends aggregates only.
        max_keys: most per-head keys in a row.
        picture: send ``headwatch/simplex`` with every profile.
        title: heading of the pictures; the run's name by default.
        history: profile rows that a resumed run has from before, for the pictures' trails.
        say: says something once, ``say(key, message)``; a warning by default.
    """

    name = "W&B"

    def __init__(
        self,
        run: Run,
        *,
        metrics: Metrics = HEADLINE_KEYS,
        log_heads: bool = True,
        max_keys: int = MAX_KEYS,
        picture: bool = True,
        title: str | None = None,
        history: pa.Table | None = None,
        say: _Say | None = None,
    ) -> None:
        self._run = run
        self._metrics = metrics
        self._log_heads = log_heads
        self._max_keys = max_keys
        self._say = say or Notices().say
        self._pictures = Pictures(title or str(run.name or run.id), history, self._say) if picture else None
        self._latest: dict[str, Snapshot] = {}
        self._uploaded = False

    def log(self, row: Row) -> None:
        """Log one row; raises what W&B raises about its scalars."""
        self._latest.update(row.snapshots)
        self._note(row)
        values = scalars(row, metrics=self._metrics, max_keys=self._max_keys, log_heads=self._log_heads)
        pictures = self._pictures.of(row) if self._pictures is not None else {}
        if pictures:
            self._log_with(pictures, values)
        else:
            self._run.log(values)

    def _note(self, row: Row) -> None:
        if self._log_heads:
            for note in notes(row, metrics=self._metrics, max_keys=self._max_keys):
                self._say(note, note)

    def _log_with(self, pictures: dict[str, bytes], values: dict[str, float]) -> None:
        """One row with pictures. W&B copies them before it sends: on a full disk it raises with nothing sent yet."""
        try:
            with tempfile.TemporaryDirectory(prefix="headwatch-", ignore_cleanup_errors=True) as folder:
                self._run.log({**values, **_images(pictures, Path(folder))})
        except OSError as error:
            self._run.log(values)
            if self._pictures is not None:
                self._pictures.failed(error)

    def alert(self, alert: Alert) -> None:
        """Send an alert through W&B, which mails it or posts it as the user has set there."""
        self._run.alert(title=alert.title, text=alert.text, level="WARN")

    def close(self, row: Row | None) -> None:
        """Put the numbers that runs are sorted by into the run's summary. The run stays open: it is the user's."""
        if self._latest:
            self._run.summary.update(run_table(self._latest, row))

    def upload(self, store_path: Path | str, timeout: float = 60.0) -> None:
        """Log the store as an artifact, once; see ``upload_store``."""
        if not self._uploaded:
            self._uploaded = True
            upload_store(self._run, Path(store_path), timeout)


def upload_store(run: Run, store: Path, timeout: float = 60.0) -> None:
    """Log the store to ``run``; W&B sends the files in the background, and ``wandb sync`` those of an offline run.

    The files are sent from where they lie, so they must stay there until then.

    Args:
        run: the run that the store belongs to.
        store: the run's directory.
        timeout: seconds to wait: W&B asks its server first, and that blocks while the network is down.

    Raises:
        TimeoutError: W&B did not answer in time.
    """
    within(timeout, lambda: _upload(run, store))


def _upload(run: Run, store: Path) -> None:
    import wandb

    name = artifact_name(run.id)
    artifact = wandb.Artifact(name, type=ARTIFACT_TYPE, description="headwatch's record of this run")
    for file in store_files(store):
        artifact.add_file(str(file), name=file.relative_to(store).as_posix(), policy="immutable")
    run.log_artifact(artifact)


def _images(pictures: dict[str, bytes], folder: Path) -> dict[str, Any]:
    """The PNG files as W&B images. From a file W&B keeps the bytes; from pixels it would encode them anew."""
    import wandb

    images: dict[str, Any] = {}
    for place, (key, png) in enumerate(pictures.items()):
        path = folder / f"{place}.png"
        path.write_bytes(png)
        images[key] = wandb.Image(str(path))
    return images
