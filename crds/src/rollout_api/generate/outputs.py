"""Which files are generated, and what they hold. Pure: nothing is written here."""

from rollout_api.generate import chart, editor, operator_chart, reference
from rollout_api.generate.crd import build_crd, to_yaml
from rollout_api.generate.tree import build_tree
from rollout_api.v1alpha1.objects.kinds import KINDS
from rollout_api.v1alpha1.runtime import RuntimeSpec

CRDS = "crds/generated"
CHART = "charts/rollout-crds"
OPERATOR_CHART = "charts/rollout"
ALL_GENERATED = (CRDS, f"{CHART}/templates", f"{OPERATOR_CHART}/templates/crds")
"""Folders in which nothing else lies."""
REFERENCE = "docs/reference"
CRD_SIZE_MAX = 262_144


def build_outputs(version: str) -> dict[str, str]:
    """Text of every generated file, by path from the repository's root."""
    definitions = {kind.plural: to_yaml(build_crd(kind)) for kind in KINDS}
    for name, text in definitions.items():
        if len(text.encode()) >= CRD_SIZE_MAX:
            raise ValueError(f"{name} must stay below {CRD_SIZE_MAX} bytes, got {len(text)}")
    files = {f"{CRDS}/{name}.yaml": text for name, text in definitions.items()}
    charts = _chart(definitions, version) | _operator_chart(definitions, version)
    return files | _schemas() | charts | _pages()


def _schemas() -> dict[str, str]:
    files = {}
    for kind in KINDS:
        schema = editor.build_schema(build_tree(kind.model), title=kind.name)
        files[f"{CRDS}/{kind.name.lower()}.schema.json"] = editor.to_json(schema)
    runtime = editor.build_schema(build_tree(RuntimeSpec), title="The default runtime of the chart")
    return files | {f"{CRDS}/values.runtime.schema.json": editor.to_json(runtime)}


def _chart(definitions: dict[str, str], version: str) -> dict[str, str]:
    templates = {
        f"{CHART}/templates/{name}.yaml": chart.render_template(text)
        for name, text in definitions.items()
    }
    return templates | {
        f"{CHART}/Chart.yaml": chart.render_chart(version, KINDS),
        f"{CHART}/values.yaml": chart.VALUES,
        f"{CHART}/README.md": chart.README,
        f"{CHART}/templates/NOTES.txt": chart.NOTES,
        f"{CHART}/values.schema.json": editor.to_json(chart.values_schema()),
    }


def _operator_chart(definitions: dict[str, str], version: str) -> dict[str, str]:
    templates = {
        f"{OPERATOR_CHART}/templates/crds/{name}.yaml": operator_chart.render_definition(text)
        for name, text in definitions.items()
    }
    return templates | {
        f"{OPERATOR_CHART}/Chart.yaml": operator_chart.render_chart(version),
        f"{OPERATOR_CHART}/values.yaml": operator_chart.render_values(),
        f"{OPERATOR_CHART}/values.schema.json": editor.to_json(operator_chart.values_schema()),
        f"{OPERATOR_CHART}/README.md": operator_chart.render_readme(),
    }


def _pages() -> dict[str, str]:
    return {
        f"{REFERENCE}/api.md": reference.render_api(KINDS),
        f"{REFERENCE}/conditions.md": reference.render_conditions(),
    }
