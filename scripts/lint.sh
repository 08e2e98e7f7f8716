#!/usr/bin/env bash
# Checks formatting, import order, style, layers, types and the files in .github. CI runs this script.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
# Checking types takes as long as all the rest, so it runs beside it on a second core.
"$VENV/bin/mypy" &
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
"$VENV/bin/black" --line-length 100 --check --quiet . ||
  { say "black would reformat; run: $VENV/bin/black --line-length 100 ."; exit 1; }
"$VENV/bin/isort" --check --quiet .
"$VENV/bin/flake8"
"$VENV/bin/python" scripts/check_english.py
scripts/schemas.sh
"$VENV/bin/lint-imports" --no-logo --no-cache
wait "$types"
