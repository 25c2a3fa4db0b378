#!/bin/bash
# Written by hpcpar sweep.
#$ -N hpcpar-p8
#$ -S /bin/bash
#$ -j y
#$ -o '/scratch/my sweep/jobs/p8.log'
#$ -pe mpi 8
set -euo pipefail

cd /home/me/project
export PATH=/venv/bin:$PATH

source await.sh
run() { # run CASE LAUNCHER...: a failed case does not stop the next one
  local case=$1 status=0
  shift
  [ ! -e "$case/exit" ] || return 0
  await "$@" /venv/bin/python child.py run --plan "$case/plan.json" --out "$case/run.h5" --data /data/digits.h5 --steps 30 --device cpu --kernels auto \
    >"$case/log" 2>&1 || status=$?
  [ -z "$asked" ] || [ "$status" = 0 ] || exit "$status"
  printf '%s\n' "$status" >"$case/exit.tmp"
  mv "$case/exit.tmp" "$case/exit"
}

run '/scratch/my sweep/cases/data-p8-b64' mpiexec -n 8
run '/scratch/my sweep/cases/grid_2x4-p8-b64' mpiexec -n 8
