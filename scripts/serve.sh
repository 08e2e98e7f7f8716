#!/usr/bin/env bash
# Installs everything, builds the default model's archive, serves it, and classifies a sample image.
#
#   scripts/serve.sh            serves until Ctrl-C or SIGTERM
#   scripts/serve.sh --once     stops after the sample prediction
#
# Uses the front door if /dev/shm has room for its bodies (a container's 64 MB are too little).
# --no-front serves without it. You can pass every option of `offpath serve` (see its --help).

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

STORE=.offpath/model-store
ARCHIVE=$STORE/classifier.mar

# The archive contains a copy of handler/, so an older archive would serve yesterday's code.
is_archive_current() {
  [ -f "$ARCHIVE" ] && [ -z "$(find handler archive -type f -newer "$ARCHIVE" \
    -not -path '*/__pycache__/*' -print -quit)" ]
}

# 16 bodies of the largest size (serving/front/bodies.py).
SHM_MB=512

has_room_for_bodies() {
  [ "$(df --output=avail -m /dev/shm 2>/dev/null | tail -1)" -ge "$SHM_MB" ] 2>/dev/null
}

ensure_venv serve,front,granian
ensure_java
if ! is_archive_current; then
  say "building $ARCHIVE"
  "$VENV/bin/offpath" archive --output "$STORE" --force >&2
fi
front=(--front)
if ! has_room_for_bodies; then
  say "less than $SHM_MB MB free in /dev/shm: serving without the front door (docs/front-door.md)"
  front=()
fi
# A second server on another port needs another port for /metrics too: two above, as by default.
port=8080
for ((i = 1; i <= $#; i++)); do
  case ${!i} in
    --port) next=$((i + 1)) port=${!next-} ;;
    --port=*) port=${!i#*=} ;;
  esac
done
metrics=()
case $port in
  0) metrics=(--metrics-port 0) ;;
  8080 | *[!0-9]* | "") ;;
  *) metrics=(--metrics-port $((port + 2))) ;;
esac
exec "$VENV/bin/offpath" serve --model-store "$STORE" --sample "${front[@]}" "${metrics[@]}" "$@"
