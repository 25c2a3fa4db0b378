"""Quantities with units in machine files, as in ``bandwidth = "300 GB/s"``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpcpar.errors import InputError

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
             "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
#: Kind of quantity -> an example, and the size of each unit (without prefix) in the field's units.
_UNITS: dict[str, tuple[str, dict[str, float]]] = {
    "size": ("16 GB", {"B": 1.0}),
    "rate": ("300 GB/s", {"B/s": 1.0, "b/s": 1 / 8, "bit/s": 1 / 8}),
    "flops": ("15 Tflop/s", {"flop/s": 1.0, "flops": 1.0, "FLOPS": 1.0, "FLOP/s": 1.0}),
    "time": ("3 us", {"s": 1.0}),
}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9}
#: Name with a unit -> the corresponding field of `Device`, and its kind of quantity.
DEVICE = {"memory": ("memory_bytes", "size"), "rate": ("flops_per_s", "flops"),
          "bandwidth": ("bandwidth_bytes_per_s", "rate"), "launch": ("launch_s", "time"),
          "submit": ("submit_s", "time"),
          "peak": ("peak_flops_per_s", "flops")}
#: The same for `Level`; `beta_s_per_byte` is an inverse bandwidth.
LEVEL = {"latency": ("alpha_s", "time"), "bandwidth": ("beta_s_per_byte", "rate"),
         "small_latency": ("small_alpha_s", "time"), "small_size": ("small_bytes", "size")}
#: The same for `Host`.
HOST = {"latency": ("alpha_s", "time"), "bandwidth": ("beta_s_per_byte", "rate"),
        "memory_bandwidth": ("memory_bytes_per_s", "rate")}


def quantity(text: object, kind: str, what: str) -> float:
    """The value of a text with a unit, in bytes, seconds, bytes/s or flop/s.

    Parameters
    ----------
    kind : str
        ``size``, ``rate``, ``flops`` or ``time``.
    what : str
        Name of the field in errors.

    Raises
    ------
    InputError
        The text is not a number greater than 0 with a unit of this kind.
    """
    example, units = _UNITS[kind]
    prefixes = _SMALL if kind == "time" else _PREFIXES
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)\s*", str(text))
    scale = next((scale * size for unit, size in units.items() for prefix, scale in prefixes.items()
                  if match and match[2] == prefix + unit), None)
    if match is None or scale is None or float(match[1]) == 0:
        raise InputError(f"{what} = {text!r} is not a number above 0 with a unit, as in "
                         f'"{example}"')
    return float(match[1]) * scale


def without_units(data: Mapping[str, object], names: Mapping[str, tuple[str, str]],
                  where: str) -> dict[str, object]:
    """A machine file's table with plain fields in place of quantities with units.

    Raises
    ------
    InputError
        A quantity is invalid, or given both with a unit and as a plain field.
    """
    plain = {name: value for name, value in data.items() if name not in names}
    for name in data.keys() & names.keys():
        field, kind = names[name]
        if field in data:
            raise InputError(f"{where}: '{name}' and '{field}' mean the same; leave one out")
        value = quantity(data[name], kind, f"{where}: '{name}'")
        if kind == "size":
            value = int(value)
        plain[field] = 1 / value if field == "beta_s_per_byte" else value
    return plain


def device(data: Mapping[str, object], where: str) -> dict[str, object]:
    """A device's table with plain fields, including its ``[rates]``."""
    plain = without_units(data, DEVICE, where)
    if isinstance(rates := plain.get("rates"), Mapping):
        plain["rates"] = {name: quantity(rate, "flops", f"{where}: rate of '{name}'")
                          if isinstance(rate, str) else rate for name, rate in rates.items()}
    return plain
