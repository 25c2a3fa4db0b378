"""Colours of the phases, the same in every picture."""

from __future__ import annotations

from hpcpar.schedule.steps import Phase

#: Colour-blind safe (Okabe and Ito), one a phase.
COLOURS = dict(zip((phase.value for phase in Phase), ("#0072B2", "#CC79A7", "#009E73", "#E69F00", "#56B4E9"), strict=True))
