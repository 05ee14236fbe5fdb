"""A request fault strikes when its schedule says, and at no other request."""

import random

from support.servers.faults import RequestFault


def struck(schedule, *requests):
    """Which of the requests, from 1, the fault strikes."""
    fault = RequestFault("500", **schedule)
    return [number for number, request in enumerate(requests, start=1) if fault.strikes(*request.split(" "))]


def test_a_fault_strikes_by_number_method_path_and_query():
    five = ["PUT /b/k"] * 5
    for schedule, expected in [
        ({}, [1]),
        ({"nth": 3}, [3]),
        ({"nth": 2, "times": 2}, [2, 3]),
        ({"times": None}, [1, 2, 3, 4, 5]),
        ({"nth": 4, "times": None}, [4, 5]),
        ({"nth": 6}, []),
    ]:
        assert struck(schedule, *five) == expected, schedule
    requests = ["PUT /b/x/COMMIT", "GET /b/x/COMMIT", "PUT /b/x/data", "PUT /b/y/z/COMMIT", "POST /b/z/COMMIT"]
    assert struck({"method": "PUT", "path": "/b/*/COMMIT", "nth": 2}, *requests) == [4]
    for methods, expected in [(["PUT", "POST"], [1, 3, 4, 5]), ({"DELETE"}, []), ("GET", [2])]:
        assert struck({"method": methods, "times": None}, *requests) == expected
    parts = ["PUT /b/k?partNumber=1&uploadId=x", "PUT /b/k?partNumber=2&uploadId=x", "PUT /b/k"]
    assert struck({"path": "*partNumber=2*", "times": None}, *parts) == [2]


def test_probability_is_reproducible_and_limited_by_times():
    def once(**schedule):
        return struck({"probability": 0.25, "rng": random.Random(5), **schedule}, *["PUT /"] * 200)

    always = once(times=None)
    assert 30 < len(always) < 70
    assert once(times=None) == always
    assert once(times=3) == always[:3]
