#!/usr/bin/env bash
# Builds the documentation site in build/site. A broken link, a heading that does not exist, and a page
# outside the navigation are errors. Open build/site/index.html in a browser.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv docs
"$VENV/bin/python" scripts/stage_docs.py
"$VENV/bin/zensical" build --strict --clean
