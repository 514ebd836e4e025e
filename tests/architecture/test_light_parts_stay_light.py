"""The contract, the operator, the coordinator and the supervisor never load torch."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "vllm", "transformers"}

LIGHT = [
    ("rollout_api", HEAVY | {"numpy"}),
    ("rollout_api.checks", HEAVY | {"numpy"}),
    ("rollout_operator.__main__", HEAVY | {"numpy"}),
    ("rollout.cli.main", HEAVY | {"numpy", "httpx", "aiohttp"}),
    ("rollout.runs.validation", HEAVY | {"numpy", "httpx", "aiohttp"}),
    ("rollout.runs.plan", HEAVY),
    ("rollout.supervisor", HEAVY),
    ("rollout.entrypoints.coordinator", HEAVY),
    ("rollout.report", HEAVY),
    ("rollout.report.service_tables", HEAVY),
    ("rollout.service.reading.summary", HEAVY),
    ("rollout.console.serve", HEAVY | {"matplotlib", "pyarrow"}),
    ("rollout.console.cluster.serve", HEAVY | {"matplotlib", "pyarrow"}),
    ("rollout.entrypoints.serving.gateway", HEAVY | {"numpy", "tokenizers", "httpx"}),
    ("rollout.serving.session", HEAVY),
    ("rollout.client", HEAVY),
]


@pytest.mark.parametrize(("module", "heavy"), LIGHT, ids=[name for name, _ in LIGHT])
def test_importing_it_loads_nothing_heavy(module, heavy):
    code = f"import sys, {module}; print(sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_command_line_needs_no_heavy_package_to_explain_itself():
    code = (
        "import sys; sys.argv=['rollout','--help']\n"
        "from rollout.cli.main import app\n"
        "try:\n    app()\nexcept SystemExit: pass\n"
        f"assert not set(sys.modules) & {HEAVY!r}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
