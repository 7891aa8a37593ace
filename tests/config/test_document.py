"""YAML with lines, and variables of the environment in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.config.document import parse_document, path_text, read_document
from steelyard.config.errors import ConfigError

ENVIRONMENT = {"PORT": "8000", "STEELYARD_SECRET": "s3cret-s3cret", "EMPTY": ""}


def lines(text: str) -> list[str]:
    """What is wrong with ``text``."""
    with pytest.raises(ConfigError) as raised:
        parse_document(text, "s.yaml", ENVIRONMENT)
    return str(raised.value).split("\n")


def test_every_value_knows_its_line_and_column() -> None:
    document = parse_document("a: 1\nnodes:\n  - url: x\n    weight: 2\n", "s.yaml", {})
    assert document.values == {"a": 1, "nodes": [{"url": "x", "weight": 2}]}
    position = document.position(("nodes", 0, "weight"))
    assert position is not None
    assert (position.source, position.line, position.column) == ("s.yaml", 4, 5)
    missing = document.position(("nodes", 0, "name"))
    assert missing is not None
    assert missing.line == 3, "what is missing is where it should be"


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "a: [off, yes, 10:30, 2024-01-01, 010, true, 1.5, 1e3, .5, ~, '7', 0x10]"
    values = parse_document(text, "s", {}).values["a"]
    assert values == ["off", "yes", "10:30", "2024-01-01", 10, True, 1.5, 1000.0, 0.5, None, "7", "0x10"]


def test_variables_of_the_environment_are_put_in() -> None:
    text = 'a: http://h:${PORT}/x\nb: [${STEELYARD_SECRET}, "${PORT}"]\nc: {key: ${PORT}}\nd: $${PORT}\ne: "${EMPTY}"'
    document = parse_document(text, "s", ENVIRONMENT)
    assert document.values == {
        "a": "http://h:8000/x",
        "b": ["s3cret-s3cret", "8000"],
        "c": {"key": "8000"},
        "d": "${PORT}",
        "e": "",
    }
    assert document.is_secret(("a",))
    assert document.is_secret(("b", 0))
    assert not document.is_secret(("d",))


def test_a_variable_in_a_comment_is_not_asked_for() -> None:
    assert parse_document("# ${NOT_SET}\na: 1 # ${NOT_SET}", "s", {}).values == {"a": 1}


def test_the_environment_cannot_bring_yaml_with_it() -> None:
    assert parse_document("a: ${X}", "s", {"X": "[1]\nb: 2"}).values == {"a": "[1]\nb: 2"}


def test_anchors_and_merges_work() -> None:
    text = "base: &base {weight: 2, tier: edge}\nnodes:\n  - {<<: *base, weight: 3}\n  - *base\n"
    values = parse_document(text, "s", {}).values
    assert values["nodes"] == [{"weight": 3, "tier": "edge"}, {"weight": 2, "tier": "edge"}]


BAD_WRITING = [
    ("", ["s.yaml: is empty; write at least nodes: with one url"]),
    ("# only a comment\n", ["s.yaml: is empty; write at least nodes: with one url"]),
    ("~", ["s.yaml: is empty; write at least nodes: with one url"]),
    ("- url: x", ["s.yaml: holds a list; it must be a mapping of keys such as listen: and nodes:"]),
    ("hello", ["s.yaml: holds a single value; it must be a mapping of keys such as listen: and nodes:"]),
    ("a: 1\nb: 2\na: 3", ["s.yaml:3: a: written twice; the first is in line 1"]),
    ("n:\n  - {a: 1, a: 2}", ["s.yaml:2: n[0].a: written twice; the first is in line 2"]),
    ("a: ${NOT_SET}", ["s.yaml:1: a: the environment has no variable NOT_SET"]),
    ("a: ${PROT}", ["s.yaml:1: a: the environment has no variable PROT; did you mean ${PORT}?"]),
    ("a: ${9}", ["s.yaml:1: a: ${9} is not a variable; write ${NAME}: letters, digits and _"]),
    ("a: ${}", ["s.yaml:1: a: ${} is not a variable; write ${NAME}: letters, digits and _"]),
    (
        "a: ${PORT:-80}",
        ["s.yaml:1: a: a variable is written ${NAME}: letters, digits and _ ($${NAME} for the text itself)"],
    ),
    (
        "b: 1\na: ${PORT",
        ["s.yaml:2: a: a variable is written ${NAME}: letters, digits and _ ($${NAME} for the text itself)"],
    ),
    ("${PORT}: 1", ["s.yaml:1: a variable cannot stand in a key, only in a value"]),
    ("1: a", ["s.yaml:1: the key 1 must be text; write '1', in quotes"]),
    ("n: {true: a}", ["s.yaml:1: n: the key true must be text; write 'true', in quotes"]),
    ("? [a]\n: b", ["s.yaml:1: a key must be text, not a list or a mapping"]),
    ("a: &x [*x]", ["s.yaml:1: a[0]: an alias that contains itself"]),
    ("a: {<<: 3}", ["s.yaml:1: a: << merges mappings; this is not one"]),
    (
        "a: !!python/name:os.system x",
        ["s.yaml:1: a: the tag tag:yaml.org,2002:python/name:os.system is not known here; write a plain value"],
    ),
    ("a: b: c", ["s.yaml:1: not valid YAML: mapping values are not allowed here"]),
    ("a:\n\t- b", ["s.yaml:2: not valid YAML: a tab is used for indentation; use spaces"]),
    ("a: [1", ["s.yaml:1: not valid YAML: expected ',' or ']', but got '<stream end>'"]),
    ("a: 1\n--- \nb: 1", ["s.yaml:2: not valid YAML: but found another document"]),
    ("a: 1\nb: \x01", ["s.yaml:2: not valid YAML: the character 0x0001 is not allowed"]),
    ("a: 1\nb: \ue000", ["s.yaml:2: a private-use character (U+E000 to U+E003) is not allowed"]),
    (
        "k: 1\nkey: *hunter2",
        ["s.yaml:2: not valid YAML (details are not shown: the line holds a secret); quote it"],
    ),
    # All of them at once.
    (
        "a: 1\na: 2\nb: ${NOT_SET}\n3: x",
        [
            "s.yaml:2: a: written twice; the first is in line 1",
            "s.yaml:3: b: the environment has no variable NOT_SET",
            "s.yaml:4: the key 3 must be text; write '3', in quotes",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD_WRITING)
def test_bad_writing_is_one_clear_line_each(text: str, expected: list[str]) -> None:
    assert lines(text) == expected


def test_aliases_cannot_make_a_small_file_a_huge_one() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    found = lines("\n".join(levels))
    assert len(found) == 1
    assert "too many values: more than 200000 once its aliases are followed" in found[0]


def test_deep_nesting_is_refused() -> None:
    assert lines("a: " + "[" * 5000 + "]" * 5000) == ["s.yaml: nested too deeply"]


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "steelyard.yaml"
    file.write_bytes(b"\xef\xbb\xbflisten: 0.0.0.0:80\n")
    assert read_document(str(file), {}).values == {"listen": "0.0.0.0:80"}


def test_files_that_cannot_be_read_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "steelyard.yaml").write_text("a: 1")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    cases = {
        "nowhere.json": "cannot be read: no such file or directory",
        "steelyard.yml": f"cannot be read: no such file or directory; did you mean {tmp_path / 'steelyard.yaml'}?",
        "no/folder.yaml": "cannot be read: no such file or directory",
        "steelyard.yaml/x": "cannot be read: not a directory",
        "": "cannot be read: is a directory",
    }
    for name, expected in cases.items():
        path = str(tmp_path / name)
        with pytest.raises(ConfigError) as raised:
            read_document(path, {})
        assert str(raised.value) == f"{path}: {expected}"
    with pytest.raises(ConfigError) as raised:
        read_document(str(tmp_path / "latin.yaml"), {})
    assert str(raised.value) == f"{tmp_path / 'latin.yaml'}:2: is not UTF-8 text (byte 0xe9)"
    with pytest.raises(ConfigError) as raised:
        read_document("a\0b", {})
    assert str(raised.value) == "'a\\x00b': is not a file name"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("nodes", 1, "gpu_memory"), "nodes[1].gpu_memory"),
        (("aliases", "gpt-4"), "aliases.gpt-4"),
        (("aliases", "gpt-4.1"), "aliases['gpt-4.1']"),
        ((), ""),
    ],
)
def test_paths_are_written_as_people_write_them(path: tuple[str | int, ...], text: str) -> None:
    assert path_text(path) == text


@given(st.text(max_size=60))
def test_no_text_makes_reading_fail_in_another_way(text: str) -> None:
    try:
        read = bool(parse_document(text, "s", {}).values) or "{}" in text
    except ConfigError as error:
        read = False
        problems = error.problems
    else:
        problems = []
    assert read or problems


NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name not in ("null", "true", "false"))


@given(st.dictionaries(NAMES, st.text(max_size=20), min_size=1))
def test_what_the_environment_holds_arrives_unchanged(environment: dict[str, str]) -> None:
    text = "".join(f"{name}: ${{{name}}}\n" for name in environment)
    assert parse_document(text, "s", environment).values == environment
