"""docs/configuration.md is made from the schema, and its examples are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steelyard.config.document import parse_document
from steelyard.config.load import SETTINGS, validate
from steelyard.config.reference import main, reference
from steelyard.config.route_schema import Defaults, RouteConfig
from steelyard.config.schema import Config

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)
ENVIRONMENT = {"ART_KEY": "a", "LAB_KEY": "b", "CLOUD_KEY": "c"}


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == reference(), "run `make docs`"


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_valid(example: str) -> None:
    assert validate(parse_document(example, "example", ENVIRONMENT), "example").nodes


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("section", [Config, Defaults, RouteConfig])
def test_every_key_is_in_the_document_with_its_meaning(section: type[Config]) -> None:
    for name, field in section.model_fields.items():
        assert field.description, name
        assert re.search(rf"^\| `{name}` \| .*{re.escape(field.description)} \|$", reference(), re.MULTILINE), name


def test_every_flag_is_in_the_document() -> None:
    for setting in SETTINGS:
        assert f"| `{setting.path}` | `{setting.flag}` | `{setting.variable}` |" in reference()


def test_defaults_are_written_as_people_write_them() -> None:
    assert "| `body` | size | `64MiB` |" in reference()
    assert "| `total` | duration | `30m` |" in reference()
    assert "| `budget` | share | `20%` |" in reference()
    assert "| `listen` | address | `0.0.0.0:8080` |" in reference()


def test_a_document_that_is_not_up_to_date_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "configuration.md"
    assert main(["--check", str(file)]) == 1
    assert main(["--write", str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text(file.read_text() + "more")
    assert main(["--check", str(file)]) == 1
    assert "run `make docs`" in capsys.readouterr().err
    assert main([]) == 2
