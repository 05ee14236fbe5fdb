"""What the tests of long runs build on keeps the contract, too."""

import pytest
from dict_storage import DictStorage

from ckptkit.testing.contract import StorageContract


class TestDictStorage(StorageContract):
    @pytest.fixture
    def storage(self):
        return DictStorage()

    def raw_get(self, storage, key):
        return storage.files.get(key)

    def raw_put(self, storage, key, data):
        storage.files[key] = data
