#!/bin/bash
# hpcpar under Grid Engine: edit, then submit with: qsub jobs/sge.sh
#$ -N hpcpar
#$ -S /bin/bash
#$ -j y
#$ -cwd
#$ -pe mpi 8
#$ -l h_rt=01:00:00
#$ -r y
# -pe: the site's parallel environment (qconf -spl) and slots, one per core
# some sites want -P project, -q queue
set -euo pipefail

# module load python                # what your site needs
source .venv/bin/activate           # made by jobs/setup-venv.sh, on a shared file system

launch=(mpiexec -n "$NSLOTS")       # fewer, where a rank has several cores
network=(--network alexnet --batch 512)
ranks=$NSLOTS limit=58min           # two minutes less than h_rt: then save and stop
data=images.h5 device=cpu epochs=90
again() { exit 99; }                # Grid Engine starts the job again
source jobs/train.sh
