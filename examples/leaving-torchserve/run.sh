#!/usr/bin/env bash
# Runs one archive on TorchServe, Granian, Ray Serve and Triton, and compares the answers.
#
#   examples/leaving-torchserve/run.sh [FILE.mar]       by default the bundled model

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/bootstrap.sh"

ensure_venv serve,bench,dev
ensure_java
# Ray Serve gets an environment of its own; without one, it is left out.
"$VENV/bin/offpath" bench setup offpath-ray >&2 || true
exec "$VENV/bin/python" examples/leaving-torchserve/compare.py "$@"
