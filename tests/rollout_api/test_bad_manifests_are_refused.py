"""Every known-bad manifest is refused at the field and for the reason that its first line names.

``# expect: FIELD REASON`` on the first line; ``# facts: JSON`` on the second where the rule needs to
know the model, the data or the platform.
"""

import json
import re
from pathlib import Path

import pytest

from rollout.runs.manifest import load_documents
from rollout_api.checks import check_document, check_together
from rollout_api.checks.facts import DataFacts, Facts, ModelFacts
from rollout_api.problems import Severity

FOLDER = Path(__file__).parent / "manifests"
BAD = sorted((FOLDER / "bad").glob("*.yaml"))
GOOD = sorted([*(FOLDER / "good").glob("*.yaml"), *(FOLDER / "sweeps").glob("*.yaml")])


def read_facts(text):
    found = re.search(r"^# facts: (.*)$", text, re.MULTILINE)
    given = json.loads(found.group(1)) if found else {}
    if "model" in given:
        given["model"] = ModelFacts(**given["model"])
    if "data" in given:
        given["data"] = DataFacts(**given["data"])
    return Facts(**given)


def problems_of(path):
    facts = read_facts(path.read_text())
    documents = [document.data for document in load_documents(path)]
    alone = [problem for document in documents for problem in check_document(document, facts)]
    return alone or [problem for _, problem in check_together(documents)]


def errors(problems):
    return [item for item in problems if item.severity is Severity.error]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_manifest_is_refused_at_the_right_field(path):
    field, reason = re.search(r"^# expect: (\S+) (\S+)$", path.read_text(), re.MULTILINE).groups()

    found = [(problem.field, problem.reason) for problem in errors(problems_of(path))]

    assert (field, reason) in found


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_refusal_says_what_to_do(path):
    for problem in problems_of(path):
        assert problem.message
        assert problem.fix
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", problem.reason)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_manifest_has_no_other_error(path):
    """One mistake, one refusal: a cascade would hide what is wrong."""
    assert len(errors(problems_of(path))) == 1


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_manifest_passes(path):
    assert errors(problems_of(path)) == []


def test_the_corpus_is_large_enough():
    assert len(BAD) >= 60
    assert len(GOOD) >= 15
