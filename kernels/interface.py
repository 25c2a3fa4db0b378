"""The one interface of every compute kernel.

Arrays are local blocks: C-ordered images [N, C, H, W], volumes [N, C, D, H, W] or features [N, C];
[N, C, ...] stands for any of them. `x` is the box that a layer *needs* (halos included), `y`/`out`
the box that it *owns*. Windows have one number per image axis, padding two, because a block's edge
is padded only where it is the image's edge. Every kernel writes into an array that the caller
preallocated, overwrites it unless it says *add*, accepts empty blocks (any extent 0), and accepts
non-contiguous views for every argument unless said otherwise. float32 and float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  #: numpy.ndarray or cupy.ndarray
Pair = tuple[int, int]
#: One number per image axis.
Ints = tuple[int, ...]
#: (before, after) per image axis.
Pads = tuple[Pair, ...]
#: Called between blocks of a long kernel so that communication in flight can progress.
Tick = Callable[[], None]


@dataclass(frozen=True)
class Segment:
    """One group of a (grouped) convolution in local channel indices: outputs [out_start, out_stop)
    read inputs [in_start, in_stop).

    The segments of a convolution are disjoint; every output is in one, an input in none gets a zero
    gradient.
    """

    in_start: int
    in_stop: int
    out_start: int
    out_stop: int


@dataclass(frozen=True)
class ConvSpec:
    """Geometry of a convolution of images or volumes on a local block.

    Output (i, ...) reads x[i * stride - pads[0][0] + dilation * u, ...] for u in range(kernel);
    reads outside x are zero. The output's extents are those of `out`/`dy`: they never read beyond
    ``pads`` (before, after) on either side.
    """

    stride: Ints
    dilation: Ints
    pads: Pads
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class PoolSpec:
    """Geometry of pooling on a local block; as `ConvSpec` without dilation and channels."""

    kernel: Ints
    stride: Ints
    pads: Pads


class Backend(ABC):
    """Compute kernels on one kind of device."""

    name: str
    #: The array module: numpy or cupy.
    xp: Any

    # -- arrays ------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.zeros(shape, dtype)

    @abstractmethod
    def to_device(self, host: np.ndarray, out: Array) -> None:
        """Copy a host array into a device array of the same shape (a plain copy on the CPU)."""

    @abstractmethod
    def to_host(self, device: Array, out: np.ndarray) -> None:
        """Copy a device array into a host array of the same shape; complete on return."""

    @abstractmethod
    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        """A flat host array to stage messages in (pinned memory on a GPU)."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until every kernel submitted so far is complete."""

    # -- moving boxes ------------------------------------------------------------------------------
    @abstractmethod
    def pack(self, box: Array, flat: Array) -> None:
        """Copy a box (any strides) into a flat contiguous buffer of the same number of items."""

    @abstractmethod
    def unpack(self, flat: Array, box: Array) -> None:
        """Copy a flat buffer into a box."""

    @abstractmethod
    def unpack_add(self, flat: Array, box: Array) -> None:
        """Add a flat buffer to a box (the adjoint of `pack`)."""

    @abstractmethod
    def copy(self, x: Array, out: Array) -> None:
        """out = x, converted to out's type."""

    @abstractmethod
    def accumulate(self, x: Array, out: Array) -> None:
        """out += x."""

    # -- convolution -------------------------------------------------------------------------------
    @abstractmethod
    def conv_forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                     tick: Tick | None = None) -> None:
        """out[n, o] = bias[o] + sum over the group's channels and the kernel of x * w.

        x [N, C, H, W], w [O, C/groups, kh, kw] contiguous, bias [O], out [N, O, OH, OW]; volumes
        likewise.
        """

    @abstractmethod
    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        """dx = the gradient of the whole needed block x, from the owned outputs' gradient dy only
        (a partial sum at the halos).
        """

    @abstractmethod
    def conv_backward_weight(
        self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, tick: Tick | None = None
    ) -> None:
        """dw [O, C/groups, *kernel] contiguous and dbias [O] from this block only (a partial sum
        over blocks).
        """

    # -- fully connected ---------------------------------------------------------------------------
    @abstractmethod
    def gemm(
        self, a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False, tick: Tick | None = None
    ) -> None:
        """out = op(a) @ op(b) for matrices."""

    @abstractmethod
    def add_bias(self, y: Array, bias: Array) -> None:
        """y[n, o] += bias[o], y [N, O]."""

    @abstractmethod
    def sum_samples(self, dy: Array, out: Array) -> None:
        """out[o] = sum over n of dy[n, o]."""

    # -- pooling -----------------------------------------------------------------------------------
    @abstractmethod
    def maxpool_forward(self, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
        """Maximum of each window; argmax [shape of out, int16] is the row-major place in the
        window, the first where several are equal.

        A NaN in a window makes its maximum NaN; argmax is then any place.
        """

    @abstractmethod
    def maxpool_backward(self, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
        """dx = dy sent to where the maxima were, summed."""

    @abstractmethod
    def avgpool_forward(self, x: Array, spec: PoolSpec, scales: Sequence[Array],
                        out: Array) -> None:
        """out[.., i, j] = scales[0][i] * scales[1][j] * sum of the window; one array of out's
        extent per image axis.
        """

    @abstractmethod
    def avgpool_backward(self, dy: Array, spec: PoolSpec, scales: Sequence[Array],
                         dx: Array) -> None:
        """dx = the adjoint of `avgpool_forward`."""

    @abstractmethod
    def global_avgpool_forward(self, x: Array, out: Array) -> None:
        """out [N, C] = mean over the image of x [N, C, ...]; zero for an image without pixels."""

    @abstractmethod
    def global_avgpool_backward(self, dy: Array, dx: Array) -> None:
        """dx [N, C, ...] = dy [N, C] / pixels."""

    # -- batch normalisation -----------------------------------------------------------------------
    @abstractmethod
    def channel_moments(self, x: Array, out: Array) -> None:
        """out [C, 2] float64 = sums of x and x ** 2 over samples and image of x [N, C, ...], as if
        x were float64.
        """

    @abstractmethod
    def batchnorm_statistics(
        self, moments: Array, count: int, eps: float, mean: Array, inv_std: Array, running: Array | None, momentum: float
    ) -> None:
        """Mean and 1 / sqrt(variance + eps) [C], float64 and contiguous, from the sums [C, 2] of
        `count` items per channel.

        `running` [2, C] (mean, then variance) moves by `momentum` towards the new mean and the
        unbiased variance count / (count - 1) * variance; of a single item the variance itself is
        taken.
        """

    @abstractmethod
    def batchnorm_running(self, running: Array, eps: float, mean: Array, inv_std: Array) -> None:
        """Mean and 1 / sqrt(variance + eps) [C], float64, from running statistics [2, C]."""

    @abstractmethod
    def batchnorm_forward(self, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                          out: Array) -> None:
        """out = (x - mean) * inv_std * w + b by channel; mean and inv_std as made above, w and b
        [C]; out may be x.
        """

    @abstractmethod
    def channel_moments_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array,
                                 out: Array) -> None:
        """out [C, 2] float64 = sums of dy and of dy * (x - mean) * inv_std over samples and image:
        d bias and d weight.
        """

    @abstractmethod
    def batchnorm_backward(
        self, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array, sums: Array, count: int, dx: Array
    ) -> None:
        """dx = w * inv_std * (dy - sums[:, 0] / count - (x - mean) * inv_std * sums[:, 1] / count);
        dx may be dy.

        `sums` [C, 2] are those of `channel_moments_backward` over all the `count` items per channel
        that the statistics come from.
        """

    # -- local response normalisation and elementwise ----------------------------------------------
    @abstractmethod
    def lrn_forward(
        self, x: Array, offset: int, size: int, alpha: float, beta: float, k: float, out: Array, scale: Array
    ) -> None:
        """out channel i is x channel i + offset, divided by scale ** beta; images or volumes.

        scale[i] = k + alpha / size * sum of x[j] ** 2 for j from i + offset - size // 2 to i +
        offset + (size - 1) // 2, inside x. `scale` (shape of out) is kept for the backward pass.
        """

    @abstractmethod
    def lrn_backward(
        self, x: Array, out: Array, scale: Array, dy: Array, offset: int, size: int, alpha: float, beta: float, dx: Array
    ) -> None:
        """dx for every channel of x, from the owned channels' dy only."""

    @abstractmethod
    def relu_forward(self, x: Array, out: Array) -> None:
        """out = max(x, 0); out may be x. A NaN stays a NaN."""

    @abstractmethod
    def relu_backward(self, out: Array, dy: Array, dx: Array) -> None:
        """dx = dy where out > 0, else 0; dx may be dy."""

    @abstractmethod
    def dropout_mask(
        self, key: int, start: tuple[int, ...], shape: tuple[int, ...], extent: tuple[int, ...], rate: float, out: Array
    ) -> None:
        """out = 1 / (1 - rate) where an element is kept, else 0.

        Element i of a block that begins at `start` in a tensor of shape `extent` is kept when
        uniform(splitmix64(key + (1 + flat global index) * 0x9E3779B97F4A7C15 mod 2**64)) >= rate,
        where uniform takes the top 53 bits: it depends on the global index only, so every plan and
        every backend makes the same mask. `key` is below 2**64. splitmix64 here is the generator's
        output function alone (it adds no increment of its own).
        """

    @abstractmethod
    def add(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b; out may be a or b."""

    @abstractmethod
    def scale(self, x: Array, factor: float) -> None:
        """x *= factor."""

    @abstractmethod
    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """out = a * b."""

    @abstractmethod
    def softmax_cross_entropy(self, x: Array, labels: Array, scale: float,
                              dx: Array) -> tuple[float, int]:
        """(sum over samples of -log softmax(x)[label], number of samples whose largest logit is the
        label's).

        x [N, classes], labels [N] int64; dx = scale * d(sum)/dx. Samples with label -1 count for
        nothing, dx = 0.
        """

    @abstractmethod
    def logistic_cross_entropy(self, x: Array, labels: Array, first_class: int, scale: float,
                               dx: Array) -> float:
        """Sum of the binary cross-entropies of independent logistic units (numerically stable), dx
        = scale * its gradient.

        x [N, C] holds classes first_class .. first_class + C - 1; the target is 1 at the label.
        Samples with label -1 count for nothing.
        """

    @abstractmethod
    def mean_squared_error(self, x: Array, targets: Array, scale: float, dx: Array) -> float:
        """Sum of (x - targets) ** 2, dx = scale * 2 * (x - targets), all [N, C]. Where the target
        is NaN (padding) both are zero.
        """

    # -- update ------------------------------------------------------------------------------------
    @abstractmethod
    def sgd_update(
        self, w: Array, grad: Array, velocity: Array | None, rate: float, momentum: float, decay: float, tick: Tick | None = None
    ) -> None:
        """OWT's rule: velocity = momentum * velocity - rate * (grad + decay * w); w += velocity.
        Arrays of one shape.

        Without a velocity: w -= rate * (grad + decay * w), whatever the momentum.
        """

    @abstractmethod
    def adam_update(
        self, w: Array, grad: Array, first: Array, second: Array, rate: float, beta1: float, beta2: float, eps: float, step: int,
        decay: float, tick: Tick | None = None,
    ) -> None:
        """Adam with bias correction, the decay a part of the gradient g = grad + decay * w (as
        torch.optim.Adam). Arrays of one shape.

        first = beta1 * first + (1 - beta1) * g and second = beta2 * second + (1 - beta2) * g ** 2;
        then w -= rate * first / (1 - beta1 ** step) / (sqrt(second / (1 - beta2 ** step)) + eps).
        `step` counts from 1.
        """

    @abstractmethod
    def all_finite(self, x: Array) -> bool:
        """False if any element is NaN or infinite."""
