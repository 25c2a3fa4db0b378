"""Refusal of number formats that a machine's figures cannot price."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.plan.precision import PRECISIONS


def require_priced(machine: Machine, precision: str) -> None:
    """Check that the machine prices products in this format.

    A processor without tensor cores trains in mixed precision as well: it stores less.

    Raises
    ------
    InputError
        Naming what the machine lacks.
    """
    formats, device = PRECISIONS[precision], machine.device
    if not formats.rates:
        return
    if machine.compute:
        if not any(key.endswith(f" {formats.work}") for key in machine.compute):
            raise InputError(f"machine {machine.name} was not calibrated in {precision}, and its "
                             f"measured times say nothing of it; use --precision fp32, or a "
                             "machine by its data sheet, as in --machine dgx-a100")
    elif device.rate_of(formats.rates) or (device.multiprocessors and precision == "amp"):
        return
    elif device.multiprocessors:
        raise InputError(f"{device.name or machine.name} has no tensor cores for {precision}; use "
                         "--precision fp32 or amp, or a machine that has them, as in --machine "
                         "dgx-a100")
    else:
        raise InputError(f"machine {machine.name} has one rate, in float32, which does not price "
                         f"{precision}; use --precision fp32, a machine by its data sheet, as in "
                         f"--machine dgx-a100, or state the rate of {formats.rates[0]} in its "
                         "[device.rates]")
