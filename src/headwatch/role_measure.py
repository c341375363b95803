"""Role scores beside the signatures of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from headwatch.heads.headmap import HeadMap
from headwatch.metrics import ROLE_KEYS, Kind
from headwatch.notices import Notices
from headwatch.probe.batches import with_tokens
from headwatch.probe.calling import ProbeFn
from headwatch.probe.documents import Context, ProbeBatch
from headwatch.probe.measure import SignatureMeasure
from headwatch.roles import RoleScores, head_roles, repeated_tokens
from headwatch.snapshot import Snapshot

__all__ = ["WithRoles", "repeated_documents"]

_PERIOD = 50
_LEAST = 4  # tokens of a period, and distinct ids to draw from


class WithRoles:
    """Adds ``previous_token``, ``duplicate_token`` and ``induction`` to signatures; a ``headwatch.measure.Measure``.

    They are measured on repeated random tokens, drawn from the ids that the probe documents hold. A failure costs the
    role scores alone, for the rest of the run, and is said once.

    Args:
        signatures: measures what the role scores are added to.
        model, head_map, probe_fn, context, notices: as there.
    """

    kind: Kind = "signature"

    def __init__(
        self,
        signatures: SignatureMeasure,
        model: nn.Module,
        head_map: HeadMap,
        *,
        probe_fn: ProbeFn | None = None,
        context: Context = None,
        notices: Notices | None = None,
    ) -> None:
        self._signatures = signatures
        self._model, self._head_map = model, head_map
        self._options: dict[str, Any] = {"probe_fn": probe_fn, "context": context}
        self._notices = notices or Notices()
        self._batch, self._period = repeated_documents(signatures.batches)
        self._off = False

    def restore(self, table: pa.Table) -> None:
        """Only signatures look back at an earlier snapshot."""
        self._signatures.restore(table)

    def take(self, step: int) -> Callable[[int], Snapshot]:
        """Run the probe documents and the repeated tokens; returns what is left to do."""
        finish = self._signatures.take(step)
        scores = self._scores(step)
        return lambda at: _with(finish(at), scores)

    def _scores(self, step: int) -> list[RoleScores]:
        if self._off:
            return []
        try:
            return head_roles(self._model, self._head_map, self._batch, period=self._period, **self._options)
        except Exception as error:  # all ranks run the same forward and come here together
            self._off = True
            self._notices.say(
                "roles",
                f"role scores could not be measured at step {step} and are off: {type(error).__name__}: {error}. "
                "Signatures go on; roles=False silences this.",
            )
            return []


def repeated_documents(batches: Sequence[ProbeBatch]) -> tuple[Any, int]:
    """A batch like the probe's that holds repeated random tokens, and their period: 50, or half a document.

    Raises:
        ValueError: documents without token ids, too short, or of too few different tokens.
    """
    first = batches[0]
    if first.tokens is None:
        raise ValueError("roles: expected probe documents of token ids, found none; roles are defined on tokens only.")
    period = min(_PERIOD, first.tokens.shape[1] // 2)
    ids = torch.cat([item.tokens.flatten() for item in batches if item.tokens is not None]).unique()
    if period < _LEAST or len(ids) < _LEAST:
        raise ValueError(
            f"roles: expected probe documents of {2 * _LEAST} tokens or more and {_LEAST} different ids, found "
            f"{first.tokens.shape[1]} tokens and {len(ids)} ids; pass longer documents as probe=."
        )
    return with_tokens(first.batch, ids[repeated_tokens(len(ids), period=period)]), period


def _with(snapshot: Snapshot, scores: Sequence[RoleScores]) -> Snapshot:
    known = {(s.layer, head): i for s in scores for i, head in enumerate(s.heads)}
    by_layer = {s.layer: s.scores for s in scores}
    rows = list(zip(*(snapshot.heads[name].to_pylist() for name in ("layer", "head")), strict=True))
    columns = {
        role: np.array([float(by_layer[row[0]][role][known[row]]) if row in known else np.nan for row in rows])
        for role in ROLE_KEYS
    }
    return snapshot.with_heads(**columns) if scores and rows else snapshot
