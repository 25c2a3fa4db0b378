"""``python -m tests.fuzz``: many cases, or one of them again."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.kinds import KINDS
from tests.fuzz.runner import base_in, run_case, run_cases


def main() -> int:
    """Runs the cases; returns 1 where some fail."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", choices=tuple(KINDS), help="cases of this kind only")
    parser.add_argument("--only", type=int, metavar="N",
                        help="case N of --kind alone; its files are kept")
    args = parser.parse_args()
    if args.only is not None:
        if args.kind is None:
            parser.error("--only needs --kind")
        base = base_in(Path(tempfile.mkdtemp(prefix="hpcpar-fuzz-")))
        return int(run_case(base, args.seed, args.kind, args.only, keep=True) is not None)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hpcpar-fuzz-") as folder:
        failures = run_cases(base_in(Path(folder)), args.seed,
                             range(args.first, args.first + args.cases), args.kind or "", tell=True)
    print(f"{args.cases} cases in {time.perf_counter() - begin:.0f} s: {len(failures)} failures")
    for cause, count in Counter(f"{f.kind}: {f.cause}" for f in failures).most_common():
        print(f"{count:6} {cause}")
    return int(bool(failures))


sys.exit(main())
