"""Watch every attention head move while it trains."""

__version__ = "0.1.0"
