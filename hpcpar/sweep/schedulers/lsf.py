"""LSF: https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub."""

from hpcpar.sweep.schedulers.base import Question, Scheduler


class Lsf(Scheduler):
    """bsub reads the script from its stdin."""

    name, title, directive = "lsf", "LSF", "#BSUB"
    options = ("-J {name}", "-o {log}", "-P {account}", "-q {queue}", "-W {minutes}",
               "-n {ranks}", "-R span[ptile={node_ranks}]", "-R affinity[core({cpus})]",
               "-R select[{constraint}]", "-gpu num={chunk_gpus}")
    submit = "bsub"
    number = r"Job <(\d+)>"
    questions = (
        Question("bjobs -noheader -o stat {job}", r"^([A-Z]+)\s*$", "is not found"),)
    ended = "DONE|EXIT"
    cancel = "bkill"
