#!/usr/bin/env bash
# Checks the pinned versions for known vulnerabilities, and lists what is installed with hashes and
# licences. Run it weekly.
#
#   scripts/audit.sh
#
# Exit codes: 0, no vulnerability is known; 1, the nginx is not patched, or build/audit.txt lists known
# vulnerabilities; 2, the versions could not be looked up, and build/audit.log has the reason.
#
# Writes build/sbom.json (CycloneDX), build/licences.md, and build/requirements.txt with the hash of
# every wheel of a server. To install with hashes:
#   pip install --require-hashes --no-deps -r build/requirements.txt
#   pip install --no-deps THE-WHEEL
# (constraints.txt itself cannot hold hashes: pip would refuse the editable install that this
# repository's scripts make.)

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv serve,bench,dev
tools=$ROOT/build/audit-venv
mkdir -p build
if [ ! -x "$tools/bin/pip-audit" ]; then
  # In their own environment, so that their dependencies do not mix with ours.
  "$VENV/bin/python" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet 'pip-audit>=2.9' 'cyclonedx-bom>=7' 'pip-licenses>=5' 'uv>=0.9'
fi
"$tools/bin/cyclonedx-py" environment "$VENV/bin/python" --output-file build/sbom.json
"$tools/bin/pip-licenses" --python "$VENV/bin/python" --format markdown --output-file build/licences.md >/dev/null
"$tools/bin/uv" pip compile setup.cfg --quiet --generate-hashes --no-header --no-annotate \
  --constraint constraints.txt --extra serve --extra java --extra front \
  --output-file build/requirements.txt
# pip-audit cannot see into the wheel.
"$VENV/bin/python" - <<'PYTHON' || unpatched=1
from offpath.serving.front.nginx import find_nginx

if gap := find_nginx().describe_gap():
    raise SystemExit(gap)
PYTHON
rm -f build/audit.txt
if "$tools/bin/pip-audit" --strict --requirement constraints.txt --no-deps --disable-pip \
  --output build/audit.txt 2>build/audit.log; then
  say "no vulnerability is known in the pinned versions"
  exit "${unpatched:-0}"
elif [ -s build/audit.txt ]; then
  cat build/audit.txt
  exit 1
else
  # pip-audit exits with 1 in both cases.
  say "pip-audit could not look up the pinned versions: $(tail -1 build/audit.log)"
  exit 2
fi
