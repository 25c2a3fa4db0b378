"""Batch scripts of a sweep: the directives of a batch system, then the runs of cases."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcpar.process import child
from hpcpar.process.launchers import usual_library
from hpcpar.report import tables
from hpcpar.report.tables.answer import plural
from hpcpar.sweep import folder
from hpcpar.sweep.batch_options import BatchOptions, seconds
from hpcpar.sweep.forms import quoted
from hpcpar.sweep.schedulers import Scheduler
from hpcpar.sweep.study import Case, Study

#: Time limit of a job: this multiple of the predicted time, and minutes for every case.
MARGIN, MARGIN_UNCALIBRATED, START_MINUTES = 3, 10, 5

#: Shell functions that wait for ranks, and pass requests to stop on to them.
AWAIT = str(Path(os.path.abspath(__file__)).parents[1] / "jobs" / "await.sh")
#: Runs one case and writes its exit status; a job that starts again does not run it again. A case
#: that a request to stop has ended leaves no status.
_RUN = f"""\
run() {{ # run CASE LAUNCHER...: a failed case does not stop the next one
  local case=$1 status=0
  shift
  [ ! -e "$case/{folder.EXIT}" ] || return 0
  await "$@" %s run --plan "$case/{folder.PLAN}" --out "$case/{folder.RECORD}" %s \\
    >"$case/{folder.LOG}" 2>&1 || status=$?
  [ -z "$asked" ] || [ "$status" = 0 ] || exit "$status"
  printf '%%s\\n' "$status" >"$case/{folder.EXIT}.tmp"
  mv "$case/{folder.EXIT}.tmp" "$case/{folder.EXIT}"
}}"""


@dataclass(frozen=True)
class BatchJob:
    """A batch job: the name of its script, and the cases that it runs one after the other."""

    name: str
    cases: tuple[Case, ...]

    @property
    def ranks(self) -> int:
        """Ranks of the largest case."""
        return max(case.ranks for case in self.cases)


def jobs(cases: Sequence[Case], one_allocation: bool) -> list[BatchJob]:
    """One job per number of ranks, or one for all cases."""
    if not cases:
        return []
    if one_allocation:
        return [BatchJob("all", tuple(cases))]
    sizes = dict.fromkeys(case.ranks for case in cases)
    return [BatchJob(f"p{ranks}", tuple(c for c in cases if c.ranks == ranks)) for ranks in sizes]


def run_options(study: Study) -> list[str]:
    """The options of ``hpcpar run`` that all cases share."""
    length = ["--steps", str(study.steps)] if study.steps else ["--epochs", str(study.epochs)]
    return ["--data", study.data, *length, *device_options(study), *layers_options(study)]


def layers_options(study: Study) -> list[str]:
    """The options that import modules of the user's own."""
    return [word for name in study.layers for word in ("--layers", name)]


def device_options(study: Study) -> list[str]:
    """The options that say what ranks compute on."""
    gpu = ["--transport", study.transport, "--math", study.math, "--graphs", study.graphs]
    return ["--device", study.device, "--kernels", study.kernels,
            *(gpu if study.device == "gpu" else ())]


def _limit_s(study: Study, asked: BatchOptions, job: BatchJob) -> int:
    """The time limit of a job (s): the given one, else the predicted time with a margin, in whole
    minutes; 0 without predictions.
    """
    if asked.time:
        return seconds(asked.time)
    minutes = 0.0
    for case in job.cases:
        prediction = folder.read_prediction(study.folder(case))
        if prediction is None:
            return 0
        steps = study.steps or study.epochs * (study.samples // case.batch)
        margin = MARGIN if study.machine.compute else MARGIN_UNCALIBRATED
        minutes += START_MINUTES + margin * steps * prediction.iteration_s / 60
    return 60 * math.ceil(minutes)


def cost(study: Study, asked: BatchOptions, planned: Iterable[BatchJob]) -> tuple[list[str], str]:
    """The cost of jobs that use their whole time limit: a line for each, and their sum."""
    lines, hours = [], []
    for job in planned:
        nodes, limit_s = study.nodes[str(job.ranks)], _limit_s(study, asked, job)
        hours.append(nodes * limit_s / 3600 if limit_s else math.inf)
        limit = "the site's time limit"
        if limit_s:
            limit = f"at most {tables.seconds(limit_s)}, {hours[-1]:.3g} node-hours"
        size = f"{plural(job.ranks, 'rank')} on {plural(nodes, 'node')}"
        lines.append(f"hpcpar-{job.name}: {size}, {limit}")
    known = f", at most {sum(hours):.3g} node-hours" if math.isfinite(sum(hours)) else ""
    return lines, plural(len(lines), "job") + known


def script(study: Study, system: Scheduler, asked: BatchOptions, job: BatchJob,
           directory: str) -> str:
    """The batch script of a job.

    Parameters
    ----------
    directory : str
        Working directory of the job.
    """
    asked = replace(asked, mpi=asked.mpi or system.mpi[usual_library() == "Open MPI"],
                    gpus_per_rank=asked.gpus_per_rank or int(study.device == "gpu"))
    limit_s = _limit_s(study, asked, job)
    time = f"{limit_s // 3600:02}:{limit_s // 60 % 60:02}:{limit_s % 60:02}" if limit_s else ""
    values = asked.values(job.ranks) | {
        "name": f"hpcpar-{job.name}", "log": study.job_log(job.name), "time": time,
        "minutes": math.ceil(limit_s / 60), "seconds": limit_s}
    run = _RUN % (quoted(child.command()), quoted(run_options(study)))
    lines = [" ".join((quoted(["run", study.folder(case)]),
                       system.launched(asked.values(case.ranks)), quoted(asked.launch))).rstrip()
             for case in job.cases]
    here = os.path.dirname(child.command()[0])
    modules = [quoted(["module", "load", module]) for module in asked.modules]
    # PBS and Grid Engine do not pass the environment on
    place = [quoted(["cd", directory]), f"export PATH={quoted([here])}:$PATH"]
    return "\n".join((
        "#!/bin/bash", "# Written by hpcpar sweep.", *system.directives(values),
        *(f"{system.directive} {line}" for line in asked.directives),
        "set -euo pipefail", "", *place, *modules, *system.setup, *asked.setup, "",
        f"source {quoted([AWAIT])}", run, "", *lines, ""))
