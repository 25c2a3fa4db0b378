"""Data against types: every fault is one line with place, expected value, and remedy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.io import schema
from hpcpar.io.schema import (
    Count,
    Extent,
    Line,
    NotNegative,
    Word,
    convert,
    decode_json,
    one_of,
    parse_toml,
    plain,
    read_bytes,
    read_toml,
)


class Color(str, Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Open(msgspec.Struct):
    """A table of which a part is read."""

    a: Count = 0


class Named(TypedDict):
    """A table of known names."""

    kind: Annotated[str, one_of("big", "small")]


@dataclass(frozen=True)
class Entry:
    """A table in a table."""

    n: Extent = 1
    color: Color = Color.RED
    line: Line = ""
    word: Word = "a"

    def __post_init__(self) -> None:
        if self.n == 7:
            raise InputError("no entry has n = 7; give another")


@dataclass(frozen=True)
class Whole:
    """Everything that files have."""

    entries: dict[str, Entry]
    shape: tuple[Extent, ...] = ()
    seconds: NotNegative | None = None
    flag: bool = False
    free: dict[str, object] = field(default_factory=dict)
    some: Open = field(default_factory=Open)
    named: Named = field(default_factory=lambda: Named(kind="big"))


def test_valid_data_become_the_type() -> None:
    data = {"entries": {"x": {"n": 2, "color": "blue"}}, "shape": [1, 2], "seconds": 3,
            "free": {"a": [1.5, None]}, "some": {"a": 1, "b": 2}, "named": {"kind": "small"}}
    assert convert(data, Whole, "f", "r") == Whole(
        {"x": Entry(2, Color.BLUE)}, (1, 2), 3.0, False, {"a": [1.5, None]}, Open(1),
        Named(kind="small"))


def test_a_value_read_from_a_file_is_written_whole() -> None:
    """Also the defaults that the file left out."""
    data = {"entries": {"x": {"n": 2}}, "shape": [1, 2]}
    written = {"entries": {"x": {"n": 2, "color": "red", "line": "", "word": "a"}},
               "shape": [1, 2], "seconds": None, "flag": False, "free": {}, "some": {"a": 0},
               "named": {"kind": "big"}}
    assert plain(convert(data, Whole, "f", "r")) == written


def test_numbers_of_numpy_become_plain() -> None:
    found = plain({"a": np.float64(0.5), "b": (np.int64(3), np.bool_(True)), "c": np.arange(3)})
    assert found == {"a": 0.5, "b": [3, True], "c": [0, 1, 2]}
    assert type(found["a"]) is float and [type(x) for x in found["b"]] == [int, bool]
    with pytest.raises(NotImplementedError, match="a object has no form in files"):
        plain([object()])


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("data", "message"), [
    (None, "f: expected a table of names and values, found null; r"),
    ([1], "f: expected a table of names and values, found a list of 1; r"),
    ({}, "f: 'entries' is missing; r"),
    ({"entries": [1]}, "f, 'entries': expected a table of names and values, found a list of 1; r"),
    ({"entries": {"a": {}, "b": {"n": "x"}, "c": {}}},
     "f, 'entries', 'b', 'n': expected a whole number, found 'x'; r"),
    ({"entries": {str(i): {"n": i} for i in range(10, -1, -1) if i != 7}},
     "f, 'entries', '0', 'n': expected a whole number of at least 1, found 0; r"),
    ({"entries": {"a": {"n": 10**12}}},
     "f, 'entries', 'a', 'n': expected a whole number of at most 1e+09, found 1000000000000; r"),
    ({"entries": {"a": {"n": 9**5000}}},
     "f, 'entries', 'a', 'n': expected a whole number of at most 1e+09, found a huge number; r"),
    ({"entries": {"a": {"n": True}}},
     "f, 'entries', 'a', 'n': expected a whole number, found true; r"),
    ({"entries": {"a": {"n": 1.5}}},
     "f, 'entries', 'a', 'n': expected a whole number, found 1.5; r"),
    ({"entries": {"a\nb": {"zz\n": 7}}},
     "f, 'entries', 'a\\nb': unknown field 'zz\\n' (known: color, line, n, word)"),
    ({"entries": {"a": {"n": 7}}}, "f, 'entries', 'a': no entry has n = 7; give another"),
    ({"entries": {"a": {"m": 7}}},
     "f, 'entries', 'a': unknown field 'm' (known: color, line, n, word)"),
    ({"entries": {"a": {"color": "green"}}},
     "f, 'entries', 'a', 'color': expected one of red, blue, found 'green'; r"),
    ({"entries": {"a": {"line": "b\n"}}},
     "f, 'entries', 'a', 'line': expected a text of one line, found 'b\\n'; r"),
    ({"entries": {"a": {"line": "b\x1b[2J"}}},
     "f, 'entries', 'a', 'line': expected a text of one line, found 'b\\x1b[2J'; r"),
    ({"entries": {"a": {"word": "b c"}}},
     "f, 'entries', 'a', 'word': expected a text without blanks, found 'b c'; r"),
    ({"entries": {}, "shape": [1, "2"]},
     "f, 'shape', entry 2: expected a whole number, found '2'; r"),
    ({"entries": {}, "shape": "12"}, "f, 'shape': expected a list, found '12'; r"),
    ({"entries": {}, "seconds": -1},
     "f, 'seconds': expected a number of at least 0 or nothing, found -1; r"),
    ({"entries": {}, "seconds": NAN}, "f, 'seconds': expected a finite number, found nan; r"),
    ({"entries": {}, "seconds": 1e308},
     "f, 'seconds': expected a number of at most 1e+30 or nothing, found 1e+308; r"),
    ({"entries": {}, "free": {"a": [0, {"b": INF}]}},
     "f, 'free', 'a', entry 2, 'b': expected a finite number, found inf; r"),
    ({"entries": {}, "flag": 1}, "f, 'flag': expected true or false, found 1; r"),
    ({"entries": {}, "named": {"kind": "odd"}},
     "f, 'named', 'kind': expected one of big, small, found 'odd'; r"),
    ({"entries": {}, "named": {"kind": "big", "size": 3}},
     "f, 'named': unknown field 'size' (known: kind)"),
    ({"entries": {}, "shap": []}, "f: unknown field 'shap'; did you mean 'shape'? (known: entries, "
                                  "flag, free, named, seconds, shape, some)"),
])
def test_every_fault_is_one_line(data: object, message: str) -> None:
    with pytest.raises(InputError) as err:
        convert(data, Whole, "f", "r")
    assert str(err.value) == message


@pytest.mark.parametrize("text", [
    b"", b"\xff", b'{"a": "\xff"}', b"{" * 10**5, b'{"a":' * 10**5, b"[" * 10**6, b"[NaN]",
    b"[1e999]", b"9" * 5000, b'{"entries": {"a": {"n": ' + b"9" * 5000 + b"}}}", b"nul", b"[1,]"])
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match=r"^f: not JSON \(.*\); r$"):
        decode_json(text, Whole, "f", "r")


@pytest.mark.parametrize("text", [b"a =", b"\xff", b"a = " + b"[" * 10**5, b"a = " + b"9" * 5000])
def test_invalid_toml_is_refused(text: bytes) -> None:
    with pytest.raises(InputError, match=r"^f: not TOML \(.*\); r$"):
        parse_toml(text, "f", "r")


def test_files_are_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(InputError, match=r"cannot read list .*x\.toml: No such file.*; r"):
        read_bytes(str(path), "list", "r")
    path.write_text("entries = {}\nshape = [3]\n")
    assert read_toml(str(path), Whole, "list", "page").shape == (3,)
    monkeypatch.setattr(schema, "LARGEST", 10)
    with pytest.raises(InputError, match=r"list .*x\.toml is larger than .* MiB; page has"):
        read_toml(str(path), Whole, "list", "page")
    for place in "/dev/zero", str(tmp_path / "pipe"):
        if place != "/dev/zero":
            os.mkfifo(place)
        with pytest.raises(InputError, match=r"cannot read list .*: it is not a regular file; r"):
            read_bytes(place, "list", "r")
