#!/usr/bin/env bash
# Formatter, import order, linter, layers and types; what CI runs.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
# Types take as long as all the rest, on a core of their own.
"$VENV/bin/mypy" &
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
"$VENV/bin/black" --check --quiet . || { say "black would reformat; run: $VENV/bin/black ."; exit 1; }
"$VENV/bin/isort" --check --quiet .
"$VENV/bin/flake8"
"$VENV/bin/lint-imports" --no-logo --no-cache
wait "$types"
