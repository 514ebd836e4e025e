#!/usr/bin/env bash
# All tests, in four tiers, so that a failure shows early: gates, unit tests, tests that start processes, tests on real
# Kubernetes clusters (see e2e/README.md; what a machine cannot run is skipped with its reason). What the clusters need is
# built once, beside the first three tiers and last in turn; its words are in build/cluster-build.log. On two cores: nothing
# is measured, and a file's tests stay together.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
long="not slow" most_seconds=900 enforce= builds_log=build/cluster-build.log builds=
if [ "${1:-}" = "--long" ]; then
  long="slow or not slow" most_seconds=3600 enforce=--enforce
  export ROLLOUT_VERDICTS=build/verdicts
fi
# The order of the files is drawn (tests/file_order.py): from the tree of the commit, or as ROLLOUT_TEST_ORDER says.
export ROLLOUT_TEST_ORDER=${ROLLOUT_TEST_ORDER:-$("$BIN/python" tests/file_order.py)}
echo "order of files: ROLLOUT_TEST_ORDER=$ROLLOUT_TEST_ORDER"
# A tier's tests, and where their seconds went (tests/timing.py): its name, its longest test, and what pytest is told.
tier() {
  local report="build/junit/$1.xml" failed=0
  rm -f "$report"
  "$BIN/python" -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --timeout "$2" --junitxml "$report" "${@:3}" || failed=$?
  if [ "$failed" -gt 1 ]; then return "$failed"; fi
  "$BIN/python" tests/timing.py $enforce "$report" && return "$failed"
}
begin_builds() {
  mkdir -p build
  PYTHONPATH=e2e "$BIN/python" -m cluster build --images --background > "$builds_log" 2>&1 &
  builds=$!
  trap end_builds EXIT
}
end_builds() {
  kill "$builds" 2> /dev/null && wait "$builds" 2> /dev/null || true
}
wait_for_builds() {
  echo "waiting for what the clusters need ($builds_log)"
  if ! wait "$builds"; then
    echo "what the clusters need could not be built:" >&2
    tail -n 60 "$builds_log" >&2
    exit 1
  fi
  trap - EXIT
  grep '^no ' "$builds_log" || true
}
clusters() {
  tier clusters "$most_seconds" e2e -m "not bench and ($long)"
}
export PYTHONDONTWRITEBYTECODE=
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 MPLBACKEND=Agg
if [ "${1:-}" = "--clusters" ]; then
  PYTHONPATH=e2e "$BIN/python" -m cluster build --images > /dev/null
  clusters
  exit
fi
gates() {
  "$BIN/ruff" check .
  "$BIN/ruff" format --check .
  "$BIN/pyrefly" check
  "$BIN/lint-imports"
  "$BIN/python" -m rollout_api.generate --check
}
# What a change can reach of a tier (tests/reached.py); files of which no test is of this tier are no failure.
reached() {
  local files code=0
  files=$("$BIN/python" tests/reached.py "$1" ${SINCE:+--since "$SINCE"})
  [ -z "$files" ] && return
  tier "$1" "$2" -m "$3" $files || code=$?
  [ "$code" -eq 5 ] || return "$code"
}
if [ "${1:-}" = "--reached" ]; then
  gates
  reached unit 300 "not process and not vllm and not bench and not slow"
  reached processes "$most_seconds" "(process or vllm) and not bench and not slow"
  exit
fi
begin_builds
gates
tier unit 300 -m "not process and not vllm and not bench and ($long)"
processes=$("$BIN/python" tests/reached.py processes --every)
tier processes "$most_seconds" -m "(process or vllm) and not bench and ($long)" $processes
wait_for_builds
clusters
