"""What a call to a training service can raise; the message is the service's own words.

ServiceError
 ├─ UnansweredError      no answer within the time that repeats are given
 ├─ CallFailedError      a call that was taken and could not be made: the model is as before
 └─ RefusedError         a request that was refused, with HTTP's status
     ├─ BadCallError (400), KeyRefusedError (401), NothingThereError (404), NotOfferedError (422)
"""

from __future__ import annotations

from rollout.errors import RolloutError


class ServiceError(RolloutError):
    """Base of what clients of a training service raise."""


class UnansweredError(ServiceError):
    """The service did not answer, or not with what it should have."""


class CallFailedError(ServiceError):
    """The call has its place among the model's calls and changed nothing."""


class RefusedError(ServiceError):
    """The request was refused; ``status_code`` is HTTP's."""

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


class BadCallError(RefusedError):
    """400: a field is wrong."""


class KeyRefusedError(RefusedError):
    """401: the key is not valid there."""


class NothingThereError(RefusedError):
    """404: there is no such thing of this key's."""


class NotOfferedError(RefusedError):
    """422: something that the service does not have."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: BadCallError,
    401: KeyRefusedError,
    404: NothingThereError,
    422: NotOfferedError,
}


def refused(status: int, words: str) -> RefusedError:
    """The error of a status, with the service's words."""
    return _BY_STATUS.get(status, RefusedError)(words, status)
