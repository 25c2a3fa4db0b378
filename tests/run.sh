#!/usr/bin/env bash
# Every test, from nothing: makes .venv, then style, types, unit tests, kernels, whole jobs, and the MPI tests on 1 to 8 ranks.
#   HPCPAR_EXTRAS=torch,cuda-check bash tests/run.sh   also compares with PyTorch and compiles the CUDA sources
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup-venv.sh "mpi,plot,digits,test${HPCPAR_EXTRAS:+,$HPCPAR_EXTRAS}" || exit 1
export PATH="$PWD/.venv/bin:$PATH" OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # sources are compiled once, not in each of some hundred processes
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
summary=() failed=0
counts='^(=+ )?[0-9]+ (passed|failed|skipped|errors?|deselected|warnings?)' # how pytest's last line begins

part() { # part NAME SECONDS COMMAND...: runs it, keeps its output for counting, and goes on whatever happens
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  printf '\n== %s\n' "$name"
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$logs/${name// /-}.log"
  status=${PIPESTATUS[0]}
  [ "$status" = 124 ] && printf '%s: stopped after %s s\n' "$name" "$limit"
  if [ "$status" != 0 ]; then
    failed=1
    # a part that ended without counting its failures (style, types, a job that was ended) counts as one
    grep -E "$counts" "$logs/${name// /-}.log" | grep -qE '[0-9]+ (failed|error)' ||
      printf '\n1 failed\n' >>"$logs/${name// /-}.log"
  fi
  summary+=("$(printf '%-14s %4s s  %s' "$name" $((SECONDS - begin)) "$([ "$status" = 0 ] && echo ok || echo "FAILED (status $status)")")")
}

part "style" 60 python -m ruff check hpcpar kernels tests bench
part "types" 180 python -m mypy
workers="-n auto --maxprocesses 4 --dist worksteal"
part "unit tests" 240 python -m pytest tests/unit $workers
part "kernels" 120 python -m pytest tests/kernels $workers
tools=(tests/jobs/test_{doctor,failures,refine,sweep,trace}.py)
part "whole jobs" 300 python -m pytest tests/jobs "${tools[@]/#/--ignore=}"
part "tools" 180 python -m pytest "${tools[@]}"
for ranks in 1 2 3 4 6 8; do
  # plugins that these tests do not use would be loaded by every rank
  part "mpi $ranks ranks" 240 mpiexec -n $ranks python -m pytest tests/mpi -p no:hypothesispytest -p no:xdist
done
part "gpu tests" 120 python -m pytest tests/gpu -rs

count() { cat "$logs"/*.log | grep -E "$counts" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }
printf '\n'
printf '%s\n' "${summary[@]}"
printf '%s passed, %s failed, %s skipped\n' "$(count passed)" "$(($(count failed) + $(count error)))" "$(count skipped)"
exit $failed
