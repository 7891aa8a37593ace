"""What all sections of a configuration have in common."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of known keys that does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


def overlaid(base: S, over: S | None) -> S:
    """``base`` with the keys that were written in ``over``: how a route inherits from the defaults."""
    if over is None:
        return base
    return base.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})
