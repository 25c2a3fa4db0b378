#!/bin/bash
# hpcpar under Flux. Edit the marked lines and submit with: flux batch jobs/flux.sh
# hpcpar sweep fills in the parts between '# >>>' and '# <<<'.
# >>> job
#flux: --job-name=hpcpar
#flux: --nodes=2 --nslots=8         # edit: nodes; the plan's ranks
#flux: --cores-per-slot=4           # edit: each rank's BLAS uses these
#flux: --time-limit=1h              # edit
# with GPUs add --gpus-per-slot=1; where your site wants it --bank=project --queue=queue
#flux: --signal=USR1@2m             # before the limit: finish the iteration, save, stop
#flux: --output=hpcpar.{{id}}.log
# <<< job
set -euo pipefail

# >>> environment
# module load python                # edit: what your site needs
source .venv/bin/activate           # made by jobs/setup-venv.sh, on a shared file system
# <<< environment

# >>> work
# Open MPI: add -o pmi=pmix; with GPUs: --gpus-per-task=1
launch=(flux run --nodes=2 --ntasks=8 --cores-per-task=4)   # edit
trap : USR1                         # the signal is the ranks', not this script's
again() { flux --parent batch jobs/flux.sh; }
ranks=8                             # edit
network=(--network alexnet --batch 512) data=images.h5 device=cpu epochs=90   # edit
source jobs/train.sh
# <<< work
