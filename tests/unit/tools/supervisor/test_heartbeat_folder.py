from ckptkit.tools.supervisor.supervisor import heartbeat_folder


def test_folder_is_private_and_removed_at_the_end(tmp_path):
    with heartbeat_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "1").mkdir()
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_supervisor_left_is_removed_and_what_is_in_use_is_not(tmp_path):
    (tmp_path / "ckptkit-run-7-abc").mkdir()
    (tmp_path / "ckptkit-run-7-abc" / "7.heartbeat").write_bytes(b"x")
    (tmp_path / "other").write_text("")
    with heartbeat_folder(tmp_path) as first, heartbeat_folder(tmp_path) as second:
        assert {*tmp_path.iterdir()} == {first, second, tmp_path / "other"}
    for place in (tmp_path / "missing", tmp_path / "other"):  # where it cannot be written, another place is taken
        with heartbeat_folder(place) as folder:
            assert folder.is_dir()
            assert folder.parent != place
