#!/usr/bin/env bash
# Runs the tests; installs what they need first. Options go to pytest, e.g. scripts/test.sh -k decode
# With --reliability first: the long ones alone (docs/reliability.md), with the figures they print.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
ensure_java
if [ "${1:-}" = --reliability ]; then
  shift
  set -- -m reliability -s tests/reliability "$@"
fi
exec "$VENV/bin/python" -m pytest "$@"
