"""The groups of options that a manager and a callback share."""

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

import ckptkit as ck


def test_groups_never_change():
    for group in (ck.Saving, ck.Preemption, ck.Ranks, ck.System):
        one = group()
        for field in dataclasses.fields(one):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(one, field.name, None)


def test_relative_paths_mean_what_they_meant(tmp_path, monkeypatch):
    (tmp_path / "then").mkdir()
    monkeypatch.chdir(tmp_path / "then")
    mirror, preemption = ck.Mirror("copy"), ck.Preemption(when="stop")
    monkeypatch.chdir(tmp_path)
    assert mirror.storage.url == str(tmp_path / "then" / "copy")
    assert preemption.when == str(tmp_path / "then" / "stop")


def test_mirror_shows_no_secret():
    mirror = ck.Mirror("s3://bucket/run", storage_options={"key": "someone", "secret": "nobody-may-see-this"})
    assert "nobody-may-see-this" not in repr(mirror)
    assert "someone" not in repr(mirror)
    urls = ck.CheckpointManager("root", mirror=[mirror, "copy"])._setup.mirrors.urls
    assert urls == [str(Path("copy").absolute())], "another program would open it without its options"


def test_value_instead_of_group_names_the_group(root):
    for option, group in [("saving", "Saving"), ("ranks", "Ranks"), ("preemption", "Preemption"), ("system", "System")]:
        with pytest.raises(TypeError, match=rf"{option} takes a ckptkit\.{group}, got .*see help\(ckptkit\.{group}\)"):
            ck.CheckpointManager(root, **{option: "any"})
    assert not root.exists()


def test_unknown_values_are_refused():
    for group, option, value, expected in [
        (ck.Saving, "when_busy", "queue", "'skip' or 'wait'"),
        (ck.Saving, "on_error", "ignore", "'warn' or 'raise'"),
        (ck.Saving, "mid_cycle", "never", "'exact', 'align' or 'rewind'"),
        (ck.Saving, "window", None, "'auto', 'slice' or 'off'"),
        (ck.Saving, "buffer_bytes", 0, "at least 1"),
        (ck.Preemption, "then", "stop", "'exit', 'return' or 'off'"),
        (ck.Preemption, "when", 5, "the path of a file or a callable"),
        (ck.Preemption, "when", "", "the path of a file or a callable"),
        (ck.Preemption, "grace", timedelta(0), "positive timedelta"),
        (ck.Preemption, "grace", 25, "positive timedelta"),
        (ck.Ranks, "patience", timedelta(seconds=-1), "positive timedelta"),
        (ck.SaveEvery.auto, "overhead", 0, "a share between 0 and 1"),
        (ck.SaveEvery.auto, "overhead", 1, "a share between 0 and 1"),
        (ck.SaveEvery.auto, "overhead", True, "a share between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=f"{option} .*{expected}.*, got {re.escape(repr(value))}"):
            group(**{option: value})
