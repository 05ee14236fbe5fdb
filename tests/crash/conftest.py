"""What holds for every crash suite."""

import functools
import os
from collections.abc import Callable, Iterator

import pytest
from support.runs.roots import LocalRoot, Root, Store, Tree, copied

from ckptkit.snapshot import buffers


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick():
    """A killed process loses nothing that the kernel has; that fsyncs come in order is `test_storage_local`'s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(buffers, "BUFFER_BYTES", 1 << 16)  # each life touches every page of one
        yield


@pytest.fixture(scope="module", params=["local", pytest.param("s3", marks=pytest.mark.extended)])
def kind(request) -> str:
    """What a root is here; a suite that asks for roots holds for both, and a life in a bucket takes a second."""
    return request.param


@pytest.fixture(scope="session")
def store(moto) -> Iterator[Store]:
    made = Store(moto.endpoint)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ground(kind, request, tmp_path_factory) -> Callable[[], Root]:
    """Makes roots that do not exist yet; whoever asks removes them."""
    if kind != "local":
        return request.getfixturevalue("store").new
    below = tmp_path_factory.mktemp("roots")
    numbers = iter(range(10**6))
    return lambda: LocalRoot(below / f"{next(numbers)}" / "run")


@pytest.fixture(scope="module")
def made(ground) -> Callable[[Callable[[Root], object] | None], Root]:
    """Makes a root as a function does, by copying one that was made once, and removes the one before."""

    @functools.cache
    def template(make: Callable[[Root], object]) -> Tree:
        root = ground()
        make(root)
        files = root.tree()
        root.clear()
        return files

    latest: list[Root] = []

    def copy(make: Callable[[Root], object] | None) -> Root:
        while latest:
            latest.pop().clear()
        latest.append(ground())
        return latest[-1] if make is None else copied(template(make), latest[-1])

    return copy


@pytest.fixture
def new_root(kind, ground) -> Iterator[Callable[[], Root]]:
    """Makes roots of one test."""
    made: list[Root] = []

    def make() -> Root:
        made.append(ground())
        return made[-1]

    yield make
    if kind != "local":  # pytest keeps the directories of the last sessions, for whoever wants to look
        for root in made:
            root.clear()
