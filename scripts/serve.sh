#!/usr/bin/env bash
# From nothing to an answered photograph: installs, builds the default model's archive, serves it.
#
#   scripts/serve.sh            serves until Ctrl-C or SIGTERM
#   scripts/serve.sh --once     stops after the sample prediction
#
# Every option of `offpath serve` may be given.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

STORE=.offpath/model-store
ARCHIVE=$STORE/classifier.mar

# The archive holds a copy of handler/: an older one would serve yesterday's code.
is_archive_current() {
  [ -f "$ARCHIVE" ] && [ -z "$(find handler archive -type f -newer "$ARCHIVE" \
    -not -path '*/__pycache__/*' -print -quit)" ]
}

ensure_venv serve
ensure_java
if ! is_archive_current; then
  say "building $ARCHIVE"
  "$VENV/bin/offpath" archive --output "$STORE" --force >&2
fi
exec "$VENV/bin/offpath" serve --model-store "$STORE" --sample "$@"
