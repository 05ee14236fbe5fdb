"""The network fails at every single request of a start on a run with history and of two saves with retention.

With patience nobody may see it afterwards; without, the call may fail, and then all that holds after a crash holds. The
default suite strikes one of each kind of the decisive requests: those that begin or complete the uploads of the second
save, or publish something. ``-m full`` strikes each request. Each meets one action, in turn among those of its method.
"""

from collections import Counter
from contextlib import contextmanager
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
def by_way_of(proxy):
    """Stores behind the proxy that try again for so long."""
    made = []

    def store(patience):
        made.append(Store(proxy.endpoint, part_bytes=PART_BYTES, patience=patience))
        return made[-1]

    yield store
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def patient(by_way_of):
    return by_way_of(timedelta(seconds=60))


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


def kind_of(request):
    """What it is done to: a method, a query, and the last part of the path or the folder that it lies in."""
    last = request.path.rsplit("/", 1)[-1]
    where = last if last in ("COMMIT", "manifest.json") else request.path.split("/")[-2]
    return request.method, request.query.partition("=")[0], where if request.method == "PUT" else ""


def is_decisive(request):
    """Whether a lost answer leaves a doubt: what begins or ends an upload, and what must not exist yet."""
    return (request.method == "POST" and AT_10 in request.path) or "if-none-match" in request.headers


@contextmanager
def injected(proxy, what, fault):
    """The network fails as ``fault`` says, and it must; an assertion that fails says where."""
    proxy.inject(fault)
    try:
        yield
        assert fault.fired == 1
    except AssertionError as error:
        raise AssertionError(f"with {what}: {error}") from error
    finally:
        proxy.clear()


@pytest.fixture
def struck(proxy, undisturbed):
    """Gives, for each request that is struck, what that is in words and a context in which it happens."""

    def each(share):
        seen, turns, kinds = Counter(), Counter(), set()
        for index, one in enumerate(undisturbed[2]):
            has_answer = one.method in ("GET", "POST")
            actions = ACTIONS if has_answer else ACTIONS[:-1]
            # Parts go out beside each other, in any order; what is asked and answered comes in one.
            methods, nth = (("GET", "POST"), seen["answer"] + 1) if has_answer else (None, index + 1)
            seen["answer"] += has_answer
            kind = kind_of(one)
            is_first = is_decisive(one) and kind[2] in ("", "attempts", "COMMIT") and kind not in kinds
            kinds |= {kind} if is_first else set()
            if share == "all" or is_first:
                action = actions[turns[one.method] % len(actions)]
                turns[one.method] += 1
                what = f"{action} at request {index}: {one.method} {one.path}?{one.query}"
                yield what, injected(proxy, what, RequestFault(action, method=methods, nth=nth))

    return each


@pytest.mark.parametrize("share", ["decisive", pytest.param("all", marks=pytest.mark.extended)])
def test_transient_fault_at_any_request_changes_nothing(made, patient, struck, undisturbed, share):
    keys, contents, _ = undisturbed
    for what, at_fault in struck(share):
        root = made(history)
        with at_fault:
            life = Life(root.through(patient))
            assert life.restore().checkpoint == AT_6
            assert life.run.digest() == digest_at(6)
            assert life.saved_at(8) == AT_8
            assert life.saved_at(10) == AT_10
        assert sorted(tree(root)) == keys, what
        assert shards(root) == contents, what
        assert root.uploads() == [], what
        assert digest_of(root, AT_10) == digest_at(10), what
