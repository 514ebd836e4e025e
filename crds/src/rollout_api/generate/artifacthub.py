"""What Artifact Hub shows of the charts: annotations of Chart.yaml. A block of YAML within YAML is how it wants lists."""

import inspect
import textwrap
from collections.abc import Sequence

from rollout_api import API_VERSION, GROUP, VERSION
from rollout_api.v1alpha1.objects.kinds import Kind

COMMON = {"category": "ai-machine-learning", "license": "MIT"}
OPERATOR = {"operator": '"true"', "operatorCapabilities": "Seamless Upgrades"}
EXAMPLE = f"""\
- apiVersion: {API_VERSION}
  kind: RolloutRun
  metadata: {{name: arithmetic}}
  spec:
    model: {{uri: "rollout://tiny-adder"}}
    train:
      algorithm: {{grpo: {{promptsPerStep: 32, groupSize: 8}}}}
      environment: {{builtin: {{name: arithmetic}}}}
      rewards: [{{builtin: {{name: exact-match}}}}]
      maxSteps: 400
"""


def render_operator_annotations() -> str:
    """Of the chart `rollout`."""
    return _render(COMMON | OPERATOR)


def render_definition_annotations(kinds: Sequence[Kind]) -> str:
    """Of the chart `rollout-crds`: every kind, and the smallest run."""
    entries = "".join(
        f"- kind: {kind.name}\n"
        f"  version: {VERSION}\n"
        f"  name: {kind.plural}.{GROUP}\n"
        f"  displayName: {kind.name}\n"
        f'  description: "{_summary(kind)}"\n'
        for kind in kinds
    )
    return _render(COMMON) + _block("crds", entries) + _block("crdsExamples", EXAMPLE)


def _summary(kind: Kind) -> str:
    return (inspect.getdoc(kind.model) or "").splitlines()[0]


def _render(values: dict[str, str]) -> str:
    return "".join(f"  artifacthub.io/{name}: {value}\n" for name, value in values.items())


def _block(name: str, text: str) -> str:
    return f"  artifacthub.io/{name}: |\n{textwrap.indent(text, '    ')}"
