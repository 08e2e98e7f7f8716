#!/usr/bin/env bash
# Measures what README.md and docs/results.md quote, in steps of less than ten minutes on two cores that
# do nothing else. It needs a clean commit and wrk, and it sets up the servers of others.
#
#   scripts/evidence.sh             all steps, about two hours; a result that is there is not measured again
#   scripts/evidence.sh --step N    one step:
#                                     1 speed   2 number of clients and models   3 kills and reloads
#                                     4 faults and drills          5 attacks and cost
#                                     6 long load
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
    printf 'pytest %s\n' "$*"
  } >"$file"
  pytest -n0 -m reliability -s -v --no-header -p no:cacheprovider "$@" >>"$file"
}

turns=(--side-by-side --warm-up 30 --seconds 4 --rounds 6)
direct=offpath-granian-direct,offpath-direct,mosec-offpath-decode,triton-offpath-decode
door=offpath-granian-direct,offpath-granian,offpath,mosec-nginx,triton-nginx
growing=offpath-granian-direct,offpath-granian,offpath,mosec-offpath-decode,triton-offpath-decode

[ -n "$dry" ] || [ "${only:-1}" -gt 2 ] || offpath bench setup mosec triton || failed=1
for size in 55k 1200k; do
  compare 1 "direct-$size.json" "${turns[@]}" --workload "photos-$size" \
    --servers "$direct,torchserve-fixed,torchserve-stock"
  compare 1 "door-$size.json" "${turns[@]}" --workload "photos-$size" --servers "$door" \
    --baseline mosec-nginx
done
compare 1 resnet50.json "${turns[@]}" --model resnet50 --workload photos-55k --rounds 3 \
  --servers "$direct,torchserve-fixed"
compare 1 as-it-is.json "${turns[@]}" --workload photos-55k --workload photos-1200k --rounds 4 \
  --servers torchserve-stock,granian-stock,offpath-granian-direct --baseline torchserve-stock \
  --variant 'torchserve-passive=torchserve-stock:env.OMP_WAIT_POLICY=passive'

compare 2 models.json "${turns[@]}" --workload photos-55k --servers offpath-granian \
  --variant '2 models=offpath-granian:models=2' --variant '4 models=offpath-granian:models=4' \
  --baseline offpath-granian
compare 2 clients.json --workload photos-55k --servers "$growing" --clients 1,8,32,128,512 \
  --warm-up 8 --seconds 5 --rounds 1

[ -z "$try" ] || export OFFPATH_FRONT_ROUNDS=1 OFFPATH_FAULT_STAGE_S=1 OFFPATH_ATTACK_WINDOW_S=1 \
  OFFPATH_SOAK_MINUTES=1
long=tests/reliability
for server in torchserve granian; do
  trial 3 "kills-$server.txt" $long/test_front.py -k "$server and kills"
  OFFPATH_FRONT_ROUNDS=${OFFPATH_FRONT_ROUNDS:-4} \
    trial 3 "reloads-$server.txt" $long/test_front.py -k "$server and reloads"
  trial 4 "faults-$server.txt" $long/test_faults.py -k "$server"
  trial 4 "drills-$server.txt" $long/test_drills.py -k "$server"
  trial 5 "attacks-$server.txt" $long/test_attacks.py -k "$server"
  OFFPATH_SOAK_MINUTES=${OFFPATH_SOAK_MINUTES:-5} trial 6 "soak-$server.txt" $long/test_soak.py -k "$server"
done
trial 5 cost.txt $long/test_worst_cost.py

[ -n "$dry" ] || print_tables >"$out/tables.md"
exit "$failed"
