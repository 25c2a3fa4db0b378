"""The ranks' GPUs: which ranks share one, and whether they differ."""

from __future__ import annotations

from collections.abc import Mapping

from hpcpar.comm.world import World
from hpcpar.errors import InputError, on_all_ranks


def _sharing(world: World, card: str) -> list[tuple[str, list[int]]]:
    """The GPUs that several ranks share, each with its ranks. Every rank must call this.

    `card` is the name of this rank's GPU on its node; empty if it has none.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, (node, name) in enumerate(world.comm.allgather((world.boot_id, card))):
        if name:
            ranks.setdefault((node, name), []).append(rank)
    return [(name, sharers) for (_, name), sharers in ranks.items() if len(sharers) > 1]


def shared(world: World, card: str) -> list[str]:
    """A line for each GPU that several ranks share. Every rank must call this."""
    return [f"ranks {', '.join(map(str, ranks))} share a GPU, which slows them down"
            for _, ranks in _sharing(world, card)]


def differences(world: World, versions: Mapping[str, str]) -> list[str]:
    """A line for each property (`Backend.versions`) in which the ranks' devices differ. Every rank
    must call this.
    """
    ranks = world.comm.allgather(dict(versions))
    lines = []
    for name, first in ranks[0].items():
        other = next((i for i, given in enumerate(ranks) if given.get(name) != first), None)
        if other is not None:
            lines.append(f"ranks differ in {name}: rank 0 has {first}, rank {other} has "
                         f"{ranks[other].get(name)}; replicas may round differently")
    return lines


def require_own_card(world: World, card: str) -> None:
    """Check that no two ranks share a GPU, because NCCL refuses that. Every rank must call this.

    Raises
    ------
    InputError
        The same on every rank, naming the ranks.
    """
    for name, ranks in _sharing(world, card):
        both = " and ".join(map(str, ranks[:2]))
        raise on_all_ranks(InputError(
            f"--transport nccl needs a GPU for each rank, but ranks {both} share GPU {name}; "
            "start fewer ranks per node (--gpus-per-task=1), or use --transport staged"
        ))
