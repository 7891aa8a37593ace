"""What is wrong with a configuration: all of it, one line each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it is, and what would be right.

    ``source`` is a file name, ``--flag`` or ``STEELYARD_...``; ``line`` counts from 1 and is 0 where there is none;
    ``path`` names the key (``nodes[1].gpu_memory``) and is empty where the whole source is meant.
    """

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` holds every reason; str() is one line a reason."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
