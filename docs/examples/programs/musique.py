"""An agent that answers MuSiQue's questions by searching, in one file: `python musique.py QUESTIONS.jsonl [--model MODEL]`.

QUESTIONS.jsonl has rows in MuSiQue's form: `question`, `answer`, `answer_aliases`, `paragraphs`; manifests/samples/data/two-hops/questions.jsonl is a
small file of them. Each question has a knowledge base of its own, found with `search` and `read`; the answer's token F1 is the reward. The tiny
model that stands for a real one has watched a careless pupil, and learns the second hop in minutes on two cores.
"""

import argparse

import rollout


def main() -> None:
    """Train, then say what was learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions")
    parser.add_argument("--model", default="rollout://tiny-agent?tool=search")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument(
        "--eval-limit", type=int, default=100, help="held-out questions that are asked"
    )
    parser.add_argument(
        "--new-tokens", type=int, default=24, help="of a reply; 256 for a real model"
    )
    given = parser.parse_args()
    data = {
        "jsonl": {"uri": given.questions, "promptField": "question"},
        "evalFraction": "0.25",
    }
    taught = given.model.startswith("rollout://")
    rules = {"maxTurns": str(given.max_turns), **({"instruction": ""} if taught else {})}
    parameters = [{"name": name, "value": value} for name, value in rules.items()]
    run = rollout.run(
        {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "musique"},
            "spec": {
                "model": {"uri": given.model},
                "train": {
                    "algorithm": {"grpo": {"promptsPerStep": 16, "groupSize": 8}},
                    "environment": {
                        "builtin": {"name": "musique-search", "parameters": parameters}
                    },
                    "data": data,
                    "rewards": [{"builtin": {"name": "environment"}}],
                    "sampling": {"maxNewTokens": given.new_tokens},
                    "optimizer": {"adamw": {"learningRate": "0.0003" if taught else "0.000002"}},
                    "maxSteps": given.steps,
                },
                "evaluations": [
                    {
                        "name": "musique",
                        "suite": {"data": data},
                        "atStart": True,
                        "maxPrompts": given.eval_limit,
                        "temperature": "1",
                    }
                ],
            },
        },
    )
    for one in (row for row in run.evaluations() if row["metric"] == "accuracy"):
        print(f"step {one['step']}: F1 of 0.5 or more in {one['value']:.3f} of the questions")
    print(f"report: {run.report()}")


if __name__ == "__main__":
    main()
