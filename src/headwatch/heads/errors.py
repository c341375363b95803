"""What finding heads can raise."""

from __future__ import annotations

from collections.abc import Sequence

from headwatch.heads.headmap import LeftOut

__all__ = ["NoAttentionError"]


class NoAttentionError(ValueError):
    """No head of the model can be watched."""

    def __init__(self, model: str, left_out: Sequence[LeftOut] = ()) -> None:
        self.left_out = tuple(left_out)
        reasons = "".join(f"\n  {item.module or '(the model itself)'}: {item.reason}" for item in left_out[:20])
        found = f"Left out:{reasons}" if left_out else "Nothing in it looks like self-attention."
        super().__init__(
            f"{model}: expected self-attention with query and key projections, found none that can be watched. "
            f"{found}\n"
            "What to do: if forward(batch) does not run the model, say what does: probe_fn=lambda model, batch: ...; "
            "or hand the heads over: heads=[{'module': 'blocks.0.attn', 'W_Q': 'blocks.0.attn.q.weight', "
            "'W_K': 'blocks.0.attn.k.weight', 'n_heads': 8, 'n_kv_heads': 8}]."
        )
