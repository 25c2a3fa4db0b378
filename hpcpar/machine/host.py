"""The host of the devices of a node, whose memory may hold weights for them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.io.schema import Count, NotNegative, Positive


@dataclass(frozen=True)
class Host:
    """A processor and its memory, apart from the devices on which ranks compute.

    Attributes
    ----------
    ranks : int
        Ranks (devices) of one host; 0 if all ranks have the same host.
    alpha_s : float
        Latency of a message between a device and its host.
    beta_s_per_byte : float
        Inverse bandwidth of one link between them, in one direction.
    memory_bytes_per_s : float
        Bandwidth of the host's memory.
    links : float
        Links of one host, which its devices share; 0 if each device has its own link.
    """

    ranks: Count
    alpha_s: NotNegative
    beta_s_per_byte: Positive
    memory_bytes_per_s: Positive
    links: NotNegative = 0.0
