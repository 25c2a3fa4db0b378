"""A row of the table that explains where a plan's time goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limitation:
    """A row of ParaDL's Table 6.

    Attributes
    ----------
    seconds : float or None
        Time per iteration; None for a limitation that is not a time.
    exposed_s : float or None
        Its exposed part.
    remark : str
        The quantity behind it, in words.
    """

    category: str
    name: str
    seconds: float | None
    exposed_s: float | None
    remark: str
