#!/usr/bin/env bash
# Packs a model for TorchServe's own handler, converts the archive, and measures both.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/bootstrap.sh"

ensure_venv serve,bench
ensure_java
here=examples/migration
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$VENV/bin:$PATH
python $here/write_weights.py "$work"
say "the archive that you have: torch-model-archiver with TorchServe's image_classifier"
mkdir "$work/old" "$work/new"
torch-model-archiver --model-name parts --version 1.0 --handler image_classifier --model-file $here/net.py \
  --serialized-file "$work/net.pt" --extra-files "$work/index_to_name.json" --export-path "$work/old"
say "the same model, weights and labels with offpath's handler"
offpath archive --from "$work/old/parts.mar" --output "$work/new"
say "both servers, the same photographs, in turns; then their answers, rates and latencies"
offpath bench compare --model "$work/new/parts.mar" --servers torchserve-stock,offpath \
  --workload photos-55k --clients 16 --rounds 1 --seconds 5 --warm-up 10
