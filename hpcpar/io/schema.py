"""Checks of files against types: an error names the place and the fault on one line.

A schema is a dataclass, a TypedDict or a `msgspec.Struct`. Unknown fields are errors, except in a
Struct without ``forbid_unknown_fields``.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta, inspect

from hpcpar.errors import InputError, unknown
from hpcpar.io.files import reason, require_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Step = str | int

#: Bytes of the largest JSON or TOML file that is read.
LARGEST = 64 * 2**20

#: A count that may be zero, and one that may not (ranks, channels, samples in a batch).
Count = Annotated[int, Meta(ge=0, le=10**15)]
Extent = Annotated[int, Meta(ge=1, le=10**9)]
#: A size that may be zero, and one that may not (the memory of a device).
Bytes = Annotated[int, Meta(ge=0, le=10**18)]
Capacity = Annotated[int, Meta(ge=1, le=10**18)]
#: Finite numbers: times, numbers of at least 0 and above 0, shares. `convert` refuses NaN.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
NotNegative = Annotated[float, Meta(ge=0, le=1e30)]
Positive = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
#: A text without control characters other than tabs, so without line breaks.
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*$(?!\n)",
                           description="a text of one line")]

#: A text without blanks.
Word = Annotated[str, Meta(pattern=r"^[^\s\x00-\x1f\x7f]+$(?!\n)",
                           description="a text without blanks")]


def one_of(*names: str) -> Meta:
    """The condition that a text is one of `names`."""
    pattern = "|".join(map(re.escape, names))
    return Meta(pattern=rf"^({pattern})$(?!\n)", description=f"one of {', '.join(names)}")


def plain(value: object) -> Any:
    """Tables, lists, texts and numbers for JSON, from dataclasses, tuples and values of NumPy."""
    return msgspec.to_builtins(_whole(value), enc_hook=_of_numpy)


def _whole(value: object) -> object:
    """Tables of dataclasses; msgspec skips defaults that `convert` leaves to the class."""
    if is_dataclass(value):
        return {f.name: _whole(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list | tuple) else value


def _of_numpy(value: object) -> object:
    """An array or a number of NumPy, which this module does not load, as plain numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"a {type(value).__name__} has no form in files")


def read_bytes(path: str, what: str, remedy: str) -> bytes:
    """The content of a file; `what` names its kind in errors.

    Raises
    ------
    InputError
        The file cannot be read, or is larger than `LARGEST`.
    """
    try:
        require_regular(path)
        with open(path, "rb") as f:
            text = f.read(LARGEST + 1)
    except OSError as err:
        raise InputError(f"cannot read {what} {path}: {reason(err)}; {remedy}") from err
    if len(text) > LARGEST:
        raise InputError(f"{what} {path} is larger than {LARGEST >> 20} MiB; {remedy}")
    return text


def decode_json(text: bytes | str, type: type[T], where: str, remedy: str) -> T:
    """A value of this type from JSON text; arguments and errors as in `convert`."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError) as err:
        raise InputError(f"{where}: not JSON ({_cause(err)}); {remedy}") from err
    return convert(data, type, where, remedy)


def read_json(path: str, type: type[T], remedy: str) -> T | None:
    """The content of a JSON file; None if the file does not exist.

    Raises
    ------
    InputError
        The file cannot be read, or its content does not fit `type`.
    """
    if not os.path.exists(path):
        return None
    return decode_json(read_bytes(path, "file", remedy), type, path, remedy)


def parse_toml(text: bytes | str, where: str, remedy: str) -> dict[str, object]:
    """The content of TOML text; `where` names its source in errors.

    Raises
    ------
    InputError
        The text is not TOML, or nested too deeply.
    """
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError, MemoryError) as err:
        raise InputError(f"{where}: not TOML ({_cause(err)}); {remedy}") from err


def read_toml(path: str, type: type[T], what: str, page: str) -> T:
    """The content of a TOML file; `page` of the documentation has an example.

    Raises
    ------
    InputError
        The file cannot be read, or its content does not fit `type`.
    """
    remedy, where = f"{page} has an example", f"{what} {path}"
    return convert(parse_toml(read_bytes(path, what, remedy), where, remedy), type, where, remedy)


def _cause(err: BaseException) -> str:
    if isinstance(err, UnicodeDecodeError | UnicodeEncodeError):
        return f"the byte at place {err.start} is not text"
    if isinstance(err, RecursionError):
        return "it is nested too deeply"
    return "it is too large" if isinstance(err, MemoryError) else " ".join(str(err).split())


def convert(data: object, type: type[T], where: str, remedy: str) -> T:
    """Checks plain data (from JSON, TOML or attributes) and returns it as a value of this type.

    Parameters
    ----------
    where : str
        The source of the data, which begins the message.
    remedy : str
        How the user can fix it, which ends the message.

    Raises
    ------
    InputError
        The message names the place in the data, the expected type and the value found.
    """
    schema: Any = type
    try:
        _check(_info(schema), data, where, remedy)
        return msgspec.convert(data, type)
    except msgspec.ValidationError as err:
        _explain(err, data, schema, where, remedy)
    except (RecursionError, MemoryError, UnicodeError) as err:
        raise InputError(f"{where}: {_cause(err)}; {remedy}") from err


_info = cache(inspect.type_info)


def _plain(info: inspect.Type) -> inspect.Type:
    """A type without its description."""
    return info.type if isinstance(info, inspect.Metadata) else info


def _parts(info: inspect.Type, data: object) -> list[tuple[Step, inspect.Type, object]]:
    """Key or index, type and value of each part of the data."""
    info = _plain(info)
    if isinstance(info, inspect.UnionType):
        return [part for option in info.types for part in _parts(option, data)]
    if isinstance(data, Mapping):
        if isinstance(info, inspect.DataclassType | inspect.TypedDictType | inspect.StructType):
            return [(field.encode_name, field.type, data[field.encode_name])
                    for field in info.fields if field.encode_name in data]
        if isinstance(info, inspect.DictType):
            return [(key, info.value_type, value) for key, value in data.items()]
        if isinstance(info, inspect.AnyType | inspect.CustomType):
            return [(key, info, value) for key, value in data.items()]
    if isinstance(data, list | tuple):
        if isinstance(info, inspect.ListType | inspect.VarTupleType):
            return [(i, info.item_type, value) for i, value in enumerate(data)]
        if isinstance(info, inspect.AnyType | inspect.CustomType):
            return [(i, info, value) for i, value in enumerate(data)]
    return []


def _check(info: inspect.Type, data: object, where: str, remedy: str) -> None:
    """Refuses what msgspec accepts: unknown fields of dataclasses, and NaN."""
    plain = _plain(info)
    if isinstance(data, float) and not math.isfinite(data):
        raise InputError(f"{where}: expected a finite number, found {data}; {remedy}")
    names = {field.encode_name for field in getattr(plain, "fields", ())}
    if names and isinstance(data, Mapping) and getattr(plain, "forbid_unknown_fields", True):
        for key in data:
            if key not in names:
                raise InputError(f"{where}: {unknown('field', repr(key)[1:-1], names)}")
    for step, part, value in _parts(info, data):
        _check(part, value, _at(where, step), remedy)


def _at(where: str, step: Step) -> str:
    """The place of a part within `where`."""
    return f"{where}, entry {step + 1}" if isinstance(step, int) else f"{where}, {step!r}"


def _explain(err: msgspec.ValidationError, data: object, type: Any, where: str,
             remedy: str) -> NoReturn:
    message, _, path = str(err).partition(" - at `$")
    info, value = _info(type), data
    for step in _steps(path, data, type):
        where = _at(where, step)
        info, value = next((t, v) for s, t, v in _parts(info, value) if s == step)
    if isinstance(err.__cause__, InputError):
        raise InputError(f"{where}: {err.__cause__}") from err
    fault = message
    if missing := re.fullmatch("Object missing required field `(.*)`", message):
        fault = f"'{missing[1]}' is missing"
    else:
        fault = f"expected {_words(info, value)}, found {_shown(value)}"
    raise InputError(f"{where}: {fault}; {remedy}") from err


def _steps(path: str, data: object, type: Any) -> list[Step]:
    """The steps of msgspec's path, with the keys that it shows as [...] in ``.configs[...].n``."""
    steps: list[Step] = []
    for name, index in re.findall(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]", path):
        if index != "...":
            steps.append(name or int(index))
            continue
        table: Any = data
        for step in steps:
            table = table[step]
        steps.append(next(key for key, value in table.items()
                          if _fails(_replaced(data, steps, {key: value}), type, path)))
    return steps


def _replaced(data: Any, steps: Sequence[Step], value: object) -> object:
    """A copy of the data with another value at a place."""
    if not steps:
        return value
    step, *rest = steps
    copy: Any = list(data) if isinstance(step, int) else dict(data)
    copy[step] = _replaced(data[step], rest, value)
    return copy


def _fails(data: object, type: Any, path: str) -> bool:
    """True if the data has a fault at this path."""
    try:
        msgspec.convert(data, type)
    except msgspec.ValidationError as err:
        return str(err).partition(" - at `$")[2] == path
    return False


def _words(info: inspect.Type, value: object) -> str:
    """A type in words, with the bound that the value violates."""
    if isinstance(info, inspect.Metadata):
        described = (info.extra_json_schema or {}).get("description")
        return str(described) if described else _words(info.type, value)
    if isinstance(info, inspect.UnionType):
        return " or ".join(_words(option, value) for option in info.types)
    if isinstance(info, inspect.EnumType):
        return f"one of {', '.join(str(member.value) for member in info.cls)}"
    if isinstance(info, inspect.LiteralType):
        return f"one of {', '.join(map(str, info.values))}"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        return noun + _bound(info, value)
    if isinstance(info, inspect.StrType):
        return "a text"
    if isinstance(info, inspect.BoolType):
        return "true or false"
    if isinstance(info, inspect.NoneType):
        return "nothing"
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.TupleType):
        return "a list"
    return "a table of names and values"


def _bound(info: inspect.IntType | inspect.FloatType, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if info.gt is not None and not value > info.gt:
        return f" greater than {info.gt:g}"
    if info.ge is not None and not value >= info.ge:
        return f" of at least {info.ge:g}"
    if info.le is not None and not value <= info.le:
        return f" of at most {info.le:g}"
    return ""


def _shown(value: object) -> str:
    """A value on one line, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**30:
        return "a huge number"
    text = repr(value.value if isinstance(value, Enum) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
