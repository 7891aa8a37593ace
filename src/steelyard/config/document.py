"""A YAML document with the line of every key, and with ``${NAME}`` taken from the environment.

Types are those of YAML 1.2's core schema: ``off``, ``yes`` and ``12:30`` are text, as they look.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from steelyard.config.errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]
"""The way to a value: keys of mappings and indices of lists."""

SECRET_KEYS = frozenset({"key", "api_key", "secret"})
"""The values of these keys are never shown."""

# A reference is marked before YAML sees it, because "{" would begin a mapping: [${KEY}]. The marks are private-use
# characters, as many as they replace, so that the columns stay right.
_REFERENCE = re.compile(r"(\$?)\$\{([^}\n]*)\}")
_BEGIN, _END = "\ue000\ue000", "\ue001"
_ESCAPED_BEGIN, _ESCAPED_END = "\ue002\ue002\ue002", "\ue003"
_MARKED = re.compile(f"{_BEGIN}([^{_END}]*){_END}")
_ESCAPED = re.compile(f"{_ESCAPED_BEGIN}([^{_ESCAPED_END}]*){_ESCAPED_END}")
_MARKS = re.compile("[\ue000-\ue003]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_LINE = re.compile(rf"\b({'|'.join(SECRET_KEYS)})\b", re.IGNORECASE)

# Aliases can make a small file a huge one; no fleet needs this many values.
_MOST_VALUES = 200_000


@dataclass(slots=True)
class Position:
    """Where a value was written. ``line`` counts from 1; 0 for flags and variables of the environment."""

    source: str
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Document:
    """What was read: the values, where each of them is, and which must not be shown."""

    values: dict[str, Any] = field(default_factory=dict)
    positions: dict[KeyPath, Position] = field(default_factory=dict)
    secret_paths: set[KeyPath] = field(default_factory=set)
    """Paths of values that came out of the environment."""
    secret_values: set[str] = field(default_factory=set)
    """Those values, and every scalar under a key of SECRET_KEYS."""

    def position(self, path: KeyPath) -> Position | None:
        """The position of ``path``, or of what it is part of."""
        for length in range(len(path), -1, -1):
            position = self.positions.get(path[:length])
            if position is not None:
                return position
        return None

    def is_secret(self, path: KeyPath) -> bool:
        """Whether the value at ``path`` must not be shown."""
        # Someone who writes `auth: {keys: [KEY]}`, without the inner mapping, has still written a secret.
        if path[:1] == ("auth",) and len(path) <= 3:
            return True
        return any(key in SECRET_KEYS for key in path) or any(
            path[:length] in self.secret_paths for length in range(1, len(path) + 1)
        )


def read_document(path: str, environ: Mapping[str, str]) -> Document:
    """The document in the file at ``path``. Raises ConfigError with everything that is wrong with its writing."""
    return parse_document(_read(path), path, environ)


def parse_document(text: str, source: str, environ: Mapping[str, str]) -> Document:
    """The document in ``text``; ``source`` is its name in messages. Raises ConfigError."""
    if found := _MARKS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError([Problem(source, line, "", "a private-use character (U+E000 to U+E003) is not allowed")])
    try:
        node = yaml.compose(_REFERENCE.sub(_mark, text), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_not_yaml(error, source, text)]) from None
    except yaml.YAMLError as error:  # a control character: the reader knows no line
        place = getattr(error, "position", None)
        line = text.count("\n", 0, place) + 1 if isinstance(place, int) else 0
        character = getattr(error, "character", None)
        what = f"the character {character:#06x} is" if isinstance(character, int) else "a character is"
        raise ConfigError([Problem(source, line, "", f"not valid YAML: {what} not allowed")]) from None
    except RecursionError:
        raise ConfigError([Problem(source, 0, "", "nested too deeply")]) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        raise ConfigError([Problem(source, 0, "", "is empty; write at least nodes: with one url")])
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise ConfigError(
            [Problem(source, 0, "", f"holds {kind}; it must be a mapping of keys such as listen: and nodes:")]
        )
    reader = _Reader(source, environ)
    try:
        reader.document.values = reader.mapping(node, ())
    except RecursionError:
        reader.problems = [Problem(source, 0, "", "nested too deeply")]
    if reader.problems:
        raise ConfigError(reader.problems)
    return reader.document


def path_text(path: KeyPath) -> str:
    """``path`` as people write it: nodes[1].gpu_memory."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif re.fullmatch(r"[\w-]+", key):
            text += f".{key}" if text else key
        else:
            text += f"[{key!r}]"
    return text


def _read(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        nearest = _nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError([Problem(path, 0, "", f"cannot be read: {reason}{nearest}")]) from None
    except ValueError:  # a NUL in the name
        raise ConfigError([Problem(repr(path), 0, "", "is not a file name")]) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"is not UTF-8 text (byte 0x{content[error.start]:02x})"
        raise ConfigError([Problem(path, line, "", wrong)]) from None


def _nearest_file(path: str) -> str:
    target = Path(path)
    try:
        names = [entry.name for entry in target.parent.iterdir() if entry.is_file()]
    except OSError:
        return ""
    near = difflib.get_close_matches(target.name, names, n=1, cutoff=0.75)
    return f"; did you mean {target.parent / near[0]}?" if near else ""


def _mark(reference: re.Match[str]) -> str:
    escaped, name = reference.groups()
    # Marks must not break the scalar: in a flow collection these characters end it.
    if re.search(r"[\[\]{},:#'\"\s]", name):
        return reference.group()
    if escaped:
        return f"{_ESCAPED_BEGIN}{name}{_ESCAPED_END}"
    return f"{_BEGIN}{name}{_END}"


def _not_yaml(error: yaml.MarkedYAMLError, source: str, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    lines = text.splitlines()
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    if _SECRET_LINE.search(written):
        return Problem(source, line, "", "not valid YAML (details are not shown: the line holds a secret); quote it")
    what = _MARKS.sub("", error.problem or "cannot be read")
    if "\\t" in what:
        what = "a tab is used for indentation; use spaces"
    elif "${" in written:
        what += "; a variable is written ${NAME}"
    return Problem(source, line, "", f"not valid YAML: {what}")


class _Loader(yaml.SafeLoader):
    """SafeLoader, with the scalar types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and shape


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first)


class _Reader:
    """Turns YAML nodes into values, noting where each came from and everything that is wrong."""

    def __init__(self, source: str, environ: Mapping[str, str]) -> None:
        self.source = source
        self.environ = environ
        self.document = Document()
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = 0

    def problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(self.source, node.start_mark.line + 1, path_text(path), message))

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            if self._count == _MOST_VALUES + 1:
                self.problem(node, path, f"too many values: more than {_MOST_VALUES} once its aliases are followed")
            return None
        if id(node) in self._open:
            self.problem(node, path, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self.sequence(node, path)
            return self.scalar(node, path)
        finally:
            self._open.discard(id(node))

    def sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self.place(item, (*path, index))
            items.append(self.value(item, (*path, index)))
        return items

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            key = self.key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in lines:
                self.problem(key_node, (*path, key), f"written twice; the first is in line {lines[key]}")
                continue
            lines[key] = line
            self.place(key_node, (*path, key))
            values[key] = self.value(value_node, (*path, key))
        for part in merged:
            if not isinstance(part, yaml.MappingNode):
                self.problem(part, path, "<< merges mappings; this is not one")
                continue
            for key_node, value_node in part.value:
                key = self.key(key_node, path)
                if key is not None and key not in values:
                    self.place(key_node, (*path, key))
                    values[key] = self.value(value_node, (*path, key))
        return values

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self.problem(node, path, "a key must be text, not a list or a mapping")
            return None
        if _MARKS.search(node.value):
            self.problem(node, path, "a variable cannot stand in a key, only in a value")
            return None
        if node.tag != "tag:yaml.org,2002:str":
            self.problem(node, path, f"the key {node.value} must be text; write '{node.value}', in quotes")
            return None
        return str(node.value)

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = str(node.value)
        value: Any = text
        if _MARKS.search(text):
            value = self.expand(node, text, path)
        elif "${" in text:
            # Nothing of the value is shown: what follows may be a secret written in the wrong way.
            self.problem(
                node, path, "a variable is written ${NAME}: letters, digits and _ ($${NAME} for the text itself)"
            )
        else:
            kind = node.tag.rpartition(":")[2]
            if kind == "null":
                value = None
            elif kind == "bool":
                value = text.lower() == "true"
            elif kind == "int":
                # Python refuses thousands of digits; as text the value fails where it is used.
                value = int(text) if len(text) < 100 else text
            elif kind == "float":
                value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            elif kind != "str":
                self.problem(node, path, f"the tag {node.tag} is not known here; write a plain value")
        if value is not None and any(key in SECRET_KEYS for key in path):
            self.document.secret_values.add(str(value))
        return value

    def expand(self, node: yaml.Node, text: str, path: KeyPath) -> str:
        """``text`` with the variables of the environment in place of their names."""

        def variable(reference: re.Match[str]) -> str:
            name = reference.group(1)
            if not _VARIABLE.fullmatch(name):
                self.problem(node, path, f"${{{name}}} is not a variable; write ${{NAME}}: letters, digits and _")
                return ""
            value = self.environ.get(name)
            if value is None:
                near = difflib.get_close_matches(name, list(self.environ), n=1, cutoff=0.7)
                hint = f"; did you mean ${{{near[0]}}}?" if near else ""
                self.problem(node, path, f"the environment has no variable {name}{hint}")
                return ""
            if value:
                self.document.secret_values.add(value)
            self.document.secret_paths.add(path)
            return value

        expanded = _MARKED.sub(variable, text)
        return _ESCAPED.sub(r"${\1}", expanded)

    def place(self, node: yaml.Node, path: KeyPath) -> None:
        mark = node.start_mark
        self.document.positions[path] = Position(self.source, mark.line + 1, mark.column + 1)
