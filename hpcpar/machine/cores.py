"""Ranks and cores of a node: predictions are less certain if ranks share cores."""

from __future__ import annotations

from typing import NamedTuple


class NodeCores(NamedTuple):
    """Ranks and cores of a node; `cores` is 0 if unknown."""

    ranks: int = 0
    cores: int = 0

    @property
    def shared(self) -> bool:
        """True if the node is known to have fewer cores than ranks."""
        return self.ranks > self.cores > 0

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.ranks} ranks share {cores}: times are less certain"
