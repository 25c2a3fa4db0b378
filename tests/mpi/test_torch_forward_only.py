"""Models that only evaluate: outputs equal PyTorch's, and there is memory for nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcpar.comm.world import world
from hpcpar.errors import InputError
from hpcpar.torch import parallelize

SIZE, BATCH = world().size, 2


class SuperResolution(nn.Module):
    """Blocks with skips, then sub-pixel convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1)) for _ in range(2))
        self.last = nn.Conv2d(8, 12, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return functional.pixel_shuffle(self.last(x), 2)


class VideoDecoder(nn.Module):
    """Attention in the middle, and convolutions that look back in time only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(2, 8, 3), nn.Conv3d(8, 3, 3)
        self.norm, self.qkv = nn.GroupNorm(2, 8), nn.Conv3d(8, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(functional.pad(x, (1, 1, 1, 1, 2, 0)))
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=2)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = functional.silu(x + mixed.transpose(1, 2).reshape(x.shape))
        x = functional.interpolate(x, scale_factor=(1.0, 2.0, 2.0))
        return self.last(functional.pad(x, (1, 1, 1, 1, 2, 0)))


CASES = [(SuperResolution, (3, 9, 8)), (VideoDecoder, (2, 3, 9, 4))]


@pytest.mark.parametrize("strategy", ["data", "spatial", "filter", "auto", "layerwise"])
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_outputs_equal_those_of_pytorch(kind: type[nn.Module], shape: tuple[int, ...],
                                        strategy: str) -> None:
    torch.manual_seed(0)
    module = kind().double()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
            part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    try:
        model = parallelize(module, shape, BATCH, strategy, forward_only=True)
    except InputError as err:
        pytest.skip(str(err))
    images = torch.randn(BATCH, *shape, dtype=torch.float64,
                         generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        got, want = model(images), model.local(module.eval()(images))
    assert not model.training
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", ["data", "spatial"])
def test_there_is_no_memory_for_training(strategy: str) -> None:
    torch.manual_seed(0)
    one, both = (parallelize(SuperResolution(), (3, 16, 16), 2 * SIZE, strategy,
                             forward_only=forward_only) for forward_only in (True, False))
    assert all(p.grad is None and not p.state
               for p in one.engine.executor.parameters.values())
    alive = [model.engine.executor.memory.alive_bytes for model in (one, both)]
    assert alive[0] < alive[1] / 2


def test_training_is_refused() -> None:
    model = parallelize(SuperResolution(), (3, 8, 8), 2 * SIZE, "data", forward_only=True)
    with pytest.raises(InputError, match="leave that out of hpcpar.torch.parallelize"):
        model.train()
    with pytest.raises(InputError, match="a record is of training iterations"):
        model.record("run.h5")
