"""hpcpar: plan, predict, run and compare parallel training of convolutional networks."""

from __future__ import annotations

import importlib

from hpcpar.version import __version__ as __version__

#: As in `hpcpar.process.signals`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpcpar.api.compare import compare
    from hpcpar.api.plan import plan
    from hpcpar.api.predict import predict
    from hpcpar.api.proposal import proposal
    from hpcpar.api.simulate import simulate
    from hpcpar.api.sources import load_network
    from hpcpar.api.sweep import sweep
    from hpcpar.errors import InputError, RunError
    from hpcpar.machine.files import load as load_machine
    from hpcpar.machine.files import presets as machines
    from hpcpar.network.builtin import names as networks
    from hpcpar.plan.plan import load as load_plan
    from hpcpar.train.record_file import load_record

__all__ = ["InputError", "RunError", "compare", "load_machine", "load_network", "load_plan",
           "load_record", "machines", "networks", "plan", "predict", "proposal", "simulate",
           "sweep"]
#: Where a name is defined, unless ``hpcpar.api`` has a module of that name.
_DEFINED = {"InputError": "errors.InputError", "RunError": "errors.RunError",
            "load_machine": "machine.files.load", "load_network": "api.sources.load_network",
            "load_plan": "plan.plan.load",
            "load_record": "train.record_file.load_record",
            "machines": "machine.files.presets", "networks": "network.builtin.names"}

# Python binds a package's name at its first import, which would hide two functions later on: import
# both packages now, and drop their names.
for _package in ("plan", "sweep"):
    importlib.import_module(f"hpcpar.{_package}")
    del globals()[_package]


def __getattr__(name: str) -> object:
    """Loads a function of the interface at its first use, so that importing hpcpar stays fast."""
    if name == "network":  # for `hpcpar.network.from_torch`
        return importlib.import_module("hpcpar.network")
    if name not in __all__:
        raise AttributeError(f"module 'hpcpar' has no attribute '{name}'")
    module, _, attribute = _DEFINED.get(name, f"api.{name}.{name}").rpartition(".")
    globals()[name] = getattr(importlib.import_module(f"hpcpar.{module}"), attribute)
    return globals()[name]


def __dir__() -> list[str]:
    """Names for completion, the interface included."""
    return sorted({*globals(), *__all__})
