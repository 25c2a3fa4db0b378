#!/usr/bin/env bash
# Trains with plain mpiexec: bash mpirun.sh RANKS PLAN DATA [HOSTFILE]
# Several hosts need a shared file system with this checkout, and ssh without a password.
# For scaling studies over many sizes and strategies, see hpcpar sweep --launcher local.
set -euo pipefail
launch=(mpiexec -n "${1:?usage: mpirun.sh RANKS PLAN DATA [HOSTFILE]}")
# jobs/setup-venv.sh makes this environment
source "$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/activate"
if [ -n "${4:-}" ]; then # MPICH takes -f, Open MPI --hostfile
  mpiexec --version 2>&1 | grep -q 'Open MPI' && launch+=(--hostfile "$4") || launch+=(-f "$4")
fi
source "$(dirname "${BASH_SOURCE[0]}")/await.sh"
await "${launch[@]}" hpcpar run --plan "${2:?a plan file}" --data "${3:?a data file}" --epochs 1 \
  --out run.h5 --checkpoint weights.h5 --overwrite
hpcpar compare run.h5
