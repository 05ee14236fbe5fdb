"""The instruments themselves: a fault that does not do what it says would let every crash suite pass."""

import io
from dataclasses import replace

import numpy as np
import pytest
from support.memory import MemorySource, contents_of
from support.runs.scenario import digest_at, tree

from ckptkit.errors import CorruptCheckpointError, StateMismatchError, StorageError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun

ACTIONS = {"error": StorageError, "kill": Killed}


@pytest.fixture
def storage(root):
    inner = LocalStorage(root)
    inner.create("a/1", b"there")
    return FaultyStorage(inner)


CALLS = {
    "write": lambda storage: storage.write("b/2", io.BytesIO(b"0123456789"), 10),
    "create": lambda storage: storage.create("b/2", b"0123456789"),
    "delete": lambda storage: storage.delete(["b/3", "a/1", "a/4"]),
    "list": lambda storage: storage.list("a"),
    "read": lambda storage: storage.read("a/1", 10),
    "read_into": lambda storage: storage.read_into("a/1", [memoryview(bytearray(3))]),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "case",
    [
        ("write", "before", {"a/1": b"there"}),
        ("write", "during", {"a/1": b"there", "b/2": b"01234"}),
        ("write", "after", {"a/1": b"there", "b/2": b"0123456789"}),
        ("create", "before", {"a/1": b"there"}),
        ("create", "after", {"a/1": b"there", "b/2": b"0123456789"}),
        ("delete", "before", {"a/1": b"there"}),
        ("delete", "after", {}),
        ("list", "before", {"a/1": b"there"}),
        ("read", "after", {"a/1": b"there"}),
        ("read_into", "before", {"a/1": b"there"}),
    ],
)
def test_fault_keeps_only_effects_before_it(storage, root, action, case):
    """A fault before, during or after an operation leaves exactly what was done by then."""
    operation, when, left = case
    fault = storage.inject(Fault(action, operations={operation}, when=when))
    with pytest.raises(ACTIONS[action]):
        CALLS[operation](storage)
    assert fault.fired == 1
    assert tree(root) == left
    assert [call.operation for call in storage.calls] == [operation]


def test_interrupted_delete_removes_first_half(storage, root):
    for key in ("a/2", "a/3", "a/4"):
        storage.create(key, b"")
    storage.inject(Fault("error", operations={"delete"}, when="during"))
    with pytest.raises(StorageError):
        storage.delete(["a/1", "a/2", "a/3", "a/4"])
    assert sorted(tree(root)) == ["a/3", "a/4"]


@pytest.mark.parametrize("operation", CALLS)
def test_a_dead_process_does_nothing_more(storage, root, operation):
    storage.inject(Fault("kill", operations={"read"}, key="a/1"))
    with pytest.raises(Killed):
        storage.read("a/1", 10)
    storage.clear()
    with pytest.raises(Killed):
        CALLS[operation](storage)
    assert tree(root) == {"a/1": b"there"}
    assert len(storage.calls) == 1


def test_killed_is_not_an_ordinary_exception():
    """`Killed` is a BaseException, so handlers for ordinary exceptions do not run."""
    assert not issubclass(Killed, Exception)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_returning_fault_action_lets_call_continue(storage, root, when):
    seen = []
    storage.inject(Fault(lambda: seen.append(tree(root).get("b/2")), operations={"write"}, when=when))
    CALLS["write"](storage)
    assert seen == [{"before": None, "during": b"01234", "after": b"0123456789"}[when]]
    assert tree(root)["b/2"] == b"0123456789"


def test_fault_action_may_use_storage_and_kill(storage):
    def read_then_die():
        storage.read("a/1", 10)
        raise Killed

    storage.inject(Fault(read_then_die, operations={"list"}))
    with pytest.raises(Killed):
        storage.list("a")
    assert [call.operation for call in storage.calls] == ["list", "read"]
    with pytest.raises(Killed, match="dead"):
        storage.read("a/1", 10)


def test_after_fault_hides_answers_but_not_failures(storage, root):
    """A fault after a call loses its answer, and does not fire where the call itself failed."""
    lost = storage.inject(Fault("error", operations={"create", "read"}, when="after", times=None))
    with pytest.raises(StorageError, match="injected"):
        storage.create("a/1", b"rival")  # FileExistsError on the way
    with pytest.raises(StorageError, match="injected"):
        storage.read("absent", 10)
    assert lost.fired == 2
    (root / "folder").mkdir()
    with pytest.raises(CorruptCheckpointError, match="folder is a folder"):
        storage.read("folder", 10)
    assert lost.fired == 2


@pytest.mark.parametrize(
    ("options", "hit"),
    [
        ({}, [0]),
        ({"nth": 3}, [2]),
        ({"nth": 2, "times": 2}, [1, 2]),
        ({"times": None}, [0, 1, 2, 3, 4]),
        ({"operations": {"create"}}, [1]),
        ({"operations": MUTATING, "nth": 2}, [4]),
        ({"key": "b/*"}, [1]),
        ({"key": "*/1", "nth": 2}, [2]),
        ({"key": "a/2"}, [4]),
    ],
)
def test_fault_counts_only_matching_calls(storage, options, hit):
    fault = storage.inject(Fault("error", **options))
    calls = [
        lambda: storage.list("a"),
        lambda: storage.create("b/1", b""),
        lambda: storage.read("a/1", 10),
        lambda: storage.list("a"),
        lambda: storage.delete(["a/2", "a/1"]),
    ]
    struck = []
    for index, call in enumerate(calls):
        try:
            call()
        except StorageError:
            struck.append(index)
    assert struck == hit
    assert fault.fired == len(hit)


@pytest.mark.parametrize("options", [{"nth": 0}, {"times": 0}, {"when": "during", "operations": {"create"}}])
def test_a_fault_that_could_never_happen_is_refused(options):
    with pytest.raises(ValueError, match=r"nth|inside"):
        Fault("error", **options)


def test_during_fault_on_atomic_call_raises(storage):
    """A fault during a call that is atomic fails the test that asked for it."""
    storage.inject(Fault("error", when="during"))
    with pytest.raises(AssertionError, match="atomic"):
        storage.list("a")


# The training state


NAME = "a000001-c0000000000-m0000"


def trained(batches, **options):
    run = NumpyRun(accumulation_steps=4, **options)
    for _ in run.train_until(batches):
        pass
    return run


@pytest.mark.parametrize("batches", range(1, 9))
def test_restored_run_continues_bit_exactly(batches):
    run = trained(3, seed=99)
    run.apply(contents_of(trained(batches).capture(), NAME))
    assert run.digest() == digest_at(batches)
    for _ in run.train_until(batches + 6):
        pass
    assert run.digest() == digest_at(batches + 6)


def test_run_digest_differs_at_every_batch():
    assert len({digest_at(batches) for batches in range(20)}) == 20


@pytest.mark.parametrize("tensor", ["weights", "embedding", "moments", "accumulators"])
def test_the_digest_notices_one_bit_of_any_tensor(tensor):
    run = trained(6)
    getattr(run, tensor).view(np.uint32)[3] ^= 1
    assert run.digest() != digest_at(6)


@pytest.mark.parametrize("left_out", ["weights", "embedding", "moments", "accumulators", "rng", "progress"])
def test_digest_detects_incomplete_restore(left_out):
    run = trained(3, seed=99)
    whole, before = contents_of(trained(6).capture(), NAME), contents_of(run.capture(), NAME)
    tensors, state = dict(whole.tensors), dict(whole.state)
    if left_out in tensors:
        tensors[left_out] = before.tensors[left_out]
    elif left_out == "rng":
        state["rng"] = before.state["rng"]
    progress = whole.progress if left_out != "progress" else trained(5).progress()
    run.apply(replace(whole, progress=progress, state=state, source=MemorySource(tensors)))
    assert run.digest() != digest_at(6)


def test_capture_is_pure_and_has_accumulators_mid_cycle():
    """A capture changes nothing, and holds accumulators only in mid-cycle."""
    for batches in range(9):
        run = trained(batches)
        names = {leaf.name for leaf in run.capture().leaves}
        assert ("accumulators" in names) == (batches % 4 != 0)
        assert run.digest() == digest_at(batches)


@pytest.mark.parametrize("options", [{"size": 6}, {"accumulation_steps": 5}])
def test_a_checkpoint_that_does_not_fit_changes_nothing(options):
    run = NumpyRun(**{"accumulation_steps": 4, **options})
    before = run.digest()
    with pytest.raises(StateMismatchError):
        run.apply(contents_of(trained(2).capture(), NAME))
    assert run.digest() == before
