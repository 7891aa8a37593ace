"""Why a request is not served: the closed list of error codes, and the status of each."""

from __future__ import annotations

from typing import Final

STATUSES: Final[dict[str, int]] = {
    "malformed_request": 400,
    "missing_api_key": 401,
    "invalid_api_key": 401,
    "forbidden": 403,
    "unknown_model": 404,
    "unknown_version": 404,
    "not_found": 404,
    "client_timeout": 408,
    "body_too_large": 413,
    "does_not_fit": 422,
    "queue_full": 429,
    "rate_limited": 429,
    "headers_too_large": 431,
    "internal_error": 500,
    "node_broke": 502,
    "no_node": 503,
    "overloaded": 503,
    "queue_timeout": 503,
    "draining": 503,
    "node_silent": 504,
    "deadline_exceeded": 504,
}
"""Every code that the gateway itself can answer with."""


class Refusal:
    """An explicit end of a request that was not, or could not be, served."""

    __slots__ = ("code", "message", "retry_after", "status")

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        self.code = code
        self.status = STATUSES[code]
        self.message = message
        self.retry_after = retry_after
        """Seconds after which a new attempt makes sense; None when none does."""

    def __repr__(self) -> str:
        return f"<Refusal {self.status} {self.code}: {self.message}>"
