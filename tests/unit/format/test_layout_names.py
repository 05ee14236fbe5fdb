from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.format.documents import checked_key
from ckptkit.format.layout import CheckpointName, attempt_key, attempt_of, frozen_folder, parse_attempt, parse_frozen

ATTEMPTS = st.integers(1, 999_999)
COUNTS = st.integers(0, 10**15)
NAMES = st.builds(CheckpointName, ATTEMPTS, COUNTS, COUNTS, st.integers(1, 999_999))


@given(NAMES)
def test_what_is_printed_is_parsed(name):
    assert CheckpointName.parse(str(name)) == name


@given(NAMES)
def test_checkpoint_keys_are_valid_in_documents(name):
    for key in (name.commit_key, name.manifest_key, name.rank_key(99_999), name.rank_folder(0) + "/a-000.x"):
        assert checked_key(key) == key
        assert key.startswith(f"checkpoints/{name}/")


@given(NAMES, NAMES)
def test_names_order_by_attempt_then_training_then_try(a, b):
    assert (a < b) == ((a.attempt, a.cycles, a.micro_step, a.nth_try) < (b.attempt, b.cycles, b.micro_step, b.nth_try))


@given(st.text("ac0123456789-mt", max_size=40))
def test_only_what_would_be_printed_is_parsed(text):
    name = CheckpointName.parse(text)
    assert name is None or str(name) == text


def test_the_names_of_the_format():
    assert str(CheckpointName(2, 1200, 2)) == "a000002-c0000001200-m0002"
    assert str(CheckpointName(2, 1200, 2, 2)) == "a000002-c0000001200-m0002-t02"
    assert CheckpointName(2, 1200, 2).rank_key(0) == "checkpoints/a000002-c0000001200-m0002/rank-00000.json"
    assert CheckpointName(2, 1200, 2).rank_folder(3) == "checkpoints/a000002-c0000001200-m0002/rank-00003"
    assert attempt_key(2) == "attempts/000002.json"
    assert frozen_folder(2) == "frozen/a000002"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a000001-c0000000001-m0000 ",
        " a000001-c0000000001-m0000",
        "a000001-c0000000001-m0000\n",
        "a000001-c0000000001-m0000/",
        "checkpoints/a000001-c0000000001-m0000",
        "A000001-c0000000001-m0000",
        "a00001-c0000000001-m0000",
        "a0000001-c0000000001-m0000",
        "a000000-c0000000001-m0000",
        "a000001-c000000001-m0000",
        "a000001-c00000000001-m0000",
        "a000001-c0000000001-m000",
        "a000001-c0000000001-m00000",
        "a000001-c0000000001",
        "a000001-c0000000001-m0000-t",
        "a000001-c0000000001-m0000-t0",
        "a000001-c0000000001-m0000-t00",
        "a000001-c0000000001-m0000-t01",
        "a000001-c0000000001-m0000-t2",
        "a000001-c0000000001-m0000-t002",
        "a000001-c0000000001-m0000-t02-t02",
        "a000001-c-000000001-m0000",
        "a000001-c+000000001-m0000",
        "a000001-c0000000001-m0000.tmp",
        "old-a000001-c0000000001-m0000",
        "a000001_c0000000001_m0000",
        "a00000\u0661-c0000000001-m0000",
        "a000001-c000000000\uff11-m0000",
        "a000001-c" + "9" * 17 + "-m0000",
        "a000001-c" + "9" * 5000 + "-m0000",
    ],
)
def test_near_misses_of_a_checkpoint_are_not_names(text):
    assert CheckpointName.parse(text) is None


@given(ATTEMPTS)
def test_attempt_and_frozen_names_round_trip(number):
    assert parse_attempt(attempt_key(number).removeprefix("attempts/")) == number
    assert parse_frozen(frozen_folder(number).removeprefix("frozen/")) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "000000.json",
        "1.json",
        "00001.json",
        "0000001.json",
        "000001",
        "000001.json ",
        "000001.json\n",
        "000001.jsonx",
        "000001_json",
        ".000001.json",
        ".000001.json.0a1b2c3d4e5f6071.tmp",
        "a00001.json",
        "-00001.json",
        "00000\u0661.json",
        "00000\u0967.json",
        "00000\uff11.json",
        "00000\u00b2.json",
    ],
)
def test_near_misses_of_an_attempt_are_not_attempts(text):
    assert parse_attempt(text) is None


@pytest.mark.parametrize(
    "text", ["", "a000000", "a00001", "a0000001", "000001", "A000001", "a000001/", "a00000\u0661", "a000001\n"]
)
def test_near_misses_of_a_frozen_folder_are_none(text):
    assert parse_frozen(text) is None


@pytest.mark.parametrize(
    ("key", "attempt"),
    [
        ("attempts/000003.json", 3),
        ("attempts/3.json", None),
        ("attempts/000003.json/x", None),
        ("attempts", None),
        ("checkpoints/a000002-c0000000001-m0002/COMMIT", 2),
        ("checkpoints/a000002-c0000000001-m0002/rank-00000/weights-000.safetensors", 2),
        ("checkpoints/a000002-c0000000001-m0002", None),
        ("checkpoints/a000002-c1-m2/COMMIT", None),
        ("frozen/a000007/x.safetensors", 7),
        ("frozen/a000007", None),
        ("frozen/a7/x", None),
        ("run.json", None),
        ("other/a000002-c0000000001-m0002/COMMIT", None),
        ("", None),
    ],
)
def test_a_key_tells_whose_it_is(key, attempt):
    assert attempt_of(key) == attempt
