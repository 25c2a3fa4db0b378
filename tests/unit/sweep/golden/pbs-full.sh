#!/bin/bash
# Written by hpcpar sweep.
#PBS -N hpcpar-p8
#PBS -j oe
#PBS -o '/scratch/my sweep/jobs/p8.log'
#PBS -A m1234
#PBS -q gpu
#PBS -l walltime=00:30:00
#PBS -l select=2:ncpus=64:mpiprocs=4:ngpus=4:a100
#PBS -l place=scatter
#PBS -x
#PBS --comment='a b'
set -euo pipefail

cd /home/me/project
export PATH=/venv/bin:$PATH
module load cray-python
module load cudatoolkit/12
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

run '/scratch/my sweep/cases/data-p8-b64' mpiexec -n 8 -ppn 4 --distribution=block
run '/scratch/my sweep/cases/grid_2x4-p8-b64' mpiexec -n 8 -ppn 4 --distribution=block
