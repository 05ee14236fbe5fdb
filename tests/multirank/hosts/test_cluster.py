"""The hosts are hosts: what is tested on them depends on that."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from support.hosts.cluster import Cluster
from support.hosts.faults import HostLost, LinkDown, PacketLoss, SlowLink, StorageReboot
from support.hosts.namespace import run
from support.hosts.running import until

pytestmark = pytest.mark.extended

FOREVER = (sys.executable, "-c", "import signal; signal.pause()")
FETCH = """
import sys, time, urllib.request
began = time.monotonic()
who = {"Authorization": "AWS4-HMAC-SHA256 Credential=t/t/us-east-1/s3/t"}
data = urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=who), timeout=60).read()
print(len(data), time.monotonic() - began)
"""


def keys(cluster: Cluster) -> list[str]:
    return cluster.storage.look(lambda bucket: bucket.keys(), "runs")


def fetch(cluster: Cluster, tmp_path: Path) -> float:
    """Seconds in which a host gets 100,000 bytes from the storage."""
    cluster.storage.look(lambda bucket: bucket.put("data", bytes(100_000)), "runs")
    url = f"{cluster.storage.endpoint}/runs/data"
    got = cluster.hosts[0].start(sys.executable, "-c", FETCH, url, log=tmp_path / f"{time.monotonic()}.log").expect(0)
    size, seconds = got.text().split()
    assert int(size) == 100_000
    return float(seconds)


def test_hosts_reach_each_other_and_nothing_else(cluster):
    one, two, _ = cluster.hosts
    assert one.reaches(cluster.storage)
    assert two.reaches(cluster.storage)
    assert not one.reaches(two)  # nothing listens there
    assert cluster.hosts[0].address not in run("ip", "addr")  # no card of this machine is on that switch
    routes = [host.namespace.ip("route").split()[0] for host in cluster.everyone]
    assert routes == ["10.77.0.0/24"] * 4  # and there is no way out


def test_a_lost_host_has_nothing_and_another_is_empty(cluster, tmp_path):
    host = cluster.hosts[1]
    running = host.start(*FOREVER, log=tmp_path / "log")
    until(lambda: running.pid in host.namespace.pids(), "it runs", alive=[running])
    fault = HostLost(host).begin()
    assert fault.fired == 1
    assert running.returncode == -9
    assert not host.disk.exists()
    assert not host.memory.exists()
    other = cluster.replace(host)
    assert cluster.hosts[1] is other
    assert other.address != host.address
    assert other.reaches(cluster.storage)
    assert [*other.disk.iterdir(), *other.memory.iterdir()] == []


def test_a_cut_cable_carries_nothing(cluster):
    one, two, _ = cluster.hosts
    fault = LinkDown(one)
    assert fault.fired == 0
    with fault:
        assert fault.fired == 1
        assert not one.reaches(cluster.storage)
        assert two.reaches(cluster.storage)
    assert one.reaches(cluster.storage)


def test_a_slow_cable_takes_its_time(cluster, tmp_path):
    quick = fetch(cluster, tmp_path)
    with SlowLink(cluster.hosts[0], kilobits=400) as fault:
        slow = fetch(cluster, tmp_path)
        assert fault.fired > 0
    assert slow > 1.5 > quick  # of 100,000 bytes, two seconds
    assert fetch(cluster, tmp_path) < 1.5


def test_lost_packets_are_sent_again(cluster, tmp_path):
    fault = PacketLoss(cluster, cluster.hosts[0], 0.2)
    with fault:
        until(lambda: fetch(cluster, tmp_path) and fault.fired >= 5, "packets are lost")
    fired = fault.fired
    fetch(cluster, tmp_path)
    assert fault.fired == fired


@pytest.mark.parametrize("keeps", [True, False])
def test_storage_boots_with_what_its_disk_has(cluster, keeps):
    storage = cluster.storage
    storage.look(lambda bucket: bucket.put("a/1", b"one"), "runs")
    storage.look(lambda bucket: bucket.put("a/2", b"two"), "runs")
    storage.look(lambda bucket: bucket.client.delete_object(Bucket="runs", Key="a/1"), "runs")
    with StorageReboot(storage, keeps=keeps) as fault:
        assert not cluster.hosts[0].reaches(storage)
    assert fault.fired == 1
    assert cluster.hosts[0].reaches(storage)
    if not keeps:
        storage.make_bucket("runs")
    assert keys(cluster) == (["a/2"] if keeps else [])
