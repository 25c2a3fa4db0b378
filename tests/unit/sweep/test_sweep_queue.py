"""The state of jobs as read from Slurm's commands, and the cases collected by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpcpar.errors import InputError
from hpcpar.sweep import folder, queue, remote
from hpcpar.sweep.folder import FAILED, SUBMITTED, Status
from hpcpar.sweep.study import Case
from tests.unit.sweep.test_sweep_slurm import STUDY

Answer = tuple[int, str, str]
INVALID: Answer = (1, "", "slurm_load_jobs error: Invalid job id specified")
DISABLED: Answer = (1, "", "Slurm accounting storage is disabled")


class Site:
    """A Slurm that gives the same answers until they are changed."""

    def __init__(self, squeue: Answer = (0, "", ""), scontrol: Answer = INVALID,
                 sacct: Answer | None = DISABLED) -> None:
        self.answers = {"squeue": squeue, "scontrol": scontrol, "sacct": sacct}

    def __call__(self, command: Sequence[str]) -> Answer:
        answer = self.answers[command[0]]
        if answer is None:
            raise InputError(f"no {command[0]} on this machine")
        return answer


@pytest.mark.parametrize(
    ("site", "state"),
    [
        (Site(squeue=(0, "6 RUNNING\n7 PENDING\n17 RUNNING\n", "")), "PENDING"),
        (
            Site(squeue=(0, "17 RUNNING\n", ""),
                 scontrol=(0, "JobId=7 JobName=x UserId=me(1) JobState=TIMEOUT Reason=None", "")),
            "TIMEOUT",
        ),
        (Site(sacct=(0, "CANCELLED by 1000\n", "")), "CANCELLED"),
        (Site(sacct=(0, "OUT_OF_MEMORY\n", "")), "OUT_OF_MEMORY"), (Site(), queue.GONE),
        (Site(sacct=(0, "", "")), queue.GONE), (Site(sacct=None), queue.GONE),
        (Site(sacct=(1, "", "sacct: error: slurm_persist_conn_open: Connection refused")), None),
        (Site(squeue=(1, "", "slurm_load_jobs error: Unable to contact slurm controller")), None),
    ],
)
def test_the_state_of_a_job(site: Site, state: str | None,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "run", site)
    assert queue.states(["7"]).get("7") == state


def test_only_ended_jobs_are_ended() -> None:
    assert all(queue.ended(s) for s in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL",
                                        queue.GONE))
    assert not any(queue.ended(s) for s in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING",
                                            "SUSPENDED", "REQUEUED", ""))


def test_submission_returns_the_job_or_slurms_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "run", lambda command: (0, "41;cluster\n", ""))
    assert queue.submit("p4.sbatch") == "41"
    refused = "sbatch: error: invalid partition specified: x"
    monkeypatch.setattr(queue, "run", lambda command: (1, "", refused))
    with pytest.raises(InputError, match=r"does not take p4\.sbatch \(invalid partition"):
        queue.submit("p4.sbatch")


def test_missing_slurm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="no squeue on this machine; use --launcher local"):
        queue.states(["7"])


def test_a_case_fails_only_when_its_job_is_surely_over(tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while Slurm is silent, nor at the first look after the end: its last files may be late.
    """
    case, study = Case("data", 2, 64), replace(STUDY, out=str(tmp_path))
    path = Path(study.folder(case))
    path.mkdir(parents=True)
    (tmp_path / "slurm").mkdir()
    Path(study.job_log("7")).write_text("module: no such module\n")
    states = {case: Status(SUBMITTED, job="7")}
    site = Site(squeue=(1, "", "timed out"))
    monkeypatch.setattr(queue, "run", site)
    watch = remote.SlurmWatcher(study, states)
    for _ in range(9):
        assert watch.poll() == ([], {})
    site.answers["squeue"] = (0, "", "")
    assert [watch.poll()[0] for _ in range(3)] == [[], [], [case]]
    assert (
        states[case].state == FAILED
        and "job 7 ended (gone) before this case did: module: no such module" in states[case].reason
    )
    assert folder.read_status(str(path)) == states[case] and not watch.open


def test_a_case_with_a_status_has_ended_even_if_slurm_disagrees(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, study = Case("data", 2, 64), replace(STUDY, out=str(tmp_path))
    path = Path(study.folder(case))
    path.mkdir(parents=True)
    (path / "exit").write_text("9\n")
    (path / "log").write_text("starting\nhpcpar: no room left\nsrun: error: task 0\n")
    states = {case: Status(SUBMITTED, job="7")}
    monkeypatch.setattr(queue, "run", Site(squeue=(0, "7 RUNNING\n", "")))
    assert remote.SlurmWatcher(study, states).poll()[0] == [case]
    assert states[case].reason == "exit status 9: no room left"
