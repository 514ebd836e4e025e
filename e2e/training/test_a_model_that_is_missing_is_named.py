"""What a container writes for its kubelet on the way out becomes the reason of the run."""

import pytest
from samples import build_manifest
from watched import Stage

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(600)]

END_SECONDS = 180.0
NOWHERE = "file:///nowhere/model"


def test_a_model_that_is_not_there_ends_the_run_with_its_name(stage: Stage):
    run = stage.start(build_manifest(model={"uri": NOWHERE}))
    assert run.wait_for_end(END_SECONDS)["reason"] == "Failed"
    ready = run.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ModelNotFound")
    assert NOWHERE.removeprefix("file://") in ready["message"]
