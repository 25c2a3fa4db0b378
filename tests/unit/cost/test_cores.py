"""Pipelines whose ranks take turns on cores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.cost.timeline.cores import Cores
from hpcpar.machine import files
from hpcpar.schedule.pipeline_order import cells
from hpcpar.schedule.steps import Phase

F, B = Phase.FORWARD, Phase.BACKWARD


def chain(ranks: int, cores: int) -> Cores:
    """Stages of one rank each."""
    machine = files.load("local")
    machine = replace(machine, device=replace(machine.device, at_once=float(cores)),
                      levels=(replace(machine.levels[0], ranks=0),))
    return Cores.shared(machine, ranks, [range(r, r + 1) for r in range(ranks)])


def test_ranks_of_a_unit_follow_each_other_on_its_cores() -> None:
    assert chain(5, 2).of == [0, 1, 0, 1, 0]
    machine = files.load("local")
    machine = replace(machine, device=replace(machine.device, at_once=1.5),
                      levels=(replace(machine.levels[0], ranks=3), machine.levels[0]))
    # a core and a half: two cores, of which one has two ranks
    assert Cores.shared(machine, 6, [range(6)]).of == [0, 1, 0, 2, 3, 2]


def test_two_stages_on_two_cores_wait_for_the_first_and_the_last_micro_batch() -> None:
    work_s = {(s, phase): 1.0 for s in (0, 1) for phase in (F, B)}
    assert chain(2, 2).soonest_s(cells("gpipe", 2, 4), work_s,
                                 [0.5, 0.5]) == pytest.approx((2 + 4 - 1) * 2 + 0.5)


def test_four_stages_on_two_cores() -> None:
    """One micro-batch: core 0 has stages 0 and 2, core 1 the others, and nobody ever has anything
    to do beside another.
    """
    work_s = {(s, phase): float(1 + s) for s in range(4) for phase in (F, B)}
    assert chain(4, 2).soonest_s(cells("gpipe", 4, 1), work_s,
                                 [0.0] * 4) == pytest.approx(2 * (1 + 2 + 3 + 4))
    # two: stage 3 begins at 6, turns at 14 and ends at 22; stage 2 has its core until 25, then
    # stage 1 works until 27 and stage 0 until 28
    assert chain(4, 2).soonest_s(cells("gpipe", 4, 2), work_s, [0.0] * 4) == pytest.approx(28.0)


def test_a_stage_goes_on_when_all_ranks_before_it_are_through() -> None:
    machine = files.load("local")
    machine = replace(machine, device=replace(machine.device, at_once=2.0),
                      levels=(replace(machine.levels[0], ranks=0),))
    cores = Cores.shared(machine, 3, [range(2), range(2, 3)])
    assert cores.of == [0, 1, 0]
    assert cores.soonest_s(cells("gpipe", 2, 1),
                           {(0, F): 2.0, (1, F): 1.0, (1, B): 1.0, (0, B): 3.0},
                           [0.25, 0.5]) == pytest.approx(7.75)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.sampled_from(["gpipe", "1f1b"]),
       st.data())
def test_neither_sooner_than_the_work_nor_than_the_chain(stages: int, count: int, micro: int,
                                                         order: str, data: st.DataObject) -> None:
    seconds = st.floats(0.01, 10.0)
    work_s = {(s, phase): data.draw(seconds) for s in range(stages) for phase in (F, B)}
    last_s = [data.draw(seconds) for _ in range(stages)]
    passes = cells(order, stages, micro)
    found = chain(stages, count).soonest_s(passes, work_s, last_s)
    each = [micro * (work_s[s, F] + work_s[s, B]) + last_s[s] for s in range(stages)]
    loads = [sum(each[core::count]) for core in range(min(stages, count))]
    through = sum(work_s.values()) + last_s[0]
    assert found >= max(*loads, through) * (1 - 1e-12)
    assert found <= sum(each) * (1 + 1e-12)
    # with a core for each it takes no longer
    assert chain(stages, stages).soonest_s(passes, work_s, last_s) <= found * (1 + 1e-12)
