"""Slurm: https://slurm.schedmd.com/sbatch.html."""

from hpcpar.sweep.schedulers.base import Question, Scheduler

SIZE = "<--nodes={nodes}> --ntasks={ranks} <--ntasks-per-node={node_ranks}>"


class Slurm(Scheduler):
    """The controller soon forgets finished jobs; not every site has accounting."""

    name, title, directive = "slurm", "Slurm", "#SBATCH"
    options = ("--job-name={name}", "--output={log}", "--open-mode=append", "--account={account}",
               "--partition={queue}", "--time={time}", "--constraint={constraint}", SIZE,
               "--cpus-per-task={cpus}", "--gpus-per-task={gpus}")
    setup = (
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        "export OPENBLAS_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        # since Slurm 22.05 srun does not inherit it from the job
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        # Open MPI needs a security plugin that Slurm's PMIx has, too
        "export PMIX_MCA_psec=native",
    )
    submit = "sbatch --parsable {script}"
    questions = (
        Question("scontrol show job {job} --oneliner", r"\bJobState=(\w+)", "Invalid job id"),
        Question("sacct --noheader --parsable2 --allocations --jobs={job} --format=State",
                 r"^(\w+)", "disabled"),
    )
    ended = ("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|"
             "REVOKED|TIMEOUT")
    cancel = "scancel"
    launch = (("*", f"srun --mpi={{mpi}} --kill-on-bad-exit=1 {SIZE}"),)
    mpi = ("pmi2", "pmix")
    # ranks that see only their own GPU may not reach their neighbors' memory
    gpu_launch = "--cpu-bind=cores --gpu-bind=none"
