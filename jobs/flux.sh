#!/bin/bash
# hpcpar under Flux: edit, then submit with: flux batch jobs/flux.sh
#flux: --job-name=hpcpar
#flux: --nodes=2 --nslots=8
#flux: --cores-per-slot=4
#flux: --time-limit=3600s
#flux: --output=hpcpar.{{id}}.log
# some sites want --bank=project, --queue=queue; with GPUs, a rank for each: --gpus-per-slot=1
set -euo pipefail

# module load python                # what your site needs
source .venv/bin/activate           # made by jobs/setup-venv.sh, on a shared file system

# Open MPI: -o pmi=pmix; with GPUs: --gpus-per-task=1
launch=(flux run -o pmi=simple --nodes=2 --ntasks=8 --cores-per-task=4)
network=(--network alexnet --batch 512)
ranks=8 limit=58min                 # two minutes less than the limit: then save and stop
data=images.h5 device=cpu epochs=90
again() { flux --parent batch jobs/flux.sh; }
source jobs/train.sh
