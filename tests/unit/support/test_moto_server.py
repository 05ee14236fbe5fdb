"""The test server lives exactly as long as those that need it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

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
