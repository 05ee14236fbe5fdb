"""The groups of options that a manager and a callback share."""

import dataclasses

import pytest

import ckptkit as ck


@pytest.mark.parametrize("group", [ck.Saving, ck.Preemption, ck.Ranks, ck.System])
def test_groups_never_change(group):
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


@pytest.mark.parametrize(
    ("option", "value", "group"),
    [
        ("saving", {"when_busy": "wait"}, "Saving"),
        ("ranks", 4, "Ranks"),
        ("preemption", "off", "Preemption"),
        ("system", "host", "System"),
    ],
)
def test_value_instead_of_group_names_the_group(root, option, value, group):
    with pytest.raises(TypeError, match=rf"{option} takes a ckptkit\.{group}, got .*see help\(ckptkit\.{group}\)"):
        ck.CheckpointManager(root, **{option: value})
    assert not root.exists()
