"""A real process under a real SIGKILL: what `Killed` stands for elsewhere, at the moments that matter most."""

import json
import signal

import pytest
from support.process import forked
from support.runs.roots import LocalRoot
from support.runs.scenario import check_new_start, committed, folders, name_at, tree

VICTIM = """
import json, os, signal, sys
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

root, options, place, operation, key, when = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

inner = open_storage(root, json.loads(options))
storage = FaultyStorage(inner)
manager, run = CheckpointManager(storage, keep=KeepLatest(2)), NumpyRun(accumulation_steps=4)

def save_at(batches):
    for _ in run.train_until(batches):
        pass
    return manager.save(run).result()

manager.restore(run)
for batches in (2, 4, 6):
    save_at(batches)
if place == "call":
    storage.inject(Fault(die, operations={operation}, key=key, when=when))
elif place == "link":
    os.link = lambda source, target: die()
else:
    from ckptkit.storage.s3.storage import S3Storage
    inner._part_bytes = 64  # a shard of this run has two parts then; the server asks for their size at the end only
    send = S3Storage._send
    S3Storage._send = lambda self, verb, key, operation, arguments, **given: (
        die() if arguments.get("PartNumber") == 2 else send(self, verb, key, operation, arguments, **given)
    )
save_at(8)
"""

AT_8 = name_at(1, 8)
MOMENTS = {
    "half of a shard": ("call", "write", f"checkpoints/{AT_8}/rank-00000/weights-000.safetensors", "during"),
    "half of the manifest": ("call", "write", f"checkpoints/{AT_8}/manifest.json", "during"),
    "before COMMIT": ("call", "create", f"checkpoints/{AT_8}/COMMIT", "before"),
    "after COMMIT": ("call", "create", f"checkpoints/{AT_8}/COMMIT", "after"),
    "after retention removed a COMMIT": ("call", "delete", f"checkpoints/{name_at(1, 4)}/COMMIT", "after"),
    "half of the data that retention removes": ("call", "delete", f"checkpoints/{name_at(1, 4)}/rank*", "during"),
}


@pytest.fixture(scope="module", params=["local", "s3"])
def kind(request):
    """The default suite kills real processes over a bucket, too."""
    return request.param


@pytest.fixture
def root(new_root):
    return new_root()


def killed_at(root, *place):
    forked("-c", VICTIM, root.url, json.dumps(dict(root.options)), *place, expect=-signal.SIGKILL, timeout=120)


@pytest.mark.covering(1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_run_resumes_bit_exact_after_sigkill(root, moment):
    place = MOMENTS[moment]
    killed_at(root, *place)
    landed = place[1] == "delete" or moment == "after COMMIT"
    assert (AT_8 in committed(root)) == landed
    assert (folders(tree(root)).uncommitted == [AT_8]) == (not landed)
    check_new_start(root, latest=AT_8 if landed else name_at(1, 6))
    assert not any(key.endswith(".tmp") for key in tree(root))


def test_sigkill_before_commit_link_leaves_no_commit(tmp_path):
    root = LocalRoot(tmp_path)
    killed_at(root, "link", "", "", "")
    assert folders(tree(root)).uncommitted == [AT_8]
    assert any(key.endswith(".tmp") for key in tree(root))
    check_new_start(root, latest=name_at(1, 6))
    assert not any(key.endswith(".tmp") for key in tree(root))


def test_start_clears_parts_of_killed_upload(store):
    root = store.new()
    killed_at(root, "part", "", "", "")
    assert AT_8 not in committed(root)
    (upload,) = root.uploads()
    assert upload.startswith(f"checkpoints/{AT_8}/")
    check_new_start(root, latest=name_at(1, 6))
    assert root.uploads() == []
