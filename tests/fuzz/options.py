"""Command lines with odd values of options, taken from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from random import Random

from hpcpar.cli.main import parsers
from tests.fuzz.base import LENET, Base

#: Values that no number, name or path should be; CASE is the folder of the case.
ODD = ("nan", "NaN", "inf", "-inf", "1e400", "-1", "0", "-0.0", "1.5", "1e12", str(10**12),
       str(10**30), "9" * 5000, "", " ", "a" * 5000, "\u0663", "\u202ex\U0001f600", "x\ny\x1b[2J",
       "\udcff", "true", "null", "None", "CASE", "1_000", "0x10", "+3", "1e-320", "--", "-", "=",
       ",", "1,,2", "1x8x8", "0x8x8", f"1x{10**12}x8", f"{10**9}x{10**9}x{10**9}", "1/0", "1/4",
       f"1/{10**30}", "auto,auto", "grid:0x0", f"grid:{10**12}x1", "grid:-1x-1", "pipeline:1x0",
       "data/outer/outer", "*", "plan.json", "nosuch.onnx", ":", "a:b", "4", "2", "1e-9", "1e300",
       "123456789012", "2147483648", "9223372036854775808")
#: Options that start other programs, or that say how long a job takes: a large number is right.
_LONG = ("--steps", "--epochs", "-n")
_SHORT = tuple(v for v in ODD if v not in (
    "1e12", str(10**12), "123456789012", "2147483648", "+3", "4", "2", "1_000", "\u0663"))


_SMALL = [*LENET, "--batch", "16"]
_SWEEP = [*LENET, "--strategy", "data", "--data", ":data.h5", "--dry-run", "--out", "sweep",
          "--steps", "2"]
#: Command lines that end with status 0 in a fraction of a second; ":" stands before the name of a
#: base file, "@" before one that the command may change.
TEMPLATES = (
    ["networks", "lenet5"], ["machines", "local"], ["machines", "--new", "new.toml"],
    ["plan", *_SMALL, "--ranks", "4", "--strategy", "data", "-o", "p.json"],
    ["plan", *_SMALL, "--ranks", "2"],
    ["plan", *_SMALL, "--ranks", "4", "--strategy", "pipeline", "--show-schedule"],
    ["plan", *_SMALL, "--ranks", "4", "--strategy", "grid:2x2", "--explain"],
    ["predict", *_SMALL, "--ranks", "1,4"], ["predict", "--plan", ":plan.json"],
    ["predict", *_SMALL, "--ranks", "4", "--strategy", "data,filter,owt", "--timeline", "t"],
    ["predict", *LENET, "--batch-per-rank", "4", "--ranks", "2", "--efficiency", "0.5"],
    ["run", "--plan", ":plan.json", "--data", ":data.h5", "--steps", "1", "--out", "r.h5",
     "--checkpoint", "c.h5"],
    ["run", "--plan", ":plan.json", "--data", ":data.h5", "--forward-only"],
    ["verify", "--plan", ":plan.json", "--steps", "1"], ["compare", ":run.h5"],
    ["trace", ":run.h5", "-o", "t.json"], ["trace", "--plan", ":plan.json", "-o", "t.json"],
    ["calibrate", "--refine", ":run.h5", "-o", "@machine.toml"],
    ["data", "synthetic", "d.h5", "--input", "1x8x8", "--classes", "4", "--samples", "8"],
    ["data", "synthetic", "d.h5", "--input", "2x8x8", "--targets", "2", "--samples", "8"],
    ["data", "numpy", "d.h5", ":images.npy", ":labels.npy"],
    ["data", "images", "d.h5", ":pictures", "--input", "3x8x8"],
    ["data", "digits", "d.h5"], ["data", "info", ":data.h5"],
    ["sweep", "strong", *_SWEEP, "--batch", "16", "--ranks", "1,2"],
    ["sweep", "weak", *_SWEEP, "--batch", "4", "--ranks", "2", "--launcher", "slurm"],
    ["sweep", "report", "@sweep"],
)


def expanded(words: list[str], base: Base) -> list[str]:
    """The words of a template with the paths of base files."""
    known = {":": base.__getitem__, "@": base.copy}
    return [known[w[0]](w[1:]) if w[:1] in known and len(w) > 1 else w for w in words]


@cache
def _options(command: str, kind: str) -> tuple[str, ...]:
    """Options with a value of a command."""
    parser: argparse.ArgumentParser = parsers(command)[1]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and kind in action.choices:
            parser = action.choices[kind]
    return tuple(a.option_strings[-1] for a in parser._actions
                 if a.option_strings and a.nargs != 0 and a.option_strings[0] != "-n")


def _changed(rng: Random, argv: list[str], case: str) -> Iterator[str]:
    """The words with one or two values that are odd."""
    words = list(argv)
    for _ in range(rng.choice((1, 1, 1, 2))):
        names = _options(words[0], words[1])
        if rng.random() < 0.15 or not names:  # a word that is there: a value, a path, a name
            at = rng.randrange(1, len(words))
            long = words[at - 1] in _LONG
            words[at] = rng.choice(_SHORT if long else ODD).replace("CASE", case)
            continue
        name = rng.choice(names)
        value = rng.choice(_SHORT if name in _LONG else ODD).replace("CASE", case)
        given = [i for i, word in enumerate(words) if word in (name, "-o" * (name == "--out"))]
        if given and given[0] + 1 < len(words):
            words[given[0] + 1] = value
        elif rng.random() < 0.5:
            words.append(f"{name}={value}")
        else:
            words += [name, value]
    yield from words


def odd_options(rng: Random, base: Base) -> list[str]:
    """A command line with odd values."""
    argv = expanded(rng.choice(TEMPLATES), base)
    words = list(_changed(rng, argv, str(base.case)))
    if words[0] != "trace" and not any(w.startswith("--new") for w in words) and rng.random() < 0.6:
        words.append("--json")
    return words
