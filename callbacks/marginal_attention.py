"""The callback that watches where every attention head looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from headwatch.alerts import DEFAULT_ALERTS
from headwatch.budgets import WANTED_DOCUMENTS
from headwatch.callbacks._base import HeadMonitor
from headwatch.callbacks._documents import documents_of, too_few
from headwatch.callbacks._lightning import LightningModule, Trainer
from headwatch.callbacks._session import Session
from headwatch.heads import HeadMap
from headwatch.measure import Measure
from headwatch.metrics import ROLE_KEYS, SIGNATURE_HEADLINE, Kind
from headwatch.parallel.layout import layout_of, model_to_call
from headwatch.parallel.signatures import SharedSignatures
from headwatch.probe.batches import fingerprint
from headwatch.probe.calling import ProbeError
from headwatch.probe.documents import ProbeBatch
from headwatch.probe.lookback import measure_budgets, refuse_heads
from headwatch.role_measure import WithRoles

__all__ = ["MarginalAttentionMonitor"]


class MarginalAttentionMonitor(HeadMonitor):
    r"""Watch every attention head's marginal signature on fixed probe documents while the model trains.

    At due steps this callback runs the same documents through the model, leaving no trace in training, and reduces each
    head's attention over the queries as it passes by: no T × T map of all heads is ever kept. The idea of marginal
    attention is Maiorca, Nelson and Locatello's (arXiv:2610.03109); the definitions are ours.

    Logged for every head as ``heads/<signature>/L03.H07``, by default:

    - ``n_eff``: effective share of the keys attended; 1 for uniform attention under any mask, near 1 at initialisation.
    - ``mutual_information``: between query and key, in nats, minus its value for uniform attention.
    - ``row_entropy``: mean entropy of a query's attention, in nats; a fall to 0 is entropy collapse.
    - ``sink_share``: share of the attention on the first token and on special tokens.

    and in the store also ``c95`` (share of keys that hold 95 % of the attention), ``peak_mean`` (mean over keys of the
    largest attention that any query gives them) and ``max_logit`` (largest score before softmax), each with ``_std``
    over documents. With ``roles=True`` also ``previous_token``, ``duplicate_token`` and ``induction``: mean attention
    at the distances that define these roles, 0 to 1; they go to the logger too.

    For the whole model, ``headsum/<signature>/median``, ``/p10``, ``/p90``; always side by side ``/consistency`` (mean
    Pearson correlation between documents) and ``/dispersion`` (spread over heads: a fixed random net is consistent,
    with dispersion near 0); ``/drift`` against the snapshot before, beside its ``/noise_floor``.

    Args:
        probe: the documents: a batch, a list of batches, a dataloader, or a number n: the first n validation batches.
            Two documents at least, for the spread over documents and for consistency.
        every_n_train_steps: interval in optimizer steps, after the early steps. A snapshot runs the probe through the
            model, so the default is wider than that of profiles; each of its steps is one of theirs.
        early_steps: extra due steps at the start. Step 0 and the end are always measured.
        special_tokens: token ids that are ignored as keys, besides the first token of each segment.
        query_stride: count every stride-th query only; cheaper, with the error stated in
            ``headwatch.marginal.column_statistics``.
        roles: also measure what known role a head plays, on repeated random tokens; causal language models only.
        budgets: at the end of ``fit``, measure KV-cache budgets on the probe documents (40 at least are wanted) and
            write them to ``budgets/`` in the run's directory: ``prune_ratios.npy``, ``budgets.json``, ``budgets.png``.
        probe_fn: ``probe_fn(pl_module, batch)`` runs the network once on a probe batch; by default the module's own
            ``forward``, else the smallest submodule that holds all heads. Never ``training_step``.
        dirpath: root of the store; the Trainer's ``default_root_dir`` by default.
        name: tells two monitors of this class apart; enters paths and keys.
        include: patterns of module names or heads ("L03.*") to watch; everything by default.
        exclude: patterns to leave out.
        heads: heads handed over where discovery refuses.
        prove: prove the heads' layout on the first training batch.
        metrics: per-head signatures for the logger; the store has all.
        log_heads: per-head scalars to the logger; aggregates are always logged.
        alerts: what is worth a message, once per head: "entropy" (row entropy collapses), "logits" (they explode).
        max_overhead: largest share of training time for this monitor; kept by stretching the interval.
        on_error: "warn" says a failure once and training goes on; "raise" is for tests.

    Raises:
        ValueError: a setting that cannot be, or probe documents that are missing or do not fit, with what to do.
        NoAttentionError: no self-attention head was found, before training starts.

    Example::

        # the first validation batch
        Trainer(callbacks=[MarginalAttentionMonitor()])
        # documents of your own, beside the profiles
        Trainer(callbacks=[QKProfileMonitor(), MarginalAttentionMonitor(probe=token_ids)])
        # long documents, every fourth query
        Trainer(callbacks=[MarginalAttentionMonitor(probe=long_ids, query_stride=4)])
    """

    kind: ClassVar[Kind] = "signature"

    def __init__(
        self,
        probe: Any = 1,
        every_n_train_steps: int = 500,
        early_steps: Sequence[int] = (16, 64, 200),
        special_tokens: Sequence[int] = (),
        query_stride: int = 1,
        roles: bool = False,
        budgets: bool = False,
        probe_fn: Callable[..., object] | None = None,
        dirpath: str | None = None,
        name: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        heads: Sequence[Mapping[str, Any]] | None = None,
        prove: bool = True,
        metrics: Sequence[str] = SIGNATURE_HEADLINE,
        log_heads: bool = True,
        alerts: Sequence[str] = DEFAULT_ALERTS,
        max_overhead: float = 0.01,
        on_error: Literal["warn", "raise"] = "warn",
    ) -> None:
        super().__init__(
            every_n_train_steps=every_n_train_steps,
            early_steps=early_steps,
            dirpath=dirpath,
            name=name,
            include=include,
            exclude=exclude,
            heads=heads,
            prove=prove,
            probe_fn=probe_fn,
            metrics=metrics,
            log_heads=log_heads,
            alerts=alerts,
            max_overhead=max_overhead,
            on_error=on_error,
        )
        if probe is None or isinstance(probe, bool) or (isinstance(probe, int) and probe <= 0):
            raise ValueError(
                "probe: expected documents (a batch, a list of batches, a dataloader) or a number of validation "
                f"batches above 0, found {probe!r}."
            )
        if not isinstance(query_stride, int) or query_stride < 1:
            raise ValueError(
                f"query_stride: expected a whole number ≥ 1, found {query_stride!r}; 1 counts every query."
            )
        self.probe = probe
        self.special_tokens = tuple(special_tokens)
        self.query_stride = query_stride
        self.roles = roles
        self.budgets = budgets
        if roles:
            self.metrics = tuple(dict.fromkeys((*self.metrics, *ROLE_KEYS)))

    def _forget(self) -> None:
        super()._forget()
        self._drawn: Sequence[ProbeBatch] = ()
        self._documents: Sequence[ProbeBatch] = ()  # as the model takes them

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_drawn": (), "_documents": ()}

    def settings(self) -> dict[str, Any]:
        """Settings that ``run.json`` records."""
        probe = self.probe if isinstance(self.probe, int) else type(self.probe).__name__
        own = {
            "probe": probe,
            "special_tokens": list(self.special_tokens),
            "query_stride": self.query_stride,
            "roles": self.roles,
            "budgets": self.budgets,
        }
        return {**super().settings(), **own}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the heads, and draw the probe documents: a fault in them is said before anything runs."""
        super().on_fit_start(trainer, pl_module)
        self._drawn = documents_of(trainer, self.probe)
        assert self._session is not None
        self._session.settings[self.monitor]["documents"] = fingerprint(item.batch for item in self._drawn)
        for message in too_few(self.probe, self._drawn, WANTED_DOCUMENTS if self.budgets else 2):
            self._session.notices.say(f"{self.monitor} {message}", message)

    def measure(self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, session: Session) -> Measure:
        """The signatures of every head of the map on the probe documents."""
        root = trainer.strategy.model
        layout = layout_of(pl_module, root)
        model = model_to_call(pl_module, root, layout)
        forward: dict[str, Any] = {"probe_fn": self.probe_fn, "context": trainer.precision_plugin.forward_context}
        signatures = SharedSignatures(
            model,
            head_map,
            self._drawn,
            ranks=session.ranks,
            layout=layout,
            special_tokens=self.special_tokens,
            query_stride=self.query_stride,
            notices=session.notices,
            **forward,
        )
        self._documents = signatures.batches
        self._refuse(signatures, head_map, session, layout)
        if not self.roles:
            return signatures
        if layout == "tensor_parallel":
            raise ValueError("roles=True: role scores are not measured under tensor parallelism; leave it off.")
        return WithRoles(signatures, model, head_map, notices=session.notices, **forward)

    def _refuse(self, signatures: SharedSignatures, head_map: HeadMap, session: Session, layout: str) -> None:
        """What cannot work is said before the first step.

        Raises:
            ValueError: the model does not take the probe, or budgets cannot be made for its heads.
        """
        if self.budgets:
            refuse_heads(head_map)
            if session.ranks.size > 1 and layout != "whole":
                raise ValueError(
                    f"budgets=True: they need the whole model on one rank, and {layout} shards it. Leave it off, load "
                    "a checkpoint in one process and call headwatch.probe.lookback.measure_budgets."
                )
        if session.ranks.size == 1:  # a rank that fails alone must not leave the others
            try:
                signatures.check()
            except ProbeError as error:
                if not isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise ValueError(f"probe: {error}") from error

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last snapshot, and the budgets where they are asked for; then the run is closed."""
        if self.budgets and self._watcher is not None:
            self._write_budgets(trainer, pl_module)
        super().on_train_end(trainer, pl_module)

    def _write_budgets(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measured on rank 0, which needs the whole model; what fails is said and costs the budgets alone."""
        session, head_map = self._session, self._head_map
        if session is None or head_map is None or session.recorder is None:
            return
        from headwatch.figures.budgets import export_budgets

        try:
            context = trainer.precision_plugin.forward_context
            budgets = measure_budgets(pl_module, head_map, self._documents, probe_fn=self.probe_fn, context=context)
            export_budgets(budgets, session.recorder.store.path / "budgets")
        except Exception as error:
            if self.on_error == "raise":
                raise
            session.notices.say(
                "budgets",
                f"KV budgets could not be measured at the end of fit: {error}. Everything else is written; load a "
                "checkpoint in one process and call headwatch.probe.lookback.measure_budgets to get them.",
            )
