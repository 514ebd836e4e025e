"""Whether the routes that an actor told are ones that a learner can replay: looked at before anything is kept of them.

A hostile or broken actor may tell any bytes. What does not fit the model would end the step that consumes it, at every
try: a layer that is not there, an expert out of range, one expert twice, a position too few.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from rollout.models.experts.families import ExpertShape
from rollout.turns import further_rows
from rollout.types import Branch, ExpertRoutes, Prefix, Trajectory


def find_wrong_routes(made: Sequence[Trajectory | Prefix], shape: ExpertShape | None) -> str:
    """What is wrong with the first bad routes; empty when nothing is. ``shape`` None: samples of this task have none."""
    if shape is None and not [
        row for row in (*made, *further_rows(made)) if row.routes is not UNSET
    ]:
        return ""  # nearly all runs, and nearly all that a coordinator looks at
    for one in made:
        for row in (one, *further_rows((one,))):
            if wrong := _check(row, shape):
                return f"sample {one.sample}: {wrong}"
    return ""


def count_route_bytes(made: Sequence[Trajectory | Prefix]) -> int:
    """Bytes of all routes, for a guess of how long looking takes."""
    return sum(
        len(row.routes.chosen) for row in (*made, *further_rows(made)) if row.routes is not UNSET
    )


def goes_on(made: Trajectory | Prefix, before: Prefix) -> bool:
    """Whether routes begin as those of the beginning that a sample goes on from."""
    if made.routes is UNSET or before.routes is UNSET:
        return made.routes is before.routes
    return made.routes.chosen.startswith(before.routes.chosen)


def _check(made: Trajectory | Branch | Prefix, shape: ExpertShape | None) -> str:
    routes = made.routes
    if routes is UNSET:
        return "" if shape is None else "its experts were not told: expected those of each token"
    if shape is None:
        return "it tells experts: expected none, of a model or a task that has none"
    wanted = shape.empty()
    if (routes.num_layers, routes.top_k, routes.wide) != (
        wanted.num_layers,
        wanted.top_k,
        wanted.wide,
    ):
        return (
            f"routes of {routes.num_layers} layers x {routes.top_k} experts, {1 + routes.wide} bytes each: expected"
            f" {wanted.num_layers} x {wanted.top_k}, {1 + wanted.wide} bytes each"
        )
    positions = _num_computed(made)
    if len(routes.chosen) != positions * wanted.position_bytes:
        return (
            f"routes of {len(routes.chosen)} bytes: expected {positions * wanted.position_bytes}, the experts of all"
            f" {positions} positions before its last sampled token"
        )
    return _check_ids(routes, shape)


def _num_computed(made: Trajectory | Branch | Prefix) -> int:
    """Positions that were computed to sample the last token that was sampled; 0 where none was."""
    place = bytes(made.loss_mask).rfind(1)
    return 0 if place < 0 else len(made.prompt_ids) + place


def _check_ids(routes: ExpertRoutes, shape: ExpertShape) -> str:
    import numpy as np  # runs of other models need none of it

    ids = np.frombuffer(routes.chosen, dtype="<u2" if routes.wide else "u1")
    ids = ids.reshape(-1, shape.top_k)
    if ids.size and ids.max() >= shape.experts:
        return f"routes name expert {ids.max()}: expected 0 to {shape.experts - 1}"
    ordered = np.sort(ids, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        return "routes name one expert twice for a token in a layer"
    return ""
