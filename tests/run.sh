#!/usr/bin/env bash
# Makes .venv, then runs style, types and tests, whose output it shows part by part.
#   bash tests/run.sh                     a sample: some tests of every file, MPI on 1 to 4 ranks, one whole job
#   bash tests/run.sh --sixth             every test, with a sixth of the cases of each parametrized one
#   bash tests/run.sh --all               every case
#   bash tests/run.sh [--sixth] --seed 7  the sample or sixth of this seed; six seeds in a row draw every case of --sixth
#   HPCPAR_EXTRAS= bash tests/run.sh                    leaves out what needs PyTorch
#   HPCPAR_EXTRAS=oracle,cuda-check bash tests/run.sh   compiles CUDA sources and plans of cuDNN, too
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
draw=sample drawn='a sample' minutes=4 seed=$((RANDOM % 1000))
while [ $# -gt 0 ]; do
  case "$1 ${2-}" in
    "--sixth "*) draw=sixth drawn='a sixth of the cases' minutes=25 ;;
    "--all ") draw='' drawn='every case' minutes=120 seed='' ;;
    "--seed "[0-9]*) seed=$2 && shift ;;
    *) printf 'usage: bash tests/run.sh [--sixth | --all] [--seed NUMBER]\n' >&2; exit 2 ;;
  esac
  shift
done
drawn+=${seed:+ (--seed $seed)}
extras=${HPCPAR_EXTRAS-oracle}
if [ ! -d .venv ]; then
  with_torch=', and 0.2 GB for the CPU build of PyTorch (3 GB where pip knows only the CUDA build)'
  printf 'fetches about 0.2 GB%s; .venv takes up to 1.6 GB on disk\n' "${extras:+$with_torch}"
fi
bash jobs/setup-venv.sh "mpi,plot,digits,images,test${extras:+,$extras}" || exit 1
export PATH="$PWD/.venv/bin:$PATH" OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
# no verdict comes from the clock: a slow or busy machine makes tests slow, not red; a test that is stuck ends at a limit that scales
HPCPAR_TEST_SLOWNESS=$(python tests/speed.py) || exit 1
export HPCPAR_TEST_SEED=$seed HPCPAR_TEST_DRAW=$draw HPCPAR_TEST_SLOWNESS
minutes=$(python -c "print(round($minutes * $HPCPAR_TEST_SLOWNESS))")
printf '%s: about %s minutes on 2 quiet cores of this machine\n' "$drawn" "$minutes"
unset PYTHONDONTWRITEBYTECODE # sources are compiled once, not in each of some hundred processes
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
summary=() waiting=() failed=0
counts='^(=+ )?[0-9]+ (passed|failed|skipped|errors?|deselected|warnings?)' # how pytest's last line begins

run() { # run NAME COMMAND...: its output into a log for counting; its status and seconds into another file
  local log=$logs/${1// /-}.log begin=$SECONDS status
  "${@:2}" >"$log" 2>&1
  status=$?
  # a part that ended without counting its failures (style, types, a job that was ended) counts as one
  [ "$status" = 0 ] || grep -E "$counts" "$log" | grep -qE '[0-9]+ (failed|error)' || printf '\n1 failed\n' >>"$log"
  printf '%s %s\n' "$status" $((SECONDS - begin)) >"${log%.log}.end"
}

finish() { # finish NAME: a line of the summary
  local status=1 seconds=0
  read -r status seconds <"$logs/${1// /-}.end"
  [ "$status" = 0 ] || failed=1
  summary+=("$(printf '%-14s %4s s  %s' "$1" "$seconds" "$([ "$status" = 0 ] && echo ok || echo "FAILED (status $status)")")")
}

part() { # part NAME COMMAND...: runs it, shows its output as it comes, and goes on whatever happens
  printf '\n== %s\n' "$1"
  : >"$logs/${1// /-}.log"
  tail -n +1 -f "$logs/${1// /-}.log" &
  local shown=$!
  run "$@"
  sleep 0.5 # the last lines
  kill "$shown"
  wait "$shown" 2>/dev/null
  finish "$1"
}

beside() { # beside NAME COMMAND...: runs it while others run; `together` waits for all of them, and shows one after the other
  run "$@" &
  waiting+=("$1")
}

together() {
  local name
  wait
  for name in "${waiting[@]}"; do
    printf '\n== %s\n' "$name"
    cat "$logs/${name// /-}.log"
    finish "$name"
  done
  waiting=()
}

count() { cat "$logs"/*.log | grep -E "$counts" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }

total() { # the summary, and the status of all
  printf '\n'
  printf '%s\n' "${summary[@]}" "$drawn"
  printf '%-14s %4s s\n' "in all" "$SECONDS"
  printf '%s passed, %s failed, %s skipped\n' "$(count passed)" "$(($(count failed) + $(count error)))" "$(count skipped)"
  exit $failed
}

mpi() { # mpi RANKS: the command; plugins that these tests do not use would be loaded by every rank
  command=(mpiexec -n "$1" python -m pytest tests/mpi -p no:hypothesispytest -p no:xdist)
}

workers="-n auto --maxprocesses 4 --dist worksteal"
recorded=tests/unit/test_recorded_predictions.py
case $draw in
  sample) jobs='tests/jobs/test_training.py::test_digits_reach_97_percent' more_ranks='2 3 4' ;;
  *) jobs=tests/jobs more_ranks='2 3 4 6 8' ;;
esac
# what uses one core each
beside "style" python -m ruff check hpcpar kernels tests bench docs
beside "types" python -m mypy
mpi 1
beside "mpi 1 ranks" "${command[@]}"
beside "gpu tests" python -m pytest tests/gpu -rs
together
part "unit tests" python -m pytest tests/unit $workers --ignore $recorded
# the fuzzer has one process
beside "fuzz" python -m pytest tests/fuzz -p no:hypothesispytest -p no:xdist
part "recorded" python -m pytest $recorded $workers
part "kernels" python -m pytest tests/kernels $workers
together
# most jobs wait for one process; a file keeps to a worker, as its tests share what they have trained
part "whole jobs" python -m pytest $jobs -n 2 --dist loadfile
for ranks in $more_ranks; do
  mpi $ranks
  part "mpi $ranks ranks" "${command[@]}"
done

total
