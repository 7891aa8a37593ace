"""Reading fault descriptions: what is right is understood, what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.emulator import FaultError, Faults, Stall, Status, parse_faults

RIGHT = [
    ({}, Faults()),
    ({"slow": 3}, Faults(slow=3.0)),
    ({"stall": {"probability": 0.3, "seconds": 10}}, Faults(stall=Stall(0.3, 10.0))),
    ({"stall": {"seconds": 10}}, Faults(stall=Stall(1.0, 10.0))),
    ({"hang": "accept"}, Faults(hang="accept")),
    ({"hang": "mid", "hang_after": 3}, Faults(hang="mid", hang_after=3)),
    ({"cut_after": 0, "how": "rst"}, Faults(cut_after=0, how="rst")),
    ({"status": 503}, Faults(status=Status(503, 1.0))),
    ({"status": {"code": 500, "probability": 0.5}}, Faults(status=Status(500, 0.5))),
    ({"oom": True, "metrics": "frozen", "health": 503}, Faults(oom=True, metrics="frozen", health=503)),
    ({"crash": True, "recover_after": 5}, Faults(crash=True, recover_after=5.0)),
    ({"slow": None}, Faults()),
]


@pytest.mark.parametrize(("document", "faults"), RIGHT)
def test_right(document: Any, faults: Faults) -> None:
    assert parse_faults(document) == faults
    assert parse_faults(faults.to_json()) == faults


WRONG = [
    ([], 'must be a JSON object such as {"slow": 3.0}, not a list'),
    ({"slwo": 3}, 'unknown fault "slwo"; did you mean "slow"?'),
    ({"xyz": 3}, 'unknown fault "xyz"; known: slow, stall'),
    ({"slow": "x"}, '"slow" must be a number, not "x"'),
    ({"slow": True}, '"slow" must be a number, not true'),
    ({"slow": 0}, '"slow" must be above 0'),
    ({"stall": 10}, '"stall" must be an object with probability and seconds, not 10'),
    ({"stall": {"probability": 0.5}}, '"stall" lacks "seconds"'),
    ({"stall": {"probability": 30, "seconds": 1}}, '"stall.probability" must be from 0 to 1, not 30'),
    ({"stall": {"seconds": -1}}, '"stall.seconds" must be 0 or more seconds'),
    ({"stall": {"seconds": 1, "probabilty": 1}}, 'unknown fault "stall.probabilty"; did you mean "probability"?'),
    ({"hang": "forever"}, '"hang" must be one of accept, headers, mid, not "forever"'),
    ({"hang_after": 3}, '"hang_after" belongs to "hang"'),
    ({"cut_after": -1}, '"cut_after" must be a whole number of events, 0 or more'),
    ({"cut_after": 1.5}, '"cut_after" must be a whole number'),
    ({"cut_after": 1, "how": "hard"}, '"how" must be one of fin, rst'),
    ({"how": "rst"}, '"how" belongs to "cut_after"'),
    ({"status": {}}, '"status" lacks "code"'),
    ({"status": {"code": 99}}, '"status.code" must be an HTTP status from 200 to 599'),
    ({"status": []}, '"status" must be an object'),
    ({"oom": "yes"}, '"oom" must be true or false, not "yes"'),
    ({"crash": 1}, '"crash" must be true or false, not 1'),
    ({"recover_after": 1}, '"recover_after" belongs to "crash"'),
    ({"metrics": "gone"}, '"metrics" must be one of frozen, missing'),
    ({"health": "down"}, '"health" must be an HTTP status'),
]


@pytest.mark.parametrize(("document", "says"), WRONG)
def test_wrong(document: Any, says: str) -> None:
    with pytest.raises(FaultError) as raised:
        parse_faults(document)
    assert says in str(raised.value)


def test_a_second_description_is_added_and_null_takes_away() -> None:
    first = parse_faults({"slow": 2, "hang": "headers"})
    assert parse_faults({"slow": None, "oom": True}, first) == Faults(hang="headers", oom=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*vars(Faults()), "nope"])


@given(st.dictionaries(KEYS, JSON, max_size=4) | JSON)
def test_any_json_is_understood_or_refused(document: Any) -> None:
    try:
        faults = parse_faults(document)
    except FaultError:
        return
    assert parse_faults(faults.to_json()) == faults
