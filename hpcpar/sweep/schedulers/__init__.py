"""Batch systems: one file and one entry each, `hpcpar.sweep.schedulers.base`."""

from hpcpar.errors import require_free
from hpcpar.sweep.schedulers.base import Scheduler
from hpcpar.sweep.schedulers.flux import Flux
from hpcpar.sweep.schedulers.lsf import Lsf
from hpcpar.sweep.schedulers.pbs import Pbs
from hpcpar.sweep.schedulers.sge import GridEngine
from hpcpar.sweep.schedulers.slurm import Slurm

#: Name -> entry; None: no batch system, cases run on this machine.
SCHEDULERS: dict[str, Scheduler | None] = {
    "local": None, **{made.name: made() for made in (Slurm, Pbs, Lsf, Flux, GridEngine)}}


def scheduler(made: type[Scheduler]) -> type[Scheduler]:
    """Makes a batch system known to --launcher.

    Raises
    ------
    InputError
        Another module has one of this name.
    """
    owner = type(SCHEDULERS[made.name]).__module__ if made.name in SCHEDULERS else None
    require_free("scheduler", made.name, owner, made.__module__)
    SCHEDULERS[made.name] = made()
    return made
