"""The profile of every watched head: copy the factors on the training thread, compute on the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from torch import Tensor

from headwatch.heads import CopiedFactors, HeadMap, Site, copy_factors
from headwatch.metrics import HEAD_TYPES, NULL_KEYS, PROFILE_KEYS, Kind
from headwatch.notices import Notices
from headwatch.null import FAMILY_WISE_LEVEL, Null, null_for, sample_size
from headwatch.options import FormOptions
from headwatch.parallel.parts import Columns, Part, Result, merged
from headwatch.parallel.source import Share, Source
from headwatch.profiles import problems, statistics
from headwatch.saved_weights import save_weights
from headwatch.snapshot import Snapshot, head_label, heads_table
from headwatch.threads import solver_threads
from headwatch.trajectory import Trajectory

__all__ = ["Finish", "Measure", "ProfileMeasure", "profile_columns"]

Finish = Callable[[int], Snapshot]  # step -> snapshot, on the worker


class Measure(Protocol):
    """Something that is measured at a due step, in two parts."""

    kind: Kind

    def take(self, step: int) -> Finish:
        """On the training thread: copy what is needed. Returns what is left to do, for the worker."""

    def restore(self, table: pa.Table) -> None:
        """Take up where a stored run left off: its rows up to the step that training goes on from."""


@dataclass
class _Frozen:
    """Statistics of a site whose weights do not change, and the state of the weights they belong to."""

    versions: tuple[int, ...]
    columns: tuple[Columns, ...] = ()


@dataclass
class _Piece:
    """One share's copied factors; or the frozen site they were once computed for; or why there are none."""

    place: int
    site: Site
    factors: CopiedFactors | None = None
    frozen: _Frozen | None = None
    failure: str = ""


class ProfileMeasure:
    """Profiles of the heads of a map.

    Args:
        head_map: what is watched.
        parameters: gives the live parameters by name; called on the training thread at each snapshot.
        options: which form.
        notices: where failures of single heads are said.
        null: whether to simulate the null and give percentiles.
        source: reads the weights where they are sharded, or shares the work out; by default this process reads all.
        keep_weights: whether the raw W_Q and W_K go into the store beside each snapshot.
    """

    kind: Kind = "profile"

    def __init__(
        self,
        head_map: HeadMap,
        parameters: Callable[[], Mapping[str, Tensor]],
        *,
        options: FormOptions | None = None,
        notices: Notices | None = None,
        null: bool = True,
        source: Source | None = None,
        keep_weights: bool = False,
    ) -> None:
        self.head_map = head_map
        self.options = options or FormOptions()
        self._source = source or Source(head_map, parameters)
        self._notices = notices or Notices()
        self._null = null
        self._identity = _identity(head_map, self.options)
        keys = zip(*(self._identity[name] for name in ("layer", "head", "displacement")), strict=True)
        self.trajectory = Trajectory(list(keys))
        self._frozen: dict[str, _Frozen] = {}
        self._keep_weights = keep_weights

    def restore(self, table: pa.Table) -> None:
        """Drift goes on from the run's own first snapshot."""
        self.trajectory.restore(table)

    def take(self, step: int) -> Finish:
        """Copy the query and key rows of every site that may have changed; with more ranks, of this rank's share."""
        try:
            pieces = self._source.visit(self._copy)
        except Exception as error:
            if self._source.ranks.size == 1:
                raise
            failed = Part(step, (), f"{type(error).__name__}: {error}")  # the other ranks wait for this part
            return lambda at: self._merge(at, failed)
        return lambda at: self._with_weights(self._merge(at, self._part(at, pieces)), pieces)

    def _with_weights(self, snapshot: Snapshot, pieces: list[_Piece]) -> Snapshot:
        if not self._keep_weights:
            return snapshot
        copies = [piece.factors for piece in pieces if piece.factors is not None]
        return replace(snapshot, attachments={"weights.safetensors": lambda path: save_weights(path, copies)})

    def _copy(self, share: Share, parameters: Mapping[str, Tensor]) -> _Piece:
        site = share.site
        try:
            versions = _frozen_versions(site, parameters) if share.live and not self._keep_weights else None
            known = self._frozen.pop(site.module, None)
            if versions is None:
                return _Piece(share.place, site, copy_factors(site, parameters))
            unchanged = known is not None and known.versions == versions
            frozen = known if known is not None and unchanged else _Frozen(versions)
            self._frozen[site.module] = frozen
            return _Piece(share.place, site, None if unchanged else copy_factors(site, parameters), frozen)
        except Exception as error:  # one module's failure must not cost the others their snapshot
            return _Piece(share.place, site, failure=f"{type(error).__name__}: {error}")

    def _merge(self, step: int, own: Part) -> Snapshot:
        """The snapshot, on rank 0; an empty one elsewhere."""
        parts = self._source.ranks.collect(own)
        if parts is None:
            return Snapshot("profile", step, heads_table("profile", {"step": []}))
        self._say_failures(step, parts)
        results = [result for part in parts if part.step == step for result in part.results]
        return self._snapshot(
            step, _concatenate(merged(self.head_map.sites, results, len(self.options.displacements), _hole))
        )

    def _part(self, step: int, pieces: list[_Piece]) -> Part:
        """This rank's results; whatever fails becomes part of them."""
        try:
            with solver_threads():
                return Part(step, tuple(self._result(piece) for piece in pieces))
        except Exception as error:
            return Part(step, (), f"{type(error).__name__}: {error}")

    def _say_failures(self, step: int, parts: list[Part]) -> None:
        for rank, part in enumerate(parts):
            where = f" on rank {rank}" if len(parts) > 1 else ""
            if part.failure or part.step != step:
                self._notices.say(
                    f"profile rank {rank}",
                    f"rank {rank} could not measure its heads at step {step}: {part.failure or 'it is out of step'}. "
                    "They are empty in this snapshot; training goes on.",
                )
            for result in part.results:
                self._say_failure(step, result, where)

    def _say_failure(self, step: int, result: Result, where: str) -> None:
        site = self.head_map.sites[result.place]
        if result.failure:
            self._notices.say(
                f"profile {site.module}",
                f"layer {site.layer} ({site.module}) could not be measured{where} at step {step}: {result.failure}. "
                "Its heads are empty in this snapshot; training goes on. Exclude it with "
                f"exclude=['{site.module}'] to silence this.",
            )

    def _say_broken(self, step: int, problems: list[str]) -> None:
        """Weights that are no numbers any more: training diverged, and whoever watches should hear it."""
        for problem, word in (("nan", "NaN"), ("inf", "infinite")):
            rows = [i for i, each in enumerate(problems) if each == problem]
            if rows:
                layers, heads = (self._identity[name] for name in ("layer", "head"))
                labels = list(dict.fromkeys(head_label(layers[i], heads[i]) for i in rows))
                more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
                self._notices.say(
                    f"profile {problem}",
                    f"the query or key weights of {', '.join(labels[:4])}{more} are {word} at step {step}: training "
                    "diverged. Their profiles are empty while they are; the snapshots before are sound. Look at the "
                    "learning rate, gradient clipping and precision.",
                )

    def _snapshot(self, step: int, columns: Columns) -> Snapshot:
        found = columns.pop("problem").tolist()
        self._say_broken(step, found)
        flags = [_joined(base, problem) for base, problem in zip(self._identity["flags"], found, strict=True)]
        profile = np.stack([columns[name] for name in "abcd"], axis=1)
        columns |= self._against_null(columns)
        beyond = columns.get("beyond_null")
        columns |= self.trajectory.update(step, profile, beyond)
        if beyond is not None:  # no profile, no verdict
            columns["beyond_null"] = np.where(np.isnan(columns["a"]), np.nan, beyond)
        columns["head_type"] = np.array([_type_name(code) for code in columns["head_type"]], dtype=object)
        table = heads_table("profile", {**self._identity, **columns, "flags": flags, "step": np.full(len(flags), step)})
        return Snapshot("profile", step, table, info=self._null_info() if self._null else {})

    def _null_info(self) -> dict[str, object]:
        """What ``run.json`` says of the null."""
        shapes = sorted(set(self._identity_shapes))
        return {
            "null": {
                "simulated": "Gaussian W_Q and W_K",
                "shapes (d_model, d_head)": [list(shape) for shape in shapes],
                "random heads": [sample_size(d_head) for _, d_head in shapes],
                "tested": list(NULL_KEYS),
                "family-wise level": FAMILY_WISE_LEVEL,
                "heads beyond it at the start": self.trajectory.began_outside,
            }
        }

    def _result(self, piece: _Piece) -> Result:
        """Statistics of one share, one set of columns per displacement."""
        frozen, heads = piece.frozen, piece.site.heads
        if piece.factors is None and frozen is not None and frozen.columns:
            return Result(piece.place, heads, frozen.columns)
        try:
            if piece.factors is None:
                raise RuntimeError(piece.failure or "its first snapshot failed")
            columns = tuple(profile_columns(piece.factors, self.options, d) for d in self.options.displacements)
        except Exception as error:  # a head that cannot be measured is a hole in the table, never the end of training
            return Result(piece.place, heads, failure=str(error) or type(error).__name__)
        if frozen is not None:
            frozen.columns = columns
        return Result(piece.place, heads, columns)

    def _against_null(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Percentiles and the family-wise verdict, by shape of head; rotary displacements have the same null."""
        if not self._null:
            return {}
        rows = len(columns["a"])
        out = {f"{key}_percentile": np.full(rows, np.nan) for key in NULL_KEYS} | {
            "beyond_null": np.zeros(rows, dtype=bool)
        }
        shapes = self._identity_shapes
        for shape in sorted(set(shapes)):
            here = np.array([s == shape for s in shapes])
            null = self.null(*shape)
            stats = {key: columns[key][here] for key in NULL_KEYS}
            for key, value in null.percentile(stats).items():
                out[f"{key}_percentile"][here] = value
            out["beyond_null"][here] = null.beyond(stats, n_heads=self.head_map.n_heads)
        return out

    def null(self, d_model: int, d_head: int) -> Null:
        """The null of one shape of head."""
        return null_for(d_model, d_head)

    @property
    def _identity_shapes(self) -> list[tuple[int, int]]:
        extra = 1 if self.options.biases else 0
        return [
            (site.d_model + extra, site.d_head)
            for site in self.head_map.sites
            for _ in self.options.displacements
            for _ in site.heads
        ]


def profile_columns(factors: CopiedFactors, options: FormOptions, displacement: int) -> dict[str, np.ndarray]:
    """Statistics of one site's heads as arrays of shape (heads,), with ``problem`` in words."""
    form = factors.factors(bias=options.biases, norm_gain=options.norm_gain, displacement=displacement)
    values: dict[str, np.ndarray] = {key: value.numpy() for key, value in statistics(form, eps=factors.eps).items()}
    values["problem"] = np.array(
        problems(form) if np.isnan(values["a"]).any() else [""] * len(values["a"]), dtype=object
    )
    return values


def _identity(head_map: HeadMap, options: FormOptions) -> dict[str, list[Any]]:
    rows = [
        (site, place, head, d)
        for site in head_map.sites
        for d in options.displacements
        for place, head in enumerate(site.heads)
    ]
    return {
        "layer": [site.layer for site, *_ in rows],
        "head": [head for _, _, head, _ in rows],
        "kv_head": [site.kv_head[head] for site, _, head, _ in rows],
        "module": [site.module for site, *_ in rows],
        "displacement": [d for *_, d in rows],
        "status": [site.status for site, *_ in rows],
        "flags": [_joined(*site.flags, *options.slugs()) for site, *_ in rows],
    }


def _frozen_versions(site: Site, parameters: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """State of a site's weights if none of them is trained, else None."""
    names = [rows.parameter for projection in (site.W_Q, site.W_K) for term in projection.terms for rows in term.rows]
    weights = [parameters[name] for name in names]
    if any(weight.requires_grad for weight in weights):
        return None
    return tuple(value for weight in weights for value in (weight.data_ptr(), weight._version))


def _concatenate(pieces: list[Columns]) -> Columns:
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def _hole(rows: int) -> dict[str, np.ndarray]:
    keys = [key for key in PROFILE_KEYS if key not in ("drift", "path_length")]
    return {key: np.full(rows, np.nan) for key in keys} | {"problem": np.array(["failed"] * rows, dtype=object)}


def _joined(*flags: str) -> str:
    return ",".join(flag for flag in flags if flag)


def _type_name(code: float) -> str | None:
    return None if np.isnan(code) else HEAD_TYPES[int(code)]
