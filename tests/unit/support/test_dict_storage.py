"""What the tests of long runs build on keeps the contract, which notices storages that do not."""

import pytest
from support.runs.dict_storage import DictStorage

from ckptkit.errors import StorageError
from ckptkit.testing.contract import StorageContract


class Contract(StorageContract):
    def raw_get(self, storage, key):
        return storage.files.get(key)

    def raw_put(self, storage, key, data):
        storage.files[key] = data


class Overwriting(DictStorage):
    """Refuses, when it is too late."""

    def write(self, key, stream, size_bytes):
        there = key in self.files
        self.files.pop(key, None)
        super().write(key, stream, size_bytes)
        if there:
            raise StorageError("it was there")

    def create(self, key, data):
        there = key in self.files
        self.files[key] = data
        if there:
            raise FileExistsError(key)


class Greedy(DictStorage):
    """Removes more than it is told, and says that what is not there cannot be removed."""

    def delete(self, keys):
        if not set(keys) <= self.files.keys():
            raise StorageError("not there")
        self.files = {key: data for key, data in self.files.items() if not key.startswith(tuple(keys))}


class Caching(DictStorage):
    """Remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def list(self, folder, prefix=""):
        return self.seen.setdefault((folder, prefix), super().list(folder, prefix))


@pytest.mark.parametrize(
    ("bad", "test", "arguments"),
    [
        (Overwriting, "test_write_never_overwrites", {"size_bytes": 6}),
        (Overwriting, "test_create_never_replaces", {"there": b"first"}),
        (Overwriting, "test_a_key_is_free_until_a_file_is_there_and_after_its_delete", {}),
        (Greedy, "test_delete_removes_the_named_files_and_no_others", {}),
        (Greedy, "test_deleting_what_is_absent_is_fine", {"keys": ["absent"]}),
        (Caching, "test_nothing_is_cached", {}),
    ],
)
def test_contract_notices_bad_storage(bad, test, arguments):
    getattr(Contract(), test)(DictStorage(), **arguments)
    with pytest.raises((AssertionError, StorageError)):
        getattr(Contract(), test)(bad(), **arguments)
