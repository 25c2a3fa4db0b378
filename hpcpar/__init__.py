"""hpcpar: plan, predict, run and compare parallel training of convolutional networks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcpar.api.compare import compare
    from hpcpar.api.plan import plan
    from hpcpar.api.predict import predict
    from hpcpar.api.sources import (
        load_machine,
        load_network,
        load_plan,
        load_record,
        machines,
        networks,
    )
    from hpcpar.api.sweep import sweep
    from hpcpar.errors import InputError, RunError

__version__ = "0.1.0"
__all__ = ["InputError", "RunError", "compare", "load_machine", "load_network", "load_plan",
           "load_record", "machines", "networks", "plan", "predict", "sweep"]

#: Names that stand elsewhere than in the module of their own name in `hpcpar.api`.
_ELSEWHERE = dict.fromkeys(("load_machine", "load_network", "load_plan", "load_record", "machines",
                            "networks"), "hpcpar.api.sources")
_ELSEWHERE |= dict.fromkeys(("InputError", "RunError"), "hpcpar.errors")

# The functions `plan` and `sweep` have the names of packages. Python binds the name of a package
# when it first imports it: here, so that no later import hides the function.
for _package in ("plan", "sweep"):
    importlib.import_module(f"hpcpar.{_package}")
    del globals()[_package]


def __getattr__(name: str) -> object:
    """Loads a function of the interface when it is first used: importing hpcpar stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'hpcpar' has no attribute '{name}'")
    module = importlib.import_module(_ELSEWHERE.get(name, f"hpcpar.api.{name}"))
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    """The interface, for completion."""
    return sorted({*globals(), *__all__})
