#!/bin/bash
# Written by hpcpar sweep.
#flux: --job-name=hpcpar-p8
#flux: '--output=/scratch/my sweep/jobs/p8.log'
#flux: --bank=m1234
#flux: --queue=gpu
#flux: --time-limit=1800s
#flux: --requires=a100
#flux: --nodes=2 --nslots=8
#flux: --cores-per-slot=16
#flux: --gpus-per-slot=1
#flux: -x
#flux: --comment='a b'
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

run '/scratch/my sweep/cases/data-p8-b64' flux run -o pmi=simple --nodes=2 --ntasks=8 --cores-per-task=16 --gpus-per-task=1 --distribution=block
run '/scratch/my sweep/cases/grid_2x4-p8-b64' flux run -o pmi=simple --nodes=2 --ntasks=8 --cores-per-task=16 --gpus-per-task=1 --distribution=block
