"""Requests of the Stable Diffusion web UI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steelyard.core.cost import IMAGE_OVERHEAD_SECONDS, IMAGE_SECONDS_PER_STEP, PIXEL_EXPONENT, PIXELS, estimate
from steelyard.core.work import Work
from steelyard.dialects import recognise


def read(body: dict[str, Any], path: str = "/sdapi/v1/txt2img") -> Work:
    return recognise("POST", path).read(json.dumps(body).encode(), b"application/json", path.encode())


TABLE = [
    ({}, {"model": None, "width": 512, "height": 512, "steps": 50, "images": 1, "stream": False, "repeatable": True}),
    ({"width": 1024, "height": 768, "steps": 20}, {"width": 1024, "height": 768, "steps": 20}),
    ({"batch_size": 4, "n_iter": 2}, {"images": 8}),
    ({"batch_size": 0, "steps": -1, "width": 0}, {"images": 1, "steps": 50, "width": 512}),
    ({"override_settings": {"sd_model_checkpoint": "sdxl.safetensors [abc]"}}, {"model": "sdxl.safetensors [abc]"}),
    ({"override_settings": {"CLIP_stop_at_last_layers": 2}}, {"model": None}),
    ({"override_settings": None}, {"model": None}),
    ({"enable_hr": True, "steps": 20, "hr_second_pass_steps": 10}, {"width": 1024, "height": 1024}),
    ({"enable_hr": True, "hr_scale": 1.5}, {"width": 768, "height": 768}),
    ({"enable_hr": True, "hr_resize_x": 1024, "hr_resize_y": 768}, {"width": 1024, "height": 768}),
    ({"enable_hr": True, "hr_resize_x": 1024, "height": 256}, {"width": 1024, "height": 512}),
    ({"enable_hr": True, "hr_resize_y": 1024, "height": 256}, {"width": 2048, "height": 1024}),
    ({"enable_hr": True, "hr_scale": 0}, {"width": 1024, "height": 1024}),
    ({"enable_hr": True, "hr_scale": 1e300, "width": 1 << 40}, {"width": 16384}),
    ({"enable_hr": True, "hr_scale": 1e-9}, {"width": 512, "height": 512, "steps": 51}),
    ({"batch_size": 1 << 40, "n_iter": 1 << 40, "steps": 1 << 40}, {"images": 10_000, "steps": 10_000}),
]


@pytest.mark.parametrize(("body", "expected"), TABLE)
def test_table(body: dict[str, Any], expected: dict[str, object]) -> None:
    work = read(body)
    assert {name: getattr(work, name) for name in expected} == expected


def test_two_passes_cost_what_both_cost() -> None:
    work = read({"enable_hr": True, "steps": 20, "hr_second_pass_steps": 10, "hr_scale": 2.0})
    passes = 20 + 10 * (1024 * 1024 / PIXELS) ** PIXEL_EXPONENT
    expected = IMAGE_OVERHEAD_SECONDS + IMAGE_SECONDS_PER_STEP * passes
    one_step = IMAGE_SECONDS_PER_STEP * 4**PIXEL_EXPONENT
    assert expected <= estimate(work).seconds <= expected + one_step, "steps are whole"


def test_a_second_pass_has_the_steps_of_the_first_by_default() -> None:
    assert read({"enable_hr": True, "steps": 20}).steps == 20 + 5
    assert read({"enable_hr": True, "steps": 20, "hr_second_pass_steps": 0}).steps == 20 + 5


def test_pictures_from_pictures_have_one_pass() -> None:
    work = read({"enable_hr": True, "steps": 20, "init_images": ["QUJD"]}, "/sdapi/v1/img2img")
    assert (work.operation, work.width, work.steps) == ("img2img", 512, 20)


def test_a_large_body_is_read_the_same() -> None:
    body = json.dumps(
        {"init_images": ["QUJD" * 100_000], "width": 640, "override_settings": {"sd_model_checkpoint": "m"}}
    )
    scanner = recognise("POST", "/sdapi/v1/img2img").scanner()
    assert scanner is not None
    for start in range(0, len(body), 65536):
        scanner.feed(body[start : start + 65536].encode())
    work = scanner.work()
    assert (work.model, work.asked_model, work.width, work.body_bytes) == ("m", "m", 640, len(body))


def test_errors_have_the_keys_of_its_own() -> None:
    for path in ("/sdapi/v1/txt2img", "/sdapi/v1/options"):
        assert json.loads(recognise("POST", path).error(422, "does_not_fit", "too large", "r")) == {
            "error": "does_not_fit",
            "detail": "too large",
            "body": "",
            "errors": "too large",
        }


def test_an_alias_is_replaced_where_the_checkpoint_is_named() -> None:
    body = b'{"model":"a","override_settings":{"x":1,"sd_model_checkpoint": "a"}}'
    assert recognise("POST", "/sdapi/v1/txt2img").replace_model(body, b"", "b") == (
        b'{"model":"a","override_settings":{"x":1,"sd_model_checkpoint": "b"}}'
    )


def test_many_settings_are_read_in_pieces_too() -> None:
    settings = {f"setting_{n}": "x" * 20 for n in range(500)} | {"sd_model_checkpoint": "sd"}
    body = json.dumps({"prompt": "p" * 200_000, "override_settings": settings}).encode()
    scanner = recognise("POST", "/sdapi/v1/img2img").scanner()
    assert scanner is not None
    for start in range(0, len(body), 5000):
        scanner.feed(body[start : start + 5000])
    assert scanner.work().model == "sd"
