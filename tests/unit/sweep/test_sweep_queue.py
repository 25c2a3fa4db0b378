"""The state of jobs as read from the commands of batch systems, and the cases collected by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcpar.errors import InputError
from hpcpar.sweep import folder, queue, remote
from hpcpar.sweep.folder import FAILED, SUBMITTED, Status
from hpcpar.sweep.schedulers import SCHEDULERS, Scheduler
from hpcpar.sweep.study import Case
from tests.unit.sweep.test_sweep_scripts import STUDY

Answer = tuple[int, str, str]
INVALID: Answer = (1, "", "slurm_load_jobs error: Invalid job id specified")
DISABLED: Answer = (1, "", "Slurm accounting storage is disabled")
AWAY: Answer = (1, "", "slurm_load_jobs error: Unable to contact slurm controller")
SYSTEMS: dict[str, Scheduler] = {name: entry for name, entry in SCHEDULERS.items() if entry}
SLURM = SYSTEMS["slurm"]


class Site:
    """A batch system whose commands give the same answers until they are changed; a command without
    an answer does not exist.
    """

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers

    def __call__(self, words: Sequence[str], script: str = "") -> Answer:
        for beginning, answer in self.answers.items():
            if " ".join(words).startswith(beginning.replace("_", " ")):
                return answer
        raise InputError(f"no {words[0]} on this machine")


QSTAT = """job-ID  prior   name       user         state submit/start at     queue       slots
----------------------------------------------------------------------------------------
     17 0.50000 hpcpar-p1  me           r     11/27/2026 03:29:51 all.q@n1        1
      7 0.50000 hpcpar-p2  me           {}     11/27/2026 03:29:51                 2
"""
NO_SERVER: Answer = (255, "", "Connection refused\nqstat: cannot connect to server pbs (errno=111)")


@pytest.mark.parametrize(("name", "site", "state"), [
    ("slurm", Site(scontrol=(0, "JobId=7 JobName=x UserId=me(1) JobState=PENDING Reason=None", "")),
     "PENDING"),
    ("slurm", Site(scontrol=INVALID, sacct=(0, "CANCELLED by 1000\n", "")), "CANCELLED"),
    ("slurm", Site(scontrol=INVALID, sacct=(0, "OUT_OF_MEMORY\n", "")), "OUT_OF_MEMORY"),
    ("slurm", Site(scontrol=INVALID, sacct=DISABLED), queue.GONE),
    ("slurm", Site(scontrol=INVALID, sacct=(0, "", "")), queue.GONE),
    ("slurm", Site(scontrol=INVALID), queue.GONE),
    ("slurm", Site(scontrol=INVALID, sacct=(1, "", "sacct: error: Connection refused")), None),
    ("slurm", Site(scontrol=AWAY), None),
    ("pbs", Site(qstat_x=(0, "Job Id: 7.pbs\n    Job_Name = x\n    job_state = F\n", "")), "F"),
    ("pbs", Site(qstat_x=(153, "", "qstat: Unknown Job Id 7.pbs"),
                 qstat_f=(153, "", "qstat: Unknown Job Id 7.pbs")), queue.GONE),
    # Torque, and Slurm's commands of its kind
    ("pbs", Site(qstat_x=(2, "", "Unknown option: x"), qstat_f=(0, "\tjob_state = R\n", "")), "R"),
    ("pbs", Site(qstat_x=(2, "", "Unknown option: x"), qstat_f=(153, "", "")), queue.GONE),
    ("pbs", Site(qstat_x=NO_SERVER), None),
    ("lsf", Site(bjobs=(0, "PEND\n", "")), "PEND"),
    ("lsf", Site(bjobs=(255, "", "Job <7> is not found\n")), queue.GONE),
    ("lsf", Site(bjobs=(255, "", "LSF is down. Please wait ...")), None),
    ("flux", Site(flux=(0, "RUN\n", "")), "RUN"),
    ("flux", Site(flux=(1, "", "JobID 7 unknown\n")), queue.GONE),
    ("flux", Site(flux=(1, "", "flux-jobs: ERROR: Unable to connect to Flux")), None),
    ("sge", Site(qstat=(0, QSTAT.format("qw"), "")), "qw"),
    ("sge", Site(qstat=(0, "", ""), qacct=(0, "jobname x\nfailed       0    \n", "")), "0"),
    ("sge", Site(qstat=(0, "", ""), qacct=(0, "failed       25  : rescheduling\n"
                                              "failed       100 : assumedly after job\n", "")),
     "100 : assumedly after job"),
    ("sge", Site(qstat=(0, "", ""), qacct=(1, "", "error: job id 7 not found")), queue.GONE),
    ("sge", Site(qstat=(1, "", "error: unable to contact qmaster using port 6444")), None),
])
def test_the_state_of_a_job(name: str, site: Site, state: str | None,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    site.answers = {word.replace("qstat_", "qstat_-"): answer
                    for word, answer in site.answers.items()}
    monkeypatch.setattr(queue, "run", site)
    assert queue.states(SYSTEMS[name], ["7"]).get("7") == state


@pytest.mark.parametrize(("name", "over", "not_yet"), [
    ("slurm", "COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL OUT_OF_MEMORY",
     "PENDING RUNNING COMPLETING CONFIGURING SUSPENDED REQUEUED"),
    ("pbs", "F C X", "Q R H E W S T B"),
    ("lsf", "DONE EXIT", "PEND RUN PSUSP USUSP SSUSP UNKWN ZOMBI"),
    ("flux", "COMPLETED FAILED CANCELED TIMEOUT", "DEPEND PRIORITY SCHED RUN CLEANUP"),
    ("sge", "0 100 Eqw", "r qw hqw t dr s Rr"),
])
def test_only_ended_jobs_are_ended(name: str, over: str, not_yet: str) -> None:
    system = SYSTEMS[name]
    assert all(queue.ended(system, state) for state in (*over.split(), queue.GONE))
    assert not any(queue.ended(system, state) for state in (*not_yet.split(), ""))


@pytest.mark.parametrize(("name", "answer", "number"), [
    ("slurm", "41;cluster\n", "41"), ("pbs", "41.pbs-server.site\n", "41.pbs-server.site"),
    ("lsf", "Job <41> is submitted to queue <normal>.\n", "41"), ("flux", "ƒ2VdM33d\n", "ƒ2VdM33d"),
    ("sge", "41\n", "41")])
def test_the_number_of_a_job(name: str, answer: str, number: str,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answers(words: list[str], script: str = "") -> Answer:
        asked.append((words, script))
        return 0, answer, ""

    monkeypatch.setattr(queue, "run", answers)
    assert queue.submit(SYSTEMS[name], "/a b/p4.sh") == number
    ((words, script),) = asked
    assert script == "/a b/p4.sh" and (script in words) == (name != "lsf")


@pytest.mark.parametrize(("name", "answer", "why"), [
    ("slurm", (1, "", "sbatch: error: invalid partition specified: x"), "invalid partition"),
    ("pbs", (1, "", "qsub: Unknown queue"), "qsub: Unknown queue"),
    ("pbs", (1, "There was an error running the Slurm sbatch command.\n", ""), "There was an"),
    ("lsf", (255, "", "x: No such queue. Job not submitted."), "x: No such queue"),
    ("flux", (1, "", "flux-batch: ERROR: [Errno 22] Invalid queue"), "flux-batch: ERROR"),
    ("sge", (1, "", 'Unable to run job: job requests unknown queue "x"\nExiting.'), "Unable to"),
])
def test_a_job_that_is_refused(name: str, answer: Answer, why: str,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "run", lambda words, script="": answer)
    title = SYSTEMS[name].title
    with pytest.raises(InputError, match=rf"{title} does not take p4\.sh \({why}.*; look at"):
        queue.submit(SYSTEMS[name], "p4.sh")


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_batch_system_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    command = SYSTEMS[name].questions[0].command.split()[0]
    with pytest.raises(InputError, match=f"no {command} on this machine; use --launcher local"):
        queue.states(SYSTEMS[name], ["7"])


def test_a_case_fails_only_when_its_job_is_surely_over(tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while the batch system is silent, nor at the first look after the end: its last files may
    be late.
    """
    case, study = Case("data", 2, 64), replace(STUDY, out=str(tmp_path))
    path = Path(study.folder(case))
    path.mkdir(parents=True)
    (tmp_path / "jobs").mkdir()
    Path(study.job_log("p2")).write_text("module: no such module\n")
    states = {case: Status(SUBMITTED, launcher="slurm", job="7", log=study.job_log("p2"))}
    site = Site(scontrol=(1, "", "timed out"))
    monkeypatch.setattr(queue, "run", site)
    watch = remote.JobWatcher(study, SLURM, states)
    for _ in range(9):
        assert watch.poll() == ([], {})
    site.answers["scontrol"] = INVALID
    assert [watch.poll()[0] for _ in range(3)] == [[], [], [case]]
    assert (
        states[case].state == FAILED
        and "job 7 ended (gone) before this case did: module: no such module" in states[case].reason
    )
    assert folder.read_status(str(path)) == states[case] and not watch.open


def test_a_case_with_a_status_has_ended_whatever_the_batch_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, study = Case("data", 2, 64), replace(STUDY, out=str(tmp_path))
    path = Path(study.folder(case))
    path.mkdir(parents=True)
    (path / "exit").write_text("9\n")
    (path / "log").write_text("starting\nhpcpar: no room left\nsrun: error: task 0\n")
    states = {case: Status(SUBMITTED, launcher="slurm", job="7")}
    monkeypatch.setattr(queue, "run", Site(scontrol=(0, "JobState=RUNNING", "")))
    assert remote.JobWatcher(study, SLURM, states).poll()[0] == [case]
    assert states[case].reason == "exit status 9: no room left"


def test_jobs_of_another_batch_system_are_left_alone(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    case, study = Case("data", 2, 64), replace(STUDY, out=str(tmp_path))
    states = {case: Status(SUBMITTED, launcher="slurm", job="7")}
    monkeypatch.setattr(queue, "run", Site())
    watch = remote.JobWatcher(study, SYSTEMS["flux"], states)
    assert watch.poll() == ([], {}) and not watch.open and states[case].state == SUBMITTED
