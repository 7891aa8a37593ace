"""Continuous batching on a virtual clock, with the RTX 4090 coefficients of policy-science 3.2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.emulator.batching import ContinuousBatch, IterationTimes, Sequence

MS = 1e-3


def prefill(tokens: int, cached: int = 0) -> float:
    return (9.15 + 0.0782 * tokens + 4.15e-6 * tokens * (cached + tokens / 2)) * MS


def decode(sequences: int, context: int) -> float:
    return (16.96 + 0.0462 * sequences + 1.391e-4 * context) * MS


def run_out(batch: ContinuousBatch, now: float = 0.0) -> None:
    for _ in range(1_000_000):
        at = batch.next_token()
        if at is None:
            return
        batch.advance(at)
    raise AssertionError("the engine never becomes idle")


def test_one_sequence_costs_one_prefill_and_a_decode_iteration_a_token() -> None:
    batch = ContinuousBatch(41_408)
    one = batch.add(1.0, "a", 100, 3)
    assert batch.next_token() == pytest.approx(1.0 + prefill(100))
    assert batch.advance(1.0 + prefill(100) + 1e-9) == {one: 1}
    expected = 1.0 + prefill(100) + decode(1, 101) + decode(1, 102)
    assert batch.advance(expected + 1e-9) == {one: 2}
    assert one.finished_at == pytest.approx(expected)
    assert one.first_token_at == pytest.approx(1.0 + prefill(100))
    assert (batch.running, batch.waiting, batch.used_blocks, batch.next_token()) == (0, 0, 0, None)


@given(st.integers(1, 2048), st.integers(0, 400))
def test_alone_is_the_time_of_a_lone_request(prompt: int, output: int) -> None:
    batch = ContinuousBatch(41_408)
    one = batch.add(0.0, "a", prompt, output)
    batch.advance(1e6)
    assert one.finished_at == pytest.approx(IterationTimes().alone(prompt, output))


def test_a_long_prompt_is_prefilled_in_chunks_of_2048() -> None:
    batch = ContinuousBatch(41_408)
    one = batch.add(0.0, "a", 3000, 1)
    batch.advance(10.0)
    assert one.finished_at == pytest.approx(prefill(2048) + prefill(952, cached=2048))


def test_an_embedding_ends_with_its_prefill() -> None:
    batch = ContinuousBatch(41_408)
    one = batch.add(0.0, "a", 50, 0)
    assert batch.advance(1.0) == {one: 0}
    assert one.finished_at == pytest.approx(prefill(50))


def test_an_arrival_joins_at_the_next_iteration_and_both_then_decode_together() -> None:
    batch = ContinuousBatch(41_408)
    first = batch.add(0.0, "a", 100, 50)
    start = prefill(100)
    second = batch.add(start + 0.001, "b", 200, 2)  # during the first decode iteration
    joined = start + decode(1, 101)
    mixed = max(16.96 * MS, prefill(200)) + 0.0462 * MS + 1.391e-4 * MS * 102
    batch.advance(joined + mixed + 1e-9)
    assert second.first_token_at == pytest.approx(joined + mixed)
    assert (first.generated, second.generated) == (3, 1)
    batch.advance(1.0)
    assert second.finished_at == pytest.approx(joined + mixed + decode(2, 103 + 201))


def test_what_does_not_fit_the_cache_waits_in_order() -> None:
    batch = ContinuousBatch(1600)  # 100 blocks
    big = batch.add(0.0, "big", 1000, 20)
    blocked = batch.add(0.0, "blocked", 800, 10)
    small = batch.add(0.0, "small", 16, 1)  # would fit, but nothing overtakes the head
    batch.advance(0.2)
    assert (batch.running, batch.waiting) == (1, 2)
    run_out(batch)
    assert big.finished_at is not None
    assert blocked.first_token_at is not None
    assert small.first_token_at is not None
    assert big.finished_at < blocked.first_token_at <= small.first_token_at


def test_without_a_free_block_the_youngest_gives_way_and_is_computed_again() -> None:
    batch = ContinuousBatch(160)  # 10 blocks; both fit at first, not to the end
    old = batch.add(0.0, "old", 60, 60)
    young = batch.add(0.0, "young", 60, 60)
    run_out(batch)
    assert batch.preemptions >= 1
    assert (old.generated, young.generated) == (60, 60)
    assert old.finished_at is not None
    assert young.finished_at is not None
    assert old.finished_at < young.finished_at
    assert (batch.used_blocks, batch.peak_blocks) == (0, 10)


def test_at_most_max_sequences_run() -> None:
    batch = ContinuousBatch(41_408, max_sequences=4)
    for key in range(6):
        batch.add(0.0, key, 10, 5)
    batch.advance(0.02)
    assert (batch.running, batch.waiting) == (4, 2)


def test_an_abort_frees_the_blocks_at_once_and_lets_the_next_one_in() -> None:
    batch = ContinuousBatch(1600)
    big = batch.add(0.0, "big", 1000, 500)
    waits = batch.add(0.0, "waits", 1000, 1)
    batch.advance(0.5)
    assert batch.abort(0.5, big) is True
    assert batch.abort(0.5, big) is False
    assert batch.used_blocks == 0
    run_out(batch)
    assert waits.finished_at is not None
    assert big.finished_at is None
    alone = batch.add(5.0, "alone", 10, 5)
    assert batch.abort(5.0, alone) is True
    assert batch.next_token() is None


def test_a_slower_card_stretches_the_next_iterations() -> None:
    batch = ContinuousBatch(41_408)
    one = batch.add(0.0, "a", 100, 2)
    batch.set_speed(0.001, 0.5)  # the iteration under way ends when it would have
    batch.advance(1.0)
    assert one.finished_at == pytest.approx(prefill(100) + 2 * decode(1, 101))


def test_what_could_never_fit_is_refused() -> None:
    batch = ContinuousBatch(1600)
    with pytest.raises(ValueError, match="never fit"):
        batch.add(0.0, "a", 1500, 200)
    with pytest.raises(ValueError, match="at least one prompt token"):
        batch.add(0.0, "a", 0, 2)


ARRIVALS = st.lists(st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(0, 60)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(ARRIVALS, st.sampled_from([400, 800, 41_408]), st.lists(st.floats(0, 4), max_size=5), st.booleans())
def test_the_result_does_not_depend_on_when_it_is_asked(
    arrivals: list[tuple[float, int, int]], kv_tokens: int, looks: list[float], every_token: bool
) -> None:
    """Skipping over identical decode iterations must give what computing each one gives."""

    def simulate(asked: list[float], stepwise: bool) -> list[Sequence]:
        batch = ContinuousBatch(kv_tokens)
        sequences: list[Sequence] = []
        tokens: dict[Sequence, int] = {}
        points = sorted([(at, 1, index) for index, (at, _, _) in enumerate(arrivals)] + [(at, 0, 0) for at in asked])
        points.append((1e6, 0, 0))
        for at, adds, index in points:
            while stepwise:
                due = batch.next_token()
                if due is None or due > at:
                    break
                count(batch.advance(due), tokens)
            count(batch.advance(at), tokens)
            assert 0 <= batch.used_blocks <= batch.blocks
            if adds:
                sequences.append(batch.add(at, index, *arrivals[index][1:]))
        assert (batch.running, batch.waiting, batch.used_blocks) == (0, 0, 0)
        assert [tokens[each] for each in sequences] == [each.output for each in sequences]
        return sequences

    def count(progressed: dict[Sequence, int], tokens: dict[Sequence, int]) -> None:
        for sequence, made in progressed.items():
            tokens[sequence] = tokens.get(sequence, 0) + made

    plain = simulate([], stepwise=True)
    other = simulate(looks, stepwise=every_token)
    assert [each.finished_at for each in other] == [pytest.approx(each.finished_at) for each in plain]
    assert [each.first_token_at for each in other] == [pytest.approx(each.first_token_at) for each in plain]
