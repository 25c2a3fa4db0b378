# shellcheck shell=bash disable=SC2154
# Calibrates, plans and trains in a batch job; a job that comes back goes on from its checkpoint.
# The batch scripts of this folder source it. They set launch (what starts the ranks), ranks, data,
# network, device, epochs, and again, which submits the job again; a limit stops the run in time.
source jobs/await.sh

train() {
  [ -e machine.toml ] || # measures the links and this network's layers on these very nodes
    await "${launch[@]}" hpcpar calibrate "${network[@]}" --device "$device" -o machine.toml || return
  [ -e plan.json ] ||
    hpcpar plan "${network[@]}" --ranks "$ranks" --machine machine.toml -o plan.json || return
  local more=()
  [ ! -e weights.h5 ] || more+=(--resume weights.h5)
  [ -z "${limit:-}" ] || more+=(--time-limit "$limit")
  await "${launch[@]}" hpcpar run --plan plan.json --data "$data" --device "$device" \
    --epochs "$epochs" --out run.h5 --checkpoint weights.h5 --checkpoint-every 10min "${more[@]}"
}

status=0
train || status=$?
if [ "$status" = 75 ] && [ -e weights.h5 ]; then # it stopped in good order before its end
  case $asked in
    *TERM* | *INT*) ;; # who canceled the job does not want it back
    *) again ;;
  esac
fi
[ "$status" = 0 ] || exit "$status"
hpcpar compare run.h5 --plot compare.png
