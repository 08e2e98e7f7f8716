#!/usr/bin/env bash
# Installs what the tests need, then runs them on two cores.
#
#   scripts/test.sh                  all but the slow and the reliability tests
#   scripts/test.sh --all            also the slow ones: builds and rounds that take minutes
#   scripts/test.sh --reliability    only the long ones (docs/reliability.md), with the figures they print
#
# Other options go to pytest, for example scripts/test.sh -k decode

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
ensure_java
# A container often sets it. The tests start some hundred processes, which would each compile this project.
unset PYTHONDONTWRITEBYTECODE
# One process per core. The tests of a file share its fixtures. tests/conftest.py sets the order of the files:
# those that start servers come first.
options=(-n 2 --dist loadfile --no-loadscope-reorder)
case ${1:-} in
  --all) shift; options+=(-m "") ;;
  --reliability) shift; options=(-m reliability -s tests/reliability) ;;
esac
exec "$VENV/bin/python" -m pytest "${options[@]}" "$@"
