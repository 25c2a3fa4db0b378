"""The convolutional networks of public zoos, drawn by a rule: from every file of models of each zoo
some, by the hash of their names.
"""

from __future__ import annotations

import hashlib
import inspect
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: Families of timm that their source shows to mix pixels so.
SOURCE = re.compile(r"\bqkv\b|scaled_dot_product|class \w*Attention\(|SpatialGatingUnit|nn\.LSTM")
#: Every network whose hash is a multiple of this is kept aside.
ASIDE = 10


@dataclass(frozen=True)
class Candidate:
    """A network of a zoo.

    Attributes
    ----------
    make : callable
        Builds the module for samples of a shape.
    shape, small : tuple of int
        Sample shape to import it with (none: the module's own `in_size`), and a small one to
        execute.
    """

    zoo: str
    name: str
    make: Callable[[tuple[int, ...]], Any]
    shape: tuple[int, ...]
    small: tuple[int, ...]

    @property
    def aside(self) -> bool:
        """Whether it is looked at only at the end."""
        return digest(f"{self.zoo}/{self.name}") % ASIDE == 0


def digest(text: str) -> int:
    """A number from a text, the same everywhere."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def some(names: Iterable[str], count: int) -> list[str]:
    """The names with the smallest hashes."""
    return sorted(sorted(names, key=digest)[:count])


def by_family(families: dict[str, list[str]], count: int) -> list[str]:
    """Some names of each family."""
    return [name for family in sorted(families) for name in some(families[family], count)]


def torchvision(each: int = 2) -> list[Candidate]:
    """Classification, segmentation and video: two of each file."""
    import torchvision.models as models

    families: dict[str, list[str]] = {}
    for name in models.list_models():
        builder = models.get_model_builder(name)
        module = inspect.getmodule(builder)
        assert module is not None
        wanted = not re.search(r"detection|quantization|optical_flow", module.__name__)
        if wanted and not SOURCE.search(inspect.getsource(module)):
            families.setdefault(module.__name__, []).append(name)

    def candidate(name: str) -> Candidate:
        def make(_: object) -> Any:
            return models.get_model(name, weights=None, **(
                {"weights_backbone": None} if "segmentation" in models.get_model_builder(
                    name).__module__ else {}))
        video = "video" in models.get_model_builder(name).__module__
        big = 299 if "inception" in name else 224
        return Candidate("torchvision", name, make, (3, 16, 224, 224) if video else (3, big, big),
                         (3, 4, 32, 32) if video else (3, 96, 96) if big > 224 else (3, 64, 64))
    return [candidate(name) for name in by_family(families, each)
            if not re.search(r"swin|vit|s3d_none", name)]


def timm(each: int = 2) -> list[Candidate]:
    """Architectures with published weights and without attention over pixels: two of each file."""
    import importlib

    import timm
    from timm.models._registry import _model_pretrained_cfgs, _model_to_module

    published = {name.partition(".")[0] for name in timm.list_models(pretrained=True)}
    families: dict[str, list[str]] = {}
    for name in sorted(published):
        family = _model_to_module[name]
        source = inspect.getsource(importlib.import_module(f"timm.models.{family}"))
        if not SOURCE.search(source) and not re.search(r"vit|vim_|former|pit_", name):
            families.setdefault(family, []).append(name)
    sizes: dict[str, int] = {}
    for full, config in _model_pretrained_cfgs.items():
        sizes.setdefault(full.partition(".")[0], config.input_size[-1])

    def candidate(name: str) -> Candidate:
        big = min(sizes.get(name, 224), 448)
        return Candidate("timm", name, lambda _: timm.create_model(name, pretrained=False),
                         (3, big, big), (3, 96, 96) if big > 288 else (3, 64, 64))
    return [candidate(name) for name in by_family(families, each)]


def pytorchcv(each: int = 1) -> list[Candidate]:
    """One of each file of classification and segmentation networks."""
    from pytorchcv.model_provider import _models

    families: dict[str, list[str]] = {}
    for name, function in _models.items():
        family = function.__module__.rpartition(".")[2]
        if not re.search(r"pose|jasper|quartznet|wav2|lwopen|centernet|ibppose|raft|pointnet|others"
                         r"|superpoint|nvpattexp|voca|lffd|prnet|isqrt|transformer|vit|swin"
                         r"|zerodce|propainter|deepfill", family):
            families.setdefault(re.sub("_cifar|_cub", "", family), []).append(name)

    def candidate(name: str) -> Candidate:
        def make(shape: tuple[int, ...]) -> Any:
            try:
                return _models[name](pretrained=False, **{"in_size": shape[1:]} if shape else {})
            except TypeError:  # it does not ask for the size
                return _models[name](pretrained=False)
        shape: tuple[int, ...] = ()
        if re.search(r"voc|cityscapes|ade20k|coco|celeba", name):
            shape = (3, 320, 320) if "voc" in name else (3, 256, 256)
        size = 32 if re.search(r"cifar|svhn", name) else 96 if re.search("ception|asnet", name) \
            else 64
        return Candidate("pytorchcv", name, make, shape, (3, size, size))
    return [candidate(name) for name in by_family(families, each)]


def segmentation_models() -> list[Candidate]:
    """Every decoder on three encoders."""
    import segmentation_models_pytorch as smp

    encoders = [name for name in smp.encoders.encoders
                if not re.search(r"mit_|tu-|mobileone", name)]
    decoders = {c.__name__: c for c in (
        smp.Unet, smp.UnetPlusPlus, smp.MAnet, smp.Linknet, smp.FPN, smp.PSPNet, smp.PAN,
        smp.DeepLabV3, smp.DeepLabV3Plus, smp.UPerNet)}

    def candidate(decoder: str, encoder: str) -> Candidate:
        return Candidate("segmentation-models", f"{decoder}-{encoder}", lambda _: decoders[decoder](
            encoder, encoder_weights=None, classes=4), (3, 224, 224), (3, 64, 64))
    return [candidate(decoder, name.partition("/")[2]) for decoder in decoders
            for name in some((f"{decoder}/{encoder}" for encoder in encoders), 3)]


#: Arguments of MONAI's networks, by name.
MONAI = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3, "num_classes": 3, "dimensions": 3,
         "channels": (8, 16, 32), "strides": (2, 2, 2), "features": (8, 8, 16, 32, 64, 8),
         "kernel_size": 3, "up_kernel_size": 3, "img_size": 32, "in_shape": (1, 32, 32, 32),
         "out_shape": (3,), "layers": (1, 1, 1, 1), "block_inplanes": (8, 16, 32, 64),
         "block": "se_bottleneck", "pretrained": False, "model_name": "resnet18", "classes": 3,
         "num_channel_initial": 8, "depth": 2, "filters": (8, 16, 32), "n_input_channels": 1,
         "upsample_kernel_size": (2, 2), "groups": 1, "reduction": 2, "dropout_prob": None,
         "backbone": "resnet18", "input_shape": (32, 32, 32), "rnn_cell": None}


def monai() -> list[Candidate]:
    """The classes of monai.networks.nets whose arguments have known names, in two and three axes.
    """
    import monai.networks.nets as nets

    found: list[Candidate] = []
    seen: set[str] = set()
    for name, kind in sorted(vars(nets).items()):
        if getattr(kind, "__name__", "") != name or re.sub(r"\d+", "", name) in seen:
            continue  # another name of a class, or another depth
        try:
            parameters = inspect.signature(kind).parameters if inspect.isclass(kind) else {}
            source = inspect.getsource(kind) + inspect.getsource(inspect.getmodule(kind) or kind)
        except (TypeError, ValueError, OSError):
            continue
        needs = [p for p in parameters.values() if p.default is p.empty and p.kind not in (
            p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        conv = "in_channels" in parameters or "in_shape" in parameters
        mixes = re.search(r"ransformer|Attention\w*Block\(|SABlock|Mamba|Quantizer", source)
        if conv and not mixes and all(p.name in MONAI for p in needs):
            seen.add(re.sub(r"\d+", "", name))
            found += [_monai(name, kind, dims, needs, "spatial_dims" in parameters)
                      for dims in ((3, 2) if "spatial_dims" in parameters else
                                   (3 if name.endswith("3D") else 2,))]
    return found


def _monai(name: str, kind: Any, dims: int, needs: list[inspect.Parameter],
           spatial: bool) -> Candidate:
    values = MONAI | {"spatial_dims": dims, "dimensions": dims,
                      "in_shape": (1, *(32,) * dims), "input_shape": (32,) * dims}
    if name == "DynUNet":
        values |= {"kernel_size": (3, 3, 3), "strides": (1, 2, 2)}
    if name == "UNet":
        values |= {"strides": (2, 2)}
    if "EfficientNet" in name:
        values |= {"model_name": "efficientnet-b0"}
    if name == "PatchDiscriminator":
        values |= {"channels": 8}
    if name in ("SENet", "ResNetEncoder", "ResNetFeatures"):
        values |= {"block": "basic" if name[0] == "R" else "se_bottleneck"}
    parameters = inspect.signature(kind).parameters
    given = {p.name: values[p.name] for p in needs} | ({"spatial_dims": dims} if spatial else {})
    given |= {"pretrained": False} if "pretrained" in parameters else {}
    given |= {"dropout_dim": dims} if "dropout_dim" in parameters else {}
    channels = 1
    if "in_channels" in parameters and "in_channels" not in given:
        channels = parameters["in_channels"].default
    size = 32 if "in_shape" in given else 64
    size = {"AHNet": 128, "HoVerNet": 256}.get(name, size)
    return Candidate("monai", f"{name}-{dims}d", lambda _: kind(**given),
                     (channels, *(size,) * dims), (channels, *(32,) * dims))


def nnunet() -> list[Candidate]:
    """Architectures of dynamic-network-architectures in two and three axes."""
    import torch
    from dynamic_network_architectures.architectures.unet import (
        PlainConvUNet,
        ResidualEncoderUNet,
        ResidualUNet,
    )

    found = []
    for kind in (PlainConvUNet, ResidualEncoderUNet, ResidualUNet):
        for dims in (2, 3):
            conv = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims]
            norm = {2: torch.nn.InstanceNorm2d, 3: torch.nn.InstanceNorm3d}[dims]
            blocks = {"n_conv_per_stage": 2} if kind is PlainConvUNet else {"n_blocks_per_stage": 2}
            options = {"input_channels": 1, "n_stages": 4, "features_per_stage": (8, 16, 32, 64),
                       "conv_op": conv, "kernel_sizes": 3, "strides": (1, 2, 2, 2), **blocks,
                       "num_classes": 3, "n_conv_per_stage_decoder": 2, "conv_bias": True,
                       "norm_op": norm, "norm_op_kwargs": {"eps": 1e-5, "affine": True},
                       "nonlin": torch.nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
            found.append(Candidate("nnunet", f"{kind.__name__}-{dims}d", _made(kind, options),
                                   (1, *(64,) * dims), (1, *(32,) * dims)))
    return found


def _made(kind: Any, options: dict[str, Any]) -> Callable[[object], Any]:
    return lambda _: kind(**options)


ZOOS: dict[str, Callable[[], list[Candidate]]] = {
    "torchvision": torchvision, "timm": timm, "monai": monai,
    "segmentation-models": segmentation_models, "nnunet": nnunet, "pytorchcv": pytorchcv}


def fresh(seed: int, counts: tuple[tuple[str, int], ...] = (
        ("torchvision", 8), ("timm", 18), ("pytorchcv", 18))) -> list[Candidate]:
    """Networks of the same files that the list does not have, drawn by a seed."""
    everyone: dict[str, Callable[[int], list[Candidate]]] = {
        "torchvision": torchvision, "timm": timm, "pytorchcv": pytorchcv}
    found = []
    for zoo, count in counts:
        listed = {c.name for c in ZOOS[zoo]()}
        others = [c for c in everyone[zoo](10**6) if c.name not in listed]
        found += random.Random(seed).sample(others, count)
    return found
