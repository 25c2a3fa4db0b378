"""Mutations of trees of JSON or TOML: nodes dropped, doubled, renamed, or of another type."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

#: Values where another one is meant. No text is a number that is not finite: tables are searched
#: for those.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, -0.5, 10**6, 2**31, 2**63, 10**12, 10**30, -10**30, 1e-300,
    1e300,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "true", "null", "a" * 5000,
    "\u202eab\u0301\U0001f600", "a\nb\x1b[2J\x00", "../../x", "/", [], {}, [[]], [1], [None],
    {"a": 1}, ["x", 1],
)
#: Stands for lists so deep that a recursive reader gives up.
DEEP = "@deep@"


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    if not isinstance(node, dict | list):
        return []
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    return [(node, key) for key in keys] + [p for key in keys for p in _places(node[key])]


def _deep(rng: Random) -> Any:
    value: Any = rng.choice((1, "x", DEEP))
    for _ in range(rng.choice((0, 5, 60))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _near(rng: Random, value: Any) -> Any:
    """A value like this one, but wrong."""
    if isinstance(value, bool) or value is None:
        return rng.choice((not value, str(value)))
    if isinstance(value, int | float):
        return rng.choice((-value, value + 0.5, value * 10**12, str(value), [value], value + 1,
                           value * 1e200 if value < 1e100 else value))
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice((value[:at], value + value, value[:at] + "\n" + value[at:],
                           value.upper(), [value], {"name": value}))
    if isinstance(value, list):
        return rng.choice((value * 2, value[::-1], value[:-1], [value], {"0": value},
                           [*value, rng.choice(ODD)], value[:1] * 2000))
    return rng.choice((list(value), list(value.values()), [value], {**value, "x": 1},
                       str(value), {str(k).upper(): v for k, v in value.items()}))


def _once(rng: Random, root: Any) -> None:
    places = _places(root)
    if not places:
        return
    # a large table would draw nearly all mutations: half of them stay near the root
    shallow = _places(dict.fromkeys(root) if isinstance(root, dict) else [None] * len(root))
    if rng.random() < 0.3:
        parent, key = root, rng.choice(shallow)[1]
    else:
        parent, key = rng.choice(places)
    kind = rng.choice(("drop", "odd", "odd", "near", "near", "near", "rename", "swap", "deep"))
    if kind == "drop":
        del parent[key]
    elif kind == "odd":
        parent[key] = copy.deepcopy(rng.choice(ODD))
    elif kind == "near":
        parent[key] = copy.deepcopy(_near(rng, parent[key]))
    elif kind == "rename" and isinstance(parent, dict):
        parent[rng.choice((f"{key}2", key.upper(), "", "x"))] = parent.pop(key)
    elif kind == "swap":
        other, name = rng.choice(places)
        parent[key] = copy.deepcopy(other[name])
    elif kind == "deep" and rng.random() < 0.2:
        parent[key] = _deep(rng)


def mutated(rng: Random, tree: Any) -> Any:
    """A copy of a tree with one to three mutations; rarely something else altogether."""
    if rng.random() < 0.02:
        return copy.deepcopy(rng.choice(ODD))
    root = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _once(rng, root)
    return root


def deepened(text: str) -> str:
    """JSON or TOML with deep lists where `DEEP` stands."""
    return text.replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000)


def json_text(tree: Any) -> str:
    """A tree as JSON; NaN as JavaScript writes it."""
    return deepened(json.dumps(tree))
