"""Where sliding windows end, against PyTorch, on tensors without data."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.errors import InputError
from hpcpar.network.layers import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose,
    ConvTranspose2d,
    ConvTranspose3d,
    Layer,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    image_of,
)

torch = pytest.importorskip("torch", reason="PyTorch is the reference of these tests",
                            exc_type=ImportError)
nn = torch.nn

FIXED = settings(max_examples=60)


WINDOWED: tuple[type[Layer], ...] = (
    Conv1d, Conv2d, Conv3d, ConvTranspose2d, ConvTranspose3d, MaxPool1d, MaxPool2d, MaxPool3d,
    AvgPool1d, AvgPool2d, AvgPool3d,
)


@FIXED
@given(st.sampled_from(WINDOWED), st.data())
def test_windows_have_pytorchs_sizes(layer: type[Layer], data: st.DataObject) -> None:
    dimensions = int(layer.__name__[-2])

    def some(low: int, high: int) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(low, high)] * dimensions))

    kernel, image = some(1, 4), some(1, 9)
    options: dict[str, Any] = {"stride": some(1, 3)}
    if issubclass(layer, Conv):
        options |= {"padding": some(0, 3), "dilation": some(1, 2),
                    "groups": data.draw(st.integers(1, 2)), "bias": data.draw(st.booleans())}
        if issubclass(layer, ConvTranspose):
            options["output_padding"] = tuple(min(1, s - 1) for s in options["stride"])
        mine = layer("x", ("in",), out_channels=6, kernel=kernel, **options)
        theirs = getattr(nn, layer.__name__)(4, 6, kernel, device="meta", **options)
    else:
        options["padding"] = tuple(min(p, k // 2) for p, k in zip(some(0, 2), kernel, strict=True))
        options["ceil_mode"] = data.draw(st.booleans())
        mine = layer("x", ("in",), kernel=kernel, **options)
        theirs = getattr(nn, layer.__name__)(kernel, **options)
    x, wanted = (4, *image), None
    with suppress(RuntimeError):
        wanted = image_of(theirs(torch.empty((2, *x), device="meta")).shape[1:])
    try:
        shape = mine.output_shape(image_of(x))
    except InputError:
        # PyTorch gives an empty image or, with ceil_mode, pools a window larger than the image
        larger = any(k > n + 2 * p for k, n, p in zip(kernel, image, options["padding"],
                                                      strict=True))
        assert wanted is None or 0 in wanted or (options.get("ceil_mode") and larger)
        return
    if wanted is None:  # PyTorch wants images of at least the window there, whatever the padding
        assert layer is AvgPool3d and any(k > n for k, n in zip(kernel, image, strict=True))
        return
    assert wanted == shape
    assert mine.parameters(image_of(x)) == sum(p.numel() for p in theirs.parameters())
