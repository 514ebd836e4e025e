"""Which settings a living run keeps: the rules of update that the API server itself enforces.

A run attempt is rendered once, so a setting that its pods were made from may change only while there
are none: before the first attempt, and while the run is suspended (the condition, not the wish).
Live settings and immutable ones have no rule here.
"""

from collections.abc import Iterator

from rollout_api.base import ApiModel, Rule

_NO_PODS = (
    "!has(oldSelf.status) || !has(oldSelf.status.attempt) || oldSelf.status.attempt == 0"
    " || (has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c,"
    " c.type == 'Suspended' && c.status == 'True'))"
)
_REMEDY = "suspend the run, wait for its condition Suspended, change it, resume"


def settled_while_alive(
    parent: str, model: type[ApiModel], others: frozenset[str]
) -> Iterator[Rule]:
    """Rules of the run itself about the fields of ``spec.<parent>``, but for ``others`` (camelCase).

    One rule a field at the top, one rule for all fields of a parent: a refusal names the field, and
    the definition stays small enough for a client-side apply.
    """
    names = [str(field.alias) for field in model.model_fields.values()]
    kept = [name for name in names if name not in others]
    if not parent:
        for name in kept:
            yield _rule(f"({_same(f'spec.{name}')})", f"spec.{name}", f"{name} is settled")
        return
    place = f"spec.{parent}"
    same = " && ".join(f"({_same(f'{place}.{name}')})" for name in kept)
    rule = f"has(self.{place}) != has(oldSelf.{place}) || !has(self.{place}) || ({same})"
    free = ", ".join(sorted(set(names) & others))
    yield _rule(f"({rule})", place, f"all of {parent} but {free} is settled")


def _rule(same: str, place: str, what: str) -> Rule:
    return Rule(f"{same} || {_NO_PODS}", f"{what} while the run has pods: {_REMEDY}", place)


def _same(place: str) -> str:
    return (
        f"has(self.{place}) == has(oldSelf.{place})"
        f" && (!has(self.{place}) || self.{place} == oldSelf.{place})"
    )
