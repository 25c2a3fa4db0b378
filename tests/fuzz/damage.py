"""Damage to bytes and to the structure of HDF5 files and ONNX models."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

#: Types of data sets and attributes where another one is meant.
TYPES: tuple[Any, ...] = ("u1", "i1", "i8", ">i4", "u8", "f2", "f4", "f8", "c16", "S5", "?",
                          np.dtype([("a", "i4"), ("b", "f8")]), h5py.string_dtype(),
                          h5py.vlen_dtype(np.int32), h5py.enum_dtype({"A": 1}), h5py.ref_dtype)
SHAPES = ((), (0,), (1,), (3,), (0, 3), (2, 2), (32, 1), (1, 2, 3), (32, 1, 8), (2, 1, 8, 8, 8),
          (1,) * 9)
#: Shapes of data sets that take no room in the file.
HUGE = ((1 << 40,), (1 << 33, 1, 8, 8), (32, 1 << 20, 1 << 20), (1 << 62,), (1 << 20, 1 << 20))
VALUES: tuple[Any, ...] = (
    0, -1, 1.5, 10**12, 2**63 - 1, float("nan"), float("inf"), "", "x", "true", b"\xff\xfe", True,
    [], [1.0, float("nan")], np.zeros((2, 2)), np.array([1, 2, 3]), "a" * 5000, "{}", "[]", "null",
    "{\"a\": NaN}", "[" * 3000, h5py.Empty("f4"), np.array(1e300), np.array([b"x"]), -5,
)


def damaged(rng: Random, content: bytes) -> bytes:
    """Bytes that are flipped, overwritten, left out, inserted or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(max(1, len(data)))
        length = rng.choice((1, 1, 4, 8, 64))
        kind = rng.choice(("flip", "flip", "flip", "random", "fill", "drop", "insert", "cut"))
        if kind == "flip" and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "random":
            data[at:at + length] = rng.randbytes(length)
        elif kind == "fill":
            data[at:at + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
        elif kind == "drop":
            del data[at:at + length]
        elif kind == "insert":
            data[at:at] = rng.randbytes(length)
        elif kind == "cut" and rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def replace_file(rng: Random, path: Path) -> None:
    """Puts something else in place of a file: a pipe, a socket, a device, a folder or a link."""
    kind = rng.choice(("pipe", "socket", "device", "folder", "self", "above", "nowhere"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end, contextlib.suppress(OSError):  # a long path
            end.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "self": path, "above": "..",
                         "nowhere": "nowhere"}[kind])


def _names(f: h5py.File) -> list[str]:
    found: list[str] = []
    f.visit(found.append)
    return found


def _new(rng: Random, f: h5py.File, name: str) -> None:
    """A data set of another type, shape or content in place of the one in the file."""
    old = f.get(name)
    value: Any = None
    if isinstance(old, h5py.Dataset) and old.shape is not None and old.size < 1 << 20:
        value = old[()]
    del f[name]
    kind = rng.choice(("huge", "type", "shape", "cast", "values", "numbers", "numbers"))
    try:
        if kind == "huge":
            f.create_dataset(name, rng.choice(HUGE), rng.choice(("u1", "f4", "i8")), chunks=True)
        elif kind == "type":
            shape = () if value is None else np.shape(value)
            f.create_dataset(name, shape, rng.choice(TYPES))
        elif kind == "cast" and value is not None:
            with np.errstate(all="ignore"):
                f[name] = np.asarray(value).astype(rng.choice(("u1", "i4", "f2", "f8", "S3")))
        elif kind == "values":
            f[name] = rng.choice(VALUES)
        elif kind == "numbers" and value is not None and np.asarray(value).dtype.kind in "iuf":
            array = np.array(value)
            odd = (-1, 0, 127, 2) if array.dtype.kind in "iu" else (
                np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30)
            part = rng.choice((slice(None), slice(0, 1), slice(-1, None)))
            array.reshape(-1)[part] = rng.choice(odd) if array.dtype.kind != "u" else 255
            f[name] = array
        else:
            f.create_dataset(name, rng.choice(SHAPES), rng.choice(("u1", "f4", "i8")))
    except (TypeError, ValueError, OSError):
        f.create_dataset(name, (3,), "i8")


def _attribute(rng: Random, f: h5py.File, names: list[str]) -> None:
    holders = [f, *(f[name] for name in names)]
    some = [h for h in holders if len(h.attrs)] or [f]
    attrs = rng.choice(some).attrs
    name = rng.choice([*attrs, "x"])
    if rng.random() < 0.3:
        attrs.pop(name, None)
    else:
        attrs[name] = rng.choice(VALUES)


def _text(rng: Random, f: h5py.File, names: list[str], change: Any) -> None:
    """Another text in a scalar data set of text, as the JSON in a record."""
    texts = [n for n in names if isinstance(f[n], h5py.Dataset) and f[n].shape == ()
             and h5py.check_string_dtype(f[n].dtype)]
    if texts:
        name = rng.choice(texts)
        old = f[name][()]
        del f[name]
        f[name] = change(old)


def damage_hdf5(rng: Random, path: str, change_text: Any) -> None:
    """Changes the structure of an HDF5 file: what a program could have written, but not ours.

    Parameters
    ----------
    change_text : callable
        Another text for one stored in the file.
    """
    with h5py.File(path, "r+") as f:
        for _ in range(rng.choice((1, 1, 1, 2))):
            names = _names(f)
            if not names:
                return
            name = rng.choice(names)
            kind = rng.choice(("drop", "new", "new", "new", "group", "attribute", "attribute",
                               "text", "text", "cycle", "move"))
            if kind == "drop":
                del f[name]
            elif kind == "new":
                _new(rng, f, name)
            elif kind == "group":
                del f[name]
                f.create_group(name)
            elif kind == "attribute":
                _attribute(rng, f, names)
            elif kind == "text":
                _text(rng, f, names, change_text)
            elif kind == "cycle":
                del f[name]
                f[name] = rng.choice((h5py.SoftLink("/" + name), h5py.SoftLink("/"),
                                      h5py.SoftLink("/missing"),
                                      h5py.ExternalLink("missing.h5", "/x")))
            elif kind == "move":
                other = rng.choice(names)
                if other in f and not (other.startswith(name) or name.startswith(other)):
                    del f[other]
                    f.copy(name, other)


def _messages(message: Any) -> list[Any]:
    """A message of protobuf and all inside it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            inside = value if field.is_repeated else [value]
            found += [m for each in inside for m in _messages(each)]
    return found


def damage_onnx(rng: Random, model: Any) -> None:
    """Changes fields of an ONNX model: cleared, doubled, of another value, or shuffled."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        parts = [m for m in _messages(model) if m.ListFields()]
        message = rng.choice(parts)
        field, value = rng.choice(message.ListFields())
        odd: Any = rng.choice((0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 10**12, 2**63 - 1, -10**12))
        if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
            odd = rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e30))
        elif field.type == field.TYPE_BYTES:
            odd = rng.choice((b"", b"x", b"\xff\xfe", rng.randbytes(16)))
        elif field.type == field.TYPE_STRING:
            other = [m for m in parts if m.DESCRIPTOR is message.DESCRIPTOR]
            odd = rng.choice(("", "x", "Conv", "input", "a\nb\x1b[2J",
                              getattr(rng.choice(other), field.name)))
            odd = odd if isinstance(odd, str) else "x"
        try:
            if rng.random() < 0.2:
                message.ClearField(field.name)
            elif not field.is_repeated:
                if field.message_type is None:
                    setattr(message, field.name, odd)
                else:
                    message.ClearField(field.name)
            elif rng.random() < 0.3:
                del value[rng.randrange(len(value))]
            elif field.message_type is not None:
                value.add().CopyFrom(rng.choice(list(value)))
            elif rng.random() < 0.3:
                value.append(odd)
            else:
                value[rng.randrange(len(value))] = odd
        except (ValueError, TypeError):  # out of the field's range
            message.ClearField(field.name)
