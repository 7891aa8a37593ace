"""What holds for each operation, whatever a client sends: a Work with finite sizes, or a clear refusal."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core.cost import estimate
from steelyard.core.work import Work
from steelyard.dialects import EXACT, MalformedBody, Operation, recognise
from steelyard.dialects.body import LONGEST_NAME

JSON = {path: operation for (method, path), operation in EXACT.items() if operation.body == "json"}
KINDS = {type(operation): path for path, operation in JSON.items()}
"""A path of each class of operations."""
FORMS = {path: operation for (method, path), operation in EXACT.items() if operation.body == "multipart"}
FORM = b"multipart/form-data; boundary=xyz"

numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, -1, 1 << 63, 1 << 200, 1e308, 5e-324, "nan", "inf", "-inf", "1e999", "7", "true"])
)
texts = st.text(max_size=8) | st.sampled_from(["m" * LONGEST_NAME, "m" * (LONGEST_NAME + 1), "\N{SNOWMAN}" * 200])
prompts = st.recursive(
    texts | st.integers(0, 100_000) | st.sampled_from(["word " * 300, 'a \\ "b" [1,{', ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
anything = numbers | texts | st.none() | st.booleans() | prompts
NUMBERS = ("n", "max_tokens", "max_completion_tokens", "max_output_tokens", "best_of", "num_inference_steps", "width",
           "height", "steps", "batch_size", "n_iter", "hr_scale", "hr_resize_x", "hr_resize_y",
           "hr_second_pass_steps")  # fmt: skip
PROMPTS = ("messages", "tools", "prompt", "input", "instructions", "system", "query", "documents", "texts", "text_1")
bodies = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMBERS, numbers | anything),
        **dict.fromkeys(PROMPTS, prompts),
        **dict.fromkeys(("model", "user", "prompt_cache_key", "size"), texts | anything),
        **{name: st.booleans() | anything for name in ("stream", "store", "background", "enable_hr")},
        "override_settings": st.fixed_dictionaries({"sd_model_checkpoint": texts | anything}) | anything,
        "metadata": st.fixed_dictionaries({"user_id": texts | anything}) | anything,
    },
)


def attributes(work: Work) -> dict[str, Any]:
    return {name: getattr(work, name) for name in dir(work) if not name.startswith("_")}


def check(work: Work) -> None:
    """Finite numbers that may be summed, and names that may become keys."""
    found = attributes(work)
    for name in ("prompt_tokens", "max_tokens", "samples", "width", "height", "steps", "images", "body_bytes"):
        assert isinstance(found[name], int), name
        assert 0 <= found[name] <= 1 << 34, name
    assert work.samples > 0
    assert work.images > 0
    assert 0 <= work.audio_seconds < 1e9
    footprint = estimate(work)
    assert isfinite(footprint.seconds)
    assert 0 <= footprint.seconds < 1e12
    for text in (work.model, work.asked_model, *work.session_fields.values()):
        assert text is None or len(text) <= LONGEST_NAME
    assert work.model == work.asked_model


def read(operation: Operation, body: bytes, content_type: bytes) -> Work | None:
    try:
        work = operation.read(body, content_type, b"/")
    except MalformedBody:
        return None
    check(work)
    return work


def scan(operation: Operation, body: bytes, content_type: bytes, step: int) -> Work | None:
    try:
        scanner = operation.scanner(content_type)
        assert scanner is not None
        for start in range(0, len(body), step):
            scanner.feed(body[start : start + step])
        return scanner.work()
    except MalformedBody:
        return None


@pytest.mark.parametrize("path", KINDS.values())
@given(fields=bodies, separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:")]), step=st.integers(1, 300))
def test_any_fields(path: str, fields: dict[str, Any], separators: tuple[str, str], step: int) -> None:
    body = json.dumps(fields, separators=separators).encode()
    whole = read(JSON[path], body, b"application/json")
    pieces = scan(JSON[path], body, b"application/json", step)
    if whole is not None:
        assert pieces is not None
        assert attributes(pieces) == attributes(whole)


@pytest.mark.parametrize("path", FORMS)
@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from(["model", "user", "stream", "size", "n", "num_inference_steps", "file", "image"]),
            st.binary(max_size=40) | st.sampled_from([b"1", b"99999999999999999999", b"1e3", b"true", b"m" * 257,
            b"RIFF0000WAVEfmt \xff\xff\xff\xff", b"fLaC" + b"\xff" * 40, b"512x512", b"9" * 4096]),
        ),
        max_size=8,
    ),
    step=st.integers(1, 300),
)  # fmt: skip
def test_any_form(path: str, fields: list[tuple[str, bytes]], step: int) -> None:
    body = b"".join(b'--xyz\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
                    for name, value in fields) + b"--xyz--\r\n"  # fmt: skip
    whole = read(FORMS[path], body, FORM)
    pieces = scan(FORMS[path], body, FORM, step)
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert attributes(pieces) == attributes(whole)


NAMES = [
    (path, name)
    for path, operation in JSON.items()
    for name in ("model", "user", "prompt_cache_key")
    if name in operation.reader.struct.__struct_fields__  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_a_name_has_an_end(path: str, name: str) -> None:
    operation = JSON[path]
    for length in (LONGEST_NAME, LONGEST_NAME + 1, 5000):
        body = json.dumps({name: "k" * length}).encode()
        if length == LONGEST_NAME:
            assert read(operation, body, b"") is not None
            continue
        with pytest.raises(MalformedBody, match=f"{name} is longer than {LONGEST_NAME} characters"):
            operation.read(body, b"", b"/")
        scanner = operation.scanner(b"")
        assert scanner is not None
        scanner.feed(body)
        with pytest.raises(MalformedBody, match=f"{name} is longer than"):
            scanner.work()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_scale_is_a_number(value: str) -> None:
    with pytest.raises(MalformedBody, match="hr_scale"):
        JSON["/sdapi/v1/txt2img"].read(json.dumps({"hr_scale": value}).encode(), b"", b"/")


@pytest.mark.parametrize(
    "operation", [*EXACT.values(), recognise("GET", "/x"), recognise("POST", "/v2/models/m/infer")]
)
def test_an_answer_is_kept_only_where_its_usage_is_read(operation: Operation) -> None:
    assert operation.tells_usage == (type(operation).usage is not Operation.usage)
