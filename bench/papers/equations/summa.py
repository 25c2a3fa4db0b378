"""Section 4 of the integrated paper (Gholami et al., SPAA 2018): 2D SUMMA, and memory.

Words and memory of a rank in the forward product Y = W X of one layer on a Pr x Pc grid, in items.
`outputs` is d_i, items per sample of Y, and `weights` is |W_i|. As in the paper, d_i = d_{i-1} and
(p - 1) / p = 1 for both sides of the grid.
"""

from __future__ import annotations


def integrated_words(outputs: float, pr: int, pc: int, batch: int) -> float:
    """Words that a rank gets in the 1.5D product: B d / Pc; none without model parallelism."""
    return batch * outputs / pc if pr > 1 else 0.0


def stationary_a_words(outputs: float, pr: int, pc: int, batch: int) -> float:
    """Words that a rank gets in SUMMA with stationary weights: 2 B d / Pr + B d / Pc.

    It is the best 2D algorithm where |W| > B d.
    """
    return 2 * batch * outputs / pr + batch * outputs / pc


def integrated_memory(weights: float, outputs: float, pr: int, pc: int, batch: int) -> float:
    """Items that a rank holds in the 1.5D product: |W| / Pr + B d / Pc.

    The first term is pure model parallelism's for Pr ranks, the second one pure batch parallelism's
    for Pc.
    """
    return weights / pr + batch * outputs / pc


def memory_2d(weights: float, outputs: float, ranks: int, batch: int) -> float:
    """Items that a rank holds in a 2D product, which has no copies: (|W| + B d) / P."""
    return (weights + batch * outputs) / ranks
