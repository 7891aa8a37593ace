"""Requests of Triton: the model is in the path."""

from __future__ import annotations

import json

import pytest

from steelyard.dialects import recognise


@pytest.mark.parametrize(
    ("target", "model"),
    [
        (b"/v2/models/resnet/infer", "resnet"),
        (b"/v2/models/resnet/versions/3/infer?x=/v2/models/other", "resnet"),
        (b"/v2/models/a%20b%2fc/infer", "a b/c"),
        (b"/v2/models/%zz/infer", "%zz"),
        (b"/v2/models/%ff/infer", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_the_model_is_in_the_path(target: bytes, model: str) -> None:
    path = target.partition(b"?")[0].decode()
    work = recognise("POST", path).read(b"", b"", target)
    assert (work.dialect, work.operation, work.model, work.asked_model) == ("triton", "infer", model, model)
    assert work.version is None, "a model's version on a node is not a roll-out's"
    assert not work.stream
    assert not work.repeatable, "it may be a step of a sequence"


def test_only_generate_stream_is_a_stream() -> None:
    assert recognise("POST", "/v2/models/m/generate_stream").read(b"", b"", b"/v2/models/m/generate_stream").stream
    assert not recognise("POST", "/v2/models/m/generate").read(b"", b"", b"/v2/models/m/generate").stream


def test_questions_about_a_model_go_to_nodes_that_have_it() -> None:
    work = recognise("GET", "/v2/models/m/ready").read(b"", b"", b"/v2/models/m/ready")
    assert (work.model, work.repeatable) == ("m", True)
    assert recognise("GET", "/v2/health/ready").read(b"", b"", b"/v2/health/ready").model is None


def test_errors_are_a_text() -> None:
    operation = recognise("POST", "/v2/models/m/infer")
    assert json.loads(operation.error(503, "no_node", "none", "r")) == {"error": "none", "code": "no_node"}
    assert operation.stream_error("node_broke", "gone") == b'data: {"error":"gone","code":"node_broke"}\n\n'
