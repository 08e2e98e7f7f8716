#!/usr/bin/env bash
# Weekly: what is known against the pinned versions, and what is installed, with hashes and licences.
#
#   scripts/audit.sh      # exit code 1: a known vulnerability, or one that could not be looked up
#
# Writes build/sbom.json (CycloneDX), build/licences.md and build/requirements.txt, every wheel of
# a server with its hash: pip install --require-hashes --no-deps -r build/requirements.txt, then
# pip install --no-deps THE-WHEEL. (constraints.txt itself cannot hold hashes: with them pip refuses
# an editable install, which this repository's scripts make.)

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
tools=$ROOT/build/audit-venv
mkdir -p build
if [ ! -x "$tools/bin/pip-audit" ]; then
  # Apart: their dependencies are nobody else's.
  "$VENV/bin/python" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet 'pip-audit>=2.9' 'cyclonedx-bom>=7' 'pip-licenses>=5' 'uv>=0.9'
fi
"$tools/bin/cyclonedx-py" environment "$VENV/bin/python" --output-file build/sbom.json
"$tools/bin/pip-licenses" --python "$VENV/bin/python" --format markdown --output-file build/licences.md
"$tools/bin/uv" pip compile setup.cfg --quiet --generate-hashes --no-header --no-annotate \
  --constraint constraints.txt --extra serve --extra java --extra front \
  --output-file build/requirements.txt
"$tools/bin/pip-audit" --strict --requirement constraints.txt --no-deps --disable-pip
