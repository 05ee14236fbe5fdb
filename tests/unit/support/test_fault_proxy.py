"""A reset of the proxy comes where it says, on the server too, and counts.

Refusals are tested with the storage's messages in test_s3_faults; `down` and `up` in test_scrubber and test_outage.
"""

import random
import socket

import pytest
from support.servers.faults import RequestFault
from support.servers.proxy import HOST

DATA = random.Random(1).randbytes(300_001)


@pytest.mark.parametrize("action", ["reset_before", "reset_mid_body", "reset_after"])
def test_a_reset_before_in_and_after_what_is_done(bucket, proxy, action):
    """It is a reset, and not an end or an answer."""
    fault = proxy.inject(RequestFault(action, method="PUT"))
    with socket.create_connection((HOST, proxy.port), timeout=30) as connection:  # nothing in it could retry
        head = f"PUT /{bucket.name}/a HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n"
        connection.sendall(head.encode() + DATA)
        with pytest.raises(ConnectionResetError):
            b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert bucket.get("a") == (DATA if action == "reset_after" else None)
    assert fault.fired == 1
