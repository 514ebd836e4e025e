"""How an episode that is played is shown, step by step, and what it earned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout.cli.output import print_line, print_note

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollout.debug.playing.episode import PlayedEpisode, PlayedStep
    from rollout.turns import Ending, State


def show_step(step: PlayedStep, *, shows_reply: bool) -> None:
    """Print what was heard. ``shows_reply``: the reply too, which nobody here has written."""
    from rollout.turns import State

    if step.trouble and step.turn == 0:
        print_note(f"a fresh environment hears the same replies: {step.trouble}")
    if shows_reply and step.turn:
        print_line(f"assistant: {step.reply}")
    for call in step.calls:
        print_line(f"call {call.name} {call.arguments_text} ({call.status})")
    if isinstance(step.said, State):
        _show_state(step.said)
    _show_numbers(step.turn, step.said)


def _show_state(said: State) -> None:
    from rollout.types import ToolResult

    for tool in said.tools or ():
        print_line(f"tool {tool.name}({', '.join(tool.parameters.get('properties', {}))})")
        print_line(f"  {tool.description}")
    for message in said.messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        for one in results:
            print_line(f"result {one.name}: {one.text}")
        if not results:
            print_line(f"{message.role}: {message.text}")


def _show_numbers(turn: int, said: State | Ending) -> None:
    if said.turn_reward is not None:
        print_line(f"turn {turn} reward {said.turn_reward:g}")
    if said.signals:
        listed = ", ".join(f"{name} {value:g}" for name, value in sorted(said.signals.items()))
        print_line(f"turn {turn} signals {listed}")


def show_end(played: PlayedEpisode, row: Mapping[str, object], *, shows_reply: bool) -> None:
    """Print how it ended, and what the builtin rewards give it; ``row`` may have the answer."""
    if played.close_failure:
        print_note(f"the environment's close failed: {played.close_failure}")
    ending = played.ending
    if ending is None:
        print_note("the episode was left before its end: it has no reward")
        return
    for reply in played.unheard if shows_reply else ():
        print_line(f"assistant: {reply}")
    detail = f": {ending.detail}" if ending.detail else ""
    print_line(f"ended {ending.kind} (owner {ending.owner}){detail}")
    if ending.owner != "policy":
        print_note(f"its owner is {ending.owner}: it is never scored")
        return
    print_line(f"reward environment {played.total:g}")
    if "answer" in row:
        right = bool(played.replies) and played.replies[-1].strip() == str(row["answer"]).strip()
        print_line(f"reward exact-match {int(right)} (answer {row['answer']})")
