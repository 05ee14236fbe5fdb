"""rclone's S3 server: plain files, real signatures, and no conditions, which it ignores without a word.

Guarantees: when `RcloneServer.start` returns, the server listens; it ends with `stop`. Loopback only, path-style only.
"""

import re
import subprocess
import threading
from pathlib import Path

from typing_extensions import Self

from support.servers.client import ACCESS_KEY, SECRET_KEY
from support.servers.moto_server import HOST

_STOP_SECONDS = 10


class RcloneServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._draining: threading.Thread | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> Self:
        command = ["rclone", "serve", "s3", "--config", "", "--addr", f"{HOST}:0"]
        self._process = subprocess.Popen(
            [*command, "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", self._folder], stderr=subprocess.PIPE, text=True
        )
        said = []
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said.append(line)
            if found := re.search(rf"http://{re.escape(HOST)}:(\d+)", line):
                self.port = int(found[1])
                # It goes on to complain, and must not stop because nobody reads that.
                self._draining = threading.Thread(target=self._process.stderr.read, daemon=True)
                self._draining.start()
                return self
        self.stop()
        raise RuntimeError(f"rclone did not start:\n{''.join(said)}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._draining is not None:
            self._draining.join()
        assert process.stderr is not None
        process.stderr.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
