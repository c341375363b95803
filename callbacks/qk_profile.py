"""The callback that watches the bilinear form of every attention head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from headwatch.callbacks._base import HeadMonitor
from headwatch.callbacks._lightning import LightningModule, Trainer
from headwatch.callbacks._session import Session
from headwatch.heads import HeadMap, named_parameters
from headwatch.measure import Measure, ProfileMeasure
from headwatch.metrics import HEADLINE_KEYS, Kind
from headwatch.options import FormOptions
from headwatch.parallel import Source
from headwatch.schedule import EARLY_STEPS

__all__ = ["QKProfileMonitor"]


class QKProfileMonitor(HeadMonitor):
    r"""Watch every attention head's simplex profile while the model trains.

    Each head carries a bilinear form L = W_Kᵀ W_Q. At due steps this callback copies W_Q and W_K of every
    self-attention head and, off the training thread, computes the head's profile (a, b, c, d), a point of a 3-simplex,
    and how near it lies to Θ, the profiles of rank-one forms (O'Desky, arXiv:2609.22990). Everything goes into a local
    store next to the run, ``<dirpath>/headwatch/<run id>/``, and the numbers that people watch to Weights & Biases or
    any other logger. Losses and weights are bit-identical to a run without the callback.

    Logged for every head as ``heads/<metric>/L03.H07``, by default:

    - ``theta_distance``: distance of the profile to Θ; starts near 0, since a random head sits at M, on Θ.
    - ``theta_position``: place along Θ, from −1 (negative semidefinite) over 0 (M) to +1 (positive semidefinite).
    - ``stable_rank``: ‖L‖²/h₁²; falls to 1 as the head becomes rank-one.
    - ``participation_ratio``: (Σh²)²/Σh⁴ of the singular values; 1 iff rank one.
    - ``pairing``: 1 iff the spectrum of the symmetric part is symmetric about 0; near 1 at initialisation.
    - ``drift``: distance of the profile to the head's own first snapshot.

    and over all heads as ``headsum/<metric>/median``, ``/p10``, ``/p90`` and per layer ``headsum/<metric>/L03``; the
    share of heads beyond chance as ``headsum/beyond_null/share``; the price as ``headwatch/seconds`` (seconds that the
    snapshot blocked training) and ``headwatch/overhead`` (share of training time so far, of all monitors); the picture
    ``headwatch/simplex``. All numbers are pure. ``headwatch.metrics.REGISTRY`` describes every metric of the store.

    Args:
        every_n_train_steps: interval in optimizer steps, after the early steps.
        early_steps: extra due steps at the start, where heads move most. Step 0 and the end are always measured.
        dirpath: root of the store; the Trainer's ``default_root_dir`` by default.
        name: tells two monitors of this class apart; enters paths and keys.
        include: patterns of module names or heads ("L03.*") to watch; everything by default.
        exclude: patterns to leave out.
        heads: heads handed over where discovery refuses; a list of mappings, see ``headwatch.heads.handover``.
        prove: prove on the first training batch that the factors predict the model's scores. Without, heads that are
            read by rule are flagged "structural".
        probe_fn: ``probe_fn(pl_module, batch)`` runs the network once on a training batch, for the proof; by default
            the module's own ``forward``, else the smallest submodule that holds all heads.
        metrics: per-head metrics for the logger; the store has all.
        log_heads: per-head scalars to the logger; aggregates are always logged.
        alerts: what is worth a message, once per head: "rank_one" (stable rank falls below 1.5), "left_null".
        biases: measure the form with biases, on R^(N+1).
        norm_gain: fold the gain of the norm in front into the form.
        displacements: rotary displacements d at which to measure, one profile each.
        save_weights: keep the raw W_Q and W_K of each snapshot in the store, as safetensors, to study a head later
            (``headwatch.saved_weights.load_weights``); on one process.
        max_overhead: largest share of training time for this monitor; kept by stretching the interval.
        on_error: "warn" says a failure once and training goes on; "raise" is for tests.

    Raises:
        ValueError: a setting that cannot be, with what to do.
        NoAttentionError: no self-attention head was found, before training starts.

    Example::

        # the default: every head, early steps densely, then every 100 optimizer steps
        Trainer(callbacks=[QKProfileMonitor()], logger=WandbLogger())
        # a large model: fewer curves, same store
        Trainer(callbacks=[QKProfileMonitor(every_n_train_steps=1000, log_heads=False)])
        # two layers only, with biases
        Trainer(callbacks=[QKProfileMonitor(include=["L00.*", "L11.*"], biases=True)])
    """

    kind: ClassVar[Kind] = "profile"

    def __init__(
        self,
        every_n_train_steps: int = 100,
        early_steps: Sequence[int] = EARLY_STEPS,
        dirpath: str | None = None,
        name: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        heads: Sequence[Mapping[str, Any]] | None = None,
        prove: bool = True,
        probe_fn: Callable[..., object] | None = None,
        metrics: Sequence[str] = HEADLINE_KEYS,
        log_heads: bool = True,
        alerts: Sequence[str] = (),
        biases: bool = False,
        norm_gain: bool = False,
        displacements: Sequence[int] = (0,),
        save_weights: bool = False,
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
        self.save_weights = save_weights
        self.options = FormOptions(biases, norm_gain, tuple(displacements))

    def settings(self) -> dict[str, Any]:
        """Settings that ``run.json`` records."""
        form = {"biases": self.options.biases, "norm_gain": self.options.norm_gain}
        return {
            **super().settings(),
            **form,
            "displacements": list(self.options.displacements),
            "form": self.options.flags(),
            "save_weights": self.save_weights,
        }

    def measure(self, trainer: Trainer, pl_module: LightningModule, head_map: HeadMap, session: Session) -> Measure:
        """The profile of every head of the map."""
        if self.save_weights and session.ranks.size > 1:
            raise ValueError(
                f"save_weights=True: expected one process, found {session.ranks.size} ranks that each read a share. "
                "Save checkpoints and run `headwatch replay --save-weights` on them."
            )
        parameters = partial(named_parameters, pl_module)
        source = Source(head_map, parameters, session.ranks, root=trainer.strategy.model)
        return ProfileMeasure(
            head_map,
            parameters,
            options=self.options,
            notices=session.notices,
            source=source,
            keep_weights=self.save_weights,
        )
