"""Timelines written for a viewer and drawn: structure, units, order, arrows, and files that are
whole or absent.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.prediction.prediction import StepCost
from hpcpar.report.traces import perfetto


@dataclass(frozen=True)
class Prediction:
    """The fields of a prediction that the trace reads."""

    network: str
    strategy: str
    machine: str
    ranks: int
    batch: int
    communication_bytes: int
    steps: tuple[StepCost, ...]
    total_s: float


def step(index: int, label: str, phase: str, stream: str, start_ms: float, end_ms: float,
         **more: Any) -> StepCost:
    return StepCost(index=index, label=label, layer=label.split()[-1], phase=phase,
                    is_comm=stream != "compute", seconds=1e-3 * (end_ms - start_ms), messages=0,
                    start_s=1e-3 * start_ms, end_s=1e-3 * end_ms, stream=stream, **more)


#: label, phase, stream, start and end (ms), wait (ms), bytes: an exposed gather before fc, a hidden
#: gradient, one the end waits for
ROWS = (
    ("conv forward", "forward", "compute", 0.0, 2.0, 0.0, 0),
    ("gather fc", "forward", "node", 2.0, 3.5, 1.5, 1000),
    ("flatten", "forward", "compute", 3.5, 3.5, 0.0, 0),
    ("fc forward", "forward", "compute", 3.5, 4.0, 0.0, 0),
    ("loss", "loss", "compute", 4.0, 4.25, 0.0, 0),
    ("fc backward", "backward", "compute", 4.25, 5.0, 0.0, 0),
    ("sum fc", "gradient", "network", 5.0, 6.5, 0.0, 3_000_000),
    ("sum none", "gradient", "node", 5.0, 5.0, 0.0, 0),
    ("conv backward", "backward", "compute", 5.0, 8.0, 0.0, 0),
    ("sum conv", "gradient", "network", 8.0, 9.0, 1.0, 500_000),
)


def prediction(rows: Any = ROWS, total_ms: float = 9.0, **changes: Any) -> Any:
    steps = [step(i, label, phase, stream, start, end, sent_bytes=sent,
                  exposed_s=1e-3 * (wait if stream != "compute" else end - start))
             for i, (label, phase, stream, start, end, wait, sent) in enumerate(rows)]
    values: dict[str, Any] = {"network": "vgg16", "strategy": "data", "machine": "abci-v100",
                              "ranks": 4, "batch": 128, "communication_bytes": 0}
    return Prediction(**(values | changes), steps=tuple(steps), total_s=1e-3 * total_ms)


def of(events: list[dict[str, Any]], ph: str, **where: Any) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == ph and all(e[k] == v for k, v in where.items())]


def test_names_of_processes_and_threads() -> None:
    events = list(perfetto.trace([prediction(), prediction(strategy="owt", ranks=1)]))
    names = {e["pid"]: e["args"]["name"] for e in of(events, "M", name="process_name")}
    assert names == {1: "vgg16 data, 4 ranks", 2: "vgg16 owt, 1 rank"}
    threads = {e["tid"]: e["args"]["name"] for e in of(events, "M", name="thread_name", pid=1)}
    assert threads == {0: "compute", 1: "node", 2: "network"}


def test_steps_in_microseconds_in_order_without_the_empty_ones() -> None:
    events = of(list(perfetto.trace([prediction()])), "X")
    assert [e["name"] for e in events] == [*[r[0] for r in ROWS if r[4] > r[3]][:5],
                                           "conv backward", "sum fc", "sum conv"]
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    gather = next(e for e in events if e["name"] == "gather fc")
    assert (gather["ts"], gather["dur"], gather["tid"],
            gather["cat"]) == (2000.0, 1500.0, 1, "forward")
    assert gather["args"] == {"step": 1, "layer": "fc", "phase": "forward", "microbatch": 0,
                              "sent_bytes": 1000, "seconds": pytest.approx(1.5e-3),
                              "exposed_s": pytest.approx(1.5e-3)}
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(1e6 * 9e-3)


def test_slices_of_a_thread_never_overlap() -> None:
    """Times that binary fractions can't hold: a viewer would nest slices that overlap by a
    rounding.
    """
    rows = [(f"s{i}", "forward", "compute", i / 7, (i + 1) / 7, 0.0, 0) for i in range(200)]
    events = of(list(perfetto.trace([prediction(rows, 200 / 7)])), "X")
    for a, b in pairwise(events):
        assert round(1000 * a["ts"]) + round(1000 * a["dur"]) == round(1000 * b["ts"])


def test_arrows_lead_from_an_exposed_communication_to_the_waiting_step() -> None:
    events = list(perfetto.trace([prediction()]))
    starts, ends = of(events, "s"), of(events, "f")
    # not the hidden one, nor the one that only the end waits for
    assert len(starts) == len(ends) == 1
    assert starts[0]["id"] == ends[0]["id"]
    gather, fc = (next(e for e in of(events, "X") if e["name"] == name)
                  for name in ("gather fc", "fc forward"))
    assert starts[0]["tid"] == gather["tid"] and gather["ts"] <= starts[0]["ts"] < gather[
        "ts"] + gather["dur"]
    assert ends[0]["tid"] == 0 and ends[0]["ts"] == fc["ts"] and ends[0]["bp"] == "e"


def test_pauses_of_computing() -> None:
    assert perfetto.gaps(prediction()) == [pytest.approx((2e-3, 3.5e-3)),
                                           pytest.approx((8e-3, 9e-3))]
    assert perfetto.gaps(prediction((), 0.0)) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    perfetto.save([prediction()], str(path))
    assert json.loads(path.read_text()) == json.loads(json.dumps(
        {"traceEvents": list(perfetto.trace([prediction()])), "displayTimeUnit": "ms"}))
    before = path.read_text()
    bad = prediction((("x", "forward", "compute", 0.0, math.inf, 0.0, 0),), math.inf)
    with pytest.raises(InputError, match="not finite"):
        perfetto.save([bad], str(path))
    assert path.read_text() == before and [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    with pytest.raises(InputError, match="cannot write timeline"):
        perfetto.save([prediction()], str(tmp_path / "no" / "trace.json"))
    with pytest.raises(InputError, match="no timeline"):
        perfetto.save([], str(path))


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hpcpar.report.pictures.timeline_plot import timelines

    path = tmp_path / "line.png"
    short = prediction(ROWS[:4], 4.0, strategy="owt")
    timelines([prediction(), short], str(path))
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 800 < width < 3000 and 300 < height < 2000 and len(data) > 10_000
    with pytest.raises(InputError, match=r"use a name that ends in \.png"):
        timelines([short], str(tmp_path / "line.nothing"))
    with pytest.raises(InputError, match="cannot write plot"):
        timelines([short], str(tmp_path / "no" / "line.png"))
    with pytest.raises(InputError, match="no timeline"):
        timelines([], str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["line.png"]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hpcpar.report.pictures.timeline_plot import timelines

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'hpcpar\[plot\]'"):
        timelines([prediction()], str(tmp_path / "line.png"))


def test_streams_of_a_pipeline_are_its_stages() -> None:
    """Every micro-batch of every stage; a message lies with its sender."""
    rows = ((0, 0, "compute", 0.0, 1.0), (0, 0, "node", 1.0, 1.5), (1, 0, "compute", 1.5, 3.0),
            (0, 1, "compute", 1.0, 2.0), (1, 1, "compute", 3.0, 4.5))
    steps = [step(i, f"s{i}", "forward", name, start, end, exposed_s=5e-4 * (i == 1),
                  sent_bytes=0, part=part, stage=stage)
             for i, (stage, part, name, start, end) in enumerate(rows)]
    prediction: Any = Prediction("net", "pipeline", "local", 2, 16, 0, tuple(steps), 4.5e-3)
    assert list(perfetto.streams(prediction).values()) == ["stage 0 compute", "stage 0 node",
                                                           "stage 1 compute"]
    found = of(list(perfetto.trace([prediction])), "X")
    assert [(e["tid"], e["ts"], e["dur"], e["args"]["microbatch"]) for e in found] == [
        (0, 0.0, 1000.0, 0), (0, 1000.0, 1000.0, 1), (1, 1000.0, 500.0, 0), (2, 1500.0, 1500.0, 0),
        (2, 3000.0, 1500.0, 1)]
    assert perfetto.gaps(prediction, 1) == [pytest.approx((0.0, 1.5e-3))]
