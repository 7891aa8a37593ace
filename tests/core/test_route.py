"""Routes: the first that matches wins; and the footprint table of a route."""

from __future__ import annotations

import pytest

from steelyard.core.route import FootprintRule, Match, Route, first_match
from steelyard.core.work import Work

from .building import route_of


def matching(name: str, **conditions: object) -> Route:
    return route_of(name=name, match=Match(**conditions))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "path", "model", "headers", "accepted"),
    [
        ({}, "/anything", None, {}, True),
        ({"path": "/sdapi/*"}, "/sdapi/v1/txt2img", None, {}, True),
        ({"path": "/sdapi/*"}, "/v1/chat/completions", None, {}, False),
        ({"path": "/v1/chat/completions"}, "/v1/chat/completions", None, {}, True),
        ({"path": "/V1/*"}, "/v1/models", None, {}, False),
        ({"models": ["sd-*", "flux"]}, "/", "sd-1.5", {}, True),
        ({"models": ["sd-*", "flux"]}, "/", "flux", {}, True),
        ({"models": ["sd-*"]}, "/", "llama", {}, False),
        ({"models": ["*"]}, "/", None, {}, False),
        ({"headers": {"x-team": "art"}}, "/", None, {"x-team": "art", "accept": "*/*"}, True),
        ({"headers": {"x-team": "art"}}, "/", None, {"x-team": "Art"}, False),
        ({"headers": {"x-team": "art"}}, "/", None, {}, False),
        ({"path": "/a", "models": ["m"]}, "/a", "n", {}, False),
    ],
)
def test_all_conditions_of_a_match_must_hold(
    conditions: dict[str, object], path: str, model: str | None, headers: dict[str, str], accepted: bool
) -> None:
    assert Match(**conditions).accepts(path, model, headers) is accepted  # type: ignore[arg-type]


def test_the_first_route_that_matches_wins() -> None:
    images, chat, rest = matching("images", path="/sdapi/*"), matching("chat", path="/v1/*"), matching("rest")
    routes = [images, chat, rest]
    assert first_match(routes, "/sdapi/v1/txt2img", None, {}) is images
    assert first_match(routes, "/v1/models", None, {}) is chat
    assert first_match(routes, "/other", None, {}) is rest
    assert first_match([rest, images], "/sdapi/v1/txt2img", None, {}) is rest


def test_no_route_may_want_a_request() -> None:
    assert first_match([matching("images", path="/sdapi/*")], "/v1/models", None, {}) is None
    assert first_match([], "/", None, {}) is None


IMAGES = [
    FootprintRule({"width": 512, "height": 512}, memory=8, seconds=2.0),
    FootprintRule({"width": 1024, "height": 1024}, memory=18, seconds=8.0),
    FootprintRule({"operation": "images"}, memory=20),
]


@pytest.mark.parametrize(
    ("width", "height", "memory", "seconds"),
    [(512, 512, 8, 2.0), (256, 512, 8, 2.0), (512, 513, 18, 8.0), (1024, 1024, 18, 8.0), (2048, 512, 20, None)],
)
def test_the_first_row_that_is_large_enough(width: int, height: int, memory: int, seconds: float | None) -> None:
    route = route_of(footprints=IMAGES)
    work = Work("sdwebui", "images", width=width, height=height)
    footprint = route.footprint(work)
    assert (footprint.memory, footprint.source) == (memory, "table")
    if seconds is not None:
        assert footprint.seconds == seconds
    else:
        assert footprint.seconds > 8.0, "a row without seconds leaves them to the analytic estimate"


def test_what_no_row_matches_is_estimated() -> None:
    footprint = route_of(footprints=IMAGES).footprint(Work("sdwebui", "other", width=4096, height=512))
    assert (footprint.memory, footprint.source) == (0, "analytic")


@pytest.mark.parametrize(
    ("when", "sizes", "met"),
    [
        ({"width": 512, "height": 512}, {}, False),
        ({"width": 512, "height": 512}, {"width": 512}, False),
        ({"max_tokens": 256}, {}, False),
        ({"max_tokens": 256}, {"max_tokens": 1}, True),
        ({"audio_seconds": 0.5}, {}, False),
        ({"max_tokens": 0}, {}, True),
        ({"max_tokens": 0}, {"max_tokens": 1}, False),
        ({"images": 1}, {}, True),
    ],
)
def test_a_size_that_is_not_known_is_not_up_to_anything(when: dict[str, int], sizes: dict[str, int], met: bool) -> None:
    assert FootprintRule(when, memory=8).matches(Work("sdwebui", "other", **sizes)) is met  # type: ignore[arg-type]


def test_a_table_keeps_the_tokens_of_the_estimate() -> None:
    footprint = route_of(footprints=[FootprintRule({}, memory=1)]).footprint(
        Work("openai", "embeddings", prompt_tokens=7)
    )
    assert (footprint.memory, footprint.tokens) == (1, 7)


@pytest.mark.parametrize(
    ("path", "named"),
    [(None, False), ("/sdapi/*", False), ("/v1/load_lora_adapte?", False), ("/[uv]1/x", False), ("/props", True)],
)
def test_only_a_path_without_a_pattern_is_named(path: str | None, named: bool) -> None:
    assert Match(path=path).names_path is named
