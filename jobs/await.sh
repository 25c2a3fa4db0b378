# shellcheck shell=bash
# Requests to stop a batch job. Batch systems send them to the ranks, to this shell, or to both:
# this shell passes them on, and ends after the ranks have saved their work.
asked='' # the signals so far

ask() { # ask SIGNAL
  asked+=" $1"
  echo "job: SIG$1: asking the ranks to stop" >&2
  # every launcher forwards a USR1; after a TERM, srun kills the ranks
  # shellcheck disable=SC2046
  kill -USR1 $(jobs -p) 2>/dev/null || true
}
trap 'ask USR1' USR1
trap 'ask TERM' TERM
trap 'ask INT' INT

await() { # await LAUNCHER...: runs it to its end; returns its status, 75 if it stopped on request
  local status=75 before
  [ -z "$asked" ] || return "$status"
  "$@" &
  [ -z "$asked" ] || kill -USR1 $! # it came just before
  while before=$asked status=0; wait $! || status=$?; [ "$asked" != "$before" ]; do
    : # a signal ended the wait, not the launcher
  done
  # before they can handle it, a request kills ranks or launcher
  case $status in 0 | 1 | 2) ;; *) [ -z "$asked" ] || status=75 ;; esac
  return "$status"
}
