"""A run with an MCP server in a cluster: the coordinator's pod asks it for its tools in a sandbox pod, and actors find the same."""

import sys
from pathlib import Path
from typing import Any

import pytest
from watched import Stage

sys.path.append(str(Path(__file__).parents[2] / "tests" / "rollout" / "tools"))

from servers import SERVER

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

END_SECONDS = 420.0
CODE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "code"},
    "data": {"server.py": SERVER},
}


def manifest(name: str, mode: str = "") -> dict[str, Any]:
    server = {
        "name": "shelf",
        "command": ["python", "server.py", *([mode] if mode else [])],
        "files": ["server.py"],
    }
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
            "model": {"uri": "rollout://tiny-agent"},
            "code": {"configMap": {"name": "code"}},
            "train": {
                "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
                "environment": {"builtin": {"name": "arithmetic"}, "mcpServers": [server]},
                "rewards": [{"builtin": {"name": "exact-match"}}],
                "sampling": {"maxNewTokens": 8},
                "maxSteps": 1,
            },
            "actors": {"engine": {"embedded": {}}},
        },
    }


def test_a_run_is_planned_and_trained_with_the_tools_that_its_server_lists(stage: Stage):
    stage.kubectl.apply(CODE)
    run = stage.start(manifest("shelf"))
    end = run.wait_for_end(END_SECONDS)
    assert end["reason"] == "Succeeded", run.describe()
