"""The interface of all compute kernels.

Arrays are local blocks of images [N, C, H, W], volumes [N, C, D, H, W] or features [N, C];
[N, C, ...] means any of these. `x` is the block that a layer *needs*, including halos; `y` or `out`
is the block that a rank *owns*.

Every kernel writes to a preallocated array, and overwrites it unless its description says *add*. It
accepts empty blocks, in which any extent is 0. It accepts non-contiguous views unless its
description requires contiguous arrays. It computes in float32 and float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from hpcpar.errors import InputError
from hpcpar.kernels.bound import Bound, Tick
from hpcpar.kernels.conv_choice import Choice
from hpcpar.kernels.device_group import DeviceGroup
from hpcpar.kernels.geometry import ConvSpec, PoolSpec
from hpcpar.kernels.streams import Streams

Array = Any  #: numpy.ndarray or cupy.ndarray
#: Functions of `Backend.activation_forward`, in the order of the enumeration in activation.cuh.
ACTIVATIONS = ("relu", "leaky_relu", "clip", "sigmoid", "tanh", "silu", "gelu", "elu", "mish",
               "affine")


def address(array: Array) -> int:
    """Address of an array's first element, on the host or on the device."""
    on_host = type(array) is np.ndarray
    return int(array.__array_interface__["data"][0] if on_host else array.data.ptr)


class MathMode(str, Enum):
    """How a GPU multiplies float32 numbers; sums are float32 in both modes."""

    FP32 = "fp32"  #: in full precision
    TF32 = "tf32"  #: rounded to TensorFloat-32 (10 bits of fraction), on tensor cores

    __str__ = str.__str__


class Backend(Streams, ABC):
    """Compute kernels on one kind of device."""

    name: str
    #: Array module: numpy or cupy.
    xp: Any
    #: Device memory that is initially free for arrays, without the kernels' workspace; 0 if arrays
    #: are in host memory.
    memory_bytes = 0
    #: Kernels that take bfloat16 arrays themselves; see `hpcpar.kernels.bfloat16`.
    bfloat16_kernels: frozenset[str] = frozenset()

    @property
    def versions(self) -> dict[str, str]:
        """Hardware, software and precision of this backend, for records."""
        return {}

    @property
    def conv_choice(self) -> Choice:
        """Library of each kind of convolution on a CPU."""
        return {}

    @property
    def cautions(self) -> list[str]:
        """One line for each known cause of slow kernels."""
        return []

    # -- arrays ------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.zeros(shape, dtype)

    @abstractmethod
    def upload(self, host: Array) -> Array:
        """A copy on the device, complete on return. A device array is returned as it is.

        Any thread may call it; the compute stream continues meanwhile.
        """

    @abstractmethod
    def to_device(self, host: np.ndarray, out: Array) -> None:
        """Copy a host array to a device array of the same shape."""

    @abstractmethod
    def to_host(self, device: Array, out: np.ndarray) -> None:
        """Copy a device array to a host array of the same shape; complete on return."""

    @abstractmethod
    def host_buffer(self, items: int, dtype: Any) -> np.ndarray:
        """A flat host array for messages; in pinned memory if the device is a GPU."""

    @abstractmethod
    def enqueue_to_host(self, device: Array, out: np.ndarray) -> None:
        """Copy a contiguous device array to a `host_buffer` on the current stream."""

    @abstractmethod
    def enqueue_to_device(self, host: np.ndarray, out: Array) -> None:
        """Copy a `host_buffer` to a contiguous device array on the current stream."""

    def bind(self, kernel: str, *args: Any, **options: Any) -> Bound:
        """A function that calls a kernel (a method) with arrays that keep their memory."""
        call = partial(getattr(self, kernel), *args, **options)
        return Bound(kernel, args, partial(self._prepared, kernel, args, call))

    def _prepared(self, kernel: str, args: tuple[Any, ...], call: Tick) -> Tick:
        """The call of a kernel; on a GPU it has prepared as much as it can."""
        return call

    def fuse(self, calls: Sequence[Bound], unread: Sequence[Collection[int]]) -> Tick | None:
        """A function that does the work of all calls in fewer launches; None where there is none.

        For each call, `unread` has addresses of arrays that only these calls read, so the function
        need not write them. A later call may use the same memory for something else.
        """
        return None

    # -- messages between devices ------------------------------------------------------------------
    #: Identifies the card within its node: processes that share a card have equal values.
    card = ""

    def require_groups(self) -> None:
        """Check that `group` is available.

        Raises
        ------
        InputError
            This backend cannot send messages between devices.
        """
        raise InputError(f"--transport nccl sends messages between GPUs, but the device is "
                         f"{self.name}; use --device gpu")

    def group(self, size: int, rank: int, share: Callable[[bytes], bytes]) -> DeviceGroup:
        """A group of GPUs. Collective; `share` broadcasts its argument from the first member."""
        raise NotImplementedError

    # -- moving boxes ------------------------------------------------------------------------------
    @abstractmethod
    def pack(self, box: Array, flat: Array) -> None:
        """Copy a strided box to a flat contiguous buffer of the same size."""

    @abstractmethod
    def unpack(self, flat: Array, box: Array) -> None:
        """Copy a flat buffer to a box."""

    @abstractmethod
    def unpack_add(self, flat: Array, box: Array) -> None:
        """Add a flat buffer to a box: the adjoint of `pack`."""

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
        """out[n, o] = bias[o] + sum of x * w over the channels of the group and the kernel.

        x [N, C, H, W], w [O, C/groups, kh, kw] contiguous, bias [O], out [N, O, OH, OW]; volumes
        have a depth axis, too.
        """

    @abstractmethod
    def conv_backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                           tick: Tick | None = None) -> None:
        """dx = gradient of the needed block x, from the gradient dy of the owned outputs.

        In the halos, dx is a partial sum; other ranks hold the other summands.
        """

    @abstractmethod
    def conv_backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                             dbias: Array | None, tick: Tick | None = None) -> None:
        """dw [O, C/groups, *kernel], contiguous, and dbias [O]: partial sums over this block."""

    # -- fully connected ---------------------------------------------------------------------------
    @abstractmethod
    def gemm(self, a: Array, b: Array, out: Array, *, transpose_a: bool = False,
             transpose_b: bool = False, tick: Tick | None = None) -> None:
        """out = op(a) @ op(b) for matrices, where op optionally transposes."""

    @abstractmethod
    def add_bias(self, y: Array, bias: Array) -> None:
        """y[n, o, ...] += bias[o], y [N, O, ...]."""

    @abstractmethod
    def sum_samples(self, dy: Array, out: Array) -> None:
        """out[o] = sum of dy[n, o, ...] over samples and pixels, dy [N, O, ...]."""

    # -- pooling -----------------------------------------------------------------------------------
    @abstractmethod
    def maxpool_forward(self, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
        """out = maximum of each window; argmax = its row-major offset in the window, int16.

        The first of several equal maxima wins. A NaN in a window makes the maximum NaN and its
        argmax arbitrary. argmax has the shape of out.
        """

    @abstractmethod
    def maxpool_backward(self, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
        """dx = sum of dy over the windows whose maximum is at the element."""

    @abstractmethod
    def avgpool_forward(self, x: Array, spec: PoolSpec, scales: Sequence[Array],
                        out: Array) -> None:
        """out[.., i, j] = scales[0][i] * scales[1][j] * sum of the window.

        `scales` has one array per image axis, with out's extent.
        """

    @abstractmethod
    def avgpool_backward(self, dy: Array, spec: PoolSpec, scales: Sequence[Array],
                         dx: Array) -> None:
        """dx = adjoint of `avgpool_forward`, applied to dy."""

    @abstractmethod
    def global_avgpool_forward(self, x: Array, out: Array) -> None:
        """out [N, C] = mean of x [N, C, ...] over the pixels; zero for an empty image."""

    @abstractmethod
    def global_avgpool_backward(self, dy: Array, dx: Array) -> None:
        """dx [N, C, ...] = dy [N, C] / number of pixels."""

    @abstractmethod
    def weighted_sums(self, x: Array, axes: Sequence[tuple[Array, Array] | None],
                      out: Array) -> None:
        """out = weighted sums of x along each image axis (interpolation). out is not x.

        For (index, weight) [taps, outputs] of an axis, out[.., i] = sum over t of
        weight[t, i] * x[.., index[t, i]]; None leaves the axis unchanged.
        """

    @abstractmethod
    def global_maxpool_forward(self, x: Array, out: Array, argmax: Array) -> None:
        """out [N, C] = maximum of x [N, C, ...] over pixels; argmax = its row-major index, int64.

        The first of several equal maxima wins; a NaN makes the maximum NaN.
        """

    @abstractmethod
    def global_maxpool_backward(self, dy: Array, argmax: Array, dx: Array) -> None:
        """dx [N, C, ...] = dy [N, C] at the maxima, else 0."""

    # -- batch normalization -----------------------------------------------------------------------
    @abstractmethod
    def channel_moments(self, x: Array, out: Array) -> None:
        """out [C, 2], float64 = float64 sums of x and x ** 2 over samples and pixels."""

    @abstractmethod
    def batchnorm_statistics(self, moments: Array, count: int, eps: float, mean: Array,
                             inv_std: Array, running: Array | None, momentum: float) -> None:
        """mean and inv_std = 1 / sqrt(variance + eps), from moments of `count` items per channel.

        mean and inv_std [C] are float64 and contiguous; `moments` [C, 2] comes from
        `channel_moments`. `running` [2, C] (mean, variance) moves by `momentum` toward the new mean
        and the unbiased variance count / (count - 1) * variance (count = 1: the variance).
        """

    @abstractmethod
    def batchnorm_running(self, running: Array, eps: float, mean: Array, inv_std: Array) -> None:
        """mean and inv_std = 1 / sqrt(variance + eps) [C], float64, from `running` [2, C]."""

    @abstractmethod
    def batchnorm_forward(self, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                          out: Array) -> None:
        """out = (x - mean) * inv_std * w + b per channel, w and b [C]; out may be x."""

    @abstractmethod
    def channel_moments_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array,
                                 out: Array) -> None:
        """out [C, 2], float64 = sums of dy and dy * (x - mean) * inv_std (gradients of b and w).

        They may be rounded to x's type.
        """

    @abstractmethod
    def batchnorm_gradients(self, moments: Array, w: Array, sums: Array, db: Array | None,
                            dw: Array | None) -> None:
        """sums = moments * w, for `batchnorm_backward`; db, dw = the columns of `moments`.

        `moments` [C, 2] comes from `channel_moments_backward`. All arrays but w [C] are contiguous.
        Either both or none of db and dw [C] are given.
        """

    @abstractmethod
    def batchnorm_backward(self, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                           sums: Array, count: int, dx: Array) -> None:
        """dx = inv_std * (w * dy - (sums[:, 0] + (x - mean) * inv_std * sums[:, 1]) / count).

        `sums` [C, 2] comes from `channel_moments_backward` with w * dy in place of dy, over the
        same `count` items as the statistics. dx may be dy.
        """

    # -- local response normalization and elementwise ----------------------------------------------
    @abstractmethod
    def lrn_forward(self, x: Array, offset: int, size: int, alpha: float, beta: float, k: float,
                    out: Array, scale: Array) -> None:
        """out[i] = x[i + offset] / scale[i] ** beta for channels i of images or volumes.

        scale[i] = k + alpha / size * sum of x[j] ** 2, where channel j runs from
        i + offset - size // 2 to i + offset + (size - 1) // 2 within x. The backward pass reads
        `scale`, which has the shape of out.
        """

    @abstractmethod
    def lrn_backward(self, x: Array, out: Array, scale: Array, dy: Array, offset: int, size: int,
                     alpha: float, beta: float, dx: Array) -> None:
        """dx = gradient of each channel of x from the owned channels' dy: a partial sum."""

    @abstractmethod
    def activation_forward(self, function: str, numbers: tuple[float, float], x: Array,
                           out: Array) -> None:
        """out = f(x) with numbers (a, b); NaN stays NaN; out may be x.

        relu: max(x, 0); leaky_relu: x if x > 0, else a * x; clip: min(max(x, a), b);
        sigmoid: s(x) = 1 / (1 + exp(-x)); tanh; silu: x * s(x); affine: a * x + b;
        gelu: x * (1 + erf(x / sqrt(2))) / 2, or with a = 1
        x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2;
        elu: b * x if x > 0, else b * a * (exp(x) - 1); mish: x * tanh(log(1 + exp(x))).
        """

    @abstractmethod
    def activation_backward(self, function: str, numbers: tuple[float, float], kept: Array,
                            dy: Array, dx: Array) -> None:
        """dx = dy * f'(x); `kept` is x for silu, gelu and mish, otherwise f(x); dx may be dy.

        At kinks, f' is 0 for relu, a for leaky_relu, and 0 for clip.
        """

    @abstractmethod
    def erf(self, x: Array) -> Array:
        """A new array: the error function of each element."""

    @abstractmethod
    def dropout_mask(self, key: int, start: tuple[int, ...], shape: tuple[int, ...],
                     extent: tuple[int, ...], rate: float, out: Array) -> None:
        """out = 1 / (1 - rate) for kept elements, else 0.

        The block begins at `start` in a tensor of shape `extent`. It keeps an element if
        uniform(splitmix64(key + (1 + flat global index) * 0x9E3779B97F4A7C15 mod 2**64)) >= rate.
        splitmix64 is the output function of the generator, without its increment; uniform takes
        the top 53 bits; `key` is below 2**64. The mask depends on the global index only, so it is
        the same in every plan and backend.
        """

    @abstractmethod
    def add(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b; out may be a or b."""

    @abstractmethod
    def scale(self, x: Array, factor: float) -> None:
        """x *= factor."""

    def normalize(self, x: Array, mean: Array | float, scale: Array | float, out: Array) -> None:
        """out = (x - mean) * scale, in out's type; x [N, C, ...] has any type.

        mean and scale are numbers, or arrays of out's type that broadcast to x.
        """
        self.xp.subtract(x, mean, out=out, dtype=out.dtype, casting="unsafe")
        self.xp.multiply(out, scale, out=out)

    @abstractmethod
    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """out = a * b; b broadcasts to a along axes of extent 1."""

    @abstractmethod
    def image_products(self, a: Array, b: Array, out: Array) -> None:
        """out [N, C] = sum of a * b [N, C, ...] over the pixels."""

    @abstractmethod
    def softmax_cross_entropy(self, x: Array, labels: Array, scale: float, dx: Array,
                              sums: Array) -> None:
        """sums [2], float64 = sum over samples of -log softmax(x)[label]; count of correct samples.

        x [N, classes], labels [N] int64; dx = scale * gradient of the sum. A sample is correct if
        its label has the largest logit. Samples with label -1 are ignored; their dx is 0.
        """

    @abstractmethod
    def logistic_cross_entropy(self, x: Array, labels: Array, first_class: int, scale: float,
                               dx: Array, sums: Array) -> None:
        """sums[0] = sum of the binary cross-entropies of independent logistic units.

        dx = scale * gradient. x [N, C] holds classes first_class .. first_class + C - 1; the target
        is 1 at the label and 0 elsewhere. Samples with label -1 are ignored; their dx is 0. The sum
        is numerically stable.
        """

    @abstractmethod
    def mean_squared_error(self, x: Array, targets: Array, scale: float, dx: Array,
                           sums: Array) -> None:
        """sums[0] = sum of (x - targets) ** 2; dx = scale * 2 * (x - targets), all [N, C].

        Elements with target NaN (padding) contribute zero to both.
        """

    # -- update ------------------------------------------------------------------------------------
    def together(self) -> AbstractContextManager[Any]:
        """A context for updates of different weights; a GPU does them at its end, in one launch."""
        return nullcontext()

    def blocks(self, arrays: tuple[Array, ...], tick: Tick | None) -> Iterable[tuple[Array, ...]]:
        """Matching views of equally shaped arrays for an update, with ticks between the views."""
        return [arrays]

    @abstractmethod
    def sgd_update(self, w: Array, grad: Array, velocity: Array | None, rate: float,
                   momentum: float, decay: float) -> None:
        """velocity = momentum * velocity - rate * (grad + decay * w); w += velocity.

        This is the rule of One Weird Trick. Without a velocity, w -= rate * (grad + decay * w) for
        any momentum. All arrays have the same shape.
        """

    @abstractmethod
    def adam_update(self, w: Array, grad: Array, first: Array, second: Array, rate: float,
                    beta1: float, beta2: float, eps: float, step: float, decay: float,
                    decoupled: float = 0.0) -> None:
        """Adam with bias correction. As in torch.optim.Adam, the gradient includes weight decay.

        With g = grad + decay * w: first = beta1 * first + (1 - beta1) * g,
        second = beta2 * second + (1 - beta2) * g ** 2 and
        w -= rate * first / (1 - beta1 ** step) / (sqrt(second / (1 - beta2 ** step)) + eps).
        `step` starts at 1. Before, w *= 1 - rate * decoupled (AdamW). All arrays have the same
        shape.
        """

    # -- faults ------------------------------------------------------------------------------------
    @abstractmethod
    def nonfinite_search(self, x: Array, outputs: Sequence[Array], found: Array) -> Tick:
        """A function for found [len(outputs)], int64 = 1 where an output has a NaN or an infinity,
        else 0; it only searches if x has one. All arrays have x's type, and keep their memory.
        """
