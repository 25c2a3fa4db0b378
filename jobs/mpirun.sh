#!/usr/bin/env bash
# Trains with plain mpiexec or mpirun: bash mpirun.sh RANKS PLAN DATA [HOSTFILE]
# Several hosts need a shared file system with this checkout, and ssh without a password.
# For scaling studies over many sizes and strategies, see hpcpar sweep --launcher local.
set -euo pipefail
ranks=${1:?usage: mpirun.sh RANKS PLAN DATA [HOSTFILE]}
plan=${2:?a plan file}
data=${3:?a data file}
hosts=${4:-}
# jobs/setup-venv.sh makes this environment
source "$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/activate"

# MPICH takes -f, Open MPI --hostfile (and, as root, --allow-run-as-root)
launcher=(mpiexec -n "$ranks")
if [ -n "$hosts" ]; then
  if mpiexec --version 2>&1 | grep -q 'Open MPI'; then
    launcher+=(--hostfile "$hosts")
  else
    launcher+=(-f "$hosts")
  fi
fi

"${launcher[@]}" hpcpar run --plan "$plan" --data "$data" --epochs 1 \
  --out run.h5 --checkpoint weights.h5 --overwrite
hpcpar compare run.h5
