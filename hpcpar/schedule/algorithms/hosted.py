"""A reduction into a host's memory, and a broadcast from there: a parameter server on the host.

`hpcpar.cost.network.host_server` prices it. The host is not a rank, so it cannot run.
"""

from __future__ import annotations

from hpcpar.schedule.algorithms.base import ROOTED, Algorithm, Collective, Each, Round
from hpcpar.schedule.steps import HOST, Kind


class Hosted(Algorithm):
    """Each member sends its gradient to the host, and gets the updated weights from it."""

    name = HOST
    kinds = ROOTED
    priced_only = True
    hidden = (Kind.REDUCE,)

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        return []
