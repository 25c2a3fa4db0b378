"""Messages that share links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.links import LinkRates, fair_rates
from hpcpar.machine import files
from hpcpar.schedule.waves import Pairs


@given(st.data())
def test_rates_are_max_min_fair(data: st.DataObject) -> None:
    """No link is overfull, and every flow is as fast as it can be alone, or crosses a full link on
    which nobody is faster.
    """
    flows, links = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5))
    sizes = st.floats(0.1, 10)
    most = np.array(data.draw(st.lists(sizes, min_size=flows, max_size=flows)))
    weight = np.array(data.draw(st.lists(sizes, min_size=flows, max_size=flows)))
    capacity = np.array(data.draw(st.lists(sizes, min_size=links, max_size=links)))
    crossed = [(f, x) for f in range(flows) for x in range(links) if data.draw(st.booleans())]
    flow, link = (np.array([pair[i] for pair in crossed], np.int64) for i in (0, 1))
    rate = fair_rates(most, weight, flow, link, capacity)
    load = np.bincount(link, (weight * rate)[flow], links)
    assert (load <= capacity * (1 + 1e-9)).all()
    assert (rate > 0).all()
    assert (rate <= most).all()
    for f in range(flows):
        mine = link[flow == f]
        full = [x for x in mine if load[x] > capacity[x] * (1 - 1e-9)]
        assert rate[f] == pytest.approx(most[f]) or any(
            rate[f] >= rate[flow[link == x]].max() * (1 - 1e-9) for x in full)


def rates(senders: list[int], receivers: list[int], links: float) -> np.ndarray:
    """GB/s of messages on p100x4x4 whose nodes have this number of links of 12.5 GB/s."""
    machine = files.load("p100x4x4")
    node, network = machine.levels
    machine = replace(machine, levels=(node, replace(network, links=links)))
    pairs = Pairs(*(np.array(x) for x in (senders, receivers)), np.zeros(len(senders), np.int64))
    of = LinkRates(NetworkModel(machine))
    return 1e-9 / of.seconds_per_byte(pairs, of.crossed(pairs), np.ones(len(senders)))


def test_messages_that_leave_a_node_together_share_its_links() -> None:
    assert rates([0], [4], 1.0) == pytest.approx([12.5])
    assert rates([0, 1], [4, 5], 1.0) == pytest.approx([6.25, 6.25])
    assert rates([0, 1], [4, 5], 2.0) == pytest.approx([12.5, 12.5])


def test_messages_that_enter_a_node_together_share_its_links() -> None:
    assert rates([0, 4], [8, 9], 1.0) == pytest.approx([6.25, 6.25])


def test_bandwidth_left_by_a_full_link_goes_to_others() -> None:
    """Ranks 0 to 2 send to node 1, and rank 8 to node 1, too: four flows share what enters it; a
    fifth, from node 0 to node 3, gets what the three leave of node 0's links.
    """
    found = rates([0, 1, 2, 8, 3], [4, 5, 6, 7, 12], 1.0)
    assert found == pytest.approx([3.125] * 4 + [3.125])
    assert rates([0, 8, 9, 1], [4, 5, 6, 12], 1.0) == pytest.approx(
        [12.5 / 3, 12.5 / 3, 12.5 / 3, 12.5 * 2 / 3])


def test_messages_inside_a_node_do_not_share_links() -> None:
    inside = rates([0, 1], [1, 2], 1.0)
    assert inside == pytest.approx([20.0, 20.0])
