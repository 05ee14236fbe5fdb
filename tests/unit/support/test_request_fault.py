"""A request fault strikes when its schedule says, and at no other request."""

from __future__ import annotations

import random

import pytest
from support.servers.faults import RequestFault


def struck(fault, *requests):
    """Which of the requests, from 1, the fault strikes."""
    return [number for number, request in enumerate(requests, start=1) if fault.strikes(*request.split(" "))]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, [1]),
        ({"nth": 3}, [3]),
        ({"nth": 2, "times": 2}, [2, 3]),
        ({"times": None}, [1, 2, 3, 4, 5]),
        ({"nth": 4, "times": None}, [4, 5]),
        ({"nth": 6}, []),
    ],
)
def test_nth_and_times(schedule, expected):
    assert struck(RequestFault("500", **schedule), *["PUT /b/k"] * 5) == expected


def test_only_requests_that_match_count():
    fault = RequestFault("500", method="PUT", path="/b/*/COMMIT", nth=2)
    requests = ["PUT /b/x/COMMIT", "GET /b/x/COMMIT", "PUT /b/x/data", "PUT /b/y/z/COMMIT", "PUT /b/z/COMMIT"]
    assert struck(fault, *requests) == [4]


@pytest.mark.parametrize(
    ("method", "expected"), [(None, [1, 2, 3]), ("PUT", [1]), (["PUT", "POST"], [1, 3]), ({"DELETE"}, [])]
)
def test_methods(method, expected):
    assert struck(RequestFault("500", method=method, times=None), "PUT /", "GET /", "POST /") == expected


def test_the_query_is_part_of_the_path():
    fault = RequestFault("500", path="*partNumber=2*", times=None)
    assert struck(fault, "PUT /b/k?partNumber=1&uploadId=x", "PUT /b/k?partNumber=2&uploadId=x", "PUT /b/k") == [2]


def test_probability_is_reproducible_and_limited_by_times():
    requests = ["PUT /"] * 200

    def once(**schedule):
        return struck(RequestFault("500", probability=0.25, rng=random.Random(5), **schedule), *requests)

    always = once(times=None)
    assert 30 < len(always) < 70
    assert once(times=None) == always
    assert once(times=3) == always[:3]


def test_to_strike_is_not_to_happen():
    fault = RequestFault("500")
    assert fault.strikes("PUT", "/")
    assert fault.fired == 0
    fault.happened()
    assert fault.fired == 1
    assert repr(fault) == "RequestFault(500 * * #1, fired 1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "explode"}, "unknown action 'explode'"),
        ({"action": "500", "nth": 0}, "count from 1"),
        ({"action": "500", "times": 0}, "count from 1"),
        ({"action": "500", "probability": 0.5}, "needs an rng"),
        ({"action": "500", "rng": random.Random(1)}, "an rng a probability"),
    ],
)
def test_a_mistake_in_a_fault_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RequestFault(**options)
