"""The instruments themselves: a fault that does not do what it says would let every crash suite pass."""

import io
import itertools

import pytest
from support.runs.scenario import tree

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage, Killed

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
