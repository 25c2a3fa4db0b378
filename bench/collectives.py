"""Our collectives beside the MPI library's own and, for allreduce, PyTorch's gloo.

    python bench/collectives.py [--ranks 2,4] [--rounds 15] [--sizes 4K,64M] [--json FILE]

It starts one MPI job and one gloo job per number of ranks. Every round measures all contestants in
turn (A B C A B C ...), so that noise disturbs all of them alike. The slowest rank of a round
counts; a cell is the median of the rounds. Idle processes sleep. A size is the
size of the whole float32 buffer (reduced or gathered).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: (kind, algorithm, segments) of our contestants.
OURS = (
    *(("allreduce", "ring", s) for s in (1, 2, 4, 8)),
    ("allreduce", "doubling", 1),
    ("allreduce", "halving", 1),
    ("allgather", "ring", 1),
    ("allgather", "halving", 1),
    ("reduce_scatter", "ring", 1),
    ("reduce_scatter", "halving", 1),
)
SIZES = tuple(4096 * 4**i for i in range(8))
#: Bytes that a measurement moves, about: small messages are repeated until a barrier's skew is
#: negligible.
LEAST_BYTES, MOST_REPEATS = 2 << 20, 40

Job = Callable[[], Any]


def mpi_contestants(size: int) -> dict[str, Job]:
    """Our algorithms and the library's on buffers of `size` bytes; each result is checked once."""
    import numpy as np

    from hpcpar.comm.communicator import Communicator
    from hpcpar.comm.world import world
    from hpcpar.kernels.numpy_backend import NumpyBackend
    from hpcpar.plan.axis import Axis
    from hpcpar.plan.config import Config, MeshAxis
    from hpcpar.plan.layout import Layout
    from hpcpar.schedule.steps import Comm, Kind, Pattern, Phase, Role, TensorRef

    w, backend = world(), NumpyBackend()
    p, items = w.size, size // 4
    axis = (Axis("n", items, items),)
    parts, whole = Layout(Config(n=p), axis), Layout(Config(replicas=p), axis)
    layouts = {"allreduce": (whole, whole), "allgather": (parts, whole),
               "reduce_scatter": (whole, parts)}
    own = slice(*parts.box(w.rank)[0])
    full, part = np.empty(items, np.float32), np.empty(own.stop - own.start, np.float32)
    arrays = {"allreduce": (full, full), "allgather": (full[own], full),
              "reduce_scatter": (full, part)}
    communicator = Communicator(w, backend)
    tensor = TensorRef("bench", Role.OUTPUT)

    def ours(index: int, kind: str, algorithm: str, segments: int) -> Job:
        source, destination = layouts[kind]
        pattern = Pattern(Kind(kind), mesh_axes=(MeshAxis(1, p),))
        step = Comm(Phase.GRADIENT, "bench", tensor, pattern, source, destination, 4,
                    algorithm=algorithm, segments=segments, index=index, needed_by=index + 1)
        transfer = communicator.bind(step, *arrays[kind])

        def run() -> None:
            communicator.start(transfer)
            communicator.wait(transfer)

        return run

    out = {f"{kind} {algorithm}/{s}": ours(i, kind, algorithm, s)
           for i, (kind, algorithm, s) in enumerate(OURS)}
    in_place = w.mpi.IN_PLACE
    out["allreduce mpi"] = lambda: w.comm.Allreduce(in_place, full)
    out["allgather mpi"] = lambda: w.comm.Allgather(in_place, full)
    out["reduce_scatter mpi"] = lambda: w.comm.Reduce_scatter_block(full, part)
    for name, job in out.items():
        full[:] = w.rank + 1
        w.barrier()
        job()
        kind = name.split()[0]
        expected = (
            np.arange(1, p + 1).repeat(items // p) if kind == "allgather" else p * (p + 1) // 2
        )
        if not (arrays[kind][1] == expected).all():
            raise RuntimeError(f"rank {w.rank}: {name} of {size} bytes is wrong")
        w.barrier()
    full[:] = 0  # repeated sums of anything else would overflow
    return out


def measure(job: Job, size: int, barrier: Job) -> float:
    """Seconds of one call, on this rank."""
    repeats = min(MOST_REPEATS, max(1, LEAST_BYTES // size))
    barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        job()
    return (time.perf_counter() - start) / repeats


def work_mpi() -> None:
    """A rank of the MPI job; rank 0 reads sizes and prints seconds of the slowest rank."""
    from hpcpar.comm.world import world

    w = world()
    with w.guard():
        serve(w)


def serve(w: Any) -> None:
    """Measures every size that rank 0 reads, until it is 0."""
    size, first, contestants = 0, 0, dict[str, Job]()
    while True:
        asked = int(sys.stdin.readline() or 0) if w.rank == 0 else None
        idle = w.comm.Ibarrier()
        while not idle.Test():  # gloo is being measured: leave it the cores
            time.sleep(0.001)
        asked = w.bcast(asked)
        if not asked:
            return
        if asked != size:
            contestants = {}  # the old buffers go before the new ones come
            contestants, size = mpi_contestants(asked), asked
        names = list(contestants)
        # the first one finds idle cores: rotate the order
        first = (first + 1) % len(names)
        seconds = {name: w.max(measure(contestants[name], size, w.barrier))
                   for name in names[first:] + names[:first]}
        if w.rank == 0:
            print(json.dumps({name: seconds[name] for name in names}), flush=True)


def work_gloo(rank: int, ranks: int, store: str) -> None:
    """A process of the gloo job; every process reads sizes and prints its own seconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    x = torch.empty(0)
    while asked := int(sys.stdin.readline() or 0):
        if asked != 4 * x.numel():
            x = torch.zeros(asked // 4)
        print(
            json.dumps(
                {"allreduce gloo": measure(partial(dist.all_reduce, x), asked, dist.barrier)}
            ),
            flush=True,
        )
    dist.destroy_process_group()


class Team:
    """Processes that read sizes and answer with seconds."""

    def __init__(self, commands: list[list[str]]) -> None:
        self.processes = [subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           text=True, cwd=ROOT) for c in commands]

    def tell(self, size: int) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{size}\n")
            process.stdin.flush()

    def round(self, size: int) -> dict[str, float]:
        """Measures every contestant once; the slowest process counts."""
        self.tell(size)
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"a process ended early: {process.args!r}")
            answers.append(json.loads(line))
        return {name: max(a[name] for a in answers) for name in answers[0]}

    def end(self) -> None:
        self.tell(0)
        for process in self.processes:
            process.wait(30)


def bench(ranks: int, sizes: list[int], rounds: int, with_gloo: bool) -> list[dict[str, Any]]:
    """Median times of every contestant, by size."""
    me = [sys.executable, str(Path(__file__).resolve())]
    launcher = Path(sys.executable).parent / "mpiexec"
    store = f"/tmp/hpcpar-bench-gloo-{os.getpid()}-{ranks}"
    teams = [Team([[str(launcher) if launcher.exists() else "mpiexec", "-n", str(ranks), *me,
                    "--work-mpi"]])]
    if with_gloo:
        teams.append(Team([[*me, "--work-gloo", str(r), str(ranks), store] for r in range(ranks)]))
    rows = []
    for size in sizes:
        seconds: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for team in teams:
                for name, value in team.round(size).items():
                    if number:  # the first round warms up
                        seconds.setdefault(name, []).append(value)
        rows.append({"ranks": ranks, "bytes": size,
                     "seconds": {name: statistics.median(v) for name, v in seconds.items()}})
        print_row(rows[-1])
    for team in teams:
        team.end()
    Path(store).unlink(missing_ok=True)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Prints microseconds of every contestant, and our best over the others, per collective."""
    for kind in ("allreduce", "allgather", "reduce_scatter"):
        mine = {n.split()[1]: s for n, s in row["seconds"].items() if n.startswith(kind + " ")}
        theirs = {n: mine.pop(n) for n in ("mpi", "gloo") if n in mine}
        best = min(mine, key=lambda n: mine[n])
        times = "  ".join(f"{n} {s * 1e6:.0f}" for n, s in (mine | theirs).items())
        ratios = "  ".join(f"/{n} {mine[best] / s:4.2f}" for n, s in theirs.items())
        row.setdefault("best", {})[kind] = best
        print(
            f"{row['ranks']:2} {row['bytes'] // 1024:6} KiB {kind:14} {best:10} {ratios:23} | us: "
            f"{times}", flush=True,
        )


def _size(text: str) -> int:
    return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", default="2,4",
                        help="numbers of ranks, powers of two (default 2,4)")
    parser.add_argument("--rounds", type=int, default=15,
                        help="rounds behind each median (default 15)")
    parser.add_argument("--sizes", default="4K,64M",
                        help="smallest and largest buffer, in steps of 4 (default 4K,64M)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--work-mpi", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work-gloo", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.ranks = [int(r) for r in options.ranks.split(",")]
    if any(r < 2 or r & (r - 1) for r in options.ranks):
        parser.error("--ranks: powers of two from 2 on (every rank has an equal block)")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    sys.path.insert(0, str(ROOT))
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = "1"
    if options.work_mpi:
        work_mpi()
        return 0
    if options.work_gloo:
        work_gloo(int(options.work_gloo[0]), int(options.work_gloo[1]), options.work_gloo[2])
        return 0
    least, most = (_size(s) for s in options.sizes.split(","))
    with_gloo = importlib.util.find_spec("torch") is not None
    date, cores = (datetime.now().astimezone().isoformat(timespec="seconds"),
                   len(os.sched_getaffinity(0)))
    print(f"{date}, {cores} cores; medians of {options.rounds} rounds, slowest rank")
    print("first our fastest, then its time over the library's (/mpi) and gloo's (/gloo): below 1 "
          "ours is faster")
    if not with_gloo:
        print("no gloo column: PyTorch is not installed here")
    rows: list[dict[str, Any]] = []
    for ranks in options.ranks:
        rows += bench(ranks, [s for s in SIZES if least <= s <= most], options.rounds, with_gloo)
    if options.json:
        about = {"date": date, "cores": cores, "rounds": options.rounds, "gloo": with_gloo}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
