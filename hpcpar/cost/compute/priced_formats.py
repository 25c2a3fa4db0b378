"""Which figures price a number format, and what a machine's figures cannot price."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.machine import catalog
from hpcpar.machine.model import Device, Machine
from hpcpar.plan.plan import Synchronization
from hpcpar.plan.precision import PRECISIONS, Precision


def device_for(device: Device, formats: Precision) -> Device:
    """The device that prices a format: the data sheet if the device has only a float32 rate."""
    if not device.sheet or not formats.rates or device.rate_of(formats.rates):
        return device
    return catalog.device(device.sheet)


def require_priced(machine: Machine, precision: str, synchronization: str,
                   planned_on: Machine | None = None) -> None:
    """Check that the machine can price matrix products in this format, and parameter servers.

    GPUs without tensor cores also train in mixed precision, to save memory.

    Parameters
    ----------
    planned_on : Machine, optional
        The plan's own machine, which decides where its parameter servers are.

    Raises
    ------
    InputError
        The machine lacks a figure for this format, or for the links between devices and hosts.
    """
    if synchronization == Synchronization.SERVER_HOST and machine.host is None and not (
            machine.on_hosts and (planned_on or machine).host is None):
        raise InputError(f"machine {machine.name} has no [host], which prices --synchronization "
                         "server-host; add it (hpcpar machines --new FILE shows how), write device "
                         '= "cpu" under [quality] if ranks compute on CPUs, or use server')
    formats = PRECISIONS[precision]
    if not formats.rates:
        return
    device = device_for(machine.device, formats)
    if machine.compute:
        if not any(key.endswith(f" {formats.work}") for key in machine.compute):
            raise InputError(f"machine {machine.name} was not calibrated in {precision}; use "
                             "--precision fp32, or a machine from a data sheet, as in --machine "
                             "dgx-a100")
    elif device.rate_of(formats.rates) or (device.multiprocessors and formats.mixed):
        return
    elif device.multiprocessors:
        raise InputError(f"{device.name or machine.name} has no tensor cores for {precision}; use "
                         "--precision fp32 or amp, or a machine that has them, as in --machine "
                         "dgx-a100")
    else:
        raise InputError(f"machine {machine.name} gives only a float32 rate, which cannot price "
                         f"{precision}; use --precision fp32, a machine from a data sheet, as in "
                         f"--machine dgx-a100, or add the rate of {formats.rates[0]} to its "
                         "[device.rates]")
