#!/usr/bin/env bash
# Every test, from nothing: makes .venv, then style, types, the MPI tests on one rank and those of a GPU side by side; then unit tests,
# kernels beside the fuzzer, whole jobs, and the MPI tests on 2 to 8 ranks.
#   HPCPAR_EXTRAS= bash tests/run.sh   leaves out what needs PyTorch and the CUDA compiler: they are large
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extras=${HPCPAR_EXTRAS-torch,cuda-check}
printf 'every test: about 20 minutes on 2 cores%s\n' "${extras:+, with $extras}"
bash jobs/setup-venv.sh "mpi,plot,digits,images,test${extras:+,$extras}" || exit 1
export PATH="$PWD/.venv/bin:$PATH" OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # sources are compiled once, not in each of some hundred processes
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
summary=() waiting=() failed=0
counts='^(=+ )?[0-9]+ (passed|failed|skipped|errors?|deselected|warnings?)' # how pytest's last line begins

run() { # run NAME SECONDS COMMAND...: its output into a log for counting; its status and seconds into another file
  local log=$logs/${1// /-}.log begin=$SECONDS status
  timeout --kill-after=10 "$2" "${@:3}" >"$log" 2>&1
  status=$?
  [ "$status" = 124 ] && printf '%s: stopped after %s s\n' "$1" "$2" >>"$log"
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

part() { # part NAME SECONDS COMMAND...: runs it, shows its output as it comes, and goes on whatever happens
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

beside() { # beside NAME SECONDS COMMAND...: runs it while others run; `together` waits for all of them, and shows one after the other
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

mpi() { # mpi RANKS: the command; plugins that these tests do not use would be loaded by every rank
  command=(mpiexec -n "$1" python -m pytest tests/mpi -p no:hypothesispytest -p no:xdist)
}

# what uses one core each
beside "style" 60 python -m ruff check hpcpar kernels tests bench
beside "types" 180 python -m mypy
mpi 1
beside "mpi 1 ranks" 120 "${command[@]}"
beside "gpu tests" 120 python -m pytest tests/gpu -rs
together
workers="-n auto --maxprocesses 4 --dist worksteal"
recorded=tests/unit/test_recorded_predictions.py
part "unit tests" 420 python -m pytest tests/unit $workers --ignore $recorded
# the fuzzer has one process
beside "fuzz" 300 python -m pytest tests/fuzz -p no:hypothesispytest -p no:xdist
part "recorded" 120 python -m pytest $recorded $workers
part "kernels" 120 python -m pytest tests/kernels $workers
together
# most jobs wait for one process; a file keeps to a worker, as its tests share what they have trained
part "whole jobs" 420 python -m pytest tests/jobs -n 2 --dist loadfile
for ranks in 2 3 4 6 8; do
  mpi $ranks
  part "mpi $ranks ranks" 240 "${command[@]}"
done

count() { cat "$logs"/*.log | grep -E "$counts" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }
printf '\n'
printf '%s\n' "${summary[@]}"
printf '%-14s %4s s\n' "in all" "$SECONDS"
printf '%s passed, %s failed, %s skipped\n' "$(count passed)" "$(($(count failed) + $(count error)))" "$(count skipped)"
exit $failed
