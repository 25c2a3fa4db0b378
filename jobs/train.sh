# shellcheck shell=bash disable=SC2154
# Calibrates, plans and trains in a batch job. The batch scripts of this folder source it; they set
# launch (the words that start the ranks), ranks, network, data, device, epochs, and again, which
# submits the job again. A limit, where they set one, stops the run in time.

# measure the links and this network's layers on these very nodes, plan for them; a job that comes
# back goes on from its checkpoint
[ -e machine.toml ] ||
  "${launch[@]}" hpcpar calibrate "${network[@]}" --device "$device" -o machine.toml
[ -e plan.json ] ||
  hpcpar plan "${network[@]}" --ranks "$ranks" --machine machine.toml -o plan.json
more=()
[ ! -e weights.h5 ] || more+=(--resume weights.h5)
[ -z "${limit:-}" ] || more+=(--time-limit "$limit")
status=0
"${launch[@]}" hpcpar run --plan plan.json --data "$data" --device "$device" --epochs "$epochs" \
  --out run.h5 --checkpoint weights.h5 --checkpoint-every 10min "${more[@]}" || status=$?
if [ "$status" = 75 ]; then # stopped in good order before its end
  again
fi
[ "$status" = 0 ] || exit "$status"
hpcpar compare run.h5 --plot compare.png
