"""The traps: one module a trap, each with its Scenario named SCENARIO. A new file is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches

from steelyard.sim.scenario import Scenario


class UnknownTrap(Exception):
    """No trap has that name; the text says which there are."""


def scenarios() -> dict[str, Scenario]:
    """All traps by name, in the order of the names of their files."""
    found: dict[str, Scenario] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        scenario: Scenario = importlib.import_module(f"{__name__}.{module.name}").SCENARIO
        found[scenario.name] = scenario
    return found


def find(name: str, known: dict[str, Scenario] | None = None) -> Scenario:
    """The trap `name`; a part of the name does when only one has it (`weight`). Raises UnknownTrap."""
    known = scenarios() if known is None else known
    wanted = name.strip().lower().replace("_", "-")
    if wanted in known:
        return known[wanted]
    parts = [each for each in known if wanted and wanted in each]
    if len(parts) == 1:
        return known[parts[0]]
    words = {word: each for each in known for word in (*each.split("-"), each)}
    near = [known[words[word]].name for word in get_close_matches(wanted, words, n=1)]
    guess = f"did you mean {near[0]}? " if near and not parts else ""
    raise UnknownTrap(f"unknown trap {name!r}; {guess}there {'is' if len(known) == 1 else 'are'} {', '.join(known)}")
