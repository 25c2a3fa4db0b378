"""Slurm: https://slurm.schedmd.com/sbatch.html."""

from hpcpar.sweep.schedulers.base import Question, Scheduler

SIZE = "<--nodes={nodes}> --ntasks={ranks} <--ntasks-per-node={node_ranks}>"


class Slurm(Scheduler):
    """The controller soon forgets finished jobs; not every site has accounting."""

    name, title, template, directive = "slurm", "Slurm", "slurm.sbatch", "#SBATCH"
    options = ("--job-name={name}", "--output={log}", "--open-mode=append", "--account={account}",
               "--partition={queue}", "--time={time}", "--constraint={constraint}", SIZE,
               "--cpus-per-task={cpus}", "--gpus-per-task={gpus}")
    submit = "sbatch --parsable {script}"
    questions = (
        Question("scontrol show job {job} --oneliner", r"\bJobState=(\w+)", "Invalid job id"),
        Question("sacct --noheader --parsable2 --allocations --jobs={job} --format=State",
                 r"^(\w+)", "disabled"),
    )
    ended = ("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|"
             "REVOKED|TIMEOUT")
    cancel = "scancel"
    launch = (("*", f"srun --mpi={{mpi}} {SIZE}"),)
    mpi = ("pmi2", "pmix")
    # ranks that see only their own GPU may not reach their neighbors' memory
    gpu_launch = "--cpu-bind=cores --gpu-bind=none"
