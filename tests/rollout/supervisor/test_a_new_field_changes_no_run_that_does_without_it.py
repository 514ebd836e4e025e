"""A run's identity holds what its author asked for, not what every version happens to have as defaults.

``identities.json`` holds the identities of the good manifests: a field that is added with a default must
leave all of them as they are. `python THIS_FILE` writes it anew, with a higher ``IDENTITY_FORMAT``.
"""

import json
from pathlib import Path

import pytest

from rollout.errors import SpecError
from rollout.runs.identity import IDENTITY_FORMAT, spec_identity
from rollout.runs.manifest import load_documents
from rollout.runs.prepare import prepare_run
from rollout.supervisor.launch import require_same_run

HERE = Path(__file__).parent
GOOD = sorted((HERE.parents[1] / "rollout_api/manifests/good").glob("*.yaml"))
RECORDED = HERE / "identities.json"


def identities():
    found = {}
    for path in GOOD:
        for number, document in enumerate(load_documents(path)):
            if document.data.get("kind", "RolloutRun") == "RolloutRun":
                found[f"{path.stem}/{number}"] = spec_identity(prepare_run(document).spec)
    return found


def test_identities_are_as_recorded():
    recorded = json.loads(RECORDED.read_text())

    found = {name: one for name, one in identities().items() if name in recorded["identities"]}

    assert recorded["format"] == IDENTITY_FORMAT
    assert found == recorded["identities"]


def test_a_default_that_is_written_out_is_no_other_run():
    [smallest] = load_documents(HERE.parents[1] / "rollout_api/manifests/good/smallest-grpo.yaml")
    before = spec_identity(prepare_run(smallest).spec)
    smallest.data["spec"]["train"]["maxStaleness"] = 0
    smallest.data["spec"]["seed"] = 0

    assert spec_identity(prepare_run(smallest).spec) == before

    smallest.data["spec"]["seed"] = 1
    assert spec_identity(prepare_run(smallest).spec) != before


def test_a_run_that_began_under_another_form_is_refused_with_both():
    class Config:
        identity_format, spec_digest = 1, "blake3:0"

    class Now(Config):
        identity_format = IDENTITY_FORMAT

    with pytest.raises(SpecError, match=f"identity format 1, .* writes format {IDENTITY_FORMAT}"):
        require_same_run(Config, Now, None, None)


if __name__ == "__main__":
    content = {"format": IDENTITY_FORMAT, "identities": identities()}
    RECORDED.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
