"""Letting tasks in: when the cursor moves, and when dynamic sampling asks for a refill."""

from __future__ import annotations

from collections.abc import Callable

from rollout.coordinator.context import RunContext
from rollout.coordinator.plan import RunPlan
from rollout.coordinator.rules.batch_selection import Window, expire_old, is_finished, window_end
from rollout.coordinator.rules.evaluation import build_evaluation, plan_due
from rollout.ledger.records import Admission, NewEvaluation, NewTask
from rollout.protocol.messages import Cursor


def plan_admission(
    plan: RunPlan, step: int, cursor: Cursor, next_admitted: int, window: Window
) -> Admission:
    """The training tasks that may enter after ``step``, given a cursor and the groups after it.

    None after the last step: nobody would take them.
    """
    if plan.train.offline:
        return Admission(next_admitted=cursor.next_ordinal, exhausted=cursor.exhausted)
    start = end = max(next_admitted, cursor.next_ordinal)
    if not (cursor.exhausted or is_finished(plan, step, cursor.next_ordinal)):
        end = max(start, window_end(plan, cursor.next_ordinal, window))
    tasks = tuple(
        NewTask(
            task_id=f"t/{ordinal}",
            kind="train",
            ordinal=ordinal,
            num_samples=plan.train.num_samples,
        )
        for ordinal in range(start, end)
    )
    return Admission(tasks=tasks, next_admitted=end, exhausted=cursor.exhausted)


def plan_evaluations(
    plan: RunPlan, lineage: int, step: int, cursor: Cursor
) -> tuple[NewEvaluation, ...]:
    """The evaluations that the version of ``step`` calls for."""
    finished = step > 0 and is_finished(plan, step, cursor.next_ordinal)
    due = plan_due(plan.evaluations, step, finished=finished)
    return tuple(build_evaluation(item, lineage, step) for item in due)


def view_window(run: RunContext) -> Window:
    """The groups after the cursor, as the step after the last committed one may take them. Goes through all of them."""
    return expire_old(run.plan, run.state.step, run.state.views())


def claimable_end(run: RunContext) -> int:
    """First training ordinal that no actor may begin yet.

    Before a fork more may have entered than its earlier step lets in: what the policy of now would sample for
    them were too old when their step comes.
    """
    state = run.state
    return end_of_claims(
        run.plan, state.cursor.next_ordinal, state.next_admitted, lambda: view_window(run)
    )


def end_of_claims(plan: RunPlan, cursor: int, admitted: int, window: Callable[[], Window]) -> int:
    """The same for a cursor and what has entered; ``window`` is asked only where results have a say."""
    always = cursor + (plan.train.staleness_max + 1) * plan.train.groups_per_step
    if plan.train.offline or admitted <= always:
        return admitted
    return min(admitted, window_end(plan, cursor, window()))


async def admit_more(run: RunContext) -> None:
    """Let in what results or a longer run now allow. Cheap when there is nothing."""
    if run.state.version is None or run.plan.train.offline:
        return
    async with run.turn:
        state = run.state
        # Only refills depend on what the groups have come to.
        window = {} if run.plan.train.waves_max is None else view_window(run)
        admission = plan_admission(run.plan, state.step, state.cursor, state.next_admitted, window)
        if admission.tasks:
            await run.ledger.admit(admission)
            state.admit(admission)
            for task in admission.tasks:
                state.groups[task.ordinal].entered_at = run.clock()
    if run.state.num_open():
        run.work.beat()
