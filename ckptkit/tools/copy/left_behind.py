"""Uploads, for the program that ran a training, what that had committed at its root and not uploaded to its mirrors.

Guarantees: the files go the way that the training's own uploads go, with the same checks. Nobody else uploads from the
root at the same time. Nothing is uploaded to a mirror where the run has been started since, so that no older checkpoint
comes after a newer one. Nothing is removed anywhere, and nothing is said or done if the mirrors have it. A failure is
told, with the next move, and raises nothing. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from ckptkit.checkpoint.commit import read_commit
from ckptkit.core.waiting import Patience
from ckptkit.errors import CkptKitError, ResumeError
from ckptkit.format.documents import AttemptDocument, Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.run.attempt import Opened
from ckptkit.run.index import Index
from ckptkit.run.ownership import read_run, refuse_unfinished
from ckptkit.run.resolve import choose
from ckptkit.run.root_and_mirrors import refuse_separate, share_documents
from ckptkit.run.upload import Uploader, UploadPace
from ckptkit.storage import RootLock, Storage


def upload_left_behind(
    url: str, mirror_urls: Sequence[str], open_root: Callable[[str], Storage], say: Callable[[str], None]
) -> None:
    """Upload the newest checkpoint of the root ``url`` to each mirror that lacks it; ``say`` shows a line to the user.

    Of a remote root nothing is uploaded: it needs no machine that is there, and the next start uploads it.
    """
    if not mirror_urls:
        return
    try:
        root = open_root(url)
        if not root.is_remote:
            _upload_from(root, [open_root(mirror_url) for mirror_url in mirror_urls], say)
    except (CkptKitError, OSError, ValueError, TypeError) as error:
        say(
            f"could not upload: {error}. The next start at {url} uploads it; if there is none, "
            f"ckptkit copy {url} NEW_ROOT takes it elsewhere"
        )


def _upload_from(root: Storage, mirrors: Sequence[Storage], say: Callable[[str], None]) -> None:
    late = _lacking(root, mirrors)
    if not late:
        return
    say(f"uploading what {', '.join(mirror.url for mirror, _, _ in late)} did not get from the training")
    lock = RootLock(root)
    if not lock.take_alone():
        raise ResumeError(
            f"a training at {root.url} is still running, or another program uploads from it. Nothing was uploaded"
        )
    try:
        for mirror, name, attempt in _lacking(root, mirrors):
            say(_upload(root, mirror, name, attempt))
    finally:
        lock.release()


def _lacking(root: Storage, mirrors: Sequence[Storage]) -> list[tuple[Storage, CheckpointName, AttemptDocument]]:
    """Return the mirrors that have not committed the newest checkpoint of ``root``, each with it and the last start."""
    index = Index(root)
    refuse_unfinished(root, index, read_run(root))
    name = choose(index).first
    if name is None:
        return []
    attempt = index.document(max(index.attempts))
    return [(mirror, name, attempt) for mirror in mirrors if not _has(mirror, name)]


def _has(mirror: Storage, name: CheckpointName) -> bool:
    """Return whether ``mirror`` has committed ``name``; False if it cannot be seen, and then the upload says why."""
    try:
        return isinstance(read_commit(mirror, name), Commit)
    except CkptKitError:
        return False


def _upload(root: Storage, mirror: Storage, name: CheckpointName, attempt: AttemptDocument) -> str:
    """Upload ``name`` and return what became of it; the failure of a mirror holds back no other."""
    failure = f"{name} could not be uploaded to {mirror.url}"
    try:
        refuse_separate(root, mirror)
        share_documents(root, mirror, range(1, attempt.attempt + 1))
        run = read_run(root)
        opened = Opened(attempt, None, run.run_id if run is not None else "")
        # Without a policy: the next start knows what the mirror is to keep.
        uploader = Uploader([root, mirror], mirror, opened, None, Patience(timedelta(0)), pace=UploadPace(None))
        if uploader.upload(name) == "void":
            return f"{failure}: a start gave its folder up there"
    except CkptKitError as error:
        return f"{failure}: {error}"
    return f"{name} is uploaded to {mirror.url}"
