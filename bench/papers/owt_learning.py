"""Error against batch size, and variable batch size, on the digits (Krizhevsky, 2014, Table 1).

    python bench/papers/owt_learning.py [--json FILE]   # ten minutes

LeNet-5 on the bundled 8 x 8 digits, a base batch of 32 where the paper has 128, the schedule `owt`,
rate 0.01 for the base batch. Every figure is the mean over seeds of the error on the held-out
digits after the last epoch. Batches of 32 K in all layers are fixed; with (32 K, 32) fully
connected layers are updated after each of K passes, as schemes (b) and (c) do on K ranks. The
paper has the errors of AlexNet on ImageNet: only their order can be compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.papers.common import Claim, Report, Section, Value, main

BASE, EPOCHS, SEEDS, RATE = 32, 24, 5, 0.01
#: Table 1: validation error in percent for (128 K, 128 K) and (128 K, 128), by K.
TABLE_1 = {1: (42.33, 42.33), 2: (42.63, 42.27), 4: (42.59, 42.44), 8: (43.28, 42.86)}
#: Larger batches than the paper's, in which the rule breaks down (its footnote 3).
LARGE = (16, 32)


def hpcpar(folder: str, *words: object) -> str:
    """Standard output of a command."""
    return subprocess.run([sys.executable, "-m", "hpcpar", *map(str, words)], cwd=folder,
                          check=True, capture_output=True, text=True).stdout


def error(folder: str, strategy: str, ranks: int, k: int, *options: object) -> float:
    """Mean error in percent of training runs with a batch of 32 K."""
    plan = f"{strategy}-{ranks}-{k}.json"
    hpcpar(folder, "plan", "--network", "lenet5", "--input", "1x8x8", "--ranks", ranks, "--batch",
           BASE * k, "--strategy", strategy, "-o", plan)
    found = [json.loads(hpcpar(folder, "run", "-n", ranks, "--plan", plan, "--data", "digits.h5",
                               "--epochs", EPOCHS, "--schedule", "owt", "--rate", RATE, "--seed",
                               seed, "--json", *options))["test_accuracy"]
             for seed in range(SEEDS)]
    return 100 * (1 - statistics.mean(found))


def report() -> Report:
    """Fixed and variable batches."""
    base = ("--base-batch", BASE)
    ways: dict[str, tuple[object, ...]] = {
        "rate k": base, "rate and decay sqrt(k)": (*base, "--scaling", "sqrt"),
        "rate unchanged": ()}
    fixed, variable = [], []
    with tempfile.TemporaryDirectory() as folder:
        hpcpar(folder, "data", "digits", "digits.h5")
        for k in (*TABLE_1, *LARGE):
            also: dict[str, Value] = {
                way: error(folder, "data", 1, k, *options) for way, options in ways.items()}
            published = f"{TABLE_1[k][0]}%" if k in TABLE_1 else None
            fixed.append(Claim(f"({BASE * k}, {BASE * k})", published, also.pop("rate k"), "%",
                               also=also))
        for k in [k for k in TABLE_1 if 1 < k <= 4]:
            also = {scheme: error(folder, strategy, k, k, *base) for scheme, strategy in
                    (("(a), fixed", "owt"), ("(b)", "owt-b"), ("(c)", "owt-c"))}
            variable.append(Claim(f"{k} ranks, ({BASE * k}, {BASE})", f"{TABLE_1[k][1]}%",
                                  also.pop("(b)"), "%", also=also))
    return Report("One weird trick (2014), errors on digits", [
        Section("Fixed batch, one rank", fixed, "rate k"),
        Section("Variable batch, rate k", variable, "(b)")])


if __name__ == "__main__":
    sys.exit(main(__doc__, report))
