# shellcheck shell=bash
# Sourced: functions that make Python environments and fetch packages.

# python_venv FOLDER: makes a Python environment in FOLDER unless one is there that works. The commands of an environment
# that was copied from elsewhere, or made for another Python, do not work in FOLDER.
python_venv() {
  local python=/usr/bin/python3 pip
  [[ -x $python ]] || python=python3
  pip=$("$1/bin/pip" --version 2>/dev/null) || true
  pip=${pip#* from }
  [[ ${pip%/lib/python3*} -ef $1 ]] || "$python" -m venv --clear "$1" >&2
}

# python_packages FOLDER ARGUMENT...: makes an environment in FOLDER, and runs pip install there with these arguments unless
# it has succeeded with them, and with the same text in files among them.
python_packages() {
  local folder=$1 wanted
  shift
  python_venv "$folder"
  wanted=$*$(cat -- "$@" 2>/dev/null || true)
  [[ ! -e $folder/complete || $(<"$folder/complete") != "$wanted" ]] || return 0
  rm -f "$folder/complete"
  "$folder/bin/pip" install --no-cache-dir "$@" >&2
  printf '%s\n' "$wanted" >"$folder/complete"
}

# fetch_once FOLDER COMMAND...: unless there is FOLDER, runs the command with a temporary folder as its last argument, and
# renames that folder, so that a broken download does not count as installed. The command may use .deps/venv.
fetch_once() {
  local folder=$1 part
  shift
  [[ ! -d $folder ]] || return 0
  mkdir -p "${folder%/*}"
  # A run that was killed has left its folder. No download takes a day.
  find "${folder%/*}" -maxdepth 1 -name "${folder##*/}.??????" -mmin +1440 -exec rm -rf {} +
  part=$(mktemp -d "$folder.XXXXXX")
  # shellcheck disable=SC2064  # the folder's name is known now
  trap "rm -rf '$part'" EXIT
  python_venv .deps/venv
  "$@" "$part"
  chmod 755 "$part"
  mv -T "$part" "$folder" || [[ -d $folder ]]  # another run has been faster
}
