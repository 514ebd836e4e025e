#!/usr/bin/env bash
# All tests, in four tiers, so that a failure shows early: gates, unit tests, tests that start processes, tests on real
# Kubernetes clusters (built once, see e2e/README.md; what a machine cannot run is skipped with its reason). On two cores:
# nothing is measured, and a file's tests stay together.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
long="not slow" most_seconds=900
[ "${1:-}" = "--long" ] && long="slow or not slow" most_seconds=3600
clusters() {
  PYTHONPATH=e2e "$BIN/python" -m cluster build > /dev/null
  "$BIN/python" -m pytest -q -n 2 --dist loadfile e2e -m "not bench and ($long)" --timeout "$most_seconds"
}
export PYTHONDONTWRITEBYTECODE=
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 MPLBACKEND=Agg
[ "${1:-}" = "--clusters" ] && { clusters; exit; }
"$BIN/ruff" check .
"$BIN/ruff" format --check .
"$BIN/pyrefly" check
"$BIN/lint-imports"
"$BIN/python" -m rollout_api.generate --check
"$BIN/python" -m pytest -q -n 2 --dist loadfile -m "not process and not vllm and not bench and ($long)" --timeout 300
"$BIN/python" -m pytest -q -n 2 --dist loadfile -m "(process or vllm) and not bench and ($long)" --timeout "$most_seconds"
clusters
