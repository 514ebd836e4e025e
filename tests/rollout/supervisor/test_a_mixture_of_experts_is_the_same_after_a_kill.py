"""A mixture of experts as a user starts it: killed or not, the routes that its ledger keeps lead to one chain."""

import pytest
from local_jobs import MANIFEST, start_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

DENSE = MANIFEST[MANIFEST.index("rollout://") : MANIFEST.index("}\n  train:")]
MIXTURE = MANIFEST.replace(
    DENSE, DENSE.replace("tiny-qwen2", "tiny-qwen3-moe").replace("layers=1", "layers=2")
).replace("maxSteps: 12", "maxSteps: 8")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["learner", "actor-0", "coordinator"])
def test_a_kill_changes_nothing(role, tmp_path):
    calm = start_job(tmp_path / "one" / "runs", manifest=MIXTURE).finish()

    job = start_job(tmp_path / "two" / "runs", manifest=MIXTURE, steps_max=6)
    job.wait_until(lambda status: status.step >= 4)
    job.kill(role)
    job.limit_steps()

    assert job.finish()["chain"] == calm["chain"]
    assert "starting it again" in job.said()


@pytest.mark.slow
def test_two_actors_and_an_adapter_end_where_one_does(tmp_path):
    adapted = MIXTURE.replace(
        '"}\n  train:', '", lora: {rank: 2, alpha: 4, targets: [Attention]}}\n  train:'
    )
    assert "lora" in adapted
    one, two = (
        start_job(tmp_path / str(n) / "runs", manifest=adapted, overrides=[f"actors.replicas={n}"])
        for n in (1, 2)
    )

    assert one.finish()["chain"] == two.finish()["chain"]
