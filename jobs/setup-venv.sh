#!/usr/bin/env bash
# Makes .venv in the checkout and installs hpcpar into it with the named extras:
#   bash jobs/setup-venv.sh mpi,plot,digits
# It does nothing where that is already done. HPCPAR_PYTHON chooses the Python (3.10 or newer).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extras=${1:-mpi,plot,digits}

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }

find_python() {
  local name
  for name in ${HPCPAR_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  return 1
}

python=.venv/bin/python
if ! $python -c 'import pip' 2>/dev/null; then
  base=$(find_python) ||
    die "no Python 3.10 or newer under the name ${HPCPAR_PYTHON:-python3};" \
      "install python3, or name one: HPCPAR_PYTHON=/path/to/python3"
  say "setup: making .venv with $base"
  rm -rf .venv
  if ! "$base" -m venv .venv 2>/dev/null; then
    # Debian's python3 comes without ensurepip: the pip outside can install pip inside
    rm -rf .venv
    debian="on Debian and Ubuntu: apt install python3-venv"
    "$base" -m venv --without-pip .venv || die "cannot make a virtual environment; $debian"
    if ! "$base" -m pip --python $python install --quiet pip 2>/dev/null; then
      rm -rf .venv
      die "this Python has neither venv's pip nor pip; $debian"
    fi
  fi
fi

# the installation depends on the metadata, the extras, the Python and the folder
request="$extras $($python --version) $PWD"
stamp=$(cat setup.cfg pyproject.toml <(printf '%s' "$request") | sha256sum | cut -d' ' -f1)
mark=.venv/hpcpar-$(printf '%s' "$extras" | tr ',' '-')
if [ "$(cat "$mark" 2>/dev/null)" = "$stamp" ]; then
  exit 0
fi
say "setup: installing hpcpar[$extras] into .venv (a minute or two the first time)"
log=.venv/pip.log
if ! $python -m pip install --disable-pip-version-check --progress-bar off -e ".[$extras]" 2>&1 |
  tee "$log" |
  { grep --line-buffered -oE '^ *(Downloading|Building|Installing) [^ ]+.*' >&2 || true; }; then
  tail -n 15 "$log" >&2
  if grep -qiE 'connection|resolve host|timed out|unreachable|from versions: none' "$log"; then
    die "pip could not get a package: no network (check it, or PIP_INDEX_URL)," \
      "or no release for $($python --version) (whole log: $PWD/$log)"
  fi
  die "pip failed, see above (whole log: $PWD/$log)"
fi
printf '%s' "$stamp" >"$mark"
