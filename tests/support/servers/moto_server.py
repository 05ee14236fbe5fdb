"""moto, an S3 in memory, in a process of its own.

Guarantees: when `MotoServer.start` returns, the server answers; it ends with `stop` or `kill`, and by itself when the
process that started it is gone, however that ended. Of several conditional puts at once one wins, as with S3. It checks
no signatures and forgets everything when it ends. Loopback only, unless told otherwise.
Run as a program, this file is the server: it prints its port, then serves until its standard input ends.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import threading
from typing import IO

from typing_extensions import Self

HOST = "127.0.0.1"
LISTED_KEYS = 100  # of an answer; S3 lists 1,000, and making so many objects would cost every run half a minute
_START_SECONDS = 60
_STOP_SECONDS = 10


class MotoServer:
    def __init__(self, *, smallest_part_bytes: int = 5 << 20, address: str = HOST, port: int = 0) -> None:
        self._smallest_part_bytes = smallest_part_bytes
        self._address = address
        self._process: subprocess.Popen[str] | None = None
        self._complaints: IO[str] | None = None
        self.port = port

    @property
    def endpoint(self) -> str:
        return f"http://{self._address}:{self.port}"

    def start(self) -> Self:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            # Isolated, or the modules beside this file would hide others of the same names from moto.
            [sys.executable, "-I", __file__, self._address, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            # An interrupt at the terminal is for pytest, whose fixtures still need the server to clean up.
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONWARNINGS": "ignore",
                "MOTO_S3_DEFAULT_MAX_KEYS": str(LISTED_KEYS),
                "S3_UPLOAD_PART_MIN_SIZE": str(self._smallest_part_bytes),
                "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str((5 << 20) - 1024),  # moto would follow the line above
            },
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._ended()
            raise RuntimeError(f"moto did not start:\n{said}")
        self.port = int(line)
        self._ask_once()
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._ended()

    def kill(self) -> int:
        """End it as a loss of power does; returns its exit code."""
        process = self._process
        assert process is not None
        process.kill()
        self._ended()
        return process.returncode

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ask_once(self) -> None:
        """The first request makes moto load its S3, which takes longer than a test's deadline may be."""
        connection = http.client.HTTPConnection(self._address, self.port, timeout=_START_SECONDS)
        connection.request("GET", "/", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=t/t/us-east-1/s3/t"})
        reply = connection.getresponse()
        reply.read()
        connection.close()
        if reply.status != 200:
            said = self._ended()
            raise RuntimeError(f"moto answered {reply.status}:\n{said}")

    def _ended(self) -> str:
        """End the process and return what it wrote to its standard error."""
        process, complaints = self._process, self._complaints
        assert process is not None
        assert complaints is not None
        self._process = self._complaints = None
        try:
            process.communicate(timeout=_STOP_SECONDS)  # which closes its standard input
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        with complaints:
            complaints.seek(0)
            return complaints.read()


def main(address: str, port: str) -> None:
    import logging

    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_object(self: S3Response) -> object:
        with one_at_a_time:  # moto looks whether a key is there, and puts it, in two steps
            return put(self)

    S3Response.put_object = put_object
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line per request otherwise
    server = ThreadedMotoServer(ip_address=address, port=int(port), verbose=False)
    server.start()
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Its threads may still serve a connection that nobody closes.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
