"""Many processes: who reads which heads, how sharded weights are read, how results come together."""

from headwatch.parallel.follower import Follower
from headwatch.parallel.ranks import ALONE, PeerError, Ranks, current_ranks
from headwatch.parallel.source import Share, Source

__all__ = ["ALONE", "Follower", "PeerError", "Ranks", "Share", "Source", "current_ranks"]
