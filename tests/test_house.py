"""Rules of the house that no tool knows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "steelyard"


def test_every_package_is_seen_by_the_import_contracts() -> None:
    """Without __init__.py a folder is a namespace package, which import-linter passes over without a word."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert len(folders) > 3
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_room_is_for_everything() -> None:
    names = {path.stem for path in PACKAGE.rglob("*.py")} | {path.parent.name for path in PACKAGE.rglob("*.py")}
    assert names & {"utils", "util", "helpers", "helper", "manager", "common", "misc"} == set()


def test_the_constraints_are_exact_versions_and_name_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    for line in lines:
        name, _, version = line.partition("==")
        assert name
        assert version[:1].isdigit(), line
        assert "/" not in line


def test_generated_and_local_files_are_not_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout with files")
    unwanted = (".venv/", "__pycache__", ".pyc", ".coverage", ".egg-info", ".hypothesis/")
    assert [name for name in listed.stdout.splitlines() if any(part in name for part in unwanted)] == []


def test_a_program_that_is_missing_skips_here_and_fails_in_ci(
    need: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert need(Path(sys.executable).name) == sys.executable
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        need("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        need("no-such-program")
