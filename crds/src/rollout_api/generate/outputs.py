"""Which files are generated, and what they hold. Pure: nothing is written here."""

from rollout_api.generate import chart, editor, reference
from rollout_api.generate.crd import build_crd, to_yaml
from rollout_api.generate.tree import build_tree
from rollout_api.v1alpha1.kinds import KINDS
from rollout_api.v1alpha1.runtime import RuntimeSpec

CRDS = "crds/generated"
CHART = "charts/rollout-crds"
REFERENCE = "docs/reference"
CRD_SIZE_MAX = 262_144


def build_outputs(version: str) -> dict[str, str]:
    """Text of every generated file, by path from the repository's root."""
    return _definitions() | _schemas() | _chart(version) | _pages()


def _definitions() -> dict[str, str]:
    files = {f"{CRDS}/{kind.plural}.yaml": to_yaml(build_crd(kind)) for kind in KINDS}
    for path, text in files.items():
        if len(text.encode()) >= CRD_SIZE_MAX:
            raise ValueError(f"{path} must stay below {CRD_SIZE_MAX} bytes, got {len(text)}")
    return files


def _schemas() -> dict[str, str]:
    files = {}
    for kind in KINDS:
        schema = editor.build_schema(build_tree(kind.model), title=kind.name)
        files[f"{CRDS}/{kind.name.lower()}.schema.json"] = editor.to_json(schema)
    runtime = editor.build_schema(build_tree(RuntimeSpec), title="The default runtime of the chart")
    return files | {f"{CRDS}/values.runtime.schema.json": editor.to_json(runtime)}


def _chart(version: str) -> dict[str, str]:
    templates = {
        f"{CHART}/templates/{kind.plural}.yaml": chart.render_template(to_yaml(build_crd(kind)))
        for kind in KINDS
    }
    return templates | {
        f"{CHART}/Chart.yaml": chart.render_chart(version),
        f"{CHART}/values.yaml": chart.VALUES,
        f"{CHART}/values.schema.json": editor.to_json(chart.values_schema()),
    }


def _pages() -> dict[str, str]:
    return {
        f"{REFERENCE}/api.md": reference.render_api(KINDS),
        f"{REFERENCE}/conditions.md": reference.render_conditions(),
    }
