#!/usr/bin/env bash
# Runs one archive on TorchServe, Granian, Ray Serve and Triton, and compares the answers.
#
#   examples/leaving-torchserve/run.sh [FILE.mar]       by default the bundled model

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/bootstrap.sh"

ensure_venv serve,bench
ensure_java
# Ray Serve gets an environment of its own; without one, it is left out.
"$VENV/bin/offpath" bench setup offpath-ray >&2 || true
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archive=${1:-$work/classifier.mar}
if [ $# = 0 ]; then
  "$VENV/bin/offpath" archive --output "$work" >&2
fi
"$VENV/bin/python" examples/leaving-torchserve/compare.py "$archive"
