#!/bin/bash
# Written by hpcpar sweep.
#SBATCH --job-name=hpcpar-p8
#SBATCH '--output=/scratch/my sweep/jobs/p8.log'
#SBATCH --open-mode=append
#SBATCH --account=m1234
#SBATCH --partition=gpu
#SBATCH --time=00:30:00
#SBATCH --constraint=a100
#SBATCH --nodes=2 --ntasks=8 --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-task=1
#SBATCH -x
#SBATCH --comment='a b'
set -euo pipefail

cd /home/me/project
export PATH=/venv/bin:$PATH
module load cray-python
module load cudatoolkit/12
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export OPENBLAS_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export PMIX_MCA_psec=native
source /home/me/hpcpar/.venv/bin/activate

source await.sh
run() { # run CASE LAUNCHER...: a failed case does not stop the next one
  local case=$1 status=0
  shift
  [ ! -e "$case/exit" ] || return 0
  await "$@" /venv/bin/python child.py run --plan "$case/plan.json" --out "$case/run.h5" --data /data/digits.h5 --steps 30 --device gpu --kernels auto --transport direct --math fp32 --graphs off \
    >"$case/log" 2>&1 || status=$?
  [ -z "$asked" ] || [ "$status" = 0 ] || exit "$status"
  printf '%s\n' "$status" >"$case/exit.tmp"
  mv "$case/exit.tmp" "$case/exit"
}

run '/scratch/my sweep/cases/data-p8-b64' srun --mpi=pmi2 --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=cores --gpu-bind=none --distribution=block
run '/scratch/my sweep/cases/grid_2x4-p8-b64' srun --mpi=pmi2 --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=cores --gpu-bind=none --distribution=block
