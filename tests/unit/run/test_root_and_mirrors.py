"""Two roots seen as one: which of two files under one key counts; and how fast an upload may be."""

from types import SimpleNamespace

import pytest
from support.clock import Clock
from support.runs.dict_storage import DictStorage

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument, Commit, RunDocument, Void, encode
from ckptkit.format.layout import RUN, CheckpointName, attempt_key
from ckptkit.run.root_and_mirrors import Homes
from ckptkit.run.upload import UploadPace

NAME = CheckpointName(1, 5, 0)
ONE, OTHER = "1" * 32, "2" * 32


class Damaged(DictStorage):
    """Has ``bad`` keys, which cannot be read."""

    bad = frozenset()

    def read(self, key, max_bytes):
        if key in self.bad:
            raise CorruptCheckpointError(f"{key} cannot be read")
        return super().read(key, max_bytes)


@pytest.fixture
def roots():
    return Damaged(), Damaged()


def run_of(token):
    return encode(RunDocument(run_id=token, created_at="").sealed())


def attempt_of(token):
    return encode(AttemptDocument(attempt=1, token=token, parent=None, host="", created_at="").sealed())


COMMIT = encode(Commit(token=ONE, manifest_digest=ONE, manifest_size_bytes=1).sealed())
VOID = encode(Void(void_by=ONE))
DAMAGED = COMMIT[:-1]


def test_whole_and_real_document_of_two_counts():
    for key, local, mirror, counts in [
        (RUN, run_of(ONE), run_of(OTHER), "mirror"),
        (attempt_key(1), attempt_of(ONE), attempt_of(OTHER), "local"),
        (attempt_key(1), b"{}", attempt_of(OTHER), "mirror"),
        (attempt_key(1), None, attempt_of(OTHER), "mirror"),
        (NAME.commit_key, COMMIT, VOID, "local"),
        (NAME.commit_key, VOID, COMMIT, "mirror"),
        (NAME.commit_key, DAMAGED, COMMIT, "mirror"),
        (NAME.commit_key, DAMAGED, VOID, "local"),
        (NAME.commit_key, VOID, DAMAGED, "mirror"),
        (NAME.commit_key, None, VOID, "mirror"),
        (NAME.manifest_key, b"one", b"other", "local"),
        (NAME.manifest_key, None, b"other", "mirror"),
    ]:
        homes = Homes([DictStorage({key: data} if data is not None else {}) for data in (local, mirror)])
        assert homes.read(key, 1 << 16) == (local if counts == "local" else mirror), (key, local, mirror)
        with pytest.raises(FileNotFoundError):
            Homes([DictStorage(), DictStorage()]).read(key, 1 << 16)


@pytest.mark.parametrize("bad", [True, False], ids=["unreadable", "absent"])
def test_unusable_local_file_is_read_at_mirror(roots, bad):
    """But an unreadable COMMIT counts before a void one."""
    local, mirror = roots
    key = f"{NAME.rank_folder(0)}/weights-000.safetensors"
    mirror.files[key] = mirror.files[NAME.manifest_key] = b"12345"
    mirror.files[NAME.commit_key] = VOID
    if bad:
        local.files |= {**mirror.files, NAME.commit_key: COMMIT}
        local.bad = {key, NAME.manifest_key, NAME.commit_key}
    assert Homes(roots).read(key, 9) == b"12345"
    assert Homes(roots).read(NAME.manifest_key, 9) == b"12345"
    assert Homes(roots).read(NAME.commit_key, 1 << 16) == (b"" if bad else VOID)
    assert Homes(roots).copies(NAME) == [local] * bad


@pytest.mark.parametrize("where", [0, 1])
def test_other_document_at_either_root_wins(roots, where):
    roots[where].files[attempt_key(1)] = b"other"
    with pytest.raises(FileExistsError):
        Homes(roots).create(attempt_key(1), b"data")
    assert roots[where].files[attempt_key(1)] == b"other"
    assert (attempt_key(1) in roots[0].files) == (where == 0)  # it is created at the mirror first


def test_copies_and_files_of_both_are_there(roots):
    local, mirror = roots
    later = CheckpointName(1, 6, 0)
    local.files |= {NAME.commit_key: COMMIT, later.commit_key: VOID, attempt_key(2): b"local"}
    mirror.files |= {NAME.commit_key: COMMIT, later.commit_key: COMMIT, attempt_key(2): b"at the mirror", RUN: b""}
    both = Homes(roots)
    assert both.copies(NAME) == [local, mirror]
    assert both.copies(later) == [mirror]
    assert both.list("checkpoints").folders == {str(NAME), str(later)}
    assert dict(both.list("attempts").files) == {"000002.json": 5}
    assert both.walk("attempts/") == {attempt_key(2): 5}


def test_pieces_wait_for_what_they_take():
    """Time in which nothing was sent is not saved up, and without a bound nothing waits."""
    clock = Clock(lambda: 0.0)
    pace = UploadPace(1000, monotonic=clock)
    pace._lifted = SimpleNamespace(is_open=False, wait=clock.wait)
    for size_bytes, seconds in [(500, 0.5), (250, 0.25), (1000, 1.0), (1000, 1.0)]:
        begun = clock()
        pace.spend(size_bytes)
        assert clock() - begun == pytest.approx(seconds)
        clock.wait(60 if size_bytes == 250 else 0)
    pace = UploadPace(None, monotonic=clock)
    pace._lifted = SimpleNamespace(is_open=False, wait=lambda _: pytest.fail("it waits"))
    pace.spend(1 << 40)
