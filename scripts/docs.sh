#!/usr/bin/env bash
# Builds the documentation site in build/site, and says how to open it. A broken link, a heading that
# does not exist, and a page outside the navigation are errors.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

ensure_venv docs
"$VENV/bin/python" scripts/stage_docs.py
"$VENV/bin/zensical" build --strict --clean
say "the site is in $ROOT/build/site; its search needs a web server:
  $VENV/bin/python -m http.server --bind 127.0.0.1 --directory $ROOT/build/site 8000
then open http://127.0.0.1:8000/"
