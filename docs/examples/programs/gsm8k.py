"""GRPO on GSM8K in one file: `python gsm8k.py FOLDER [--model MODEL] [--steps N]`.

FOLDER has GSM8K's train.jsonl and test.jsonl (manifests/samples/data/gsm8k is a copy). Any model with a chat template will do, such as
hf://Qwen/Qwen2.5-0.5B-Instruct; the tiny one that stands for it shows that everything runs, and answers nothing right.
"""

import argparse
import json
from pathlib import Path

import rollout

ASKED = "Think step by step, and put the final answer into \\boxed{}."


def brevity(prompts, completions, rows):
    """A reward of our own beside the right answer: 1 for nothing, less for more."""
    return [1.0 / (1 + len(one.text) / 500) for one in completions]


def right(prompts, completions, rows):
    """Whether what stands in the last box is the answer."""
    boxes = [one.text.rpartition("\\boxed{")[2].partition("}")[0] for one in completions]
    said = [box.replace(",", "").replace("$", "").strip() for box in boxes]
    return [float(one == row["answer"]) for one, row in zip(said, rows, strict=True)]


def write_prompts(source: Path, target: Path) -> None:
    """GSM8K's rows as prompts; the answer follows the four signs."""
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    asked = [
        {
            "prompt": f"{row['question']}\n{ASKED}",
            "answer": row["answer"].rpartition("####")[2].strip().replace(",", ""),
        }
        for row in rows
    ]
    target.write_text("".join(json.dumps(one) + "\n" for one in asked), "utf-8")


def main() -> None:
    """Train, then say what was learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="rollout://tiny-qwen2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--limit", type=int, default=200, help="questions of the test set")
    given = parser.parse_args()
    write_prompts(given.folder / "train.jsonl", Path("gsm8k-prompts.jsonl"))
    test = {"name": "uri", "value": str((given.folder / "test.jsonl").absolute())}
    run = rollout.run(
        {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "gsm8k"},
            "spec": {
                "model": {"uri": given.model},
                "train": {
                    "algorithm": {"grpo": {"promptsPerStep": 8, "groupSize": 8}},
                    "data": {"jsonl": {"uri": "gsm8k-prompts.jsonl"}},
                    "sampling": {"maxNewTokens": given.new_tokens},
                    "optimizer": {"adamw": {"learningRate": "0.000002"}},
                    "maxSteps": given.steps,
                },
                "evaluations": [
                    {
                        "suite": {"builtin": {"name": "gsm8k", "parameters": [test]}},
                        "atStart": True,
                        "maxPrompts": given.limit,
                        "maxNewTokens": given.new_tokens,
                    }
                ],
            },
        },
        rewards=[right, brevity],
    )
    for one in (row for row in run.evaluations() if row["metric"] == "accuracy"):
        print(
            f"step {one['step']}: accuracy {one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
        )
    print(f"report: {run.report()}")


if __name__ == "__main__":
    main()
