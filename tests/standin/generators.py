"""State of the global random generators that training draws from."""

from __future__ import annotations

import random

import numpy as np
import torch


def generators():
    """Comparable state of python's, numpy's and torch's global generators."""
    _, words, place, *_ = np.random.get_state()
    return random.getstate(), words.tobytes(), place, torch.get_rng_state().numpy().tobytes()
