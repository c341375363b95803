"""Marginal attention by its definitions: float64, explicit maps, loops. Independent of headwatch."""

import math

import numpy as np


def attention(q, k, scale, visible, bias=None, softcap=None):
    """A[b,h,q,k] and scores; rows without a visible key are 0."""
    B, H, T, _ = q.shape
    S, group = k.shape[2], q.shape[1] // k.shape[1]
    A, scores = np.zeros((B, H, T, S)), np.full((B, H, T, S), -np.inf)
    for b in range(B):
        for h in range(H):
            s = scale * q[b, h].astype(np.float64) @ k[b, h // group].astype(np.float64).T
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            if bias is not None:
                s = s + bias[b, h]
            for t in range(T):
                see = visible[b, h, t]
                if see.any():
                    e = np.exp(s[t, see] - s[t, see].max())
                    A[b, h, t, see] = e / e.sum()
                    scores[b, h, t, see] = s[t, see]
    return A, scores


def entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


def head_signatures(A, scores, visible, rows, ignored):
    """Signatures of one head on one document: section 1 of the definitions, literally."""
    A, scores, visible = A[rows], scores[rows], visible[rows]
    n, S = len(rows), A.shape[1]
    m = A.sum(0)
    u = np.array([sum(1 / visible[q].sum() for q in range(n) if visible[q, k]) for k in range(S)])
    x = np.array([max([A[q, k] for q in range(n) if visible[q, k]], default=0) for k in range(S)])
    seen = visible.any(0)
    C = [k for k in range(S) if seen[k] and not ignored[k]]
    p, r = m[C] / m[C].sum(), u[C] / u[C].sum()
    kl = sum(a * math.log(a / b) for a, b in zip(p, r, strict=True) if a > 0)
    rows_entropy = np.mean([entropy(A[q]) for q in range(n)])
    rows_uniform = np.mean([math.log(visible[q].sum()) for q in range(n)])
    return {
        "n_eff": math.exp(-kl),
        "c95": cover(p, r),
        "peak_mean": x[C].mean(),
        "mutual_information": entropy(m / n) - rows_entropy - (entropy(u / n) - rows_uniform),
        "sink_share": sum(m[k] for k in range(S) if ignored[k]) / n,
        "row_entropy": rows_entropy,
        "max_logit": scores[visible].max(),
    }


def cover(p, r):
    held = taken = 0.0
    for k in sorted(range(len(p)), key=lambda k: -p[k] / r[k]):
        if held + p[k] >= 0.95:
            return taken + r[k] * (0.95 - held) / p[k]
        held, taken = held + p[k], taken + r[k]
    return taken
