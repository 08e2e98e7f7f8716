#!/usr/bin/env bash
# Measures everything that needs a GPU, in steps of less than ten minutes on four cores. It needs an
# NVIDIA driver, Python, and wrk (without wrk, locust takes cores from the server).
#
#   scripts/gpu.sh               all steps, about 90 minutes; a result that is there is not measured again
#   scripts/gpu.sh --step N      one step:
#                                  1 tests   2 other servers   3 workers, threads, MPS, batches, waiting
#                                  4 batch norms   5 a stand-in for a T4   6 memory
#   scripts/gpu.sh --dry-run     print what would be run, and for how long
#   scripts/gpu.sh --try         everything with a tiny model and windows of a second, on any machine
#
# Ctrl-C stops; the same command continues. Results and tables.md: profiling/results/gpu, with --try
# build/gpu-try. Exit codes: 0 done; 1 a test or a server failed, see the tables; 2 wrong option.

. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

out=profiling/results/gpu
read_steps 6 "$@"
cores=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:4], sep=",")')

# compare STEP FILE OPTION...: a table of servers; later options win.
compare() {
  local step=$1 file=$2 generator=locust
  shift 2
  ! command -v wrk >/dev/null || generator=wrk
  take "$step" 9 "$file" ${mps:+with_mps} taskset -c "$cores" offpath bench compare --model resnet50 \
    --batch-size 16 --generator "$generator" --warm-up 5 --seconds 4 --rounds 2 --clients 64 \
    "$@" "${small[@]}" --json FILE
}

with_mps() {
  local code=0
  if ! command -v nvidia-cuda-mps-control >/dev/null; then
    say "not run: there is no nvidia-cuda-mps-control"
    [ -n "$try" ] # with --try that is no failure
    return
  fi
  export CUDA_MPS_PIPE_DIRECTORY=$PWD/$out/mps CUDA_MPS_LOG_DIRECTORY=$PWD/$out/mps
  mkdir -p "$out/mps"
  nvidia-cuda-mps-control -d
  "$@" || code=$?
  echo quit | nvidia-cuda-mps-control
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  return "$code"
}

both=(--workload photos-55k --workload photos-1200k)
gpu_decoding=(--variant 'offpath, GPU decoding=offpath:handler.decode=nvjpeg')

# Not one of offpath's dependencies. With it, `decode: nvjpeg` uses its decoder here and below.
[ -n "$dry$try" ] || [ "${only:-1}" != 1 ] || python -m pip install --no-deps 'torchcodec>=0.17,<0.18'
take 1 9 tests.xml pytest -n0 -q -m gpu tests --junitxml FILE

[ -n "$dry$try" ] || [ "${only:-2}" != 2 ] || offpath bench setup triton || failed=1
for size in 55k 1200k; do
  compare 2 "servers-$size.json" --workload "photos-$size" --rounds 3 --workers 2 "${gpu_decoding[@]}" \
    --servers torchserve-naive-s3,torchserve-stock,torchserve-fixed,offpath,triton-offpath-decode
done

# Workers x decode threads, and whether a batch is decoded while the one before computes.
splits=()
for workers in 1 2 4; do
  for ahead in true false; do
    split=offpath-granian-direct:model.workers=$workers\;handler.threads=$((4 / workers))
    splits+=(--variant "$workers x $((4 / workers)), read_ahead $ahead=$split;handler.read_ahead=$ahead")
  done
done
for mps in yes ''; do
  compare 3 "splits${mps:+-mps}.json" --servers '' "${splits[@]}" "${both[@]}" --clients 32,64
done
compare 3 batches.json --servers '' "${both[@]}" --workers 2 --variant 'batch 8=offpath:model.batch_size=8' \
  --variant 'batch 16=offpath:model.batch_size=16' --variant 'batch 32=offpath:model.batch_size=32'

make=(python scripts/t4_stand_in.py)
take 4 2 unfolded.mar "${make[@]}" archive FILE 'len(images) > 0'
for model in resnet50 "$out/unfolded.mar"; do
  compare 4 "folding-$(basename "$model" .mar).json" --servers '' --workload photos-55k --workers 2 --rounds 3 \
    --model "$model" --variant 'eager=offpath:handler.engine=eager'
done

[ -z "$try" ] || echo 1 >"$out/t4-repeats.txt"
take 5 2 t4-repeats.txt "${make[@]}" repeats FILE
take 5 2 t4-photographs "${make[@]}" photographs FILE
take 5 2 t4.mar "${make[@]}" archive FILE "$(cat "$out/t4-repeats.txt" 2>/dev/null || echo 1)"
compare 5 t4.json --workload "$out/t4-photographs" --workers 2 --rounds 3 --clients 32,64 \
  --model "$out/t4.mar" --servers offpath "${gpu_decoding[@]}"

compare 6 memory.json --servers '' "${both[@]}" --workers 2 --side-by-side \
  --rounds 12 --seconds 18 "${gpu_decoding[@]}"

[ -n "$dry" ] || print_tables >"$out/tables.md"
exit "$failed"
