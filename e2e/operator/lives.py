"""Parts of a run's life, each from a state of rest to the next: what is done, and how its end is known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from operators import eventually
from stage import World

Step = Callable[[World, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """``prepare`` brings a run of a name to rest, ``act`` disturbs it, ``arrive`` waits for the next rest."""

    name: str
    prepare: Step
    act: Step
    arrive: Step


def make(world: World, run: str, spec: dict[str, Any] | None = None) -> None:
    world.apply(run, spec)


def make_and_wait(world: World, run: str) -> None:
    make(world, run)
    wait_until_running(world, run)


def make_brief(world: World, run: str) -> None:
    make(world, run, {"limits": {"ttlSecondsAfterFinished": 0}})
    wait_until_running(world, run)


def make_suspended(world: World, run: str) -> None:
    make_and_wait(world, run)
    suspend(world, run)
    wait_until_suspended(world, run)


def suspend(world: World, run: str) -> None:
    world.patch({"suspend": True}, run)


def resume(world: World, run: str) -> None:
    world.patch({"suspend": False}, run)


def fail_a_rank(world: World, run: str) -> None:
    world.puppets.fail(f"{run}-learner-0", "learner", 1, "boom")


def finish(world: World, run: str) -> None:
    world.succeed(run)


def nothing(_: World, __: str) -> None:
    return


def wait_until_running(world: World, run: str) -> None:
    world.wait_for("Ready", "True", "Running", run)


def wait_until_suspended(world: World, run: str) -> None:
    world.wait_for("Suspended", "True", "Suspended", run)


def wait_for_the_second_attempt(world: World, run: str) -> None:
    eventually(lambda: world.run(run)["status"]["attempt"] == 2, "no second attempt")
    wait_until_running(world, run)


def wait_for_the_second_group(world: World, run: str) -> None:
    def restarted() -> bool:
        return world.run(run)["status"].get("learner", {}).get("restarts") == 1

    eventually(restarted, "no group restart")
    wait_until_running(world, run)


def wait_until_removed(world: World, run: str) -> None:
    world.wait_for("Finished", "True", "Succeeded", run)
    kinds = "statefulsets,services,secrets,configmaps,pods"
    eventually(
        lambda: not world.kubectl.get(kinds, "-l", f"rollout.dev/run={run}")["items"],
        "children outlived their time",
    )
    eventually(lambda: counts_nothing(world, run), "the status still counts what is gone")


def counts_nothing(world: World, run: str) -> bool:
    status = world.run(run)["status"]
    roles = [status.get(field, {}) for field in ("coordinator", "learner", "actors")]
    return not any(one.get("desired") or one.get("replicas") for one in roles)


LIVES = (
    Life(name="create", prepare=nothing, act=make, arrive=wait_until_running),
    Life(name="suspend", prepare=make_and_wait, act=suspend, arrive=wait_until_suspended),
    Life(name="resume", prepare=make_suspended, act=resume, arrive=wait_for_the_second_attempt),
    Life(name="regroup", prepare=make_and_wait, act=fail_a_rank, arrive=wait_for_the_second_group),
    Life(name="end", prepare=make_brief, act=finish, arrive=wait_until_removed),
)
