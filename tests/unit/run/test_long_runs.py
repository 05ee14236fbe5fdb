"""What listing, starting and saving ask of the storage on a run of 3,000 checkpoints in 3 attempts."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from support.runs.dict_storage import Counted, pages_of
from support.runs.long_run import long_run, names_of, save, start

from ckptkit.cli.commands import ls
from ckptkit.run.catalog import latest_checkpoint, list_rows
from ckptkit.run.keep_policy import KeepLatest

COUNTS = (900, 1080, 1020)
NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
OWN = "attempts/000004.json"  # of an attempt that starts on it


@pytest.fixture(scope="module")
def made():
    return long_run(*COUNTS)


@pytest.fixture
def run(made):
    return Counted(made.copy())


def newest(storage):
    return names_of(storage._inner)[-1]


def files_of(storage):
    return len(storage._inner.walk("checkpoints/"))


def test_latest_reads_three_documents(run):
    latest = latest_checkpoint(run)
    assert latest.name == newest(run)
    assert latest.problem is None
    below = f"checkpoints/{latest.name}"
    assert run.keys("read") == [f"{below}/COMMIT", "attempts/000003.json", f"{below}/manifest.json"]
    assert run.keys("list") == ["checkpoints", "attempts"]
    assert run.pages == 1 + pages_of(sum(COUNTS))


def test_latest_does_not_list_every_empty_attempt():
    run = Counted(long_run())
    for _ in range(12):
        start(run)
    run.reset()
    assert latest_checkpoint(run) is None
    assert run.pages < 10


def test_ls_reads_one_document_per_row(run):
    """It also needs the pages of the walks, the newest attempt's document and the COMMITs of the two newest."""
    rows = list_rows(run, 50)
    assert [info.name for info in rows.shown] == names_of(run._inner)[-50:]
    assert {info.problem for info in rows.shown} == {None}
    assert rows.left_out == 3_000 - 50
    assert rows.latest == newest(run)
    reads = run.keys("read")
    assert sorted(reads) == sorted(
        [
            "attempts/000003.json",
            *(f"checkpoints/{info.name}/manifest.json" for info in rows.shown),
            *(f"checkpoints/{info.name}/COMMIT" for info in rows.shown[-2:]),
        ]
    )
    assert run.pages == 1 + pages_of(files_of(run)) + 1  # the last is that of frozen/


def test_ls_says_how_many_it_leaves_out(capsys, monkeypatch):
    run = long_run(30, 36)
    monkeypatch.setattr(ls, "open_root", lambda root, options: run)
    monkeypatch.setattr(ls, "NEWEST", 60)
    for show_all, left_out in [(False, 6), (True, 0)]:
        message = f"{left_out} older checkpoints are not shown; --all shows every one"
        assert ls.run_ls("run", now=NOW, as_json=False, show_all=show_all) == 0
        assert (message in capsys.readouterr().out) == (not show_all)
        assert ls.run_ls("run", now=NOW, as_json=True, show_all=show_all) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["left_out"], len(printed["checkpoints"])) == (left_out, 66 - left_out)
        assert printed["latest"] == printed["checkpoints"][-1]["name"] == names_of(run)[-1]


def test_start_reads_one_commit_and_sweep_none(run):
    expected = newest(run)
    _, state = start(run)
    assert state.applied == [expected]
    commits = [key for key in run.keys("read") if key.endswith("/COMMIT")]
    assert set(commits) == {f"checkpoints/{expected}/COMMIT"}
    assert len(commits) <= 5  # chosen, opened, proven, and looked at again
    documents = [key for key in run.keys("read") if key.startswith("attempts/")]
    assert set(documents) == {"attempts/000003.json", OWN}
    assert run.keys("delete") == []
    assert [key for key in run.keys("create") if not key.startswith(("attempts/", "run.json"))] == []
    # Two listings of all folders; one walk of files.
    assert run.pages <= 20 + 2 * pages_of(3_000) + pages_of(files_of(run))


def test_save_requests_do_not_grow_with_checkpoints(run):
    def calls_of_the_third_save(storage):
        manager, state = start(storage)
        save(manager, state)
        save(manager, state)
        storage.reset()
        save(manager, state)
        manager.close()
        calls = [(call.operation, call.keys[0].split("/")[0]) for call in storage.calls]
        return [pair for pair in calls if pair != ("create", "events")]  # these go by the clock

    few = Counted(long_run(3, 4, 3))
    assert calls_of_the_third_save(run) == calls_of_the_third_save(few)
    assert run.keys("read") == [OWN] * 3  # the fence: before the save, before COMMIT, before retention
    assert run.pages == few.pages


def test_only_the_first_save_and_removals_list_all(run):
    manager, state = start(run, keep=KeepLatest(3_002))
    run.reset()
    save(manager, state)
    assert [key for key in run.keys("read") if key.startswith("checkpoints/")] == []  # it keeps all
    listed = [run.keys("list").count("checkpoints")]
    for _ in range(3):
        run.reset()
        save(manager, state)
        listed.append(run.keys("list").count("checkpoints"))
    assert listed == [1, 0, 1, 1]
    assert len(names_of(run._inner)) == 3_002
    manager.close()


def test_retention_reads_each_commit_once():
    run = Counted(long_run(40, 60))
    manager, state = start(run, keep=KeepLatest(90))
    save(manager, state)
    assert len(names_of(run._inner)) == 90
    for _ in range(3):
        run.reset()
        save(manager, state)
        assert len(names_of(run._inner)) == 90
        # The two newest and their attempts are read anew; nothing of the others, and not the ones that go.
        commits = [key for key in run.keys("read") if key.endswith("/COMMIT")]
        assert set(commits) <= {f"checkpoints/{name}/COMMIT" for name in names_of(run._inner)[-2:]}
        assert len(run.keys("read")) <= 3 + 6
