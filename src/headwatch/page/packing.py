"""Numbers packed for a page: float32, rounded, bytes transposed, gzip, base64.

Rounding the mantissa leaves zero bytes, transposing puts them side by side, so gzip takes them out: about 1.8 bytes a
number at four digits. The browser undoes it in ``page.js`` with DecompressionStream.
"""

from __future__ import annotations

import base64
import gzip

import numpy as np

__all__ = ["pack", "pack_text", "round_mantissa", "unpack"]


def pack(values: np.ndarray, bits: int = 12) -> str:
    """Pack an array; its shape is not kept.

    Args:
        values: any real array; NaN stays NaN.
        bits: bits of the mantissa that are kept, 1 to 23; the relative error is at most 2^-(bits + 1).
    """
    rounded = round_mantissa(np.ascontiguousarray(values, dtype="<f4").reshape(-1), bits)
    transposed = rounded.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(gzip.compress(transposed, 6, mtime=0)).decode("ascii")


def unpack(text: str) -> np.ndarray:
    """What the browser sees: the flat float32 array of a packed text.

    >>> unpack(pack(np.array([0.5, np.nan, -3.0]))).tolist()
    [0.5, nan, -3.0]
    """
    raw = np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype=np.uint8)
    return np.ascontiguousarray(raw.reshape(4, -1).T).view("<f4").reshape(-1)


def pack_text(text: str) -> str:
    """Pack a text (a script library) as gzip and base64."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def round_mantissa(values: np.ndarray, bits: int) -> np.ndarray:
    """Float32 values rounded to nearest at ``bits`` bits of mantissa; NaN and infinities as they are.

    Raises:
        ValueError: ``bits`` outside 1 to 23.
    """
    if not 1 <= bits <= 23:
        raise ValueError(f"bits: expected 1 to 23, found {bits}")
    if bits == 23:
        return values
    drop = 23 - bits
    raw = values.view("<u4")
    rounded = ((raw + np.uint32(1 << (drop - 1))) & np.uint32(~((1 << drop) - 1) & 0xFFFFFFFF)).view("<f4")
    return np.where(np.isfinite(values), rounded, values)
