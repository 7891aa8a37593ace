"""Refusals: a closed list of codes, each with its status."""

from __future__ import annotations

import pytest

from steelyard.core.refusal import STATUSES, Refusal


@pytest.mark.parametrize("code", STATUSES)
def test_every_code_has_the_status_of_an_error(code: str) -> None:
    refusal = Refusal(code, "because", 2.0)
    assert refusal.status == STATUSES[code]
    assert 400 <= refusal.status <= 599
    assert repr(refusal) == f"<Refusal {refusal.status} {code}: because>"
    assert refusal.retry_after == 2.0


def test_the_list_is_closed() -> None:
    with pytest.raises(KeyError):
        Refusal("made_up", "because")
