"""``hpcpar export``: every format is read back, counted, and played."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hpcpar
from hpcpar.cli.main import main
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.report.traces.chakra import message_classes
from hpcpar.simulation.programs import ProgramPart, Programs
from hpcpar.simulation.simulate import Simulation, Simulator

MACHINE = "p100x4x4"
FORMATS = ("chakra", "goal", "simgrid")


class Message(NamedTuple):
    source: int
    target: int
    n_bytes: int
    tag: int

    @property
    def key(self) -> tuple[int, int, int]:
        return self.source, self.target, self.tag


class Done(NamedTuple):
    """A compute step, or an end of a message, and the numbers of what it waits for."""

    seconds: float
    message: Message | None
    after: list[int]


#: By rank and number.
Ranks = list[dict[int, Done]]


def read_goal(path: Path, _: int) -> Ranks:
    lines = iter(path.read_text().splitlines())
    ranks: Ranks = [{} for _ in range(int(next(lines).removeprefix("num_ranks ")))]
    for rank, found in enumerate(ranks):
        assert next(lines) == f"rank {rank} {{"
        for line in itertools.takewhile(lambda line: line != "}", lines):
            if needs := re.fullmatch(r"l(\d+) requires l(\d+)", line):
                found[int(needs[1])].after.append(int(needs[2]))
            elif calc := re.fullmatch(r"l(\d+): calc (\d+) cpu 0", line):
                found[int(calc[1])] = Done(1e-9 * int(calc[2]), None, [])
            else:
                sent = re.fullmatch(
                    r"l(\d+): (?:send|recv) (\d+)b (to|from) (\d+) tag (\d+) cpu 1 nic 0",
                    line)
                assert sent, line
                assert (" send " in line) == (sent[3] == "to")
                ends = (rank, int(sent[4])) if sent[3] == "to" else (int(sent[4]), rank)
                found[int(sent[1])] = Done(0.0, Message(*ends, int(sent[2]), int(sent[5])), [])
    assert not list(lines)
    return ranks


def messages_of(content: bytes) -> Iterator[bytes]:
    """The fields behind each varint."""
    at = 0
    while at < len(content):
        size = shift = 0
        while True:
            byte, at = content[at], at + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield content[at:at + size]
        at += size
    assert at == len(content)


def read_chakra(path: Path, ranks: int) -> Ranks:
    metadata, node = message_classes()
    out: Ranks = []
    assert len(list(path.iterdir())) == ranks
    for rank in range(ranks):
        found: dict[int, Done] = {}
        first, *rest = messages_of((path / f"{path.name}.{rank}.et").read_bytes())
        assert metadata.FromString(first).version
        for each in map(node.FromString, rest):
            attr = {a.name: getattr(a, a.WhichOneof("value")) for a in each.attr}
            assert attr["is_cpu_op"] is False
            message = None
            if each.type == 4:
                assert attr["num_ops"] >= 0 and attr["tensor_size"] >= 0
            else:
                message = Message(*(attr[f"comm_{k}"] for k in ("src", "dst", "size", "tag")))
                assert rank == (message.source if each.type == 5 else message.target)
            assert each.id not in found
            found[each.id] = Done(1e-6 * each.duration_micros, message, list(each.data_deps))
        out.append(found)
    return out


def read_simgrid(path: Path, ranks: int) -> Ranks:
    """A step waits for all that stands before it, but for messages that are still open."""
    names = (path / "trace.txt").read_text().splitlines()
    assert len(names) == ranks == len(list(path.iterdir())) - 1
    out: Ranks = []
    for rank, name in enumerate(names):
        found: dict[int, Done] = {}
        under_way: dict[tuple[int, int, int], int] = {}
        lines = [line.split() for line in Path(name).read_text().splitlines()]
        assert {words[0] for words in lines} == {str(rank)}
        assert lines[0][1:] == ["init"] and lines[-1][1:] == ["finalize"]
        for _, action, *words in lines[1:-1]:
            numbers = [int(word) for word in words]
            if action == "wait":
                del under_way[numbers[0], numbers[1], numbers[2]]
                continue
            after = sorted({*found} - {*under_way.values()})
            if action == "compute":
                found[len(found)] = Done(1e-9 * numbers[0], None, after)
                continue
            assert action in ("isend", "irecv") and numbers[3] == 6
            ends = (rank, numbers[0]) if action == "isend" else (numbers[0], rank)
            message = Message(*ends, numbers[2], numbers[1])
            assert message.key not in under_way
            under_way[message.key] = len(found)
            found[len(found)] = Done(0.0, message, after)
        assert not under_way
        out.append(found)
    return out


READERS: dict[str, Callable[[Path, int], Ranks]] = {
    "chakra": read_chakra, "goal": read_goal, "simgrid": read_simgrid}


def replay(ranks: Ranks, message_s: float = 0.0) -> float:
    """Seconds until all is done, where a message starts when both its ends are ready."""
    ready: dict[tuple[int, int, int, bool], float] = {}
    done: list[dict[int, float]] = [{} for _ in ranks]
    left = [list(found) for found in ranks]
    while any(left):
        before = sum(map(len, left)), len(ready)
        for rank, found in enumerate(ranks):
            still = []
            for number in left[rank]:
                seconds, message, after = found[number]
                if not all(other in done[rank] for other in after):
                    still.append(number)
                    continue
                start_s = max((done[rank][other] for other in after), default=0.0)
                if message is None:
                    done[rank][number] = start_s + seconds
                    continue
                receives = rank == message.target
                mine, other = (*message.key, receives), (*message.key, not receives)
                ready[mine] = start_s
                if other in ready:
                    done[rank][number] = max(start_s, ready[other]) + message_s
                else:
                    still.append(number)
            left[rank] = still
        assert (sum(map(len, left)), len(ready)) != before, "deadlock"
    return max(end_s for each in done for end_s in each.values())


def exported(plan: str, form: str, folder: Path) -> Ranks:
    path = folder / form
    assert main(["export", "--plan", plan, "--format", form, "-o", str(path)]) == 0
    return READERS[form](path, int(plans.load(plan).ranks))


def made(folder: Path, strategy: str, ranks: int, machine: str | Machine = MACHINE,
         **options: Any) -> str:
    path = str(folder / "plan.json")
    hpcpar.plan("vgg16", ranks, 24, machine, strategy, input="3x32x32", classes=16,
                **options).save(path, force=True)
    return path


def simulated(plan: str) -> tuple[Simulator, Simulation]:
    loaded: Plan = plans.load(plan)
    simulator = Simulator(loaded.network.build(), loaded, files.load(MACHINE))
    return simulator, simulator.play()


CASES = [("data", 3, {}), ("data", 8, {"collectives": "halving"}), ("spatial", 3, {}),
         ("grid-fc:2x2", 4, {"collectives": "tree"}), ("pipeline:3x1", 3, {}),
         ("pipeline:2x2", 4, {"collectives": "ring"}), ("owt", 4, {}),
         ("ds:2x2", 4, {"synchronization": "sharded"}), ("filter", 3, {"overlap": "none"})]


@pytest.mark.parametrize(("strategy", "ranks", "options"), CASES)
def test_every_format_has_the_simulated_messages(strategy: str, ranks: int, options: dict[str, str],
                                                 tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    plan = made(tmp_path, strategy, ranks, **options)
    simulator, simulation = simulated(plan)
    messages, sent_bytes = (each.sum(axis=0).tolist() for each in simulator.traffic())
    played_s = {}
    for form in FORMATS:
        found = exported(plan, form, tmp_path)
        sends, receives = (Counter(
            done.message for rank, dones in enumerate(found) for done in dones.values()
            if done.message and done.message[end] == rank) for end in (0, 1))
        assert sends == receives
        assert max(Counter(message.key for message in sends).values()) == 1
        for rank, dones in enumerate(found):
            own = [m for m in sends if m.source == rank]
            assert len(own) == messages[rank]
            assert sum(m.n_bytes for m in own) == sent_bytes[rank]
            assert all(other < number and other in dones
                       for number, done in dones.items() for other in done.after)
        compute_s = [sum(done.seconds for done in dones.values()) for dones in found]
        np.testing.assert_allclose(compute_s, simulation.compute_s, atol=2e-6)
        played_s[form] = replay(found)
        assert played_s[form] >= max(compute_s) * (1 - 1e-12)
    assert played_s["chakra"] == pytest.approx(played_s["goal"], abs=1e-4)
    assert played_s["simgrid"] >= played_s["goal"] - 1e-6


def test_overlapped_messages_proceed_while_ranks_compute(tmp_path: Path) -> None:
    """In GOAL every message does, in SMPI's traces the first round of each collective."""
    played_s = {}
    for overlap in ("none", "full"):
        (tmp_path / overlap).mkdir()
        plan = made(tmp_path / overlap, "data", 4, overlap=overlap, bucket=0)
        for form in ("goal", "simgrid"):
            played_s[overlap, form] = replay(exported(plan, form, tmp_path / overlap), 1e-4)
    assert played_s["none", "goal"] == pytest.approx(played_s["none", "simgrid"], rel=1e-3)
    assert played_s["full", "goal"] < played_s["full", "simgrid"] < played_s["none", "simgrid"]


def test_no_stage_waits_for_its_own_sends(tmp_path: Path) -> None:
    """The rounds of the loss's sum, of three float64, wait for each other."""
    plan = made(tmp_path, "pipeline:3x1", 3)
    for rank, dones in enumerate(exported(plan, "goal", tmp_path)):
        needed = {number for done in dones.values() for number in done.after}
        sent = {number for number, done in dones.items() if done.message
                and done.message.source == rank and done.message.n_bytes > 24}
        assert sent and not sent & needed


@pytest.mark.parametrize("collectives", ["ring", "tree", "halving", "leaders"])
@pytest.mark.parametrize("strategy", ["data", "filter", "grid-fc:2x2"])
def test_playing_with_latencies_only_equals_the_simulation(strategy: str, collectives: str,
                                                           tmp_path: Path) -> None:
    """Overlapping messages have links of their own here, so they take no longer than simulated."""
    preset = files.load(MACHINE)
    level = replace(preset.levels[0], alpha_s=1e-4, beta_s_per_byte=1e-30)
    machine = replace(preset, levels=(level, *preset.levels[1:]), add_s_per_byte=0.0,
                      copy_s_per_byte=0.0)
    for overlap in ("none", "full"):
        plan = made(tmp_path, strategy, 4, machine=machine, overlap=overlap, bucket=0,
                    collectives=collectives)
        loaded = plans.load(plan)
        expected_s = Simulator(loaded.network.build(), loaded, machine).play().mean_s
        (tmp_path / "goal").unlink(missing_ok=True)
        played_s = replay(exported(plan, "goal", tmp_path), level.alpha_s)
        if overlap == "none":
            assert played_s == pytest.approx(expected_s, rel=1e-4)
        else:
            assert played_s <= expected_s * (1 + 1e-4)


def test_chakra_has_the_fields_of_the_schema() -> None:
    """Numbers and types of et_def.proto, byte by byte; a value of 0 is there, too."""
    pytest.importorskip("google.protobuf")
    metadata, node = message_classes()
    assert metadata(version="1").SerializeToString() == b"\x0a\x011"
    made = node(id=3, name="a", type=5, data_deps=[1, 2], duration_micros=7)
    made.attr.add(name="b", bool_val=False)
    assert made.SerializeToString() == (
        b"\x08\x03\x12\x01a\x18\x05\x2a\x02\x01\x02\x38\x07\x52\x06\x0a\x01b\xd8\x01\x00")
    for key, content in ("int32_val", b"\x38\x00"), ("int64_val", b"\x48\x00"), (
            "uint64_val", b"\x68\x00"):
        other = node()
        other.attr.add(**{key: 0})
        assert other.SerializeToString() == b"\x52\x02" + content


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["export", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("hpcpar: ") and told.count("\n") == 1
    return told


@pytest.mark.parametrize("form", FORMATS)
def test_an_output_that_exists_is_replaced_only_by_force(
        form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    words = ["--plan", made(tmp_path, "data", 3), "--format", form, "-o", str(tmp_path / form)]
    assert main(["export", *words]) == 0
    assert "exists; choose another name, or add --overwrite" in refused(words, capsys)
    words[1] = made(tmp_path, "data", 2)
    assert main(["export", *words, "--overwrite"]) == 0
    assert len(READERS[form](tmp_path / form, 2)) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([form, "plan.json"])
    if (tmp_path / form).is_dir():
        (tmp_path / form / "mine.txt").touch()
        assert "has other files, too (mine.txt)" in refused([*words, "--overwrite"], capsys)
        assert (tmp_path / form / "mine.txt").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_a_failed_export_leaves_no_file(form: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.protobuf")
    plan, of = made(tmp_path, "data", 2), Programs.of

    def interrupted(programs: Programs, rank: int) -> Iterator[ProgramPart]:
        if rank:
            raise KeyboardInterrupt
        return of(programs, rank)

    monkeypatch.setattr(Programs, "of", interrupted)
    assert main(["export", "--plan", plan, "--format", form, "-o", str(tmp_path / form)]) == 130
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_impossible_exports_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--plan", made(tmp_path, "data", 3), "--format", "chakra", "-o"]
    assert "choose an existing, writable" in refused([*words, str(tmp_path / "no" / "x")], capsys)
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    assert "pip install hpcpar[onnx]" in refused([*words, str(tmp_path / "x")], capsys)
    words[1] = made(tmp_path, "data", 3, collectives="mpi")
    assert "plan with --collectives auto, ring, tree or halving" in refused(
        [*words, str(tmp_path / "x")], capsys)
    words[1] = made(tmp_path, "data", 3, synchronization="server-host")
    assert "on hosts, which are not ranks; plan with --synchronization server" in refused(
        [*words, str(tmp_path / "x")], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
