"""The Lightning callbacks: add one to a Trainer and watch its attention heads."""

from headwatch.callbacks.marginal_attention import MarginalAttentionMonitor
from headwatch.callbacks.qk_profile import QKProfileMonitor

__all__ = ["MarginalAttentionMonitor", "QKProfileMonitor"]
