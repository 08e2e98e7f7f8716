#!/usr/bin/env bash
# Serves the bundled model with a prediction log in a folder, sends images, one of them damaged, and
# prints the report.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/bootstrap.sh"

ensure_venv serve,report
ensure_java
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
export OFFPATH_SPOOL_DIR=$work/spool
"$VENV/bin/offpath" archive --prediction-log "file://$work/log" --output "$work/store" >/dev/null
"$VENV/bin/offpath" serve --model-store "$work/store" --port 18080 --metrics-port 0 >"$work/out" 2>&1 &
server=$!
until curl -sf http://127.0.0.1:18080/ping >/dev/null; do
  kill -0 "$server" || { cat "$work/out"; exit 1; }
  sleep 1
done
head -c 1000 archive/bundled/espresso.jpg >"$work/damaged.jpg"
for file in archive/bundled/*.jpg archive/bundled/*.jpg "$work/damaged.jpg"; do
  curl -s -o "$work/reply" -T "$file" http://127.0.0.1:18080/predictions/classifier
done
kill -TERM "$server"
wait "$server"
"$VENV/bin/offpath" logs ship --spool "$work/spool"
"$VENV/bin/python" examples/prediction-log/report.py "$work/log"
