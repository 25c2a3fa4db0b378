"""The note on a plan that does not fit in memory."""

from __future__ import annotations

from hpcpar.report.tables import amount, seconds
from hpcpar.search.memory_advice import MemoryAdvice


def memory_note(advice: MemoryAdvice, taken: bool = False) -> str:
    """The memory that a plan needs, and the cheapest way to fit; `taken` if the plan uses it."""
    chosen, remedy = advice.chosen, advice.remedy
    limit = amount(chosen.task.machine.device.memory_bytes)
    need = (f"{chosen.strategy} needs {amount(chosen.memory_bytes)} per rank, but the machine "
            f"has {limit}")
    if remedy is not None:
        way = "remedy used" if taken else "cheapest remedy"
        return (f"{need}; {way}: {advice.options} needs {amount(remedy.memory_bytes)} and takes "
                f"{seconds(remedy.iteration_s)} instead of {seconds(chosen.iteration_s)}")
    least = f"no plan found needs less than {amount(advice.least_bytes or 0)}"
    if advice.ranks is None:
        return f"{need}; {least} or fits on 16 times as many ranks; use a smaller batch"
    return f"{need}; {least}; {advice.ranks} ranks are enough"
