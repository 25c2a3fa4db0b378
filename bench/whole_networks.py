"""Classifiers of 10 classes with parts that no layer describes (`bench/whole_parts.py`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """A convolution of 3 x 3 with batch normalization."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs),
                         nn.ReLU())


class Attended(nn.Module):
    """Attention over pixels between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(block(3, 32), block(32, 64, 2), block(64, 128, 2))
        self.attention = nn.MultiheadAttention(128, 4, batch_first=True)
        self.last, self.classes = block(128, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        x = self.last(tokens.transpose(1, 2).reshape(x.shape))
        scores: Tensor = self.classes(x.mean((2, 3)))
        return scores


class ViT(nn.Module):
    """A vision transformer of four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(
            128, 4, 256, 0.0, batch_first=True, norm_first=True) for _ in range(4)))
        self.classes = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        scores: Tensor = self.classes(tokens.mean(1))
        return scores


class Rows(nn.Module):
    """An LSTM over the rows of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(block(3, 32), block(32, 64, 2))
        self.lstm = nn.LSTM(64 * 32, 128, batch_first=True)
        self.classes = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x).permute(0, 2, 1, 3).flatten(2)
        scores: Tensor = self.classes(self.lstm(rows)[0][:, -1])
        return scores


class Fourier(nn.Module):
    """A Fourier layer: weights of low frequencies, beside a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = block(3, 32)
        self.weight = nn.Parameter(0.05 * torch.randn(32, 32, 12, 12, 2))
        self.beside, self.last = nn.Conv2d(32, 32, 3, padding=1), block(32, 64, 2)
        self.classes = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        low = torch.fft.rfft2(x)[:, :, :12, :12]
        low = torch.einsum("bixy,ioxy->boxy", low, torch.view_as_complex(self.weight))
        y = torch.fft.irfft2(functional.pad(low, (0, 21, 0, 52)), s=(64, 64))
        scores: Tensor = self.classes(self.last((self.beside(x) + y).relu()).mean((2, 3)))
        return scores


class Bicubic(nn.Module):
    """Bicubic resizing between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(block(3, 32), block(32, 64, 2), block(64, 32))
        self.last, self.classes = block(32, 64, 2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.interpolate(self.first(x), scale_factor=2.0, mode="bicubic")
        scores: Tensor = self.classes(self.last(x).mean((2, 3)))
        return scores
