"""The test server lives exactly as long as those that need it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import moto_server
from support.servers.client import s3_client
from support.servers.moto_server import MotoServer

OWNER = """
import signal
from support.servers.moto_server import MotoServer
server = MotoServer().start()
print(server._process.pid, flush=True)
signal.pause()
"""


def test_it_ends_with_the_process_that_started_it():
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
    ) as owner:
        assert owner.stdout is not None
        descriptor = os.pidfd_open(int(owner.stdout.readline()))
        owner.send_signal(signal.SIGKILL)
        assert select.select([descriptor], [], [], 30)[0]  # it is no child of ours
        os.close(descriptor)


def test_one_that_does_not_start_says_why(monkeypatch, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no such port')")
    monkeypatch.setattr(moto_server, "__file__", str(program))
    with pytest.raises(RuntimeError, match="no such port"):
        MotoServer().start()


def test_what_it_keeps_outlives_a_kill(tmp_path):
    def put(client, key, data, **options):
        client.put_object(Bucket="kept", Key=key, Body=data, **options)

    with MotoServer(folder=tmp_path) as server, contextlib.closing(s3_client(server.endpoint)) as client:
        client.create_bucket(Bucket="kept")
        client.create_bucket(Bucket="gone")
        put(client, "a/1", b"one\ntwo", Metadata={"mark": "me"})
        put(client, "a/2", b"")
        client.delete_bucket(Bucket="gone")
        put(client, "b", b"1")
        client.delete_objects(Bucket="kept", Delete={"Objects": [{"Key": "b"}]})
        assert server.kill() == -signal.SIGKILL
    with MotoServer(folder=tmp_path) as server, contextlib.closing(s3_client(server.endpoint)) as client:
        assert [one["Name"] for one in client.list_buckets()["Buckets"]] == ["kept"]
        assert [one["Key"] for one in client.list_objects_v2(Bucket="kept")["Contents"]] == ["a/1", "a/2"]
        found = client.get_object(Bucket="kept", Key="a/1")
        assert (found["Body"].read(), found["Metadata"]) == (b"one\ntwo", {"mark": "me"})
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            put(client, "a/2", b"other", IfNoneMatch="*")
