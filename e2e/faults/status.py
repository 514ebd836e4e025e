"""The Status object with which an API server reports a failure."""

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def build_status(code: int, reason: str = "", message: str = "") -> dict:
    """A failure; the reason that goes with the code unless another is given."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason or REASONS.get(code, "Unknown"),
        "message": message or "injected by the test",
    }
