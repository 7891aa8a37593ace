"""What the documents list is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steelyard.admin.access import Access
from steelyard.admin.api import create_app
from steelyard.config.load import SETTINGS
from steelyard.core.node import State
from steelyard.core.refusal import STATUSES
from steelyard.proxy.access_log import Entry

ROOT = Path(__file__).parents[1]
OPERATING = (ROOT / "docs" / "operating.md").read_text()


def table_after(heading: str) -> list[list[str]]:
    """The cells of the table below a line that begins with `heading`, without its head."""
    lines = iter(OPERATING[OPERATING.index(f"\n{heading}") :].splitlines())
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_error_code_is_there_with_its_status() -> None:
    listed = {name: int(status) for cell, status, _ in table_after("| code | status") for name in names_in(cell)}
    assert listed == STATUSES


def test_every_field_of_the_access_log_is_there() -> None:
    listed = [name for cell, _ in table_after("| field |") for name in names_in(cell)]
    assert sorted(listed) == sorted(Entry.__struct_fields__)


def test_every_path_of_the_admin_api_is_there() -> None:
    listed = {name for cell, _ in table_after("| path |") for name in names_in(cell)}
    app = create_app(object(), Access())  # type: ignore[arg-type]  # it is not asked anything
    there = {
        f"{method.upper()} {path.replace(':path', '')}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    assert listed == there


def test_every_state_of_a_node_is_there() -> None:
    (line,) = [line for line in OPERATING.split("\n\n") if line.startswith("States of a node:")]
    assert set(names_in(line)) == {state.value for state in State}


def test_variables_that_are_named_exist() -> None:
    known = {setting.variable for setting in SETTINGS} | {"STEELYARD_CONFIG", "STEELYARD_ADMIN_TOKEN"}
    known |= {"STEELYARD_ADMIN_HOSTS", "STEELYARD_COMPILE", "STEELYARD_REAL_CACHE"}
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        assert set(re.findall(r"STEELYARD_[A-Z_]*[A-Z]", document.read_text())) <= known, document.name


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files(document: str) -> None:
    file = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text()):
        if "://" not in target:
            assert (file.parent / target).exists(), target
