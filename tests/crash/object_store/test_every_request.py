"""The network fails at every single request of a start on a run with history and of two saves with retention.

Nobody may see it afterwards. The default suite strikes one of each kind of the decisive requests: those that begin or
complete the uploads of the second save, or publish something. ``-m full`` strikes each request. Each meets one action,
in turn among those of its method.
"""

from collections import Counter
from datetime import timedelta

import pytest
from support.runs import scenario
from support.runs.roots import Store
from support.runs.scenario import (
    AT_6,
    AT_8,
    AT_10,
    Life,
    committed,
    digest_at,
    digest_of,
    history,
    tree,
)
from support.servers.faults import RequestFault
from support.servers.moto_server import HOST, MotoServer
from support.servers.proxy import FaultProxy

ACTIONS = ["503", "reset_before", "reset_mid_body", "reset_after", "truncate"]
SIZE = 1500  # elements: each shard has 6 KB, in two parts
PART_BYTES = 4096  # room for every document


@pytest.fixture(scope="module", autouse=True)
def _shards_of_two_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "SIZE", SIZE)
        yield


@pytest.fixture(scope="module")
def server():
    with MotoServer(smallest_part_bytes=PART_BYTES) as started:
        yield started


@pytest.fixture(scope="module")
def direct(server):
    made = Store(server.endpoint, part_bytes=PART_BYTES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def proxy(server):
    with FaultProxy(HOST, server.port) as started:
        yield started


@pytest.fixture(scope="module")
def patient(proxy):
    """The store behind the proxy."""
    made = Store(proxy.endpoint, part_bytes=PART_BYTES, patience=timedelta(seconds=60))
    yield made
    made.close()


@pytest.fixture(scope="module")
def ground(direct):
    return direct.new


def shards(root):
    return {key: data for key, data in tree(root).items() if key.endswith(".safetensors")}


@pytest.fixture(scope="module")
def undisturbed(made, patient, proxy):
    """What the start and the saves leave without any fault, and their requests."""
    root = made(history)
    life = Life(root.through(patient))
    before = len(proxy.requests)
    life.restore()
    assert life.saved_at(8) == AT_8
    assert life.saved_at(10) == AT_10
    requests = proxy.requests[before:]
    assert committed(root) == [AT_8, AT_10]
    assert root.uploads() == []
    assert not any(key.startswith("frozen/a000001") for key in tree(root))
    done = Counter((one.method, one.query.partition("=")[0]) for one in requests)
    assert done["POST", "uploads"] == done["POST", "uploadId"] == 6  # three shards of each save
    assert sum("partNumber" in one.query for one in requests) == 12
    # The probe's two, the attempt, two COMMITs, two of events.
    assert sum(is_decisive(one) for one in requests) == 6 + 7
    assert sum("range" in one.headers for one in requests) > 10
    assert {one.method for one in requests} == {"GET", "PUT", "POST", "DELETE"}
    return sorted(tree(root)), shards(root), requests


def is_decisive(request):
    """Whether a lost answer leaves a doubt: what begins or ends an upload, and what must not exist yet."""
    return (request.method == "POST" and AT_10 in request.path) or "if-none-match" in request.headers


@pytest.mark.parametrize("share", ["decisive", pytest.param("all", marks=pytest.mark.extended)])
def test_transient_fault_at_any_request_changes_nothing(made, patient, proxy, undisturbed, share):
    keys, contents, requests = undisturbed
    answers, turns, kinds = 0, Counter(), set()
    for index, request in enumerate(requests):
        has_answer = request.method in ("GET", "POST")
        # Parts go out beside each other, in any order; what is asked and answered comes in one.
        methods, nth = (("GET", "POST"), answers + 1) if has_answer else (None, index + 1)
        answers += has_answer
        place = next((part for part in ("attempts", "COMMIT") if part in request.path), "")
        kind = (request.method, request.query.partition("=")[0], place)
        if share == "decisive" and (kind in kinds or not is_decisive(request)):
            continue
        kinds.add(kind)
        actions = ACTIONS if has_answer else ACTIONS[:-1]
        action = actions[turns[request.method] % len(actions)]
        turns[request.method] += 1
        what = f"{action} at request {index}: {request.method} {request.path}?{request.query}"
        root, fault = made(history), RequestFault(action, method=methods, nth=nth)
        proxy.inject(fault)
        life = Life(root.through(patient))
        assert life.restore().checkpoint == AT_6, what
        assert life.run.digest() == digest_at(6), what
        assert (life.saved_at(8), life.saved_at(10)) == (AT_8, AT_10), what
        assert fault.fired == 1, what
        proxy.clear()
        assert sorted(tree(root)) == keys, what
        assert shards(root) == contents, what
        assert digest_of(root, AT_10) == digest_at(10), what
        # An upload that was begun twice, since the first answer was lost, is there without parts until the next start.
        is_begun_twice = request.query == "uploads" and action in ("reset_after", "truncate")
        assert len(root.uploads()) == is_begun_twice, what
        if is_begun_twice:
            Life(root).restore()
            assert root.uploads() == [], what
