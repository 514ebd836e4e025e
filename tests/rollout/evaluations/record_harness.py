"""Writes ``recorded/*.jsonl``: replies, and what lm-evaluation-harness's own tasks make of them. Not a test.

Run it with a Python that has ``lm_eval``, ``langdetect``, ``nltk`` and its data ``punkt_tab`` (nothing of rollout's is needed):

    NLTK_DATA=... python tests/rollout/evaluations/record_harness.py

The replies are written here, not by a model: right, wrong, cut, and hostile ones, over GSM8K's test rows (MIT, OpenAI) and
over questions of our own for MMLU. Prompts are kept as SHA-256. The first line of each file says the harness's version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
GSM8K = HERE.parents[2] / "manifests" / "samples" / "data" / "gsm8k"
NUM_GSM8K = 200


def main() -> None:
    """Record every file."""
    RECORDED.mkdir(exist_ok=True)
    write("gsm8k", gsm8k("gsm8k", "gsm8k.yaml"))
    write("gsm8k-cot-zeroshot", gsm8k("gsm8k_cot_zeroshot", "gsm8k-cot-zeroshot.yaml"))
    write("mmlu-generative", mmlu())
    write("ifeval", ifeval())


def write(name: str, rows: Iterator[dict[str, Any]]) -> None:
    """One file: its origin, then a row for each reply."""
    origin = {"lm_eval": importlib.metadata.version("lm_eval"), "python": sys.version.split()[0]}
    lines = [json.dumps(one, ensure_ascii=False, sort_keys=True) for one in (origin, *rows)]
    (RECORDED / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def build(config: dict[str, Any]) -> Any:
    """A task of the harness over local files."""
    from lm_eval.api.task import ConfigurableTask

    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    return task


def score(task: Any, replies: list[str], extra: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Prompts and scores of the first rows, each answered by one reply."""
    task.build_all_requests(limit=len(replies), rank=0, world_size=1)
    for instance, reply in zip(task.instances, replies, strict=True):
        instance.resps = [reply]
    task.apply_filters()
    for instance, reply in zip(task.instances, replies, strict=True):
        said = {
            name: {
                metric: float(value)
                for metric, value in task.process_results(instance.doc, [filtered]).items()
            }
            for name, filtered in instance.filtered_resps.items()
        }
        prompt = hashlib.sha256(instance.args[0].encode()).hexdigest()
        yield {"doc": instance.doc, "prompt": prompt, "reply": reply, "said": said, **extra}


def read_config(task: str, file: str) -> dict[str, Any]:
    """A task's own YAML, without what names the hub."""
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks" / file
    config = yaml.safe_load(path.read_text())
    return {**config, "task": task, "dataset_path": "json", "dataset_name": None}


def gsm8k(task: str, file: str) -> Iterator[dict[str, Any]]:
    """Replies over the first rows of the test split."""
    config = read_config(task, f"gsm8k/{file}")
    files = {"train": str(GSM8K / "train.jsonl"), "test": str(GSM8K / "test.jsonl")}
    config["dataset_kwargs"] = {"data_files": files}
    built = build(config)
    draw = random.Random(7)
    docs = list(built.test_docs())[:NUM_GSM8K]
    replies = [gsm8k_reply(draw, doc["answer"]) for doc in docs]
    for row in score(built, replies, {}):
        yield {**row, "doc": None}


def gsm8k_reply(draw: random.Random, solution: str) -> str:
    """One of many ways to be right or wrong."""
    gold = solution.rsplit("#### ", 1)[1]
    number = draw.choice([gold, gold, gold, str(draw.randrange(2000)), f"-{gold}", f"{gold}.00"])
    steps = solution.rsplit("\n#### ", 1)[0]
    ways = [
        f" {steps}\n#### {number}",
        f" {steps}\n#### {number}.",
        f" {steps}\n#### ${number}",
        f" {steps}\n####{number}",
        f" {steps}\n#### {number} dollars\n\nQ: and 3 more?\n#### 7",
        f"The answer is {number}.",
        f"The answer is {number}",
        f"So the answer is ${number}.\nThe answer is 12.",
        f"It costs ${number}",
        f"\\boxed{{{number}}}",
        f"**{number}** is what is left of 20%.",
        f"{number:>6} - 3 = ?",
        "I do not know.",
        "",
        "....",
        "$",
        ",,",
        "#### ",
        "#### -",
        f"#### {number},000",
        f"١٢٣ {number}",
        "\0" + number + "\0",
        f"{number}\u00a0€ 5.",
        number * 40,
    ]
    return draw.choice(ways)


MMLU_DEV = [
    {
        "question": f"Which number is {word}?",
        "choices": ["one", "two", "three", "four"],
        "answer": n,
    }
    for n, word in enumerate(["1", "2", "3", "4", "one more than 1"][:4])
]
MMLU_TEST = [
    {
        "question": f"  What is {a} + {b}? ",
        "choices": [str(a + b + shift - place) for shift in range(4)],
        "answer": place,
        "subject": "our_own_sums",
    }
    for a in range(2, 14)
    for b in (3, 8)
    for place in [(a + b) % 4]
]


def mmlu() -> Iterator[dict[str, Any]]:
    """Replies over questions of our own, with no example and with four."""
    import lm_eval
    import yaml

    folder = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "generative"
    config = yaml.safe_load((folder / "_default_template_yaml").read_text())
    one = yaml.safe_load((folder / "mmlu_virology.yaml").read_text())
    description = one["description"].replace("virology", "our own sums")
    with tempfile.TemporaryDirectory() as made:
        files = {"dev": MMLU_DEV, "test": MMLU_TEST}
        for split, rows in files.items():
            path = Path(made) / f"{split}.jsonl"
            path.write_text(
                "\n".join(json.dumps({**row, "subject": "our_own_sums"}) for row in rows)
            )
        for shots in (0, 4):
            built = build(
                {
                    **config,
                    "task": "mmlu_our_own_sums_generative",
                    "description": description,
                    "dataset_path": "json",
                    "dataset_kwargs": {
                        "data_files": {split: f"{made}/{split}.jsonl" for split in files}
                    },
                    "num_fewshot": shots,
                }
            )
            draw = random.Random(shots)
            replies = [mmlu_reply(draw, "ABCD"[row["answer"]]) for row in MMLU_TEST]
            yield from score(built, replies, {"shots": shots})


def mmlu_reply(draw: random.Random, letter: str) -> str:
    """One of many ways to say a letter, or none."""
    said = draw.choice([letter, letter, draw.choice("ABCD")])
    return draw.choice(
        [
            f" {said}",
            said,
            said.lower(),
            f"{said}.",
            f"({said})",
            f" {said}\n\nQuestion:",
            f"\n{said}",
            f"  {said}  \t",
            f"Answer: {said}",
            "",
            "\n",
            "none of these",
            f"{said}\0",
            f"{said}\r",
            "E",
        ]
    )


IFEVAL_METRICS = (
    "prompt_level_strict_acc",
    "inst_level_strict_acc",
    "prompt_level_loose_acc",
    "inst_level_loose_acc",
)


def _numbers(found: bool | list[bool]) -> int | list[int]:
    return [int(one) for one in found] if isinstance(found, list) else int(found)


def ifeval() -> Iterator[dict[str, Any]]:
    """Every instruction with every reply, one at a time and then three at a time."""
    from ifeval_cases import CASES, REPLIES
    from langdetect import DetectorFactory
    from lm_eval.tasks.ifeval.utils import process_results

    singles = [(name, given) for name, all_given in CASES for given in all_given]
    prompts = [[one] for one in singles]
    draw = random.Random(11)
    prompts += [draw.sample(singles, 3) for _ in range(40)]
    for key, listed in enumerate(prompts):
        doc = {
            "key": key,
            "prompt": "Describe the river in one line.",
            "instruction_id_list": [name for name, _ in listed],
            "kwargs": [given for _, given in listed],
        }
        replies = range(len(REPLIES)) if len(listed) == 1 else draw.sample(range(len(REPLIES)), 8)
        said = []
        for place in replies:
            random.seed(0)
            DetectorFactory.seed = 0
            found = process_results(doc, [REPLIES[place]])
            said.append([place, *(_numbers(found[name]) for name in IFEVAL_METRICS)])
        yield {"doc": doc, "said": said}


if __name__ == "__main__":
    main()
