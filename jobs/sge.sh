#!/bin/bash
# hpcpar under Grid Engine. Edit the marked lines and submit with: qsub jobs/sge.sh
# hpcpar sweep fills in the parts between '# >>>' and '# <<<'.
# >>> job
#$ -N hpcpar
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -pe mpi 8
#$ -l h_rt=01:00:00,s_rt=00:58:00
#$ -r y
# edit these: parallel environment (qconf -spl) and slots, one a core; s_rt is the time when the run
# finishes its iteration, saves and stops; some sites want -P project, -q queue, -l gpu=1
# <<< job
set -euo pipefail

# >>> environment
# module load python                # edit: what your site needs
source .venv/bin/activate           # made by jobs/setup-venv.sh, on a shared file system
# <<< environment

# >>> work
launch=(mpiexec -n "$NSLOTS")       # edit where a rank has several cores
trap : USR1                         # the signal is the ranks', not this script's
again() { exit 99; }                # Grid Engine starts the job again
ranks=$NSLOTS                       # edit likewise
network=(--network alexnet --batch 512) data=images.h5 device=cpu epochs=90   # edit
source jobs/train.sh
# <<< work
