"""Grid Engine (Sun's and its successors): http://gridscheduler.sourceforge.net/htmlman."""

from hpcpar.sweep.schedulers.base import Question, Scheduler


class GridEngine(Scheduler):
    """The site names the parallel environment, which places slots, and counts GPUs in its way."""

    name, title, directive = "sge", "Grid Engine", "#$"
    options = ("-N {name}", "-S /bin/bash", "-j y", "-o {log}", "-P {account}", "-q {queue}",
               "-l h_rt={time}", "-l {constraint}", "-pe {pe} {cores}")
    submit = "qsub -terse {script}"
    questions = (
        Question("qstat", r"^ *{job} +\S+ +\S+ +\S+ +(\w+)", "$."),
        Question("qacct -j {job}", r"^failed +(\d+(?: *: *\S.*)?)", "not found|No such file"),
    )
    # a job in state E stays in the queue, and never starts
    ended = r"\d.*|\w*E\w*"
    cancel = "qdel"
