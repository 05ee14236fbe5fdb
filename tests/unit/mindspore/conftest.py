"""Every test here begins as a fresh process would."""

import numpy as np
import pytest
from support.training import begin_process

from ckptkit.mindspore import kernel_threads
from ckptkit.mindspore.rng import words_drawn_unseeded


@pytest.fixture(autouse=True)
def fresh_process():
    begin_process()
    yield
    begin_process()


@pytest.fixture(autouse=True)
def kernel_threads_as_they_are(request, monkeypatch):
    """Other tests have started MindSpore's threads, some of which a run names: those that launch dynamic graphs."""
    if request.path.name != "test_kernel_threads.py":
        monkeypatch.setattr(kernel_threads, "_are_zero_in_operations", lambda: True)


@pytest.fixture
def shown(caplog):
    caplog.set_level("INFO", "ckptkit")
    return lambda: "\n".join(record.getMessage() for record in caplog.records if record.name == "ckptkit")


@pytest.fixture
def unseeded():
    """NumPy's global generator is as in a process that has set no seed and drawn nothing; gives what does it anew."""
    before = np.random.get_bit_generator()

    def begin():
        np.random.set_bit_generator(np.random.MT19937())
        words_drawn_unseeded.cache_clear()

    begin()
    yield begin
    np.random.set_bit_generator(before)
    words_drawn_unseeded.cache_clear()
