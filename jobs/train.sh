# shellcheck shell=bash disable=SC2154
# Calibrates, plans and trains in a batch job; a job that comes back goes on from its checkpoint.
# The batch scripts of this folder source it. They set launch (what starts the ranks), ranks, data,
# network, device, epochs, and again, which submits the job again; a limit stops the run in time.
[ -e machine.toml ] || # measures the links and this network's layers on these very nodes
  "${launch[@]}" hpcpar calibrate "${network[@]}" --device "$device" -o machine.toml
[ -e plan.json ] ||
  hpcpar plan "${network[@]}" --ranks "$ranks" --machine machine.toml -o plan.json
more=()
[ ! -e weights.h5 ] || more+=(--resume weights.h5)
[ -z "${limit:-}" ] || more+=(--time-limit "$limit")
status=0
"${launch[@]}" hpcpar run --plan plan.json --data "$data" --device "$device" --epochs "$epochs" \
  --out run.h5 --checkpoint weights.h5 --checkpoint-every 10min "${more[@]}" || status=$?
[ "$status" != 75 ] || again # it stopped in good order before its end
[ "$status" = 0 ] || exit "$status"
hpcpar compare run.h5 --plot compare.png
