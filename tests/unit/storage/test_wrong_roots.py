"""Run roots and options as they are mistyped: what is said, and that nothing was made."""

from __future__ import annotations

import errno
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.options import grouped

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, open_storage


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert [path for path in tmp_path.iterdir() if path.name != "given"] == []


@pytest.mark.parametrize(
    ("root", "meant"),
    [
        ("s3:/bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),  # pathlib takes a slash away
        ("obs:/bucket/run", "obs://bucket/run"),
        ("gs:/bucket/run", "gs://bucket/run"),
        ("file:/data/run", "/data/run"),
    ],
)
def test_one_slash_is_no_folder_of_that_name(root, meant):
    with pytest.raises(StorageError, match="has one slash where a URL has two") as raised:
        open_storage(root)
    assert f'write "{meant}"' in str(raised.value)


@pytest.mark.parametrize("root", [None, 7, b"runs/one"])
def test_what_is_no_path_is_no_root(root):
    with pytest.raises(TypeError, match=f"a path, a URL or a Storage, got {type(root).__name__}"):
        open_storage(root)


@pytest.mark.parametrize("root", ["lr:0.1/seed:2", "C:/runs", "runs/s3:/x", "/s3:/x", "./s3:/x", "s3:"])
def test_a_colon_may_stand_in_a_path(root):
    assert isinstance(open_storage(root), LocalStorage)


def test_a_folder_that_is_really_there_is_taken(tmp_path):
    (tmp_path / "given").mkdir()
    os.chdir(tmp_path / "given")
    (tmp_path / "given" / "s3:").mkdir()
    (tmp_path / "given" / "s3:" / "run").mkdir()
    assert open_storage("s3:/run").url == str(tmp_path / "given" / "s3:" / "run")


@pytest.mark.parametrize(
    ("address", "root", "endpoint"),
    [
        ("https://obs.cn-north-4.myhuaweicloud.com/b/r", "obs://b/r", "https://obs.cn-north-4.myhuaweicloud.com"),
        ("https://b.obs.cn-north-4.myhuaweicloud.com/r", "obs://b/r", "https://obs.cn-north-4.myhuaweicloud.com"),
        ("https://b.s3.eu-west-1.amazonaws.com/r", "s3://b/r", "https://s3.eu-west-1.amazonaws.com"),
        ("http://localhost:9000/b/r", "s3://b/r", "http://localhost:9000"),
        ("http://localhost:9000", "s3://bucket/folder", "http://localhost:9000"),
    ],
)
def test_an_address_of_the_web_is_translated(address, root, endpoint):
    with pytest.raises(StorageError, match="ckptkit cannot save there") as raised:
        open_storage(address)
    assert f'CheckpointCallback("{root}", storage_options={{"endpoint_url": "{endpoint}"}})' in str(raised.value)


def test_an_unknown_scheme_names_those_there_are():
    with pytest.raises(StorageError, match=r"could not open s4://bucket/run: .*s3://bucket/folder, obs://bucket"):
        open_storage("s4://bucket/run")


def test_options_for_local_path_are_refused():
    with pytest.raises(StorageError, match=r"runs/x is a local run root, .*\['endpoint_url'\]: leave them out"):
        open_storage("runs/x", {"endpoint_url": "http://x"})


def test_an_endpoint_needs_its_scheme():
    options = {"endpoint_url": "localhost:9000", "key": "a", "secret": "b"}
    with pytest.raises(StorageError, match=r"Invalid endpoint: localhost:9000\. Write it with its scheme"):
        open_storage("s3://bucket/run", options)


def test_missing_extra_names_the_command_to_type(monkeypatch):
    for name in [
        one for one in sys.modules if one == "botocore" or one.startswith(("botocore.", "ckptkit.storage.s3"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(StorageError, match=r"s3://bucket/run needs botocore.*pip install 'mindspore-ckptkit\[s3\]'"):
        open_storage("s3://bucket/run")


def test_a_bucket_that_is_not_there_is_named(moto):
    options = {"endpoint_url": moto.endpoint, "key": "a", "secret": "b"}
    with pytest.raises(StorageError, match=r"could not write s3://nowhere/run/.*There is no such bucket"):
        open_storage("s3://nowhere/run", options).probe()


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "given").touch()
    with pytest.raises(StorageError, match=r"given/run\.json: Not a directory\. .* give the run root a folder"):
        open_storage(tmp_path / "given").read("run.json", 10)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "`ls -ld "),
        (errno.EROFS, "give another run root"),
        (errno.ENOSPC, "keep=ck.KeepLatest(2)"),
        (errno.EDQUOT, "keep=ck.KeepLatest(2)"),
        (errno.ENOENT, "check the path"),
    ],
)
def test_what_the_system_refuses_comes_with_advice(monkeypatch, number, advice):
    def refuse(*given, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(StorageError) as raised:
        open_storage("runs/x").create("run.json", b"{}")
    assert os.strerror(number) in str(raised.value)
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ({"save": 5}, r"write save=ck\.SaveEvery\(optimizer_steps=5\)"),
        ({"save": "epoch"}, r"write save=ck\.SaveEvery\(optimizer_steps=100\)"),
        ({"keep": 3}, r"write keep=ck\.KeepLatest\(3\)"),
        ({"save": ck.KeepLatest(3)}, r"write save=ck\.SaveEvery"),
        ({"rank_patience": "10min"}, r"write patience=timedelta\(minutes=5\)"),
        ({"rank_patience": timedelta(0)}, "must be a positive timedelta"),
    ],
)
def test_option_of_wrong_kind_suggests_right_one(option, advice):
    with pytest.raises(ValueError, match=advice):
        ck.CheckpointManager("runs/x", **grouped(**option))
