#!/usr/bin/env bash
# Formatter, import order, linter, layers and types; what CI runs.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
"$VENV/bin/black" --check --quiet . || { say "black would reformat; run: $VENV/bin/black ."; exit 1; }
"$VENV/bin/isort" --check --quiet .
"$VENV/bin/flake8"
"$VENV/bin/lint-imports" --no-logo --no-cache
"$VENV/bin/mypy"
