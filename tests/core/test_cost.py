"""Analytic seconds: anchored to measured figures, and monotonic in what makes a request heavier."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.core.cost import DEFAULT_SECONDS, EXPECTED_OUTPUT_TOKENS, estimate
from steelyard.core.work import Footprint, Work


def image(side: int = 512, steps: int = 50, images: int = 1) -> Work:
    return Work("sdwebui", "images", width=side, height=side, steps=steps, images=images)


def test_nothing_known_costs_the_default_so_that_all_count_alike() -> None:
    footprint = estimate(Work())
    assert (footprint.seconds, footprint.tokens, footprint.memory) == (DEFAULT_SECONDS, 0, 0)
    assert footprint.source == "default"


def test_a_chat_costs_its_prompt_and_the_answer_that_is_expected() -> None:
    footprint = estimate(Work("openai", "chat", prompt_tokens=1000))
    assert footprint.seconds == pytest.approx(1000 * 0.0782e-3 + EXPECTED_OUTPUT_TOKENS * 17e-3)
    assert footprint.tokens == 1000 + EXPECTED_OUTPUT_TOKENS
    assert footprint.source == "analytic"


@pytest.mark.parametrize(
    ("limit", "output"), [(0, EXPECTED_OUTPUT_TOKENS), (16, 16), (100_000, EXPECTED_OUTPUT_TOKENS)]
)
def test_a_limit_on_the_answer_counts_only_below_what_is_expected(limit: int, output: int) -> None:
    assert estimate(Work("openai", "chat", prompt_tokens=1, max_tokens=limit)).tokens == 1 + output


def test_samples_cost_tokens_and_hardly_any_time() -> None:
    one = estimate(Work("openai", "chat", prompt_tokens=10, max_tokens=10))
    four = estimate(Work("openai", "chat", prompt_tokens=10, max_tokens=10, samples=4))
    assert four.seconds == one.seconds
    assert four.tokens == 50


def test_embeddings_have_no_answer_to_write() -> None:
    footprint = estimate(Work("openai", "embeddings", prompt_tokens=1000))
    assert footprint.seconds == pytest.approx(0.0782)
    assert footprint.tokens == 1000


def test_the_images_of_trap_1_take_two_and_eight_seconds() -> None:
    assert estimate(image()).seconds == pytest.approx(2.0, rel=0.1)
    assert estimate(image(1024)).seconds == pytest.approx(8.0, rel=0.1)


def test_steps_that_are_not_given_are_the_usual_fifty() -> None:
    assert estimate(image(steps=0)).seconds == estimate(image(steps=50)).seconds


def test_half_a_minute_of_speech() -> None:
    assert estimate(Work("openai", "transcription", audio_seconds=30.0)).seconds == pytest.approx(2.72, abs=0.01)


@settings(deadline=None)
@given(st.integers(64, 2048), st.integers(1, 150), st.integers(1, 16))
def test_more_pixels_steps_or_images_never_cost_less(side: int, steps: int, images: int) -> None:
    seconds = estimate(image(side, steps, images)).seconds
    assert estimate(image(side + 64, steps, images)).seconds > seconds
    assert estimate(image(side, steps + 1, images)).seconds > seconds
    batch = estimate(image(side, steps, images + 1)).seconds
    assert seconds < batch < seconds * (images + 1) / images + 1e-9, "batching gains a little"


def test_nearly_every_request_ends_within_three_times_its_median() -> None:
    assert Footprint(seconds=8.0).seconds_limit == 24.0
