"""What can go wrong at the operator's boundary, named by what the caller should do about it."""

from __future__ import annotations


class KubeError(Exception):
    """The API server did not do what was asked. ``what`` names verb and object."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {status} {message}")
        self.what = what
        self.status = status
        self.message = message


class Conflict(KubeError):  # noqa: N818 - an answer, by its name
    """409: somebody else wrote, or owns a field, or the object is another one. Look again."""


class Forbidden(KubeError):  # noqa: N818 - an answer, by its name
    """401 or 403: the role lacks a verb; a person must give it."""


class Gone(KubeError):  # noqa: N818 - an answer, by its name
    """410: the watch is too old; list again."""


class NotFound(KubeError):  # noqa: N818 - an answer, by its name
    """404: there is no such object, or no such kind."""


class Outdated(KubeError):  # noqa: N818 - a state
    """The installed definitions of our kinds lack a field that we write: they are older than we are."""


class Refused(KubeError):  # noqa: N818 - an answer, by its name
    """400 or 422: the object itself is refused; trying again changes nothing."""


class Terminating(KubeError):  # noqa: N818 - a state
    """The run, or its namespace, is going: nothing is left to be done for it."""


class Unavailable(KubeError):  # noqa: N818 - an answer, by its name
    """429, 5xx, a cut or a timeout: try again, after ``retry_after_seconds`` where the server says."""

    def __init__(
        self, what: str, status: int, message: str, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(what, status, message)
        self.retry_after_seconds = retry_after_seconds


class FieldConflict(Exception):  # noqa: N818 - the reason shown in status
    """Somebody keeps changing a field of ours; ``retry_seconds`` until we would try again."""

    def __init__(self, message: str, retry_seconds: float) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class ChildRefused(Exception):  # noqa: N818 - the reason shown in status
    """An object that may not be a run's: our own last look before the API server refuses it."""


class RecordUnverified(Exception):  # noqa: N818 - the reason shown in status
    """A record that no key of ours has signed: it is not read."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"ConfigMap {name} is no record of ours: its signature does not verify. Its pods go on. Bring the "
            "key back (Secret rollout-operator-records in the operator's namespace), or suspend the run, "
            "wait for its condition Suspended, and resume it"
        )


class RecordFormatUnknown(Exception):  # noqa: N818 - the reason shown in status
    """A record that we have signed, in a form that this release does not know: it is not read."""

    def __init__(self, name: str, found: str, known: str) -> None:
        super().__init__(
            f"ConfigMap {name} is a record of format {found}; this operator reads format {known}, and nothing "
            f"of it was read. Its pods go on. Run the operator's release that reads format {found}, or suspend "
            "the run, wait for its condition Suspended, and resume it"
        )


class NotLeader(Exception):  # noqa: N818 - a state
    """The Lease is not ours (any more): nothing may be written."""


class CoordinatorUnreachable(Exception):  # noqa: N818 - a state, tried again
    """A run's coordinator did not answer, or refused; the caller tries again later."""
