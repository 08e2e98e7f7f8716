#!/usr/bin/env bash
# Trains a small model, packs it with a handler of its own, serves it, and inspects five parts.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/bootstrap.sh"

ensure_venv serve
ensure_java
here=examples/defects
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
export OFFPATH_SPOOL_DIR=$work/spool
"$VENV/bin/python" $here/train.py "$work"
"$VENV/bin/offpath" archive --name defects --output "$work/store" \
  --model $here/net.py --weights "$work/net.pt" --labels "$work/classes.txt" \
  --set image_size=128 --set resize=stretch --set mean=0.5 --set std=0.25 \
  --set activation=sigmoid --handler $here/handler.py --set 'own={reject_above: 0.5}'
"$VENV/bin/offpath" serve --model-store "$work/store" --port 18081 --metrics-port 0 >"$work/out" 2>&1 &
server=$!
until curl -sf http://127.0.0.1:18081/ping >/dev/null; do
  kill -0 "$server" || { cat "$work/out"; exit 1; }
  sleep 1
done
head -c 1000 "$work/good.jpg" >"$work/torn.jpg"
"$VENV/bin/python" $here/inspect_parts.py http://127.0.0.1:18081 \
  "$work"/{good,scratched,stained,ruined,torn}.jpg
kill -TERM "$server"
wait "$server"
