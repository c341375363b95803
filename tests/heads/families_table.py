"""Write docs/families.md: every family that the tests build, and what was found in it.

Run by hand from the repository's root: ``python tests/heads/families_table.py``.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headwatch.heads import HeadMap

DOCS = Path(__file__).parents[2] / "docs" / "families.md"

_HEAD = """# Families

Which models headwatch finds the heads of. This page is written by `tests/heads/families_table.py`; the tests hold it
against what they find. Every row is a tiny model with random weights, built from its family's own code, whose heads are
found from a probe batch, proven on a second one (all scores q·k that the rows predict, against those that the model
computes), and compared with W_Q and W_K written down by hand from the model's weights. timm and torchtune are imported
with stand-ins for torchvision and torchao, which they import and these models never use.

*Layout* says how the weights lie, *heads* is query heads / key heads / d_head. Flags: `rope` rotary positions were
measured, `qk_norm` queries and keys are normalised (the form is the score's numerator, gains folded in), `mla_nope` the
part without positions of a latent attention, `lora` a sum with low-rank updates, `tied` one module under several names,
`frozen` no gradient. Cross-attention is left out by name everywhere.

| family | layout | heads | proven | flags | left out |
|---|---|---|---|---|---|
"""

_PACKAGES = ("torch", "transformers", "timm", "x-transformers", "litgpt", "torchtune", "peft", "transformer-lens")


def row(name: str, found: HeadMap) -> str:
    """One line of the table."""
    site = found.sites[0]
    proven = sum(each.status == "proven" for each in found.sites)
    flags = ", ".join(f"`{flag}`" for flag in site.flags)
    reasons = sorted({item.reason.partition(":")[0] for item in found.left_out})
    heads = f"{site.n_heads}/{site.n_kv_heads}/{site.d_head}"
    return f"| {name} | {site.layout} | {heads} | {proven} of {len(found.sites)} | {flags} | {', '.join(reasons)} |"


def main() -> None:
    """Build every family and write the page."""
    from heads_zoo import FAMILIES

    from headwatch.heads import find_heads

    rows = []
    for name, build in FAMILIES.items():
        built = build()
        rows.append(row(name, find_heads(built.model, probe=built.probe)))
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(f"{_HEAD}{chr(10).join(rows)}\n\nBuilt with {', '.join(_versions())}.\n")


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
