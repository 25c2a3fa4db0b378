#!/usr/bin/env bash
# Quickstart: plans, predicts, runs and compares the training of LeNet-5 on handwritten digits.
# Results are in runs/quickstart. HPCPAR_RANKS sets the number of MPI ranks; the default is one per
# core, between 2 and 4.
#
# A prediction is as good as the calibration is fresh: where others use the machine, its speed changes
# within minutes. So calibration and training take turns, three times at most, until the prediction is
# right to 90%.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cores=$(nproc)
ranks=${HPCPAR_RANKS:-$((cores < 2 ? 2 : cores > 4 ? 4 : cores))}
out=runs/quickstart

bash jobs/setup-venv.sh mpi,plot,digits
export PATH="$PWD/.venv/bin:$PATH"
mkdir -p "$out"

run() {
  printf '\n$ %s\n' "$*" >&2
  "$@" || { printf 'quickstart: this command failed with status %s: %s\n' "$?" "$*" >&2; exit 1; }
}

# 64 samples a rank: an iteration takes some 20 ms or more, long enough to be predicted
lenet=(--network lenet5 --input 1x32x32 --batch $((64 * ranks)))

run hpcpar data digits $out/digits.h5 --size 32
for turn in 1 2 3; do
  run mpiexec -n "$ranks" hpcpar calibrate "${lenet[@]}" -o $out/machine.toml
  run hpcpar plan "${lenet[@]}" --ranks "$ranks" --machine $out/machine.toml --samples 1438 \
    -o $out/plan.json
  run mpiexec -n "$ranks" hpcpar run --plan $out/plan.json --data $out/digits.h5 \
    --epochs $((8 * ranks)) --rate 0.02 --decay 0.01 --schedule cosine --seed 3 \
    --out $out/run.h5 --checkpoint $out/weights.h5 --json >$out/run.json
  run hpcpar compare $out/run.h5 --plot $out/compare.png
  hpcpar compare $out/run.h5 --json >$out/compare.json
  if python jobs/quickstart_verdict.py $out "$turn"; then
    break
  fi
done
printf 'quickstart: see %s/compare.png\n' "$out" >&2
