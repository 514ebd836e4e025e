"""What is shown to be copied is taken by `kubectl apply` too: decimals are quoted (decision 0002).

The e2e tier asks the API server itself; here the same schema is read in milliseconds.
"""

import re
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests" / "samples").rglob("*.yaml"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def _schemas() -> dict[tuple[str, str], object]:
    documents = (
        YAML(typ="safe").load(path.read_text())
        for path in sorted((ROOT / "crds" / "generated").glob("*s.yaml"))
    )
    return {
        (document["spec"]["names"]["kind"], version["name"]): version["schema"]["openAPIV3Schema"]
        for document in documents
        for version in document["spec"]["versions"]
    }


SCHEMAS = _schemas()


def _shown() -> list[tuple[str, str]]:
    files = [(str(path.relative_to(ROOT)), path.read_text()) for path in SAMPLES]
    fences = [
        (f"{path.relative_to(ROOT)}#{number}", text)
        for path in PAGES
        for number, text in enumerate(FENCED.findall(path.read_text()))
    ]
    return [(name, text) for name, text in files + fences if "apiVersion: rollout.dev/" in text]


SHOWN = _shown()


def _complaints(document: dict) -> list[str]:
    group, _, version = document["apiVersion"].partition("/")
    if group != "rollout.dev":
        return []
    validator = jsonschema.Draft202012Validator(SCHEMAS[document["kind"], version])
    return [f"{found.json_path}: {found.message}" for found in validator.iter_errors(document)]


@pytest.mark.parametrize("text", [text for _, text in SHOWN], ids=[name for name, _ in SHOWN])
def test_what_is_shown_is_taken_by_a_cluster(text: str):
    for document in YAML(typ="safe").load_all(text):
        assert _complaints(document) == []


def test_a_decimal_without_quotes_is_found():
    """The sample that a cluster refused."""
    text = (ROOT / "manifests" / "samples" / "search-agent.yaml").read_text()
    document = YAML(typ="safe").load(text.replace('"0.25"', "0.25"))
    assert any("evalFraction" in found for found in _complaints(document))
