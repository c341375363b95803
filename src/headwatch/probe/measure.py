"""The signatures of every watched head: forwards on the training thread, averages and comparisons on the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from torch import nn

from headwatch.heads.headmap import HeadMap
from headwatch.marginal.agreement import consistency, dispersion, drift, drift_noise_floor, mean_over_documents
from headwatch.metrics import SIGNATURE_KEYS, Kind
from headwatch.notices import Notices
from headwatch.probe.batches import cut
from headwatch.probe.calling import ProbeError, ProbeFn
from headwatch.probe.capture import capture
from headwatch.probe.documents import Context, ProbeBatch, documents_call
from headwatch.probe.quiet import quiet_probe
from headwatch.probe.reduction import Reduction, SiteValues
from headwatch.snapshot import TOKENS_SCHEMA, Snapshot, heads_table

__all__ = ["SignatureMeasure"]

Values = NDArray[np.float64]


class SignatureMeasure:
    """Signatures of the heads of a map on fixed probe documents. Satisfies ``headwatch.measure.Measure``.

    ``take(step)`` runs the probe documents through the model without a trace and returns ``finish``; ``finish(step)``
    may run on another thread and gives the :class:`Snapshot`: per head the mean over documents of each signature (of
    ``max_logit`` the largest) and its standard deviation; in ``summary``, for each signature, ``<key>_consistency``,
    ``<key>_dispersion``, ``<key>_drift`` (against the snapshot before), ``<key>_noise_floor``, and
    ``<key>_consistency_within``, ``<key>_drift_within`` after removing the mean of each layer; in ``tokens`` the token
    signal per layer. Heads that could not be measured are NaN and flagged "not_captured", heads without attention
    outside the ignored keys "sink_only".

    Args:
        model: the model, or the LightningModule around it.
        head_map: what is watched.
        batches: probe documents, from :func:`headwatch.probe.documents.probe_batches`.
        probe_fn: ``probe_fn(model, batch)`` runs the forward; by default the call rule of :func:`model_call`.
        context: makes the context of a forward, such as ``trainer.precision_plugin.forward_context``.
        special_tokens: token ids that are ignored as keys, besides the first token of each segment.
        query_stride: count every stride-th query only; what it costs in accuracy stands at
            :func:`headwatch.marginal.column_statistics`.
        token_documents: token signals are recorded for so many documents.
        notices: where what cannot be measured is said, once.
    """

    kind: Kind = "signature"

    def __init__(
        self,
        model: nn.Module,
        head_map: HeadMap,
        batches: Sequence[ProbeBatch],
        *,
        probe_fn: ProbeFn | None = None,
        context: Context = None,
        special_tokens: Sequence[int] = (),
        query_stride: int = 1,
        token_documents: int = 8,
        notices: Notices | None = None,
    ) -> None:
        self.head_map = head_map
        self._model = model
        self._call, self.batches = documents_call(model, head_map, batches, probe_fn, context)
        self._options: dict[str, Any] = {"special_tokens": special_tokens, "query_stride": query_stride}
        self._token_documents = token_documents
        self._notices = notices or Notices()
        self._identity = _identity(head_map)
        self._previous: dict[str, Values] = {}

    def restore(self, table: pa.Table) -> None:
        """Drift goes on from the last stored snapshot."""
        if not table.num_rows:
            return
        last = table.filter(pc.equal(table["step"], pc.max(table["step"])))
        rows = {key: i for i, key in enumerate(zip(*(last[c].to_pylist() for c in ("layer", "head")), strict=True))}
        place = [rows.get(key) for key in zip(self._identity["layer"], self._identity["head"], strict=True)]
        for key in SIGNATURE_KEYS:
            column = np.array(last[key].to_pylist(), np.float64)
            self._previous[key] = np.array([np.nan if i is None else column[i] for i in place])

    def check(self) -> None:
        """Run the first probe document, or its batch where the model does not take it alone; nothing is measured.

        Raises:
            ProbeError: the model cannot be run on it.
        """
        first = self.batches[0].batch
        with quiet_probe(self._model):
            try:
                self._call(cut(first, 0, 1))
            except ProbeError:
                self._call(first)

    def take(self, step: int) -> Callable[[int], Snapshot]:
        """Run the probe documents; returns what is left to do."""
        reduction = Reduction(self.head_map, **self._options)
        with quiet_probe(self._model), capture(self._model, reduction) as captured:
            for batch in self.batches:
                reduction.begin(batch)
                self._call(batch.batch)
                reduction.end()
        reduction.refuse(captured.refused)
        self._say(reduction.sites, step)
        return lambda at: self._finish(at, reduction.sites)

    def _say(self, sites: dict[str, SiteValues], step: int) -> None:
        reasons: dict[str, list[str]] = {}
        for module, site in sites.items():
            if not site.values and not site.failure:
                site.failure = "no attention call was seen in it: a kernel of its own, or not run by the probe"
            if site.failure:
                reasons.setdefault(site.failure, []).append(module)
        for reason, modules in reasons.items():
            self._notices.say(
                f"signature {reason}",
                f"the attention of {', '.join(modules)} was not captured at step {step}: {reason}. Their signatures "
                "are empty; exclude=[...] with these names leaves them out.",
            )

    def _finish(self, step: int, sites: dict[str, SiteValues]) -> Snapshot:
        documents = {key: self._collect(key, sites) for key in SIGNATURE_KEYS}
        columns: dict[str, Any] = {}
        for key, values in documents.items():
            columns[key] = _largest(values) if key == "max_logit" else mean_over_documents(values)
            columns[f"{key}_std"] = _deviation(values)
        summary = self._summary(documents, columns)
        self._previous = {key: columns[key] for key in SIGNATURE_KEYS}
        flags = self._flags(sites, columns["n_eff"], columns["max_logit"])
        rows = {**self._identity, **columns, "flags": flags, "step": np.full(len(flags), step)}
        return Snapshot("signature", step, heads_table("signature", rows), summary, self._tokens(step, sites))

    def _collect(self, key: str, sites: dict[str, SiteValues]) -> Values:
        """One signature as (documents, heads); NaN for sites without."""
        known = [np.concatenate([v.numpy() for v in s.values[key]]) for s in sites.values() if _measured(s)]
        n = len(known[0]) if known else 1
        pieces = iter(known)
        columns = [
            next(pieces) if _measured(sites[site.module]) else np.full((n, len(site.heads)), np.nan)
            for site in self.head_map.sites
        ]
        return np.concatenate(columns, 1)

    def _summary(self, documents: dict[str, Values], columns: dict[str, Values]) -> dict[str, float]:
        layer = np.array(self._identity["layer"])
        summary: dict[str, float] = {}
        for key, values in documents.items():
            r = consistency(values)
            summary[f"{key}_consistency"] = r
            summary[f"{key}_consistency_within"] = consistency(values, layer)
            summary[f"{key}_dispersion"] = dispersion(columns[key])
            summary[f"{key}_noise_floor"] = drift_noise_floor(len(values), r)
            if key in self._previous:
                summary[f"{key}_drift"] = drift(columns[key], self._previous[key])
                summary[f"{key}_drift_within"] = drift(columns[key], self._previous[key], layer)
        return {key: value for key, value in summary.items() if np.isfinite(value)}

    def _flags(self, sites: dict[str, SiteValues], n_eff: Values, logits: Values) -> list[str]:
        flags = []
        rows = zip(self._identity["flags"], self._identity["module"], n_eff, logits, strict=True)
        for own, module, value, logit in rows:
            why = "sink_only" if np.isfinite(logit) else "nan"
            more = "" if np.isfinite(value) else why if _measured(sites[module]) else "not_captured"
            flags.append(",".join(filter(None, (own, more))))
        return flags

    def _tokens(self, step: int, sites: dict[str, SiteValues]) -> pa.Table:
        tables = [TOKENS_SCHEMA.empty_table()]
        for site in self.head_map.sites:
            rows = [row for batch in sites[site.module].lift for row in batch.numpy()][: self._token_documents]
            tables += [_token_rows(step, site.layer, d, lift) for d, lift in enumerate(rows)]
        return pa.concat_tables(tables)


def _measured(site: SiteValues) -> bool:
    return bool(site.values) and not site.failure


def _identity(head_map: HeadMap) -> dict[str, list[Any]]:
    rows = [(site, head) for site in head_map.sites for head in site.heads]
    return {
        "layer": [site.layer for site, _ in rows],
        "head": [head for _, head in rows],
        "kv_head": [site.kv_head[head] for site, head in rows],
        "module": [site.module for site, _ in rows],
        "displacement": [0] * len(rows),
        "status": [site.status for site, _ in rows],
        "flags": [",".join(site.flags) for site, _ in rows],
    }


def _token_rows(step: int, layer: int, document: int, lift: NDArray[np.float32]) -> pa.Table:
    valid = np.flatnonzero(np.isfinite(lift))
    constants = {"step": step, "layer": layer, "document": document}
    columns = {name: np.full(len(valid), value) for name, value in constants.items()}
    return pa.table({**columns, "position": valid, "lift": lift[valid]}, schema=TOKENS_SCHEMA)


def _deviation(values: Values) -> Values:
    """Standard deviation over documents; one document has none."""
    if len(values) < 2:
        return np.full(values.shape[1], np.nan)
    return np.sqrt(mean_over_documents((values - mean_over_documents(values)) ** 2))


def _largest(values: Values) -> Values:
    return np.where(np.isfinite(values).any(0), np.where(np.isfinite(values), values, -np.inf).max(0), np.nan)
