# shellcheck shell=bash
# Sourced: python_venv FOLDER makes a Python environment in FOLDER unless there is one.
python_venv() {
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  [[ -x $1/bin/pip && -x $1/bin/python ]] || "$python" -m venv --clear "$1" >&2
}
