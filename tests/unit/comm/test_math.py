"""How GPUs compute a plan's products."""

from __future__ import annotations

import pytest

from hpcpar.comm.device_options import GpuOptions


@pytest.mark.parametrize(("precision", "math"), [
    ("fp32", "fp32"), ("fp64", "fp32"), ("tf32", "tf32"), ("amp", "tf32")])
def test_the_precision_says_how_gpus_multiply(precision: str, math: str) -> None:
    """TF32 holds bfloat16 numbers exactly."""
    assert GpuOptions(device="gpu").math_for(precision) == math
    assert GpuOptions(device="gpu").math_notes(precision) == []
    assert GpuOptions(device="cpu").math_for(precision) == "fp32"


def test_other_products_than_the_plans_are_noted() -> None:
    for precision, math in (("amp", "fp32"), ("fp32", "tf32")):
        (note,) = GpuOptions(device="gpu", math=math).math_notes(precision)
        assert note.startswith(f"the plan's precision is {precision}, but --math {math} computes")
