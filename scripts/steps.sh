# Sourced by gpu.sh and evidence.sh, which measure in steps and keep each result in a file of $out.
#
#   read_steps LAST OPTION...                reads --step, --dry-run, --try and --help
#   take STEP MINUTES FILE COMMAND...        runs a command that writes FILE, unless the file is there

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

only='' dry='' try='' small=() failed=0

read_steps() {
  local last=$1
  shift
  while (($#)); do
    case $1 in
      --step)
        only=${2-}
        [[ $only =~ ^[1-$last]$ ]] || { say "--step '$only': expected 1 to $last"; exit 2; }
        shift
        ;;
      --dry-run) dry=yes ;;
      --try)
        try=yes out=build/$(basename "$0" .sh)-try
        small=(--model near-free --rounds 1 --seconds 1 --warm-up 1 --clients 4)
        ;;
      *) say "no option '$1'; $0 --help lists them" && exit 2 ;;
    esac
    shift
  done
  PATH=$VENV/bin:$PATH
  [ -z "$dry" ] || return 0
  ensure_venv serve,bench,dev
  ensure_java
  mkdir -p "$out"
}

take() {
  local step=$1 minutes=$2 file=$3 code=0
  shift 3
  [ -z "$only" ] || [ "$only" = "$step" ] || return 0
  [ ! -e "$out/$file" ] || { say "step $step: $out/$file is there"; return 0; }
  say "step $step: $file, at most $minutes minutes: $(printf '%q ' "$@")"
  [ -z "$dry" ] || return 0
  rm -rf "$out/partial-$file"
  "${@//FILE/$out/partial-$file}" || code=$?
  # 1 leaves a result too, which names what failed. Anything else was no measurement.
  ((code < 2)) || { say "step $step ended with $code; the same command continues here"; exit "$code"; }
  ((failed |= code)) || true
  [ ! -e "$out/partial-$file" ] || mv "$out/partial-$file" "$out/$file"
}

# Prints all results but the partial ones as Markdown.
print_tables() {
  local file
  for file in "$out"/[!p]*.json; do
    [ ! -e "$file" ] || { printf '# %s\n\n' "$(basename "$file")" && offpath bench show --markdown "$file"; }
  done
}
