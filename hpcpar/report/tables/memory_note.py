"""The line on a plan that does not fit in memory."""

from __future__ import annotations

from hpcpar.report.tables import amount, seconds
from hpcpar.search.memory_advice import MemoryAdvice


def memory_note(advice: MemoryAdvice, taken: bool = False) -> str:
    """The memory of a plan and of the device, and the cheapest way to fit; `taken` if it was."""
    chosen, remedy = advice.chosen, advice.remedy
    limit = amount(chosen.task.machine.device.memory_bytes)
    need = (f"{chosen.strategy} needs {amount(chosen.memory_bytes)} a rank, the machine has "
            f"{limit}")
    if remedy is not None:
        way = "taken" if taken else "cheapest"
        return (f"{need}; {way}: {advice.options} needs {amount(remedy.memory_bytes)} and takes "
                f"{seconds(remedy.iteration_s)} instead of {seconds(chosen.iteration_s)}")
    least = f"no plan was found to need less than {amount(advice.least_bytes or 0)}"
    if advice.ranks is None:
        return f"{need}; {least}, nor to fit on 16 times as many ranks; use a smaller batch"
    return f"{need}; {least}; {advice.ranks} ranks would do"
