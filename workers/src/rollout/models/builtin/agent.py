"""``rollout://tiny-agent``: a tiny Qwen2 that has watched a careless pupil use a calculator, Python, or search.

A chat model with a template of its own, which tells it the names of its tools and writes calls as Qwen does. Random
weights by exact arithmetic, a token for each printable character and for the pieces of a call, then a supervised warm
start on ``rollout.environments.sample_data.asked_sums``. It asks for three problems in five, and slips: a place from
which reinforcement learning is seen to learn the use of a tool within minutes. ``?tool=python_exec`` has watched the same
pupil have programs print what it asks; ``?tool=search`` one that answers questions over two documents (``two_hops``), mostly
after the first. ``?steps=0`` is the same model before.

The weights after the default warm start are committed, in float16: nobody waits for it, and they are the same bytes on
every machine. Others (``steps``, ``seed``) are trained on the spot, in a minute or two, equal on one kind of machine.
``python -m rollout.models.builtin.agent TOOL FOLDER`` trains them anew and writes what is committed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from rollout.common.parameters import parse_parameters
from rollout.environments.sample_data.asked_sums import asked_sums, programmed_sums
from rollout.environments.sample_data.two_hops import searched
from rollout.models.builtin.local_tokenizers import TokenizerStyle, build_word_tokenizer
from rollout.models.builtin.pupil import (
    build_shape,
    canonical_pupil,
    check_seed,
    check_steps,
    write_pupil,
)
from rollout.models.builtin.tiny import TinyShape
from rollout.rendering.build import build_renderer
from rollout.rendering.tool_calls import CLOSE, OPEN

RECIPE_VERSION = 1
"""Raised when the same parameters would give another model: it is part of the cache's name."""

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
WORDS = (
    '\n{"name": "',
    '", "arguments": {"',
    '": "',
    '"}}\n',
    "calculator",
    "expression",
    "search",
    "query",
    '", "k": 1}}\n',
    "read",
    "home of boss of ",
    " has boss ",
    " home ",
    "system\n",
    "user\n",
    "assistant\n",
    "tool\n",
)
"""What has a token of its own beside the characters: the pieces of a call, of a turn, and the tools' names."""
CONTEXT = 1024
WEIGHTS = "model.safetensors"
DEMONSTRATIONS = 12_000
STEPS = 300
COMMITTED = Path(__file__).parent / "tiny_agent"
"""Weights after ``STEPS`` steps with seed 0, by tool."""
TEMPLATE = (
    "{%- if tools -%}{{- '<|im_start|>system\\n' -}}"
    "{%- for tool in tools -%}{{- tool.function.name + '\\n' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] -}}"
    "{%- for call in message.tool_calls or [] -%}"
    """{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}"""
    "{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
PUPILS = {"calculator": asked_sums, "python_exec": programmed_sums, "search": searched}
"""Whose conversations are shown, by the tool that is used in them."""
STYLE = TokenizerStyle(
    specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    eos="<|im_end|>",
    pad="<|endoftext|>",
    chat_template=TEMPLATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The parameters: ``seed`` draws weights and order, ``steps`` is the length of the warm start, ``tool`` its tool."""

    seed: int = 0
    steps: int = STEPS
    tool: str = "calculator"

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if self.tool not in PUPILS:
            raise ValueError(f"tool: expected {', '.join(sorted(PUPILS))}, got {self.tool!r}")
        check_seed(self.seed)

    @property
    def shape(self) -> TinyShape:
        """196,704 parameters; heads of 32, the smallest that vLLM's CPU build takes."""
        return build_shape(self.seed, CONTEXT)


def canonical_agent(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters with defaults filled in. Raises SpecError for a bad one."""
    return canonical_pupil(_parse(parameters), RECIPE_VERSION)


def build_agent(directory: Path, parameters: Mapping[str, str]) -> None:
    """Write the model folder; with ``steps`` or ``seed`` of one's own takes minutes and needs torch."""
    agent = _parse(parameters)
    write_untrained(directory, agent)
    if (agent.steps, agent.seed) == (STEPS, 0):
        weights = load_file(COMMITTED / f"{agent.tool}.safetensors")
        wide = {name: tensor.astype(np.float32) for name, tensor in weights.items()}
        save_file(wide, directory / WEIGHTS, metadata={"format": "pt"})
    elif agent.steps:
        train(directory, agent)


def train(directory: Path, agent: Agent) -> None:
    """The warm start of the model in ``directory``."""
    from rollout.models.builtin.warm_start import warm_start

    renderer, rows = build_renderer(directory), []
    for messages, tools in PUPILS[agent.tool](DEMONSTRATIONS):
        rows.append(renderer.render_training(messages, tools))
    warm_start(directory, rows, renderer.pad_token_id, seed=agent.seed, steps=agent.steps)


def _parse(parameters: Mapping[str, str]) -> Agent:
    return parse_parameters("rollout://tiny-agent", Agent, parameters)


def write_untrained(directory: Path, agent: Agent) -> None:
    """Write configuration, tokenizer, chat template and random weights."""
    tokenizer = build_word_tokenizer(CHARACTERS, WORDS, (OPEN, CLOSE), STYLE)
    write_pupil(directory, agent.shape, tokenizer, STYLE)


def main(tool: str, folder: Path) -> None:
    """Train the default warm start of a tool and write its weights in float16 into ``folder``."""
    agent = Agent(tool=tool)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        write_untrained(directory, agent)
        train(directory, agent)
        weights = load_file(directory / WEIGHTS)
    narrow = {name: tensor.astype(np.float16) for name, tensor in weights.items()}
    save_file(narrow, folder / f"{tool}.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
