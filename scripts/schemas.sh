#!/usr/bin/env bash
# Checks workflows, issue forms, dependabot's file and the citation against their public schemas, which
# check-jsonschema contains. scripts/lint.sh and pre-commit run this.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command=${OFFPATH_VENV:-.venv}/bin/check-jsonschema

check() {
  local schema=$1 said
  shift
  said=$("$command" --builtin-schema "vendor.$schema" "$@") || { printf '%s\n' "$said" >&2; exit 1; }
}

check github-workflows .github/workflows/*.yml
check github-issue-config .github/ISSUE_TEMPLATE/config.yml
check github-issue-forms .github/ISSUE_TEMPLATE/{bug,benchmark}.yml
check dependabot .github/dependabot.yml
check citation-file-format CITATION.cff
