"""How far predictions are off: iterations of cases that the calibration did not see, in shared
memory and on a shaped network.

Run: ``python bench/accuracy.py`` (LeNet-5, AlexNet, VGG-16 and ResNet-50 at reduced image size,
every strategy that can run, on 1, 2, 4 and 8 ranks; how long it will take is printed first),
``--quick`` for a few cases, ``--network shaped`` for hosts that are joined by shaped links instead
(``tests/cluster/network.sh``; root only), ``--network both``. A rank has one BLAS thread. Finished
cases are kept in the folder's ``results.json`` and not run again; those that failed are.

For every network and number of ranks a calibration measures, on as many ranks, the links, the
collectives, the device's rates, and the compute steps (alone, without messages) of every strategy
at half and at twice the case's batch. From that a case is predicted, at its own batch, which makes
other local shapes. No iteration of any case, and nothing of what ranks do to each other in one, is
part of the calibration. Times that its table lacks (all that depend on the number of samples) lie
on straight lines through the times that it has.

The speed of a shared machine changes from minute to minute. So one job interleaves both: whenever
the compute steps of a case, or of its plan at another batch, have been measured, the case runs for
some iterations (``bench/unseen/interleaved.py``).

Cases whose ranks share cores have tables of their own: their times are less certain.

There are two kinds of predictions:

* *unseen*: from that calibration alone;
* *steps known*: the same links and rates, but the compute steps of the case's own plan were
  measured too, alone, as with ``--for plan.json``. The remaining error does not come from the
  model of compute steps.

``auto`` is chosen with the steps known, from a calibration before. Measured is the slowest rank's
median over the iterations of a job.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from bench.unseen.cases import SIZES, groups  # noqa: E402
from bench.unseen.report import report  # noqa: E402
from bench.unseen.running import Bench, estimate_s, hosts  # noqa: E402
from hpcpar.process.launchers import mpiexec  # noqa: E402


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true",
                        help="LeNet-5 on 1 and 2 ranks, four strategies: less than two minutes")
    parser.add_argument("--network", choices=("memory", "shaped", "both"), default="memory",
                        help="'memory': on this host (default); 'shaped': between hosts; 'both'")
    parser.add_argument("--ranks", default="", help="numbers of ranks (default 1,2,4,8)")
    parser.add_argument("--networks", default="", help=f"some of {', '.join(SIZES)} (default: all)")
    parser.add_argument("--strategies", default="", help="only these, on more than one rank "
                                                         "(default: every named one, and auto)")
    parser.add_argument("--jobs", type=int, default=1,
                        help="jobs for each case, whose medians count (default 1)")
    parser.add_argument("--launcher", default="", metavar="WORDS",
                        help="what starts ranks, before -n (default: this Python's mpiexec)")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "accuracy",
                        help="for results and records (default runs/accuracy)")
    parser.add_argument("--report", action="store_true",
                        help="run nothing: print the tables of what is there")
    parser.add_argument("--again", action="store_true",
                        help="run nothing: predict what was run again, from the same calibrations")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: give 1 or more")
    options.ranks = options.ranks or ("1,2" if options.quick else "1,2,4,8")
    options.networks = options.networks or ("lenet5" if options.quick else ",".join(SIZES))
    options.strategies = options.strategies or ("data,filter,owt,auto" if options.quick else "")
    wrong = set(options.networks.split(",")) - set(SIZES)
    if wrong:
        parser.error(f"--networks: {', '.join(sorted(wrong))} is none of {', '.join(SIZES)}")
    if not all(p.isdigit() and int(p) for p in options.ranks.split(",")):
        parser.error(f"--ranks {options.ranks}: give whole numbers, as in 1,2,4")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    bench, wanted = Bench(options.folder, options.launcher.split() or [mpiexec()],
                          options.jobs), groups(options)
    todo = [] if options.report or options.again else [group for group in wanted
                                                       if bench.missing(group)]
    for group in wanted if options.again else ():
        bench.again(group)
    count, begin = sum(len(bench.missing(group)) for group in todo), time.perf_counter()
    if todo:
        print(f"{count} cases to run, about {max(1, round(estimate_s(bench, todo) / 60))} minutes",
              file=sys.stderr, flush=True)
    with hosts(todo):
        for group in todo:
            bench.run(group)
    if todo:
        print(f"{(time.perf_counter() - begin) / 60:.1f} minutes", file=sys.stderr)
    print(report([bench.results[group.id(s)] for group in wanted for s in group.strategies
                  if group.id(s) in bench.results]))
    return int(any(bench.missing(group) for group in wanted))


if __name__ == "__main__":
    sys.exit(main())
