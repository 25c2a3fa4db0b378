#!/usr/bin/env bash
# Every test, from nothing: makes .venv, then style, types, the MPI tests on one rank and those of a GPU side by side; then unit tests,
# kernels beside the fuzzer, whole jobs, and the MPI tests on 2 to 8 ranks.
#   bash tests/run.sh --quick     style, types, what plans and schedules rest on, and every MPI test on 2 ranks: 3 minutes
#   bash tests/run.sh             draws a third of the cases of each parametrized test, by a seed that it prints
#   bash tests/run.sh --seed 7    the third of that seed; three seeds in a row draw every case
#   bash tests/run.sh --all       every case
#   HPCPAR_EXTRAS= bash tests/run.sh                    leaves out what needs PyTorch
#   HPCPAR_EXTRAS=oracle,cuda-check bash tests/run.sh   compiles CUDA sources and plans of cuDNN, too
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
quick=''
case "$*" in
  "") seed=$((RANDOM % 1000)) minutes=12 ;;
  --quick) seed=$((RANDOM % 1000)) minutes=3 quick=yes ;;
  "--seed "[0-9]*) seed=$2 minutes=12 ;;
  --all) seed='' minutes=20 ;;
  *) printf 'usage: bash tests/run.sh [--quick | --all | --seed NUMBER]\n' >&2; exit 2 ;;
esac
extras=${HPCPAR_EXTRAS-oracle}
if [ ! -d .venv ]; then
  with_torch=', and 0.2 GB for the CPU build of PyTorch (3 GB where pip knows only the CUDA build)'
  printf 'fetches about 0.2 GB%s; .venv takes up to 1.6 GB on disk\n' "${extras:+$with_torch}"
fi
bash jobs/setup-venv.sh "mpi,plot,digits,images,test${extras:+,$extras}" || exit 1
export PATH="$PWD/.venv/bin:$PATH" OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
# no part has a limit of time: a slow or busy machine makes tests slow, not red; a single test that is stuck ends at a limit that scales
HPCPAR_TEST_SLOWNESS=$(python tests/speed.py) || exit 1
export HPCPAR_TEST_SEED=$seed HPCPAR_TEST_SLOWNESS
minutes=$(python -c "print(round($minutes * $HPCPAR_TEST_SLOWNESS))")
limit_s=$(python -c 'from tests.limits import LIMIT_S; print(round(LIMIT_S))')
drawn=${seed:+a third of the cases (--seed $seed)}
printf '%s: about %s minutes on 2 quiet cores of this machine\n' "${drawn:-every case}" "$minutes"
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
  printf '%s\n' "${summary[@]}"
  printf '%s\n' "${drawn:-every case}"
  printf '%-14s %4s s\n' "in all" "$SECONDS"
  printf '%s passed, %s failed, %s skipped\n' "$(count passed)" "$(($(count failed) + $(count error)))" "$(count skipped)"
  exit $failed
}

mpi() { # mpi RANKS [TESTS...]: the command; plugins that these tests do not use would be loaded by every rank
  command=(mpiexec -n "$1" python -m pytest -o timeout=$limit_s "${@:2}" -p no:hypothesispytest -p no:xdist)
}

workers="-n auto --maxprocesses 4 --dist worksteal"
recorded=tests/unit/test_recorded_predictions.py
# what uses one core each
beside "style" python -m ruff check hpcpar kernels tests bench docs
beside "types" python -m mypy
if [ "$quick" ]; then
  part "unit tests" python -m pytest -o timeout=$limit_s \
    tests/unit/{network,plan,schedule,runtime,cost,data,train} \
    tests/unit/test_{sentences,published_schemas,rooms,names}.py $workers
  together
  part "recorded" python -m pytest -o timeout=$limit_s $recorded $workers
  mpi 2 tests/mpi
  part "mpi 2 ranks" "${command[@]}"
  total
fi
mpi 1 tests/mpi
beside "mpi 1 ranks" "${command[@]}"
beside "gpu tests" python -m pytest -o timeout=$limit_s tests/gpu -rs
together
part "unit tests" python -m pytest -o timeout=$limit_s tests/unit $workers --ignore $recorded
# the fuzzer has one process
beside "fuzz" python -m pytest -o timeout=$limit_s tests/fuzz -p no:hypothesispytest -p no:xdist
part "recorded" python -m pytest -o timeout=$limit_s $recorded $workers
part "kernels" python -m pytest -o timeout=$limit_s tests/kernels $workers
together
# most jobs wait for one process; a file keeps to a worker, as its tests share what they have trained
part "whole jobs" python -m pytest -o timeout=$limit_s tests/jobs -n 2 --dist loadfile
for ranks in 2 3 4 6 8; do
  mpi $ranks tests/mpi
  part "mpi $ranks ranks" "${command[@]}"
done

total
