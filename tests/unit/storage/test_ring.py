"""`Ring` keeps the contract, and no file is lost with one machine."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from ckptkit.checkpoint.commit import create_once
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, Storage, open_storage
from ckptkit.storage.ring import Ring
from ckptkit.testing.contract import StorageContract
from ckptkit.testing.faults import Fault, FaultyStorage

SHARD = "checkpoints/a000001-c0000000001-m0000/rank-00003/0.safetensors"
DOCUMENT = "attempts/000001.json"


class TestRing(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return Ring([LocalStorage(tmp_path / f"machine{number}") for number in range(3)])

    def raw_get(self, storage, key):
        found = [path for path in Path(storage.url).parent.glob(f"machine*/{key}") if path.is_file()]
        data = {path.read_bytes() for path in found}
        assert not data or (len(data), len(found)) == (1, 2), found
        return data.pop() if data else None

    def raw_put(self, storage, key, data):
        for number in range(2):
            path = Path(storage.url).parent / f"machine{number}" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class TestRingOfOne(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return Ring([LocalStorage(tmp_path / "machine0")])

    def raw_get(self, storage, key):
        path = Path(storage.url, key)
        return path.read_bytes() if path.is_file() else None

    def raw_put(self, storage, key, data):
        path = Path(storage.url, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def machines(tmp_path, *numbers, **options) -> Ring:
    return Ring([LocalStorage(tmp_path / f"machine{number}") for number in numbers], **options)


def having(tmp_path, key) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if (path / key).is_file())


@pytest.mark.parametrize(
    ("rank", "ranks_per_machine", "where"),
    [(0, 1, [0, 1]), (2, 1, [0, 2]), (3, 1, [0, 1]), (3, 2, [1, 2]), (5, 2, [0, 2])],
)
def test_shards_of_a_rank_lie_at_its_machine_and_the_next(tmp_path, rank, ranks_per_machine, where):
    key = f"checkpoints/a000001-c0000000001-m0000/rank-{rank:05d}/0.safetensors"
    machines(tmp_path, 0, 1, 2, ranks_per_machine=ranks_per_machine).write(key, io.BytesIO(b"bits"), 4)
    assert having(tmp_path, key) == [f"machine{number}" for number in where]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_no_file_is_lost_with_one_machine(tmp_path, lost):
    ring = machines(tmp_path, 0, 1, 2)
    ring.create(DOCUMENT, b"first")
    for rank in range(3):
        ring.write(SHARD.replace("00003", f"{rank:05d}"), io.BytesIO(b"bits"), 4)
    shutil.rmtree(tmp_path / f"machine{lost}")
    for left in ([0, 1, 2], [one for one in (2, 1, 0) if one != lost]):  # replaced by an empty one; left out
        now = machines(tmp_path, *left)
        assert now.read(DOCUMENT, 100) == b"first"
        assert len(now.walk("checkpoints/")) == 3
        for key in now.walk("checkpoints/"):
            assert now.read(key, 100) == b"bits"


def test_start_gives_a_new_machine_the_documents(tmp_path):
    """Otherwise the loss of the next machine would take them."""
    ring = machines(tmp_path, 0, 1, 2)
    ring.create(DOCUMENT, b"first")
    ring.write(SHARD, io.BytesIO(b"bits"), 4)
    shutil.rmtree(tmp_path / "machine0")
    machines(tmp_path, 0, 1, 2).probe()
    assert having(tmp_path, DOCUMENT) == ["machine0", "machine1"]
    assert having(tmp_path, SHARD) == ["machine1"]  # shards are not copied again
    shutil.rmtree(tmp_path / "machine1")
    assert machines(tmp_path, 0, 2).read(DOCUMENT, 100) == b"first"


def test_start_reads_no_document_that_lies_twice(tmp_path):
    """But for the newest of each kind, which shows whether two jobs went on separately."""
    servers = [FaultyStorage(LocalStorage(tmp_path / f"machine{number}")) for number in range(4)]
    ring = Ring(servers)
    for number in range(1, 9):
        ring.create(f"attempts/{number:06d}.json", b"{}")
    before = [len(one.calls) for one in servers]
    ring.probe()
    made = [call for one, count in zip(servers, before, strict=True) for call in one.calls[count:]]
    assert {key for call in made if call.operation == "read" for key in call.keys} == {"attempts/000008.json"}


def test_machine_that_cannot_be_reached_says_nothing_of_what_is_there(tmp_path):
    broken = FaultyStorage(LocalStorage(tmp_path / "machine1"))
    ring = Ring([LocalStorage(tmp_path / "machine0"), broken, LocalStorage(tmp_path / "machine2")])
    ring.create(DOCUMENT, b"first")
    away = broken.inject(Fault("error", times=None))
    assert ring.read(DOCUMENT, 100) == b"first"  # the other copy
    for act in (lambda: ring.read("attempts/000002.json", 100), lambda: ring.list("attempts"), ring.probe):
        with pytest.raises(StorageError, match=r"server 2 of the 3 of a ring.*leave its endpoint out"):
            act()
    assert away.fired == 3


def test_creator_with_other_servers_is_noticed(tmp_path):
    machines(tmp_path, 1, 2).create(DOCUMENT, b"theirs")
    with pytest.raises(FileExistsError):
        machines(tmp_path, 0, 1, 2).create(DOCUMENT, b"ours")
    assert machines(tmp_path, 0, 1, 2).read(DOCUMENT, 100) == b"theirs"
    assert having(tmp_path, DOCUMENT) == ["machine0", "machine1", "machine2"]  # both of its servers, in either order


def test_creator_that_fails_to_take_its_file_back_has_not_won(tmp_path):
    """Its next try finds its own file at its first server, and the other one's at the second."""
    race = Fault(lambda: machines(tmp_path, 1, 2).create(DOCUMENT, b"theirs"), operations={"create"}, when="after")
    first = FaultyStorage(LocalStorage(tmp_path / "machine0"), [race, Fault("error", operations={"delete"})])
    ring = Ring([first, LocalStorage(tmp_path / "machine1"), LocalStorage(tmp_path / "machine2")])
    assert create_once(ring, DOCUMENT, b"ours") == b"theirs"
    assert ring.read(DOCUMENT, 100) == b"theirs"


def test_create_that_was_interrupted_between_two_machines_is_completed(tmp_path):
    LocalStorage(tmp_path / "machine0").create(DOCUMENT, b"first")
    with pytest.raises(FileExistsError):
        machines(tmp_path, 0, 1, 2).create(DOCUMENT, b"first")
    assert having(tmp_path, DOCUMENT) == ["machine0", "machine1"]


def test_jobs_that_went_on_separately_are_an_error(tmp_path):
    machines(tmp_path, 0, 1).create(DOCUMENT, b"ours")
    machines(tmp_path, 2, 3).create(DOCUMENT, b"them")
    with pytest.raises(StorageError, match=r"servers 1, 2, 3, 4 of the 4 .*: two jobs went on separately"):
        machines(tmp_path, 0, 1, 2, 3).probe()


def test_what_an_interrupted_create_left_is_completed_by_a_loser(tmp_path):
    """Otherwise a void that finds a COMMIT at one machine would take the checkpoint for safe."""
    LocalStorage(tmp_path / "machine0").create(DOCUMENT, b"first")
    with pytest.raises(FileExistsError):
        machines(tmp_path, 0, 1, 2).create(DOCUMENT, b"void")
    assert having(tmp_path, DOCUMENT) == ["machine0", "machine1"]


def test_start_that_a_returning_machine_replaces_is_noticed(tmp_path):
    """It was interrupted at that machine, which the next start left out: its document has the same number."""
    commit = "checkpoints/a000002-c0000000001-m0000/COMMIT"
    LocalStorage(tmp_path / "machine0").create("attempts/000002.json", b"ours")
    for key, data in (("attempts/000002.json", b"them"), (commit, b"them"), ("attempts/000003.json", b"them")):
        machines(tmp_path, 1, 2).create(key, data)
    with pytest.raises(StorageError, match=r"attempts/000002.json is not the same at servers 1, 2, 3 of the 3"):
        machines(tmp_path, 0, 1, 2).probe()


@pytest.mark.parametrize("when", ["before", "after"])
def test_file_that_another_job_removes_during_a_start_stays_removed(tmp_path, when):
    events = "events/a000001-0001.jsonl"
    machines(tmp_path, 1, 2).create(events, b"line")  # such as before machine 0 was exchanged
    first = FaultyStorage(LocalStorage(tmp_path / "machine0"))
    remove = Fault(lambda: machines(tmp_path, 0, 1, 2).delete([events]), operations={"create"}, key=events, when=when)
    walked = Fault(lambda: machines(tmp_path, 0, 1, 2).delete([events]), operations={"walk"}, when=when)
    last = FaultyStorage(LocalStorage(tmp_path / "machine2"), [walked] if when == "after" else [])
    first.inject(remove)
    Ring([first, LocalStorage(tmp_path / "machine1"), last]).probe()
    assert having(tmp_path, events) == []


def test_start_reads_no_more_documents_than_it_must(tmp_path):
    each = [FaultyStorage(LocalStorage(tmp_path / f"machine{number}")) for number in range(3)]
    ring = Ring(each)
    for number in range(1, 50):
        ring.create(f"attempts/{number:06d}.json", b"document")
        ring.create(f"events/a{number:06d}-0001.jsonl", b"line")
    before = sum(len(one.calls) for one in each)
    ring.probe()
    assert sum(len(one.calls) for one in each) - before < 12


@pytest.mark.parametrize("operation", ["write", "create", "read_into"])
def test_error_says_at_which_server_it_came(tmp_path, operation):
    first = FaultyStorage(LocalStorage(tmp_path / "machine0"), [Fault("error", operations={operation}, times=None)])
    ring = Ring([first, LocalStorage(tmp_path / "machine1"), LocalStorage(tmp_path / "machine2")])
    key = SHARD.replace("00003", "00000")
    with pytest.raises(StorageError, match=r"^at server 1 of the 3 of a ring: injected") as said:
        ring.create(DOCUMENT, b"first") if operation == "create" else ring.write(key, io.BytesIO(b"bits"), 4)
    assert "server 2" not in str(said.value)


def test_server_that_is_emptied_during_a_write_is_named(tmp_path):
    """Such as one that ended and was started again, with an empty memory."""
    emptied = Fault(lambda: shutil.rmtree(tmp_path / "machine0"), operations={"write"}, when="after")
    first = FaultyStorage(LocalStorage(tmp_path / "machine0"), [emptied])
    with pytest.raises(StorageError, match=r"^at server 1 of the 2 of a ring: .* was removed while it was copied"):
        Ring([first, LocalStorage(tmp_path / "machine1")]).write(SHARD.replace("00003", "00000"), io.BytesIO(b"a"), 1)


@pytest.mark.parametrize("options", [{"servers": []}, {"servers": [1], "ranks_per_machine": 0}])
def test_ring_of_nothing_is_refused(options):
    with pytest.raises(ValueError, match="at least one server"):
        Ring(**options)


@pytest.mark.parametrize(
    "endpoints", [["http://127.0.0.1:1", "http://127.0.0.1:2"], "http://127.0.0.1:1, http://127.0.0.1:2"]
)
def test_several_endpoints_are_a_ring(endpoints):
    options = {"endpoint_url": endpoints, "ranks_per_machine": 8, "key": "a", "secret": "b"}
    ring = open_storage("s3://bucket/run", options)
    assert isinstance(ring, Ring)
    assert (ring.url, ring.is_remote) == ("s3://bucket/run", True)
    assert {"endpoint_url": endpoints, "ranks_per_machine": 8} == {key: options[key] for key in list(options)[:2]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endpoint_url": ["http://127.0.0.1:1"], "ranks_per_machine": 0}, "at least one server"),
        ({"endpoint_url": []}, "at least one server"),
        ({"endpoint_url": "http://127.0.0.1:1,http://127.0.0.1:1/"}, "names http://127.0.0.1:1 twice"),
        ({"endpoint_url": "http://127.0.0.1:1", "ranks_per_machine": 8}, "takes no storage_options ranks_per_machine"),
    ],
)
def test_options_of_no_ring_are_refused(options, said):
    with pytest.raises(StorageError, match=said):
        open_storage("s3://bucket/run", {"key": "a", "secret": "b", **options})
