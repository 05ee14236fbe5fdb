"""Run roots and options as they are mistyped: what is said, and that nothing was made."""

import errno
import os
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, open_storage


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert [path for path in tmp_path.iterdir() if path.name != "given"] == []


OBS = "https://obs.cn-north-4.myhuaweicloud.com"
ADDRESSES = [  # of the web: what stands for them, and the endpoint
    (f"{OBS}/b/r", "obs://b/r", OBS),
    ("https://b.obs.cn-north-4.myhuaweicloud.com/r", "obs://b/r", OBS),
    ("https://b.obs.example.org/r", "obs://b/r", "https://obs.example.org"),
    ("https://b.s3.eu-west-1.amazonaws.com/r", "s3://b/r", "https://s3.eu-west-1.amazonaws.com"),
    ("http://localhost:9000/b/r", "s3://b/r", "http://localhost:9000"),
    ("http://localhost:9000", "s3://bucket/folder", "http://localhost:9000"),
]
KEYS = {"key": "a", "secret": "b"}
WRONG = [
    *(
        (root, {}, f'has one slash where a URL has two.* write "{meant}"')
        for root, meant in [
            ("s3:/bucket/run", "s3://bucket/run"),
            (Path("s3://bucket/run"), "s3://bucket/run"),  # pathlib takes a slash away
            ("obs:/bucket/run", "obs://bucket/run"),
            ("gs:/bucket/run", "gs://bucket/run"),
            ("file:/data/run", "/data/run"),
        ]
    ),
    *(
        (address, {}, re.escape(f'CheckpointCallback("{root}", storage_options={{"endpoint_url": "{endpoint}"}})'))
        for address, root, endpoint in ADDRESSES
    ),
    ("s4://bucket/run", {}, "could not open s4://bucket/run: .*s3://bucket/folder, obs://bucket"),
    ("runs/x", {"endpoint_url": "http://x"}, r"runs/x is a local run root, .*\['endpoint_url'\]: leave them out"),
    ("s3://b/r", {**KEYS, "endpoint_url": "localhost:9000"}, r"Invalid endpoint: localhost:9000\. Write .* its scheme"),
]


def test_mistyped_roots_name_what_was_meant():
    for root, options, message in WRONG:
        with pytest.raises(StorageError, match=message):
            open_storage(root, options)
    for root in (None, 7, b"runs/one"):
        with pytest.raises(TypeError, match=f"a path, a URL or a Storage, got {type(root).__name__}"):
            open_storage(root)


def test_a_colon_may_stand_in_a_path(tmp_path):
    for root in ("lr:0.1/seed:2", "C:/runs", "runs/s3:/x", "/s3:/x", "./s3:/x", "s3:"):
        assert isinstance(open_storage(root), LocalStorage), root
    (tmp_path / "given/s3:/run").mkdir(parents=True)
    os.chdir(tmp_path / "given")  # a folder that is really there is taken
    assert open_storage("s3:/run").url == str(tmp_path / "given/s3:/run")


def test_missing_extra_names_the_command_to_type(monkeypatch):
    for name in [name for name in sys.modules if re.match(r"botocore($|\.)|ckptkit\.storage\.s3", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(StorageError, match=r"s3://bucket/run needs botocore.*pip install 'mindspore-ckptkit\[s3\]'"):
        open_storage("s3://bucket/run")


def test_what_the_system_refuses_comes_with_advice(monkeypatch, tmp_path):
    (tmp_path / "given").touch()
    with pytest.raises(StorageError, match=r"given/run\.json: Not a directory\. .* give the run root a folder"):
        open_storage(tmp_path / "given").read("run.json", 10)
    rows = {errno.EACCES: "`ls -ld ", errno.EROFS: "give another run root", errno.ENOENT: "check the path"}
    for number, advice in {**rows, errno.EDQUOT: "keeps fewer checkpoints"}.items():
        monkeypatch.setattr(os, "mkdir", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(StorageError, match=f"{os.strerror(number)}.*{advice}"):
            open_storage("runs/x").create("run.json", b"{}")
