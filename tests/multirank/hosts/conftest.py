"""Hosts for the tests of this folder; a machine that has none fails before the first test, and says why."""

from __future__ import annotations

import pytest
from support.hosts.namespace import missing


@pytest.hookimpl(trylast=True)  # after `-m` has chosen: the default suite has none of these tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "multirank/hosts" in item.path.as_posix()]
    if here and (reason := missing()):
        raise pytest.UsageError(f"{here[0].nodeid} needs hosts of its own: {reason}")
