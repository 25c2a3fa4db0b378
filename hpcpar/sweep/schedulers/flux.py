"""Flux: https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man1/flux-batch.html."""

from hpcpar.sweep.schedulers.base import Question, Scheduler


class Flux(Scheduler):
    """A batch job is an instance of Flux of its own, which starts the ranks."""

    name, title, directive = "flux", "Flux", "#flux:"
    options = ("--job-name={name}", "--output={log}", "--bank={account}", "--queue={queue}",
               "--time-limit={seconds}s", "--requires={constraint}",
               "<--nodes={nodes}> --nslots={ranks}", "--cores-per-slot={cpus}",
               "--gpus-per-slot={gpus}")
    submit = "flux batch {script}"
    number = r"^(\w+)\s*$"
    questions = (Question("flux jobs --no-header --format={status} {job}", r"^([A-Z]+)\s*$",
                          "unknown|not found"),)
    ended = "COMPLETED|FAILED|CANCELED|TIMEOUT"
    cancel = "flux cancel"
    launch = (("*", "flux run -o pmi={mpi} <--nodes={nodes}> --ntasks={ranks} "
                    "<--cores-per-task={cpus}> <--gpus-per-task={gpus}>"),)
    mpi = ("simple", "pmix")
