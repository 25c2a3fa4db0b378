"""PBS Pro, OpenPBS and Torque: https://help.altair.com/2024.1.0/PBS%20Professional/PBSUserGuide."""

from hpcpar.sweep.schedulers.base import Question, Scheduler

_UNKNOWN = "Unknown Job|has finished|^$"


class Pbs(Scheduler):
    """PBS Pro shows finished jobs with -x, which Torque does not know."""

    name, title, directive = "pbs", "PBS", "#PBS"
    options = ("-N {name}", "-j oe", "-o {log}", "-A {account}", "-q {queue}",
               "-l walltime={time}",
               "-l select={chunks}:ncpus={chunk_cpus}:mpiprocs={chunk_ranks}<:ngpus={chunk_gpus}>"
               "<:{constraint}>", "-l place=scatter")
    submit = "qsub {script}"
    number = r"^(\d[\w.\[\]-]*)\s*$"
    questions = (
        Question("qstat -x -f {job}", r"job_state = (\w)", f"{_UNKNOWN}|option"),
        Question("qstat -f {job}", r"job_state = (\w)", _UNKNOWN),
    )
    ended = "[CFX]"
    cancel = "qdel"
