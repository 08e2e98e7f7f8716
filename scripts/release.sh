#!/usr/bin/env bash
# Builds and checks the wheel and the source archive of the version in setup.cfg. It uploads nothing, and
# prints what is left to do.
#
#   scripts/release.sh            tries the wheel in an empty environment of each Python that is present
#   scripts/release.sh --serve    also installs torch and TorchServe there, and lets the wheel serve an image
#                                 (6 GB and minutes per Python)
#
# Writes build/release/dist/. PYTHONS="python3.12 ..." names the interpreters; otherwise those of PATH and
# pyenv are used.

. "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"

release=$ROOT/build/release
dist=$release/dist
source=$release/source

read_metadata() {
  "$PYTHON" - "$1" <<'EOF'
import configparser, sys
parser = configparser.ConfigParser()
parser.read("setup.cfg")
print(parser["metadata"].get(sys.argv[1], ""))
EOF
}

list_pythons() {
  local minor candidate
  for minor in 10 11 12 13 14; do
    for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
      if is_supported_python "$candidate"; then
        command -v "$candidate"
        break
      fi
    done
  done
}

# Copies the files that git tracks, because setuptools leaves scratch files beside setup.cfg.
copy_source() {
  mkdir -p "$source"
  git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$source"
  if [ -n "$URL" ]; then
    "$PYTHON" scripts/absolute_links.py "$source/README.md" "$URL" "v$VERSION"
  fi
}

list_names() { "$PYTHON" -m zipfile -l "$1" | awk 'NR > 1 {print $1}' | sort; }

build_both() {
  local tools=$release/tools
  "$PYTHON" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet 'build>=1.2' 'twine>=6.1' 'setuptools>=77' wheel
  # The wheel that users get is made from the source archive. It must hold what a checkout's wheel holds.
  "$tools/bin/python" -m build --no-isolation --outdir "$dist" "$source" >"$release/build.log" ||
    { tail -20 "$release/build.log" >&2; exit 1; }
  "$tools/bin/python" -m build --no-isolation --wheel --outdir "$release/direct" "$source" >>"$release/build.log"
  diff <(list_names "$dist"/*.whl) <(list_names "$release/direct"/*.whl) ||
    { say "the source archive lacks files (< from it, > from the checkout)"; exit 1; }
  "$tools/bin/twine" check --strict "$dist"/* >&2
}

# Runs a command of the installed wheel, with nothing that leads back to this checkout.
installed() {
  (cd "$release/empty" && env -i HOME="$release/empty" PATH="$environment/bin:/usr/bin:/bin" "$@")
}

try_wheel() {
  local python=$1 environment said command
  environment=$release/environments/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --constraint constraints.txt "$dist"/*.whl
  "$environment/bin/python" -m pip check --quiet
  said=$(installed offpath --version)
  [ "$said" = "offpath, version $VERSION" ] || { say "$python: $said"; exit 1; }
  for command in $(installed python -c 'from offpath.cli import COMMANDS; print(*COMMANDS)'); do
    installed offpath "$command" --help >/dev/null
  done
  installed python -c 'from offpath.client import Client; Client("http://127.0.0.1:9").close()'
  say "$("$python" --version): installed; every command starts, the client imports"
}

serve_wheel() {
  local python=$1 environment
  environment=$release/environments/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$environment/bin/python" -m pip install --quiet --constraint constraints.txt \
    "$(echo "$dist"/*.whl)[serve,java,front]"
  installed offpath archive --output store --force >/dev/null
  installed offpath serve --model-store store --front --port 0 --metrics-port 0 --sample --once >&2
  rm -rf "$environment"
  say "$("$python" --version): served an image"
}

list_left() {
  local action name
  if [ -n "$(git status --porcelain)" ]; then echo "- commit: the checkout has changes"; fi
  if [ -z "$URL" ]; then
    echo "- setup.cfg has no url, so the README's links and images do not work on the package index's page"
  fi
  grep -l PLACEHOLDER -- *.md | sed 's/^/- replace the placeholder in /'
  grep -q "^## \[$VERSION\] - 20" CHANGELOG.md || echo "- CHANGELOG.md has no heading [$VERSION] with a date"
  echo "- pin the actions by hash (a tag can be moved):"
  sed -n 's/.*uses: //p' .github/workflows/*.yml | sort -u | while IFS=@ read -r name action; do
    echo "    $name@$action    git ls-remote https://github.com/$name $action"
  done
  echo "- at the package index, once: trust this repository, workflow release.yml, environment pypi"
  echo "- in CITATION.cff: date-released, the date of the changelog's heading"
  echo "- git tag -s v$VERSION && git push origin v$VERSION    (.github/workflows/release.yml then publishes)"
}

PYTHON=$(find_python)
VERSION=$(read_metadata version)
URL=$(read_metadata url)
case ${GITHUB_REF_NAME:-v$VERSION} in
  "v$VERSION" | [!v]*) ;;
  *) say "the tag is $GITHUB_REF_NAME, but setup.cfg has version $VERSION"; exit 1 ;;
esac
rm -rf "$release"
mkdir -p "$release/empty"
copy_source
build_both
for python in ${PYTHONS:-$(list_pythons)}; do
  try_wheel "$python"
  if [ "${1:-}" = --serve ]; then serve_wheel "$python"; fi
done
ls -l "$dist" >&2
say "left to do before the upload:"
list_left >&2
