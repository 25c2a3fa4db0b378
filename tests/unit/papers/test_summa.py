"""Section 4 of the integrated paper: 2D SUMMA's words, and memory between the extremes."""

from __future__ import annotations

import pytest

from bench.papers.equations import summa

#: d_i of fc6, |W_6| and the batch of Fig 6.
OUTPUTS, WEIGHTS, BATCH = 4096, 4096 * 9216, 2048
GRIDS = [(1 << i, 512 >> i) for i in range(1, 9)]


@pytest.mark.parametrize(("pr", "pc"), GRIDS)
def test_no_grid_favors_summa(pr: int, pc: int) -> None:
    ours, theirs = (words(OUTPUTS, pr, pc, BATCH)
                    for words in (summa.integrated_words, summa.stationary_a_words))
    assert theirs - ours == 2 * BATCH * OUTPUTS / pr > 0


def test_summa_approaches_the_integrated_product_for_large_pr() -> None:
    ratios = [summa.stationary_a_words(OUTPUTS, pr, pc, BATCH)
              / summa.integrated_words(OUTPUTS, pr, pc, BATCH) for pr, pc in GRIDS]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] < 1.02


def test_memory_lies_between_pure_batch_and_pure_model() -> None:
    assert summa.integrated_memory(WEIGHTS, OUTPUTS, 1, 512, BATCH) == WEIGHTS + 4 * OUTPUTS
    assert summa.integrated_memory(WEIGHTS, OUTPUTS, 512, 1,
                                   BATCH) == WEIGHTS / 512 + BATCH * OUTPUTS
    least = summa.memory_2d(WEIGHTS, OUTPUTS, 512, BATCH)
    assert all(summa.integrated_memory(WEIGHTS, OUTPUTS, pr, pc, BATCH) > least
               for pr, pc in GRIDS)
