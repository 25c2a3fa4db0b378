"""The rules that a trace viewer has for a file's events."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any


def check(events: list[dict[str, Any]]) -> None:
    """The trace-event format, as https://ui.perfetto.dev takes it."""
    named: dict[tuple[int, int], str] = {}
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    last: dict[tuple[int, int], int] = {}
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for e in events:
        assert {"ph", "name", "pid",
                "tid"} <= set(e) and isinstance(e["pid"], int) and isinstance(e["tid"], int)
        thread = e["pid"], e["tid"]
        if e["ph"] == "M":
            assert e["args"] and e["name"] in ("process_name", "process_labels",
                                               "process_sort_index", "thread_name",
                                               "thread_sort_index")
            if e["name"] == "thread_name":
                assert thread not in named
                named[thread] = e["args"]["name"]
            continue
        assert thread in named and math.isfinite(e["ts"])
        at = round(1000 * e["ts"])
        if e["ph"] == "X":
            assert e["cat"] and isinstance(e["args"], dict) and e["dur"] >= 0
            end = at + round(1000 * e["dur"])
            assert at >= last.get(thread, at), "times of a thread go back"
            last[thread] = at
            while stacks[thread] and stacks[thread][-1] <= at:
                stacks[thread].pop()
            assert not stacks[thread] or end <= stacks[thread][-1], "events of a thread cross"
            stacks[thread].append(end)
            slices[thread].append((at, end))
        else:
            assert e["ph"] in ("s", "f") and (e["ph"] == "s") != (e.get("bp") == "e")
            assert any(a <= at < b for a, b in slices[thread]), "an arrow's end lies in no slice"
            flows[e["id"]].append(e)
    for pair in flows.values():
        assert [e["ph"] for e in pair] == ["s", "f"] and pair[0]["ts"] <= pair[1]["ts"]
    assert len(set(named.values())) == len(named) or len({pid for pid, _ in named}) > 1
