"""Create-only files without a server that refuses: one writer at a time, and no file is ever replaced."""

from datetime import timedelta

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage.lease import LEASE, Lease

SETTLE = timedelta(seconds=2)


class Overwriting:
    """A storage where the last put wins."""

    def __init__(self):
        self.files = {}
        self.puts = []

    def exists(self, key):
        return key in self.files

    def read(self, key, max_bytes):
        if key not in self.files:
            raise FileNotFoundError(key)
        return self.files[key][: max_bytes + 1]

    def put(self, key, data):
        self.puts.append(key)
        self.files[key] = data


def test_create_waits_for_lease_to_settle():
    storage, waits = Overwriting(), []
    Lease(storage, settle=SETTLE, wait=waits.append).create("a/1", b"x")
    assert storage.puts == [LEASE, "a/1"]
    assert waits == [2.0]


def test_threads_of_one_process_contend_for_no_lease():
    """They would take it from each other, and wait for it to settle each time."""
    alone = []
    lease = Lease(Overwriting(), settle=SETTLE, wait=lambda _: alone.append(lease._own.locked()))
    lease.create("a/1", b"x")
    assert alone == [True]
    assert not lease._own.locked()


def test_a_file_that_is_there_is_never_replaced():
    storage = Overwriting()
    storage.files["a/1"] = b"first"
    with pytest.raises(FileExistsError):
        Lease(storage, settle=SETTLE, wait=lambda _: None).create("a/1", b"second")
    assert storage.files == {"a/1": b"first"}


def test_whoever_took_the_lease_last_goes_first():
    storage = Overwriting()

    def wait_for_the_other(_):
        Lease(storage, settle=SETTLE, wait=lambda _: None).create("a/1", b"the other's")

    with pytest.raises(FileExistsError):
        Lease(storage, settle=SETTLE, wait=wait_for_the_other).create("a/1", b"mine")
    assert storage.files["a/1"] == b"the other's"


def test_file_created_while_lease_settles_stays():
    """By whoever held the lease before."""
    storage = Overwriting()
    lease = Lease(storage, settle=SETTLE, wait=lambda _: storage.put("a/1", b"the other's"))
    with pytest.raises(FileExistsError):
        lease.create("a/1", b"mine")
    assert storage.files["a/1"] == b"the other's"


def test_contended_lease_is_error_and_creates_nothing():
    storage = Overwriting()
    with pytest.raises(StorageError, match="only one job"):
        Lease(storage, settle=SETTLE, wait=lambda _: storage.put(LEASE, b"another")).create("a/1", b"x")
    assert "a/1" not in storage.files


def test_a_lease_that_vanishes_was_not_held():
    storage = Overwriting()
    waits = []

    def wait(_):
        waits.append(1)
        if len(waits) == 1:
            del storage.files[LEASE]

    Lease(storage, settle=SETTLE, wait=wait).create("a/1", b"x")
    assert len(waits) == 2


@pytest.mark.parametrize("writers", [2, 8])
def test_one_writer_wins_within_settle_time(writers):
    """Each takes the lease while the one before it waits; the last one holds it, and creates the file first."""
    storage = Overwriting()
    outcomes = []

    def write(number):
        def wait(_):
            if number + 1 < writers and len(outcomes) == 0:
                write(number + 1)

        try:
            Lease(storage, settle=SETTLE, wait=wait).create("a/1", b"%d" % number)
            outcomes.append((number, "won"))
        except FileExistsError:
            outcomes.append((number, "lost"))

    write(0)
    assert [number for number, outcome in outcomes if outcome == "won"] == [writers - 1]
    assert len(outcomes) == writers
    assert storage.files["a/1"] == b"%d" % (writers - 1)
