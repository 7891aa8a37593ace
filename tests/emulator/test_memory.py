"""The card's memory against a naive ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.emulator.memory import Card, CudaOutOfMemory

GB = 1_000_000_000


def test_the_article_eight_and_eight_and_eighteen_do_not_fit_24_gb() -> None:
    card = Card(24 * GB)
    card.allocate("a", 8 * GB)
    card.allocate("b", 8 * GB)
    with pytest.raises(CudaOutOfMemory, match=r"^CUDA out of memory\. Tried to allocate 16\.76 GiB\."):
        card.allocate("c", 18 * GB)
    card.allocate("d", 8 * GB)  # the third small one fits to the last byte
    assert (card.free, card.oom_count, card.peak) == (0, 1, 24 * GB)


def test_the_allocator_keeps_what_it_took_but_reuses_it() -> None:
    card = Card(24 * GB, resident=2 * GB)
    card.allocate("a", 18 * GB)
    assert card.release("a") == 18 * GB
    assert card.release("a") == 0
    assert (card.allocated, card.reserved, card.free) == (2 * GB, 20 * GB, 22 * GB)
    card.allocate("b", 22 * GB)
    card.clear()
    assert (card.allocated, card.reserved, card.peak) == (2 * GB, 2 * GB, 24 * GB)


def test_what_is_resident_must_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Card(1 * GB, resident=2 * GB)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.booleans()), max_size=60), st.integers(0, 50))
def test_it_agrees_with_a_dictionary_of_sizes(steps: list[tuple[int, int, bool]], resident: int) -> None:
    card = Card(100, resident=resident)
    held: dict[int, int] = {}
    refused = 0
    peak = resident
    for key, size, takes in steps:
        if not takes:
            assert card.release(key) == held.pop(key, 0)
        elif key in held:
            with pytest.raises(ValueError, match="already"):
                card.allocate(key, size)
        elif resident + sum(held.values()) + size > 100:
            with pytest.raises(CudaOutOfMemory):
                card.allocate(key, size)
            refused += 1
        else:
            card.allocate(key, size)
            held[key] = size
        peak = max(peak, resident + sum(held.values()))
        assert card.allocated == resident + sum(held.values()) <= card.total
    assert (card.oom_count, card.peak, card.reserved) == (refused, peak, peak)
