#!/usr/bin/env bash
# Measures what README.md and docs/results.md quote, in steps of less than ten minutes on two cores that
# do nothing else. It needs a clean commit, wrk and Prometheus, and it sets up the servers of others.
#
#   scripts/evidence.sh             all steps, about 170 minutes; a result that is there is not measured again
#   scripts/evidence.sh --step N    one step:
#                                     1 speed                 2 number of clients
#                                     3 open loop, ResNet-50  4 drills and attacks
#                                     5 faults, kills, reloads, ends, log, cost, batch beside Ray Data
#                                     6 a stock archive, several models, long load
#   scripts/evidence.sh --dry-run   print what would be run, and for how long
#   scripts/evidence.sh --try       everything, as short as possible
#
# Ctrl-C stops; the same command continues. Results: build/evidence, which you then move to
# profiling/results; with --try build/evidence-try. Exit codes: 0 done; 1 a test or a server failed,
# see the results; 2 wrong option, or the commit is not clean.

. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

out=build/evidence
read_steps 6 "$@"
if [ -z "$dry$try" ] && [ -n "$(git status --porcelain)" ]; then
  say "commit your changes first: a result names the commit that it was measured with"
  exit 2
fi

# compare STEP FILE OPTION...: a table of servers.
compare() {
  local step=$1 file=$2
  shift 2
  take "$step" 9 "$file" offpath bench compare --generator wrk --baseline mosec-offpath-decode \
    "$@" "${small[@]}" --json FILE
}

# trial STEP FILE PYTEST-OPTION...: what long tests print.
trial() {
  local step=$1 file=$2
  shift 2
  take "$step" 9 "$file" run_tests FILE "$@"
}

run_tests() {
  local file=$1
  shift
  {
    git log -1 --format='commit %H'
    grep -m1 'model name' /proc/cpuinfo
    date -u +'%F %T UTC'
    env | grep '^OFFPATH_.*_\(ROUNDS\|MINUTES\|STAGE_S\|WINDOW_S\)=' | sort
    printf 'pytest%s\n' "$(printf ' %q' "$@")"
  } >"$file"
  pytest -n0 -m reliability -s -v --no-header -p no:cacheprovider "$@" >>"$file" &&
    grep -q ' passed' "$file" # all are skipped where a program is missing
}

# open_loop NAME FILE OPTION...: rates around the capacity, the best of a FILE that was measured before.
open_loop() {
  local name=$1 file=$2 rates=CAPACITY
  shift 2
  [ -z "$only" ] || [ "$only" = 3 ] || return 0
  [ ! -e "$out/$file" ] || rates=$(python - "$out/$file" <<'PYTHON'
import sys
from pathlib import Path
from offpath.profiling.core.run import load_run
from offpath.profiling.core.statistics import Summary
run = load_run(Path(sys.argv[1]))
summary = Summary(run)
best = max(summary.value(v, c, "rate") or 0 for v in run.variants for c in summary.cells())
print(",".join(str(max(1, round(best * share))) for share in (0.5, 0.9, 1.1, 1.5, 2)))
PYTHON
  )
  # As many connections as there are requests in a second, so that none waits in the generator.
  compare 3 "open-$name.json" "${turns[@]}" --servers "$growing" --clients 512 --generator locust \
    --rate "$rates" --give-up 1 --seconds 5 --rounds 2 "$@"
}

turns=(--side-by-side --warm-up 10 --seconds 4 --rounds 6)
direct=offpath-granian-direct,offpath-direct,mosec-offpath-decode,triton-offpath-decode
door=offpath-granian-direct,offpath-granian,offpath,mosec-nginx,triton-nginx
growing=offpath-granian-direct,offpath-granian,offpath,mosec-offpath-decode,triton-offpath-decode
clients=("${turns[@]}" --servers "$growing,mosec-nginx,triton-nginx" --clients 1,8,32,128,512 --seconds 3)

[ -n "$dry" ] || [ "${only:-1}" -gt 3 ] || offpath bench setup mosec triton || failed=1
for size in 55k 1200k; do
  compare 1 "direct-$size.json" "${turns[@]}" --workload "photos-$size" \
    --servers "$direct,mosec,triton,torchserve-fixed,torchserve-stock"
  compare 1 "door-$size.json" "${turns[@]}" --rounds 4 --workload "photos-$size" \
    --servers "$door" --baseline mosec-nginx
done

compare 2 clients.json "${clients[@]}" --workload photos-55k
# With 512 clients a window of three seconds would begin with 600 MB of uploads.
compare 3 clients-1200k.json "${clients[@]}" --clients 1,8,32,128 --workload photos-1200k
compare 3 long-windows.json "${turns[@]}" --workload photos-1200k --warm-up 4 --seconds 15 --rounds 4 \
  --servers offpath-granian-direct,mosec-offpath-decode --clients 32,128,512
open_loop 1200k clients-1200k.json --workload photos-1200k
compare 3 resnet50.json "${turns[@]}" --model resnet50 --workload photos-55k --rounds 3 \
  --servers "$direct,torchserve-fixed"
compare 3 clients-resnet50.json "${turns[@]}" --model resnet50 --workload photos-55k --rounds 3 \
  --servers offpath-granian-direct,mosec-offpath-decode,triton-offpath-decode --clients 1,8,32,128,512
open_loop resnet50 clients-resnet50.json --model resnet50 --workload photos-55k --rounds 1

[ -z "$try" ] || export OFFPATH_FRONT_ROUNDS=1 OFFPATH_FAULT_STAGE_S=1 OFFPATH_ATTACK_WINDOW_S=1 \
  OFFPATH_SOAK_MINUTES=1
long=tests/reliability
for server in torchserve granian; do
  trial 4 "drills-$server.txt" $long/test_drills.py -k "$server"
  OFFPATH_ATTACK_WINDOW_S=${OFFPATH_ATTACK_WINDOW_S:-3} \
    trial 4 "attacks-$server.txt" $long/test_attacks.py -k "$server"
done
for server in torchserve granian; do
  OFFPATH_FAULT_STAGE_S=${OFFPATH_FAULT_STAGE_S:-3} \
    trial 5 "faults-$server.txt" $long/test_faults.py -k "$server"
  trial 5 "kills-$server.txt" $long/test_front.py -k "$server and kills"
  OFFPATH_FRONT_ROUNDS=${OFFPATH_FRONT_ROUNDS:-2} \
    trial 5 "reloads-$server.txt" $long/test_front.py -k "$server and reloads"
done
trial 5 ends.txt tests/serving -m "" -k sigterm
OFFPATH_TEST_KILL_ROUNDS=${OFFPATH_TEST_KILL_ROUNDS:-20} trial 5 log.txt tests/handler/prediction_log -m s3
trial 5 cost.txt $long/test_worst_cost.py
[ -n "$try" ] || take 5 6 batch.txt python scripts/batch_beside_ray.py FILE
compare 6 as-it-is.json "${turns[@]}" --workload photos-55k --workload photos-1200k --rounds 2 \
  --servers torchserve-stock,granian-stock,offpath-granian-direct --baseline torchserve-stock \
  --variant 'torchserve-passive=torchserve-stock:env.OMP_WAIT_POLICY=passive'
compare 6 models.json "${turns[@]}" --workload photos-55k --servers offpath-granian --rounds 3 \
  --variant '2 models=offpath-granian:models=2' --variant '4 models=offpath-granian:models=4' \
  --baseline offpath-granian
for server in torchserve granian; do
  OFFPATH_SOAK_MINUTES=${OFFPATH_SOAK_MINUTES:-3} trial 6 "soak-$server.txt" $long/test_soak.py -k "$server"
done

[ -n "$dry" ] || print_tables >"$out/tables.md"
exit "$failed"
