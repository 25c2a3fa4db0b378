"""One Weird Trick's closed forms against the statements and numbers of the paper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.equations import owt
from bench.papers.equations.owt import Scheme

SCHEMES: tuple[Scheme, ...] = ("a", "b", "c")
SEVERAL_PASSES: tuple[Scheme, ...] = ("b", "c")
BATCH_BYTES = 128 * 9216 * 4.0
BANDWIDTH = 6e9
LONG = 1e6  # seconds of computing that hide everything


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_worker_is_serial(scheme: Scheme) -> None:
    assert owt.iteration_s(scheme, 1, 0.3, 0.02, BATCH_BYTES, 1e7, BANDWIDTH) == 0.3 + 0.02
    assert (
        owt.received_bytes(scheme, 1, BATCH_BYTES)
        == owt.switch_s(scheme, 1, BATCH_BYTES, BANDWIDTH)
        == 0.0
    )
    assert owt.batch_memory_bytes(scheme, 1, BATCH_BYTES) == BATCH_BYTES
    assert owt.fc_passes(scheme, 1) == owt.fc_updates(scheme, 1, True) == 1


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_all_schemes_move_the_same_bytes(workers: int) -> None:
    """Each worker receives the batches of all others."""
    for scheme in SCHEMES:
        assert owt.received_bytes(scheme, workers,
                                  BATCH_BYTES) == workers * (workers - 1) * BATCH_BYTES


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_schemes_b_and_c_hide_all_but_the_ends(workers: int) -> None:
    """(a) hides nothing, (b) and (c) all but the first activations and the last gradients."""
    whole = owt.switch_s("a", workers, BATCH_BYTES, BANDWIDTH)
    assert owt.exposed_s("a", workers, BATCH_BYTES, BANDWIDTH, LONG) == whole
    assert owt.hideable_fraction("a", workers) == 0
    for scheme in SEVERAL_PASSES:
        whole = owt.switch_s(scheme, workers, BATCH_BYTES, BANDWIDTH)
        one_pass_s = owt.pass_s(scheme, workers, BATCH_BYTES, BANDWIDTH)
        assert owt.hideable_fraction(scheme, workers) == (workers - 1) / workers
        assert owt.exposed_s(scheme, workers, BATCH_BYTES, BANDWIDTH, LONG) == 2 * one_pass_s
        assert whole * (1 - owt.hideable_fraction(scheme, workers)) == pytest.approx(
            2 * one_pass_s, rel=1e-12)
        assert owt.exposed_s(scheme, workers, BATCH_BYTES, BANDWIDTH, 0.0) == pytest.approx(
            whole, rel=1e-12)


def test_communication_longer_than_a_pass_is_exposed() -> None:
    """Four FC passes of 1 s each way beside 1.5 s of computation a pass."""
    assert owt.exposed_s("b", 4, 6e9, 6e9, 4 * 1.5) == 2 + 2 * 0.5
    assert owt.exposed_s("b", 4, 6e9, 6e9, 4 * 0.75) == 2 + 2 * 0.25 + 2 * 1.25
    assert owt.exposed_s("b", 2, 6e9, 6e9, 2 * 0.75) == 2 + 2 * 0.25


def test_communication_against_computing() -> None:
    """Section 4: communication grows with K in (a) and (b), and is constant in (c)."""
    over_compute = {s: [owt.switch_s(s, k, BATCH_BYTES, BANDWIDTH) / 0.02 for k in (2, 4, 8, 16)]
                    for s in SCHEMES}
    base = 2 * BATCH_BYTES / BANDWIDTH / 0.02
    assert over_compute["a"] == pytest.approx([base * (k - 1) for k in (2, 4, 8, 16)])
    assert over_compute["b"] == pytest.approx([base * k for k in (2, 4, 8, 16)])
    assert over_compute["c"] == pytest.approx([base] * 4)


def test_counting_receivers() -> None:
    """With received bytes counted, (c) grows as well, and stays below (b)."""
    for k in (2, 4, 8):
        a, b, c = (owt.switch_s(s, k, BATCH_BYTES, BANDWIDTH, receivers=True) for s in SCHEMES)
        assert c == pytest.approx(a) and c < b
        assert c == pytest.approx((k - 1) * owt.switch_s("c", k, BATCH_BYTES, BANDWIDTH))


def test_variable_batch_size() -> None:
    """Table 1: (1024, 1024) and (1024, 128) on 8 workers."""
    for scheme in SEVERAL_PASSES:
        assert owt.fc_passes(scheme, 8) == owt.fc_updates(scheme, 8, True) == 8
        assert owt.fc_updates(scheme, 8, False) == 1
        assert (
            owt.fc_batch(scheme, 8, 128, True) == 128
            and owt.fc_batch(scheme, 8, 128, False) == 1024
        )
    assert (
        owt.fc_passes("a", 8) == owt.fc_updates("a", 8, True) == 1
        and owt.fc_batch("a", 8, 128, True) == 1024
    )


def test_memory_of_the_assembled_batch() -> None:
    assert [owt.batch_memory_bytes(scheme, 8, 1.0) for scheme in SCHEMES] == [8.0, 2.0, 2.0]


def test_iteration() -> None:
    """Convolution weights are sent twice, except for the part that a worker owns."""
    assert owt.weight_sync_s(4, 8e6, 1e6) == 2 * 0.75 * 8
    expected = 0.3 + 0.02 + owt.exposed_s("b", 4, BATCH_BYTES, BANDWIDTH,
                                          0.02) + owt.weight_sync_s(4, 1e7, BANDWIDTH)
    assert owt.iteration_s("b", 4, 0.3, 0.02, BATCH_BYTES, 1e7,
                           BANDWIDTH) == pytest.approx(expected, rel=1e-12)
    times = [owt.iteration_s(s, 8, 0.3, 0.02, BATCH_BYTES, 1e7, BANDWIDTH) for s in SCHEMES]
    assert times[2] < times[1] < times[0]


def test_footnote_4() -> None:
    """Footnote 4: 4096 x 4096 on 8 workers of 2 Tflop/s at 6 GB/s."""
    compute_s, receive_s = owt.footnote4_fc_sample_s(4096, 4096, 8, 2e12, 6e9)
    assert math.floor(compute_s * 1e8) / 100 == 2.09
    assert round(receive_s * 1e6, 2) == 2.73


def test_weight_decay_of_section_5() -> None:
    """Section 5: batch 128 to 1024 at rate 0.01 and decay 0.0005."""
    scaled = owt.section5_weight_decay(0.01, 0.0005, 8, math.sqrt(8) * 0.01)
    assert round(scaled, 10) == 0.0014141888
    assert round(math.sqrt(8) * 0.0005, 10) == 0.0014142136


@given(
    st.sampled_from(SCHEMES), st.integers(1, 64), st.floats(1.0, 1e9), st.floats(1e6, 1e12),
    st.floats(0.0, 10.0), st.booleans()
)
def test_exposed_time_lies_between_the_ends_and_the_total(scheme: Scheme, workers: int,
                                                          batch_bytes: float, bandwidth: float,
                                                          fc_s: float, receivers: bool) -> None:
    one_pass_s = owt.pass_s(scheme, workers, batch_bytes, bandwidth, receivers)
    exposed = owt.exposed_s(scheme, workers, batch_bytes, bandwidth, fc_s, receivers)
    assert 2 * one_pass_s <= exposed <= owt.switch_s(scheme, workers, batch_bytes, bandwidth,
                                               receivers) * (1 + 1e-12)
    assert exposed >= owt.exposed_s(scheme, workers, batch_bytes, bandwidth, 2 * fc_s, receivers)
