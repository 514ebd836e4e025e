"""mini-swe-agent, as its authors published it, is trained: its tool calls are turns, its prompts grow by what is new."""

import json
import sys
from pathlib import Path

import pytest

from rollout.report import write_report
from rollout.supervisor import run_manifest

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

AGENT = "mini-swe-agent==2.4.6"
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def command(folder, host):
    settings = (
        "MSWEA_COST_TRACKING=ignore_errors",
        "MSWEA_CONFIGURED=true",
        "LITELLM_LOCAL_MODEL_COST_MAP=True",
        f"PYTHONPATH={folder}",
    )
    words = ("--model=openai/policy", "--task={instruction}", "--yolo", "--exit-immediately")
    return ["env", *settings, host.python, "-m", "minisweagent.run.mini", *words]


@pytest.fixture
def swe_agent(packages_beside, sandbox_host):
    return command(packages_beside(AGENT, sandbox_host.python), sandbox_host)


def test_a_run_of_a_few_steps_records_what_it_asked(swe_agent, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"prompt": "Write a into answer.txt.", "answer": "a"})
    )
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "home"))
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "mini"},
        "spec": {
            "model": {"uri": "rollout://tiny-qwen2?context=8192", "chatTemplate": TEMPLATE},
            "train": {
                "algorithm": {"grpo": {"promptsPerStep": 1, "groupSize": 2}},
                "data": {"jsonl": {"uri": str(tmp_path / "rows.jsonl")}},
                "environment": {
                    "agent": {
                        "command": swe_agent,
                        "maxTurns": 2,
                        "verifier": {"command": ["bash", "-c", "test -e answer.txt"]},
                    }
                },
                "rewards": [{"builtin": {"name": "environment"}}],
                "sampling": {"maxNewTokens": 24, "minNewTokens": 1},
                "maxSteps": 2,
            },
        },
    }
    result = run_manifest([document], progress=False, report=write_report)
    assert result.exit_code == 0, result.summary


async def test_its_calls_and_their_results_are_one_row(swe_agent):
    sys.path.insert(0, str(Path(__file__).parents[1] / "actor"))
    from agent_programs import play_agent

    from rollout.environments.agents.program import AgentProgram, VerifierProgram

    judge = VerifierProgram(
        command=("bash", "-c", 'test "$(cat answer.txt)" = a'), files=(), seconds=20
    )

    def say(prompt, seed):
        submit = "printf a > answer.txt && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
        shell = submit if '"returncode"' in prompt else "ls -la"
        call = json.dumps({"name": "bash", "arguments": {"command": shell}})
        return f"<tool_call>{call}</tool_call>"

    played, engine = await play_agent(AgentProgram(command=tuple(swe_agent), verifier=judge), say)

    (episode,) = played.episodes
    assert (episode.turn, episode.forks, episode.turn_rewards) == (2, 0, (None, 1.0))
    assert len(engine.calls) == 2
