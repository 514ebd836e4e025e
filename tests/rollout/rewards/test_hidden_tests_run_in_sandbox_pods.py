"""``code-tests`` where sandboxes are pods: the process that may ask for them scores, and what no pod came for is not scored."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "security"))
from boxed_pods import BoxedPods

from rollout.errors import InfrastructureError, RewardError, RewardUnavailable
from rollout.rewards.pipeline import RewardPipeline
from rollout.rewards.source import RewardSource
from rollout.tools.sandbox import chosen
from rollout.tools.sandbox.pods.sandbox import PodSandboxes
from rollout.types import Completion

pytestmark = pytest.mark.process
SOURCE = RewardSource(name="code-tests", builtin="code-tests", counts="score")
ADD = "def add(a, b):\n    return a + b\n"
ROW = {"tests": ["assert add(1, 2) == 3"]}


def said(text):
    return Completion(token_ids=(), logprobs=(), finish="stop", text=text)


class Withheld(BoxedPods):
    """Gives no pod to the second that asks."""

    async def claim(self):
        if len(self.processes) == 1:
            self.processes["none"] = next(iter(self.processes.values()))
            raise InfrastructureError("all 1 sandbox pods that the runtime allows are in use")
        return await super().claim()


@pytest.fixture
def pods(request, sandbox_host, monkeypatch):
    made = getattr(request, "param", BoxedPods)(sandbox_host)
    monkeypatch.setattr(chosen, "_CHOSEN", [PodSandboxes(made, 1 << 30)])
    yield made
    made.kill()


def test_each_program_is_scored_in_a_pod_of_its_own(pods):
    pipeline = RewardPipeline([SOURCE])
    scored = pipeline.score([(), ()], [said(ADD), said("def add(a, b): return 0")], [ROW, ROW])

    assert [total for total, _ in scored] == [1.0, 0.0]
    assert len(pods.processes) == len(pods.released) == 2


@pytest.mark.parametrize("pods", [Withheld], indirect=True)
def test_a_program_that_no_pod_came_for_is_lost_to_infrastructure_and_not_scored(pods):
    pipeline = RewardPipeline(
        [RewardSource(**{**vars_of(SOURCE), "parameters": {"concurrency": "1"}})]
    )
    with pytest.raises(RewardUnavailable, match="all 1 sandbox pods") as lost:
        pipeline.score([(), ()], [said(ADD), said(ADD)], [ROW, ROW])

    assert lost.value.lost == (1,)


def vars_of(source):
    return {name: getattr(source, name) for name in source.__slots__}


def test_a_row_without_tests_is_named(pods):
    with pytest.raises(RewardError, match=r"code-tests.*the row has no tests"):
        RewardPipeline([SOURCE]).score([()], [said(ADD)], [{"prompt": "q"}])
    assert not pods.processes
