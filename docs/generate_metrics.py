"""Write metrics.md from the registry: ``python docs/generate_metrics.py``."""

from __future__ import annotations

from pathlib import Path

from headwatch.metrics import (
    HEADLINE_KEYS,
    PROFILE_KEYS,
    REGISTRY,
    ROLE_KEYS,
    SIGNATURE_HEADLINE,
    SIGNATURE_KEYS,
    Metric,
)

PAGE = Path(__file__).with_name("metrics.md")

HEAD = """# Every metric

Made from the registry by `docs/generate_metrics.py`. A metric is a column of the store under its key, and the W&B chart
`heads/<key>/L03.H07` (layer 3, head 7, both counted from 0). `headsum/<key>/median`, `/p10` and `/p90` are over all
heads, `headsum/<key>/L03` is the median of a layer. A metric that is off or could not be computed is null in the store
and absent in W&B. Those that are logged per head by default are in bold.

Definitions are from A. O'Desky, *On attention heads and bilinear forms*, arXiv:2609.22990v1, except distance to and
position on Θ, drift, path length and all signatures, which are headwatch's own.
"""


def page() -> str:
    """The page as Markdown."""
    profiles = _section("Profile", "Of the weights alone; no data needed.", PROFILE_KEYS)
    signatures = _section(
        "Signature",
        "Of the attention on the probe documents: the mean over documents; `<key>_std` is their deviation.",
        SIGNATURE_KEYS,
    )
    roles = _section(
        "Roles",
        "With `MarginalAttentionMonitor(roles=True)`, for causal language models: mean attention weights on random "
        "tokens that are repeated once, drawn from the ids of the probe documents. Previous token: Elhage et al., "
        "*A Mathematical Framework for Transformer Circuits*, 2021. Duplicate token: Wang et al., arXiv:2211.00593. "
        "Induction: Olsson et al., arXiv:2209.11895.",
        ROLE_KEYS,
    )
    return "\n".join((HEAD, profiles, signatures, roles))


def _section(title: str, lead: str, keys: tuple[str, ...]) -> str:
    rows = "\n".join(_row(REGISTRY[key]) for key in keys)
    return f"""## {title}

{lead}

| key | what it is | range | a change means | null | cost |
|---|---|---|---|---|---|
{rows}
"""


def _row(metric: Metric) -> str:
    key = f"**`{metric.key}`**" if metric.key in (*HEADLINE_KEYS, *SIGNATURE_HEADLINE) else f"`{metric.key}`"
    what = f"{metric.title}. {metric.meaning}"
    cells = (key, what, _range(metric), metric.change, metric.tail or "—", metric.cost)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _range(metric: Metric) -> str:
    if metric.dtype == "str":
        return "I+, II, I−"
    unit = "" if metric.unit == "1" else f" {metric.unit}"
    low, high = ("" if bound is None else f"{bound:g}" for bound in (metric.low, metric.high))
    if low and high:
        return f"{low} … {high}{unit}"
    return (f"≥ {low}" if low else "any") + unit


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
