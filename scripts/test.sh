#!/usr/bin/env bash
# Runs the tests on two cores; installs what they need first.
#
#   scripts/test.sh                  all but the slow and the reliability tests
#   scripts/test.sh --all            the slow ones too: builds and rounds that take minutes
#   scripts/test.sh --reliability    the long ones alone (docs/reliability.md), with the figures they print
#
# Other options go to pytest, e.g. scripts/test.sh -k decode

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
ensure_java
# A file's tests share its fixtures; the files come in the order of tests/conftest.py.
options=(-n 2 --dist loadfile --no-loadscope-reorder)
case ${1:-} in
  --all) shift; options+=(-m "") ;;
  --reliability) shift; options=(-m reliability -s tests/reliability) ;;
esac
exec "$VENV/bin/python" -m pytest "${options[@]}" "$@"
