#!/usr/bin/env bash
# Runs the tests; installs what they need first. Options go to pytest, e.g. scripts/test.sh -k decode

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
ensure_java
exec "$VENV/bin/python" -m pytest "$@"
