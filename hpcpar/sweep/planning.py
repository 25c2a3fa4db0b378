"""Plans all cases before anything runs; cases with equal plans share one run."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.files import make_folder, write_text
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.report.tables import amount
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.sweep import folder
from hpcpar.sweep.folder import DONE, FAILED, PLANNED, RUNNING, SAME, SKIPPED, SUBMITTED, Status
from hpcpar.sweep.study import Case, Study, require_same


def prepare(study: Study, tell: Callable[[Case], None]) -> dict[Case, Status]:
    """Writes the missing plan, prediction and status of every case; tells before it plans one.

    Raises
    ------
    InputError
        An option is wrong, or a case was run with other options.
    """
    network = study.spec.build()
    states: dict[Case, Status] = {}
    for case in study.cases():
        path, request = study.folder(case), study.request(case)
        known = folder.read_status(path)
        if known is not None and known.state in (DONE, SUBMITTED, RUNNING):
            require_same(case, known.request, request, study.out)
        if known is None or known.request != request or known.state == SKIPPED:
            tell(case)
            _claim(path, known)
            known = _plan(study, network, case, path)
        states[case] = known
    return _share_runs(study, states)


def _claim(path: str, known: Status | None) -> None:
    """Makes a folder the folder of a case, before anything else is written into it."""
    make_folder(path)
    if known is None and any(not name.startswith(".") for name in os.listdir(path)):
        raise InputError(f"{path} has files, but no {folder.STATUS} of a sweep: they are not "
                         "replaced; move them, or choose another --out")
    folder.write_status(path, Status(SKIPPED, reason="its planning was interrupted"))


def _plan(study: Study, network: Network, case: Case, path: str) -> Status:
    found = _possible(study, network, case)
    if isinstance(found, str):
        status = Status(SKIPPED, reason=found, request=study.request(case))
    else:
        plans.save(found.plan, os.path.join(path, folder.PLAN))
        write_text(os.path.join(path, folder.PREDICTION),
                   json.dumps(found.prediction.to_json(), indent=1) + "\n", "prediction")
        status = Status(PLANNED, request=study.request(case))
    return folder.write_status(path, status)


def _possible(study: Study, network: Network, case: Case) -> Candidate | str:
    """The plan of a case, or why the case cannot be run at this size."""
    if case.batch > study.samples and not study.simulates(case):
        return f"a batch of {case.batch} is more than the {study.samples} samples of the data"
    options: dict[str, Any] = {**study.planning, "samples": study.epoch_samples}
    try:
        if case.strategy == "auto":
            found = auto.best(network, study.spec, case.ranks, case.batch, study.machine,
                              **options)[0]
        else:
            found = auto.price_named(network, study.spec, case.strategy, case.ranks, case.batch,
                                     study.machine, **options)
    except InputError as err:
        return str(err)
    p = found.prediction
    if not p.fits:
        return (f"needs {amount(p.memory_bytes)} per rank, the machine has "
                f"{amount(p.memory_limit_bytes)}")
    return found


def _share_runs(study: Study, states: dict[Case, Status]) -> dict[Case, Status]:
    """Lets one case of each group with equal plans run: a started one, or else the first.

    The strategy's name does not count.
    """
    groups: dict[str, list[Case]] = defaultdict(list)
    for case, status in states.items():
        if status.state != SKIPPED:
            plan = plans.load(os.path.join(study.folder(case), folder.PLAN))
            groups[json.dumps(plans.to_json(replace(plan, strategy="")))].append(case)
    for cases in groups.values():
        owner = next((c for c in cases if states[c].state in (DONE, SUBMITTED, RUNNING, FAILED)),
                     cases[0])
        for case in cases:
            known = states[case]
            if case is not owner and known.state in (PLANNED, SAME):
                status = Status(SAME, same_as=owner.name, request=known.request)
            elif known.state == SAME:
                status = Status(PLANNED, request=known.request)
            else:
                continue
            states[case] = folder.write_status(study.folder(case), status)
    return states
