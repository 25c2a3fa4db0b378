"""Iterations of PyTorch on one card in three number formats, as rows for the gallery.

Run: ``python -m bench.torch_iterations [--out rows.csv] [--limit-s 600]``, with PyTorch's CUDA and
torchvision. Networks are torchvision's, as a user trains them: SGD with momentum, cross-entropy,
images on the card. ``fp32`` and ``tf32`` keep PyTorch's layout, ``amp`` is autocast to float16 with
a gradient scaler and channels last, as PyTorch's own guide has it.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PRECISIONS = ("fp32", "tf32", "amp")
#: Networks of torchvision, sides of their images, batches; the most telling first.
CASES = (("resnet50", 224, 64), ("vgg16", 224, 64), ("mobilenet_v2", 224, 64),
         ("densenet121", 224, 64), ("inception_v3", 299, 64), ("alexnet", 224, 256),
         ("resnet50", 224, 256), ("resnext50_32x4d", 224, 64), ("efficientnet_b0", 224, 64),
         ("resnet152", 224, 64), ("resnet18", 224, 128), ("squeezenet1_1", 224, 64),
         ("googlenet", 224, 64), ("resnet50", 224, 8))
#: Networks of the gallery in three dimensions, with their input and batch.
VOLUMES = (("unet3d", (4, 128, 128, 128), 2), ("cosmoflow", (4, 128, 128, 128), 8))
WARM_UP, TIMED = 6, 12


def cases() -> Iterator[tuple[str, tuple[int, ...], int, Callable[[], torch.nn.Module]]]:
    """Name, input, batch and maker of every network."""
    import torchvision

    for name, side, batch in CASES:
        options = {"aux_logits": False} if name in ("inception_v3", "googlenet") else {}
        yield (name, (3, side, side), batch,
               partial(getattr(torchvision.models, name), **options))
    for name, shape, batch in VOLUMES:
        yield name, shape, batch, partial(_twin, name, shape)


def _twin(name: str, shape: tuple[int, ...]) -> torch.nn.Module:
    """PyTorch's module of a network of the gallery."""
    from bench.ddp import twin
    from bench.gallery.networks import NETWORKS

    return twin(NETWORKS[name](shape))


def _iteration(model: torch.nn.Module, images: Any, precision: str) -> Callable[[], Any]:
    """A call that trains one iteration on random labels."""
    update = torch.optim.SGD(model.parameters(), 1e-3, 0.9)
    scaler = torch.amp.GradScaler(enabled=precision == "amp")
    with torch.no_grad():
        shape = model(images[:2]).shape
    labels = torch.randint(shape[1], (len(images), *shape[2:]), device=images.device)

    def run() -> None:
        update.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=precision == "amp"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()

    return run


def _forward(model: torch.nn.Module, images: Any, precision: str) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=precision == "amp"):
            model(images)

    return run


def _mean_ms(call: Callable[[], Any]) -> float:
    """Milliseconds of a call in a row of them, after some to warm up."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMED):
        call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / TIMED


def measure(name: str, shape: tuple[int, ...], batch: int, make: Callable[[], torch.nn.Module],
            precision: str) -> dict[str, Any]:
    """One row: milliseconds of an iteration and of a forward pass, and most bytes allocated."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model, images = make().cuda(), torch.randn(batch, *shape, device="cuda")
    if precision == "amp":
        last = torch.channels_last_3d if len(shape) == 4 else torch.channels_last
        model, images = model.to(memory_format=last), images.to(memory_format=last)
    torch.cuda.reset_peak_memory_stats()
    iteration_ms = _mean_ms(_iteration(model.train(), images, precision))
    peak_bytes = torch.cuda.max_memory_allocated()
    forward_ms = _mean_ms(_forward(model.eval(), images, precision))
    return {"network": name, "input": "x".join(map(str, shape)), "precision": precision,
            "framework": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(),
            "cudnn": torch.backends.cudnn.version(), "batch": batch,
            "iteration_ms": round(iteration_ms, 3), "forward_only_ms": round(forward_ms, 3),
            "peak_bytes": peak_bytes}


def rows(limit_s: float) -> Iterator[dict[str, Any]]:
    """A row for every network and number format, until the time is over."""
    begin = time.monotonic()
    for name, shape, batch, make in cases():
        for precision in PRECISIONS:
            if time.monotonic() - begin > limit_s:
                return
            try:
                yield measure(name, shape, batch, make, precision)
            except Exception as err:  # a network that fails costs its own row
                print(f"{name}, {precision}: {type(err).__name__}: {err}", file=sys.stderr)
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", default="torch_iterations.csv")
    parser.add_argument("--limit-s", type=float, default=600)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch_iterations: PyTorch sees no card", file=sys.stderr)
        return 2
    writer = None
    with open(options.out, "w", newline="", encoding="utf-8") as file:
        for row in rows(options.limit_s):
            writer = writer or csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(*row.values(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
