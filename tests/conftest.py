"""Fixtures of the whole suite, and what of it runs by default."""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before they are imported: an assertion that fails in what tests share says what it saw, too.
pytest.register_assert_rewrite(
    "ckptkit.testing.contract",
    *("benchmarks", "crash", "docs", "exactness", "multirank", "support", "unit"),
)

sys.path.insert(1, str(Path(__file__).parents[1]))  # `benchmarks`, after what is beside this file

from hypothesis import settings  # noqa: E402
from support.covering import mark_extended  # noqa: E402
from support.process import ALWAYS_FRESH  # noqa: E402
from support.warm_server import with_one_thread, without_waiting  # noqa: E402

from ckptkit import scrubber  # noqa: E402
from ckptkit.manager import preemption, process  # noqa: E402

pytest_plugins = ["support.servers.fixtures", "support.budget"]

NEEDS_MORE = ("radosgw", "rclone", "browser", "metrics", "projects")  # than `pip install '.[test]'` brings

MEMORY = "/dev/shm"  # noqa: S108 - pytest makes a folder there that others cannot enter
MEMORY_BYTES = 1 << 30  # ten times what tests ever had there

os.environ.pop("COLUMNS", None)  # tables are as wide as the tests say, whatever terminal they were started in

settings.register_profile("default", deadline=None, derandomize=True)  # what fails is what was changed
settings.register_profile("full", deadline=None, print_blob=True, max_examples=400)


def pytest_configure(config: pytest.Config) -> None:
    is_full = config.option.markexpr == "full"
    if is_full:
        ALWAYS_FRESH.set()
    settings.load_profile("full" if is_full else "default")
    if config.getoption("numprocesses", None):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of the processes would compile all of the tests
    if not is_full:
        os.fsync = without_waiting
        _keep_files_in_memory()


def _keep_files_in_memory() -> None:
    """Where there is room: the suite makes 90,000 files, and a tenth of its processor time went to the disk.

    ``TMPDIR`` and ``--basetemp`` say otherwise. Under ``-m full`` files are on the disk.
    """
    if "TMPDIR" in os.environ or not os.path.isdir(MEMORY) or shutil.disk_usage(MEMORY).free < MEMORY_BYTES:
        return
    os.environ["TMPDIR"] = MEMORY  # the processes of the run, and those that tests start, take it from here
    tempfile.tempdir = None  # pytest has asked for it before


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # First what needs most memory and waits most, while the processes of the run are small.
    items.sort(key=lambda item: item.path.parent.name != "msrun")
    mark_extended(items)
    for item in items:
        if not any(item.get_closest_marker(name) for name in NEEDS_MORE):
            item.add_marker("full")


def pytest_collection_finish(session: pytest.Session) -> None:
    _freeze_heap()
    if "mindspore" in sys.modules and session.config.option.markexpr != "full":
        with_one_thread()
        # The main thread spins while it waits for those of PyNative, which took a third of the time of its tests.
        disable = getattr(_api()._pynative_executor, "disable_frontend_and_bprop_pipeline", None)
        if disable is not None:  # MindSpore 2.7 has none
            disable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if "mindspore" not in sys.modules:
        return
    api = _api()
    # After an exception within a PyNative micro-step, gradients are still recorded: all that the process does later
    # takes 1.3 times as long and keeps twice the memory.
    if api._pynative_executor.grad_flag():
        api._pynative_executor.clear_res()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        api.ms_memory_recycle()  # compiled graphs stay otherwise: 3.5 GB in a process that runs all of unit/mindspore
        _give_back_memory()
        _freeze_heap()


def _api() -> Any:
    """MindSpore's own module of `jit` and the executor of PyNative; before 2.9 it was in another package."""
    is_new = importlib.util.find_spec("mindspore.graph.api") is not None
    return importlib.import_module("mindspore.graph.api" if is_new else "mindspore.common.api")


def _freeze_heap() -> None:
    """Keep the collector away from what is there: MindSpore collects before each compilation, 0.15 s at the end."""
    gc.collect()
    gc.freeze()


def _give_back_memory() -> None:
    """Return to the system what was freed; several processes of a run share 4 GiB."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")  # the processes of xdist have none
    if reporter is not None and "not extended" in config.option.markexpr:
        reporter.write_line(
            "This was the default suite. Everything: pytest -m full; "
            "a quarter of everything: pytest -m full --splits 4 --group 2"
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run root that does not exist yet."""
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _of_one_test() -> Iterator[None]:
    """A test leaves to the next one no denormals that are zero, no secret, no listener, and no thread of a grace."""
    ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV: hypothesis refuses a thread without denormals
    process._HERE.users = 0
    known = set(scrubber._known)
    yield
    scrubber._known.intersection_update(known)  # a password may be a word that the messages of the next test have
    scrubber._pattern = None
    preemption.SIGNALS._listeners.clear()
    preemption.SIGNALS.leave(None)  # as the last one: what a signal of this test left is forgotten
    until = time.monotonic() + 10
    # A preemption that nobody settles ends this process half a minute later, in another test.
    while graces := [thread for thread in threading.enumerate() if thread.name == "ckptkit-grace"]:
        assert time.monotonic() < until, "a grace goes on: close the manager, or settle the preemption"
        for thread in graces:
            if thread.ident is not None:  # None for a moment, while it starts
                thread.join(10)
