#!/usr/bin/env bash
# Builds and tries the image of deploy/container on a machine that reaches no image registry.
# Needs root and `apt install buildah mmdebstrap iproute2 curl`; docs/clouds.md shows results.
#
#   scripts/image.sh build [OPTION...]   makes a base of Debian's packages, then the target `cpu`
#   scripts/image.sh try [COMMAND...]    runs the image's command, or another one, in its own namespaces
#
# OPTIONs go to `buildah build`. If only PyPI is reachable, --build-arg TORCH= takes torch from there
# (6 GB). In `try`, SHM_MB is the size of /dev/shm, and OFFPATH_SERVER=granian chooses Granian.
# IMAGE_STORAGE is the folder where images are kept.

set -euo pipefail
cd "$(dirname "$0")/.."

STORAGE=${IMAGE_STORAGE:-$PWD/build/images}
PHOTOGRAPH=$PWD/archive/bundled/espresso.jpg
SHM_MB=${SHM_MB:-1024}
# chroot and vfs need no user namespace and no mounts, which a sandbox may forbid.
BUILDAH=(buildah --root "$STORAGE/root" --runroot "$STORAGE/run" --storage-driver vfs)
export TMPDIR=$STORAGE/tmp
mkdir -p "$TMPDIR"

build() {
  if ! "${BUILDAH[@]}" inspect --type image debian-python >/dev/null 2>&1; then
    mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,tini \
      bookworm "$STORAGE/base.tar"
    local base
    base=$("${BUILDAH[@]}" from scratch)
    "${BUILDAH[@]}" add "$base" "$STORAGE/base.tar" /
    "${BUILDAH[@]}" commit --rm "$base" debian-python
  fi
  # The settings by which pip reaches PyPI belong to this machine and must not end up in the image.
  local mounts=()
  for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$file" ]; then mounts+=(--volume "$file:$file:ro"); fi
  done
  "${BUILDAH[@]}" build --isolation chroot --format docker --build-arg BASE=localhost/debian-python \
    "${mounts[@]}" --file deploy/container/Containerfile --target cpu --tag offpath:cpu "$@" .
}

# Prints a value of the image's configuration, one entry per line.
configured() {
  "${BUILDAH[@]}" inspect --type image offpath:cpu | python3 -c '
import json, sys
value = json.load(sys.stdin)["Docker"]["config"][sys.argv[1]]
if isinstance(value, dict): value = value["Test"][1:]  # Healthcheck
print(*([value] if isinstance(value, str) else value), sep="\n")' "$1"
}

try() {
  local container
  container=$("${BUILDAH[@]}" from offpath:cpu)
  # shellcheck disable=SC2064
  trap "${BUILDAH[*]} rm $container >/dev/null" EXIT
  export ROOT ENVIRONMENT HEALTH RUN_AS
  ROOT=$("${BUILDAH[@]}" mount "$container")
  ENVIRONMENT=$(configured Env)
  HEALTH=$(configured Healthcheck)
  RUN_AS=$(chroot "$ROOT" id -u "$(configured User)")
  local -a command entrypoint
  mapfile -t entrypoint < <(configured Entrypoint)
  mapfile -t command < <(configured Cmd)
  if [ $# -eq 0 ]; then set -- "${command[@]}"; fi
  set -- "${entrypoint[@]}" "$@"
  unshare --net --mount "$PWD/scripts/image.sh" in-namespaces "$@"
}

in_image() {
  local -a environment
  mapfile -t environment <<<"$ENVIRONMENT"
  "${PREFIX[@]}" chroot --userspec="$RUN_AS:$RUN_AS" "$ROOT" \
    env -i HOME=/home/offpath "${environment[@]}" OFFPATH_MODEL_DIR=/models \
    ${OFFPATH_SERVER:+OFFPATH_SERVER=$OFFPATH_SERVER} "$@"
}

# Runs the command as a container runtime would: in its own network, with nothing writable but the
# volumes, as process 1 of its own user.
in-namespaces() {
  local -a health PREFIX=()
  local began server status
  mapfile -t health <<<"$HEALTH"
  ip link set lo up
  mount --bind "$ROOT" "$ROOT"
  mount --bind /dev "$ROOT/dev"
  mount -t tmpfs -o "size=${SHM_MB}m,mode=1777" tmpfs "$ROOT/dev/shm"
  for folder in /tmp /spool /logs; do mount -t tmpfs -o mode=1777 tmpfs "$ROOT$folder"; done
  mount -o remount,ro,bind "$ROOT"
  began=$(date +%s%N)
  PREFIX=(unshare --pid --fork --kill-child "--mount-proc=$ROOT/proc")
  in_image "$@" &
  PREFIX=()
  until in_image "${health[@]}" 2>/dev/null; do
    kill -0 $! 2>/dev/null || { echo "the server ended while it started"; exit 1; }
    sleep 0.2
  done
  echo "healthy after $(since "$began")"
  # The subshell's child is unshare, whose child is process 1.
  server=$(pgrep -P "$(pgrep -P $!)")
  echo "process 1: $(ps -o user=,args= -p "$server" | cut -c-70)"
  in_image sh -c 'if touch /x /opt/offpath/x /models/x 2>/dev/null; then echo "the root file system can be written"; fi'
  for path in "${PATHS[@]}"; do
    echo "$path: $(curl -sS -m 30 -w ' %{http_code}' -T "$PHOTOGRAPH" "http://127.0.0.1:8080$path")"
  done
  kill_server "$server"
  until in_image "${health[@]}" 2>/dev/null; do sleep 0.2; done
  echo "the server was killed: healthy again, and $(count_zombies "$server") zombies"
  ask_slowly "http://127.0.0.1:8080${PATHS[0]}"
  began=$(date +%s%N)
  kill -TERM "$server"
  wait %1 && status=0 || status=$?
  echo "SIGTERM: ended with $status after $(since "$began")"
  wait "$ASKED" || true
  echo "the request in flight: $(cat "$ANSWER")"
}

# Kills Java or Granian's supervisor, as the kernel does when memory runs out, and returns when the front
# door knows.
kill_server() {
  kill -KILL "$(pgrep --ns "$1" --nslist pid -o -f 'bin/java|granian/supervisor.py')"
  until ! in_image "${health[@]}" 2>/dev/null; do sleep 0.1; done
}

# Counts the processes of the container that have ended and that nobody has reaped.
count_zombies() {
  pgrep --ns "$1" --nslist pid "" | xargs ps -o stat= -p | grep -c ^Z || true
}

# Sends an image that takes two seconds, and returns when the server has asked for its body. A SIGTERM
# after that finds the request in flight. Its answer will be in $ANSWER.
ask_slowly() {
  local said
  said=$(mktemp) ANSWER=$(mktemp)
  curl -sv -m 30 --limit-rate 36K -H "Expect: 100-continue" -w ' %{http_code}' -T "$PHOTOGRAPH" \
    "$1" >"$ANSWER" 2>"$said" &
  ASKED=$!
  until grep -q "100 Continue" "$said"; do
    kill -0 "$ASKED" || { echo "no answer: $(tail -1 "$said")"; return; }
    sleep 0.05
  done
}

since() { echo "$((($(date +%s%N) - $1) / 1000000)) ms"; }

PATHS=(/predictions/classifier /invocations)
case ${1:-} in
  build | try | in-namespaces) "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
