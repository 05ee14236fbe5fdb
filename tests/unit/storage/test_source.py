"""Buffers of large files are kept for the next file, and have the size that is asked for."""

from ckptkit.storage.source import ReusedMemory


def test_memory_of_one_file_is_kept():
    """However many were written at once."""
    memory = ReusedMemory(2)
    first, second = memory.take(10), memory.take(10)
    for buffers in (first, second):
        memory.give_back(buffers)
    later = memory.take(10, 4)
    assert len(later) == 4
    assert sum(any(one.obj is old.obj for old in (*first, *second)) for one in later) == 2


def test_memory_lent_has_the_size_asked_for():
    """Parts of a huge file are larger than those of the one before, and of the one after it."""
    memory = ReusedMemory(2)
    for size_bytes in (20, 10, 30, 10):
        lent = memory.take(size_bytes)
        assert [len(one) for one in lent] == [size_bytes] * 2
        memory.give_back(lent)
