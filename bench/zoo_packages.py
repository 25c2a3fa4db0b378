"""More packages of networks: constructor calls and sample shapes, one function per package.

Long lists are drawn by the hash of the names. No network loads weights.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bench.zoo_list import Candidate, some

#: The versions that were counted, with torch 2.13.
VERSIONS = {
    "torchvision": "0.28.0", "timm": "1.0.31", "monai": "1.6.1",
    "segmentation-models-pytorch": "0.6.0", "dynamic-network-architectures": "0.4.4",
    "pytorchcv": "0.0.74", "spandrel": "0.4.2", "deepinv": "0.5.0", "torchsr": "1.0.4",
    "super-image": "0.2.0", "facenet-pytorch": "2.6.0", "torchxrayvision": "1.5.7",
    "efficientnet-pytorch": "0.7.1", "geffnet": "1.0.2", "pretrainedmodels": "0.7.4",
    "ultralytics": "8.4.190", "kornia": "0.9.0", "neuraloperator": "2.0.0", "lightly": "1.6.0",
    "unet": "0.8.1", "x-unet": "0.5.0", "torch-uncertainty": "0.13.0", "acsconv": "0.1.1",
    "compressai": "1.2.8", "segmentation-models-pytorch-3d": "1.0.2", "torchgan": "0.1.0",
    "asteroid": "0.7.0", "demucs": "4.1.0", "diffusers": "0.42.1", "dgmr": "1.4.4",
    "metnet": "4.1.25"}

Shape = tuple[int, ...]


def entry(zoo: str, path: str, shape: Shape, small: Shape, **options: Any) -> Candidate:
    """A network by the path of its class or function, `module:name` or `module:name.part`."""
    module, _, names = path.partition(":")

    def make(_: object) -> Any:
        first, *parts = names.split(".")
        made = getattr(importlib.import_module(module), first)(**options)
        for part in parts:
            made = getattr(made, part)
        return made
    tail = "-".join(str(v) for v in options.values() if isinstance(v, (str, int)))
    name = "-".join((names, *filter(None, (tail,)), f"{len(shape) - 1}d"))
    return Candidate(zoo, name, make, shape, small)


def table(zoo: str, module: str, names: str | Iterable[str], shape: Shape, small: Shape,
          count: int = 10**6, **options: Any) -> list[Candidate]:
    """Networks of a module with the same arguments, `count` of them by hash."""
    listed = names.split() if isinstance(names, str) else names
    return [entry(zoo, f"{module}:{name}", shape, small, **options)
            for name in some(listed, count)]


def spandrel() -> list[Candidate]:
    """Image restoration and super-resolution: architectures with default arguments."""
    names = ("CRAFT.CRAFT Compact.Compact DAT.DAT DCTLSA.DCTLSA DITN.DITN DRCT.DRCT "
             "ESRGAN.ESRGAN FBCNN.FBCNN FDAT.FDAT FFTformer.FFTformer "
             "HVICIDNet.HVICIDNet KBNet.KBNet_l KBNet.KBNet_s "
             "MixDehazeNet.MixDehazeNet MoESR.MoESR MoSR.MoSR NAFNet.NAFNet OmniSR.OmniSR "
             "PLKSR.PLKSR PLKSR.RealPLKSR RCAN.RCAN RealCUGAN.UpCunet2x RealCUGAN.UpCunet3x "
             "RealCUGAN.UpCunet4x RetinexFormer.RetinexFormer SAFMN.SAFMN "
             "SCUNet.SCUNet SPAN.SPAN SeemoRe.SeemoRe SwiftSRGAN.SwiftSRGAN")
    needs: dict[str, dict[str, Any]] = {"SPAN": {"num_in_ch": 3, "num_out_ch": 3},
                                        "SAFMN": {"dim": 36}}
    found = []
    for name in some(names.split(), 30):
        package, _, kind = name.partition(".")
        found.append(entry("spandrel", f"spandrel.architectures.{package}:{kind}", (3, 64, 64),
                           (3, 32, 32), **needs.get(kind, {})))
    return found


def deepinv() -> list[Candidate]:
    """Reconstruction networks and discriminators that take one image."""
    of = partial(table, "deepinv", "deepinv.models")
    return [
        *of("DnCNN SwinIR", (3, 64, 64), (3, 32, 32), pretrained=None),
        *of("MPRNet SRResNet PatchGANDiscriminator", (3, 64, 64), (3, 32, 32)),
        *of("Restormer", (3, 64, 64), (3, 32, 32), pretrained=None),
        *of("DCGANDiscriminator", (3, 64, 64), (3, 64, 64)),
        *of("ESRGANDiscriminator", (3, 64, 64), (3, 64, 64), img_size=(3, 64, 64)),
        *of("UNet", (1, 64, 64), (1, 32, 32), batch_norm=True),
        *of("UNet", (1, 64, 64), (1, 32, 32), batch_norm=False, residual=False),
        *of("ConvLista", (1, 64, 64), (1, 32, 32), in_channels=1, out_channels=1, num_filters=64),
        *of("KernelIdentificationNetwork", (3, 256, 256), (3, 256, 256), pretrained=None)]


def torchsr() -> list[Candidate]:
    """Super-resolution."""
    return [*table("torchsr", "torchsr.models", "edsr_baseline edsr_r16f64 rdn_a rdn_b rcan "
                   "ninasr_b0 ninasr_b1 ninasr_b2 carn carn_m", (3, 48, 48), (3, 16, 16),
                   scale=2, pretrained=False),
            *table("torchsr", "torchsr.models", "vdsr", (3, 48, 48), (3, 16, 16), scale=1,
                   pretrained=False)]


def super_image() -> list[Candidate]:
    """Super-resolution in the manner of transformers: a class and its configuration."""
    import super_image as si

    def candidate(name: str) -> Candidate:
        def make(_: object) -> Any:
            return getattr(si, f"{name}Model")(getattr(si, f"{name}Config")(scale=2))
        return Candidate("super-image", name, make, (3, 48, 48), (3, 16, 16))
    return [candidate(name) for name in (
        "A2n", "Awsrn", "Carn", "Ddbpn", "Drln", "Edsr", "Han", "Mdsr", "Msrn", "Pan", "Rcan",
        "Rnan")]


def facenet() -> list[Candidate]:
    """Face recognition and the networks of its detector."""
    of = partial(entry, "facenet-pytorch")
    return [of("facenet_pytorch:InceptionResnetV1", (3, 160, 160), (3, 96, 96)),
            of("facenet_pytorch.models.mtcnn:PNet", (3, 96, 96), (3, 48, 48), pretrained=False),
            of("facenet_pytorch.models.mtcnn:RNet", (3, 24, 24), (3, 24, 24), pretrained=False),
            of("facenet_pytorch.models.mtcnn:ONet", (3, 48, 48), (3, 48, 48), pretrained=False)]


def xrays() -> list[Candidate]:
    """Chest X-rays."""
    of = partial(entry, "torchxrayvision")
    return [of("torchxrayvision.models:DenseNet", (1, 224, 224), (1, 64, 64)),
            of("torchxrayvision.models:DenseNet", (1, 128, 128), (1, 64, 64),
               growth_rate=16, num_classes=14),
            of("torchxrayvision.autoencoders:ResNetAE50", (1, 224, 224), (1, 64, 64)),
            of("torchxrayvision.autoencoders:ResNetAE101", (1, 224, 224), (1, 64, 64))]


def efficientnets() -> list[Candidate]:
    """EfficientNet with TensorFlow's padding."""
    def candidate(name: str) -> Candidate:
        def make(_: object) -> Any:
            from efficientnet_pytorch import EfficientNet
            return EfficientNet.from_name(name)
        return Candidate("efficientnet-pytorch", name, make, (3, 224, 224), (3, 64, 64))
    return [candidate(name) for name in some((f"efficientnet-b{i}" for i in range(8)), 4)]


def geffnets() -> list[Candidate]:
    """EfficientNets, MobileNets and MixNets of every kind."""
    from geffnet import gen_efficientnet, mobilenetv3

    return [c for module in (gen_efficientnet, mobilenetv3)
            for c in table("geffnet", module.__name__, module.__all__[1:], (3, 224, 224),
                           (3, 64, 64), 6, pretrained=False)]


def cadene() -> list[Candidate]:
    """pretrainedmodels."""
    import pretrainedmodels

    def candidate(name: str) -> Candidate:
        big = 299 if "ception" in name else 331 if name[:3] in ("nas", "pna") else 224
        return Candidate("pretrainedmodels", name, lambda _: pretrainedmodels.__dict__[name](
            num_classes=1000, pretrained=None), (3, big, big), (3, big, big))
    skip = ("nasnetalarge", "pnasnet5large")  # take minutes
    return [candidate(name) for name in some(set(pretrainedmodels.model_names) - {*skip}, 14)]


def yolos() -> list[Candidate]:
    """Ultralytics: classification, semantic segmentation and detection."""
    def candidate(kind: str, file: str) -> Candidate:
        def make(_: object) -> Any:
            from ultralytics.nn import tasks
            return getattr(tasks, kind)(file, verbose=False)
        return Candidate("ultralytics", file.partition(".")[0], make, (3, 128, 128), (3, 64, 64))
    heads = ("yolo11n yolo12n yolo26n yolov10n yolov3-tinyu yolov5nu yolov6n yolov8n yolov8n-p2 "
             "yolov8n-ghost yolov9t")
    return [
        *(candidate("ClassificationModel", f"{name}.yaml") for name in (
            "yolo11n-cls", "yolo12n-cls", "yolo26n-cls", "yolov8n-cls")),
        candidate("SemanticSegmentationModel", "yolo26n-sem.yaml"),
        *(candidate("DetectionModel", f"{name.removesuffix('u')}.yaml")
          for name in some(heads.split(), 6))]


def kornia() -> list[Candidate]:
    """Local features, edges and super-resolution."""
    of = partial(table, "kornia")
    return [*of("kornia.feature", "HardNet HardNet8 HyNet SOSNet TFeat OriNet", (1, 32, 32),
                (1, 32, 32), pretrained=False),
            *of("kornia.feature", "LAFAffNetShapeEstimator.features OriNet.features",
                (1, 32, 32), (1, 32, 32), pretrained=False),
            *of("kornia.feature", "KeyNet", (1, 96, 96), (1, 48, 48), pretrained=False),
            *of("kornia.feature", "XFeatModel", (1, 128, 128), (1, 64, 64)),
            *of("kornia.feature", "DISK.unet", (3, 128, 128), (3, 64, 64)),
            *of("kornia.models.dexined", "DexiNed", (3, 128, 128), (3, 64, 64), pretrained=False),
            *of("kornia.models.small_sr", "SmallSRNet", (1, 64, 64), (1, 32, 32),
                upscale_factor=3, pretrained=False),
            *of("kornia.models.rrdbnet", "RRDBNet", (3, 32, 32), (3, 16, 16), num_in_ch=3,
                num_out_ch=3, num_block=4)]


def operators() -> list[Candidate]:
    """Neural operators: layers in Fourier space."""
    of = partial(table, "neuraloperator", "neuralop.models")
    more: dict[str, Any] = {"in_channels": 3, "out_channels": 2, "hidden_channels": 16}
    return [*of("FNO TFNO", (3, 64, 64), (3, 16, 16), n_modes=(8, 8), **more),
            *of("FNO", (3, 128), (3, 32), n_modes=(8,), **more),
            *of("FNO", (3, 16, 16, 16), (3, 8, 8, 8), n_modes=(4, 4, 4), **more),
            *of("UNO", (3, 64, 64), (3, 32, 32), uno_out_channels=[16, 16, 16],
                uno_n_modes=[[8, 8]] * 3, uno_scalings=[[1, 1]] * 3, n_layers=3,
                channel_mlp_skip="linear", **more)]


def lightly() -> list[Candidate]:
    """ResNets of self-supervised training."""
    return [entry("lightly", "lightly.models.resnet:ResNetGenerator", (3, 32, 32), (3, 32, 32),
                  name=f"resnet-{depth}") for depth in (9, 18, 34, 50)]


def small_unets() -> list[Candidate]:
    """`unet` in 1-D, 2-D and 3-D."""
    return [
        entry("unet", "unet:UNet1D", (1, 188), (1, 188)),
        entry("unet", "unet:UNet2D", (1, 64, 64), (1, 64, 64), padding=1, residual=True),
        entry("unet", "unet:UNet2D", (1, 96, 96), (1, 64, 64), padding=1, normalization="batch"),
        entry("unet", "unet:UNet3D", (1, 32, 32, 32), (1, 32, 32, 32), padding=1,
              num_encoding_blocks=3, out_channels_first_layer=8)]


def x_unets() -> list[Candidate]:
    """`x-unet`."""
    return [entry("x-unet", "x_unet:XUnet", (3, 64, 64), (3, 32, 32), dim=16, channels=3),
            entry("x-unet", "x_unet:XUnet", (3, 64, 64), (3, 32, 32), dim=16, channels=3,
                  nested_unet_depths=(3, 2, 1, 1), consolidate_upsample_fmaps=True),
            entry("x-unet", "x_unet:XUnet", (3, 8, 32, 32), (3, 4, 32, 32), dim=16, channels=3,
                  frame_kernel_size=3, weight_standardize=True)]


def uncertainty() -> list[Candidate]:
    """Uncertainty: plain, packed and Bayesian networks."""
    of = partial(table, "torch-uncertainty", "torch_uncertainty.models")
    return [*of("lenet bayesian_lenet", (1, 28, 28), (1, 28, 28), in_channels=1, num_classes=10),
            *of("resnet", (3, 64, 64), (3, 32, 32), in_channels=3, num_classes=10, arch=18),
            *of("resnet", (3, 64, 64), (3, 32, 32), in_channels=3, num_classes=10, arch=50,
                groups=2),
            *of("vgg", (3, 64, 64), (3, 32, 32), in_channels=3, num_classes=10, arch=11,
                dropout_rate=0.0),
            *of("wideresnet28x10", (3, 32, 32), (3, 32, 32), in_channels=3, num_classes=10,
                dropout_rate=0.0),
            *of("inception_time", (3, 128), (3, 64), in_channels=3, num_classes=10),
            *of("packed_resnet", (3, 32, 32), (3, 32, 32), in_channels=3, num_classes=10, arch=18,
                num_estimators=4, alpha=2, gamma=1)]


def acs() -> list[Candidate]:
    """Convolutions of 2-D kernels in 3-D."""
    of = partial(entry, "acsconv")
    volume = (3, 32, 32, 32)
    return [of("acsconv.models.acsunet:ACSUNet", (1, 32, 32, 32), (1, 16, 16, 16), num_classes=2),
            *(of(f"acsconv.models.{name}", volume, volume, pretrained=False, num_classes=2)
              for name in ("resnet:ClsResNet", "resnet:FCNResNet", "densenet:ClsDenseNet",
                           "densenet:FCNDenseNet", "vgg:ClsVGG"))]


def codecs() -> list[Candidate]:
    """Learned compression: transforms before and after the (random) quantization."""
    of = partial(entry, "compressai")
    plain = [of(f"compressai.models:{name}.{part}", *shapes, N=32, M=48)
             for name in ("FactorizedPrior", "FactorizedPriorReLU", "ScaleHyperprior",
                          "MeanScaleHyperprior", "JointAutoregressiveHierarchicalPriors")
             for part, shapes in (("g_a", ((3, 128, 128), (3, 64, 64))),
                                  ("g_s", ((48, 8, 8), (48, 4, 4))))]
    return [*plain, *(of(f"compressai.models:{name}.{part}", *shapes, N=32)
                      for name in ("Cheng2020Anchor", "Cheng2020Attention")
                      for part, shapes in (("g_a", ((3, 128, 128), (3, 64, 64))),
                                           ("g_s", ((32, 8, 8), (32, 4, 4)))))]


def volumes() -> list[Candidate]:
    """segmentation-models in 3-D: an encoder for every decoder."""
    encoders = ("resnet18", "resnet34", "resnet50")
    return [entry("segmentation-models-3d", f"segmentation_models_pytorch_3d:{decoder}",
                  (1, 64, 64, 64), (1, 32, 32, 32), encoder_name=some(
                      encoders, 10**6)[place % len(encoders)], encoder_weights=None,
                  in_channels=1, classes=2)
            for place, decoder in enumerate(("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN",
                                             "PSPNet", "DeepLabV3", "DeepLabV3Plus"))]


def adversaries() -> list[Candidate]:
    """torchgan: discriminators of images and generators of vectors."""
    return [*table("torchgan", "torchgan.models", "DCGANDiscriminator AutoEncodingDiscriminator",
                   (3, 32, 32), (3, 32, 32)),
            *table("torchgan", "torchgan.models", "DCGANGenerator AutoEncodingGenerator",
                   (100,), (100,))]


def sounds() -> list[Candidate]:
    """asteroid and demucs: waveforms."""
    of = partial(table, "asteroid", "asteroid.models")
    return [*of("ConvTasNet SuDORMRFNet SuDORMRFImprovedNet DPRNNTasNet", (1, 4000), (1, 2000),
                n_src=2),
            *of("DeMask", (1, 4000), (1, 2000)),
            entry("demucs", "demucs.demucs:Demucs", (2, 8192), (2, 4096), sources=["a", "b"],
                  channels=16),
            entry("demucs", "demucs.hdemucs:HDemucs", (2, 65536), (2, 65536), sources=["a", "b"],
                  channels=16)]


def autoencoders() -> list[Candidate]:
    """diffusers: encoders and decoders of latent images."""
    of = partial(entry, "diffusers")
    image, latent = ((3, 64, 64), (3, 32, 32)), ((4, 16, 16), (4, 8, 8))
    return [of("diffusers:AutoencoderKL.encoder", *image),
            of("diffusers:AutoencoderKL.decoder", *latent),
            of("diffusers:AutoencoderTiny.encoder", *image),
            of("diffusers:AutoencoderTiny.decoder", *latent),
            of("diffusers:VQModel.encoder", *image),
            of("diffusers:AutoencoderKLLTXVideo.encoder", (3, 9, 64, 64), (3, 9, 32, 32))]


def weather() -> list[Candidate]:
    """dgmr and metnet: nowcasting of rain."""
    of = partial(table, "dgmr", "dgmr.common")
    return [*of("DBlock GBlock UpsampleGBlock", (12, 64, 64), (12, 32, 32), input_channels=12,
                output_channels=24),
            *of("DBlock", (4, 16, 64, 64), (4, 8, 32, 32), input_channels=4, output_channels=8,
                conv_type="3d"),
            *of("ContextConditioningStack", (4, 1, 128, 128), (4, 1, 64, 64), output_channels=96),
            entry("metnet", "metnet:DownSampler", (12, 64, 64), (12, 32, 32), in_channels=12)]


PACKAGES: dict[str, Callable[[], list[Candidate]]] = {
    "spandrel": spandrel, "deepinv": deepinv, "torchsr": torchsr, "super-image": super_image,
    "facenet-pytorch": facenet, "torchxrayvision": xrays, "efficientnet-pytorch": efficientnets,
    "geffnet": geffnets, "pretrainedmodels": cadene, "ultralytics": yolos, "kornia": kornia,
    "neuraloperator": operators, "lightly": lightly, "unet": small_unets, "x-unet": x_unets,
    "torch-uncertainty": uncertainty, "acsconv": acs, "compressai": codecs,
    "segmentation-models-3d": volumes, "torchgan": adversaries, "sounds": sounds,
    "diffusers": autoencoders, "weather": weather}
