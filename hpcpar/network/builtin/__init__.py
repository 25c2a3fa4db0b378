"""The built-in networks by name, and `network`, which returns any network."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.errors import InputError
from hpcpar.io.files import looks_like_file, unknown_name
from hpcpar.network import source
from hpcpar.network.builtin.alexnet import alexnet, alexnet_owt
from hpcpar.network.builtin.cosmoflow import cosmoflow
from hpcpar.network.builtin.inception import inception_v3
from hpcpar.network.builtin.mobilenet import mobilenet_v2
from hpcpar.network.builtin.resnet import resnet50, resnet152
from hpcpar.network.builtin.small import lenet5, mlp
from hpcpar.network.builtin.unet import unet, unet3d
from hpcpar.network.builtin.vgg import vgg16, vgg16_bn
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.network.layers.base import shape_text

#: name -> (builder, default shape of a sample, default classes)
NETWORKS: dict[str, tuple[Callable[[Shape, int], Network], Shape, int]] = {
    "lenet5": (lenet5, (1, 28, 28), 10),
    "mlp": (mlp, (1, 28, 28), 10),
    "alexnet": (alexnet, (3, 227, 227), 1000),
    "alexnet-owt": (alexnet_owt, (3, 224, 224), 1000),
    "vgg16": (vgg16, (3, 224, 224), 1000),
    "vgg16_bn": (vgg16_bn, (3, 224, 224), 1000),
    "resnet50": (resnet50, (3, 224, 224), 1000),
    "resnet152": (resnet152, (3, 224, 224), 1000),
    "inception_v3": (inception_v3, (3, 299, 299), 1000),
    "mobilenet_v2": (mobilenet_v2, (3, 224, 224), 1000),
    "unet": (unet, (3, 256, 256), 2),
    "unet3d": (unet3d, (1, 64, 64, 64), 3),
    "cosmoflow": (cosmoflow, (4, 128, 128, 128), 4),
}


def network(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """A built-in network or a user's own.

    Parameters
    ----------
    name : str
        One of `NETWORKS`, ``module:function``, or the path of an ONNX file.
    shape : tuple of int, optional
        Sample shape (C, H, W), (C, D, H, W) or (C, W); by default the one in `NETWORKS` or in the
        file.
    classes : int, optional
        Number of outputs; by default the one in `NETWORKS` or in the file.

    Raises
    ------
    InputError
        The name is unknown, the images are too small or have the wrong number of axes, or the
        user's function or file cannot be used.
    """
    if ":" in name or name.endswith(".onnx"):
        _require_positive(name, shape, classes)
        return source.load(name, shape, classes)
    if name not in NETWORKS and looks_like_file(name):
        raise source.no_network(name)
    return built_in(name, shape, classes)


def _require_positive(name: str, shape: Shape | None, classes: int | None) -> None:
    shape_is_bad = shape is not None and min(shape, default=0) < 1
    if shape_is_bad or (classes is not None and classes < 1):
        raise InputError(f"network '{name}': input {shape} with {classes} classes; give positive "
                         "numbers")


def built_in(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """A built-in network; unlike `network`, it never imports a user's module.

    Raises
    ------
    InputError
        As in `network`.
    """
    _require_positive(name, shape, classes)
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    build, default_shape, default_classes = NETWORKS[name]
    shape = default_shape if shape is None else shape
    if len(shape) != len(default_shape):
        axes = {3: "CxHxW", 4: "CxDxHxW"}[len(default_shape)]
        raise InputError(f"network '{name}' takes inputs {axes}, not {shape_text(shape)}; "
                         f"give --input {axes}, as in {shape_text(default_shape)}")
    return build(shape, default_classes if classes is None else classes)


def names() -> list[str]:
    """Names of the built-in networks."""
    return list(NETWORKS)
