"""The instruments themselves: a fault that does not do what it says would let every crash suite pass."""

import io
import itertools
from dataclasses import replace

import pytest
from support.memory import MemorySource, contents_of
from support.runs.scenario import digest_at, tree

from ckptkit.errors import StorageError
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
    "delete": lambda storage: storage.delete(["a/1", "a/2"]),
    "list": lambda storage: storage.list("a"),
    "read": lambda storage: storage.read("a/1", 10),
    "read_into": lambda storage: storage.read_into("a/1", [memoryview(bytearray(3))]),
}


def test_returning_fault_action_lets_call_continue(tmp_path):
    for when, found in {"before": None, "during": b"01234", "after": b"0123456789"}.items():
        root, seen = tmp_path / when, []
        look = lambda root=root, seen=seen: seen.append(tree(root).get("b/2"))  # noqa: E731
        storage = FaultyStorage(LocalStorage(root), [Fault(look, operations={"write"}, when=when)])
        CALLS["write"](storage)
        assert seen == [found]
        assert tree(root)["b/2"] == b"0123456789"


COUNTED = [
    ({}, [0]),
    ({"nth": 3}, [2]),
    ({"nth": 2, "times": 2}, [1, 2]),
    ({"times": None}, [0, 1, 2, 3, 4]),
    ({"operations": {"create"}}, [1]),
    ({"operations": MUTATING, "nth": 2}, [4]),
    ({"key": "b/*"}, [1]),
    ({"key": "*/1", "nth": 2}, [2]),
    ({"key": "a/2"}, [4]),
]


def test_fault_counts_only_matching_calls(tmp_path):
    for number, (options, hit) in enumerate(COUNTED):
        inner = LocalStorage(tmp_path / str(number))
        inner.create("a/1", b"there")
        storage = FaultyStorage(inner, [fault := Fault("error", **options)])
        calls = [
            lambda storage=storage: storage.list("a"),
            lambda storage=storage: storage.create("b/1", b""),
            lambda storage=storage: storage.read("a/1", 10),
            lambda storage=storage: storage.list("a"),
            lambda storage=storage: storage.delete(["a/2", "a/1"]),
        ]
        struck = []
        for index, call in enumerate(calls):
            try:
                call()
            except StorageError:
                struck.append(index)
        assert struck == hit, options
        assert fault.fired == len(hit)


NAME = "a000001-c0000000000-m0000"


def trained(batches, **options):
    run = NumpyRun(accumulation_steps=4, **options)
    for _ in run.train_until(batches):
        pass
    return run


def test_restored_run_continues_bit_exactly():
    """At a boundary and in mid-cycle; a capture changes nothing, and has accumulators in mid-cycle only."""
    for batches in range(1, 9):
        run, source = trained(3, seed=99), trained(batches)
        capture = source.capture()
        assert ("accumulators" in {leaf.name for leaf in capture.leaves}) == (batches % 4 != 0)
        assert source.digest() == digest_at(batches)
        run.apply(contents_of(capture, NAME))
        assert run.digest() == digest_at(batches)
        for _ in run.train_until(batches + 6):
            pass
        assert run.digest() == digest_at(batches + 6)
    assert len({digest_at(batches) for batches in range(20)}) == 20


def test_digest_detects_incomplete_restore():
    for left_out in ("weights", "embedding", "moments", "accumulators", "rng", "progress"):
        run = trained(3, seed=99)
        whole, before = contents_of(trained(6).capture(), NAME), contents_of(run.capture(), NAME)
        tensors, state = dict(whole.tensors), dict(whole.state)
        if left_out in tensors:
            tensors[left_out] = before.tensors[left_out]
        elif left_out == "rng":
            state["rng"] = before.state["rng"]
        progress = whole.progress if left_out != "progress" else trained(5).progress()
        run.apply(replace(whole, progress=progress, state=state, source=MemorySource(tensors)))
        assert run.digest() != digest_at(6), left_out


EFFECTS = [
    ("write", "before", {"a/1": b"there"}),
    ("write", "during", {"a/1": b"there", "b/2": b"01234"}),
    ("write", "after", {"a/1": b"there", "b/2": b"0123456789"}),
    ("create", "before", {"a/1": b"there"}),
    ("create", "after", {"a/1": b"there", "b/2": b"0123456789"}),
    ("delete", "before", {"a/1": b"there", "a/2": b""}),
    ("delete", "during", {"a/2": b""}),
    ("delete", "after", {}),
    ("list", "before", {"a/1": b"there"}),
    ("read", "after", {"a/1": b"there"}),
    ("read_into", "before", {"a/1": b"there"}),
]


def test_fault_keeps_only_effects_before_it(tmp_path):
    """A fault before, during or after an operation leaves what was done by then; who was killed does nothing more."""
    for (operation, when, left), action in itertools.product(EFFECTS, ACTIONS):
        root = tmp_path / f"{operation} {when} {action}"
        storage = FaultyStorage(LocalStorage(root))
        storage.create("a/1", b"there")
        if operation == "delete":
            storage.create("a/2", b"")
        storage.calls.clear()
        fault = storage.inject(Fault(action, operations={operation}, when=when))
        with pytest.raises(ACTIONS[action]):
            CALLS[operation](storage)
        assert fault.fired == 1
        assert tree(root) == left, (operation, when, action)
        assert [call.operation for call in storage.calls] == [operation]
        storage.clear()
        for other in CALLS if action == "kill" else ():
            with pytest.raises(Killed):
                CALLS[other](storage)
        assert tree(root) == left
    assert not issubclass(Killed, Exception)


def test_a_fault_that_could_never_happen_is_refused(storage):
    for options in ({"nth": 0}, {"times": 0}, {"when": "during", "operations": {"create"}}):
        with pytest.raises(ValueError, match=r"nth|inside"):
            Fault("error", **options)
    storage.inject(Fault("error", when="during"))
    with pytest.raises(AssertionError, match="atomic"):
        storage.list("a")
