from hypothesis import given
from hypothesis import strategies as st
from support.refusals import unrefused

from ckptkit.format.documents import checked_key
from ckptkit.format.layout import (
    CheckpointName,
    attempt_key,
    attempt_of,
    frozen_folder,
    parse_attempt,
    parse_frozen,
    parse_segment,
    segment_key,
)

NUMBERS = st.integers(1, 999_999)
COUNTS = st.integers(0, 10**15)
NAMES = st.builds(CheckpointName, NUMBERS, COUNTS, COUNTS, NUMBERS)


@given(NAMES, NAMES, NUMBERS)
def test_what_is_printed_is_parsed_and_ordered(a, b, number):
    assert CheckpointName.parse(str(a)) == a
    assert (a < b) == ((a.attempt, a.cycles, a.micro_step, a.nth_try) < (b.attempt, b.cycles, b.micro_step, b.nth_try))
    for key in (a.commit_key, a.manifest_key, a.rank_key(99_999), a.rank_folder(0) + "/a-000.x"):
        assert checked_key(key) == key
        assert key.startswith(f"checkpoints/{a}/")
    assert parse_attempt(attempt_key(number).removeprefix("attempts/")) == number
    assert parse_frozen(frozen_folder(number).removeprefix("frozen/")) == number
    assert parse_segment(segment_key(a.attempt, number).removeprefix("events/")) == (a.attempt, number)


NAME = "a000001-c0000000001-m0000"
NEAR_MISSES = {
    CheckpointName.parse: [
        *("", f"{NAME} ", f" {NAME}", f"{NAME}\n", f"{NAME}/", f"checkpoints/{NAME}", f"A{NAME[1:]}", f"old-{NAME}"),
        *("a00001-c0000000001-m0000", "a0000001-c0000000001-m0000", "a000000-c0000000001-m0000", f"{NAME}.tmp"),
        *("a000001-c000000001-m0000", "a000001-c00000000001-m0000", "a000001-c0000000001-m000", f"{NAME}0"),
        *("a000001-c0000000001", f"{NAME}-t", f"{NAME}-t0", f"{NAME}-t00", f"{NAME}-t01", f"{NAME}-t2", f"{NAME}-t002"),
        *(f"{NAME}-t02-t02", "a000001-c-000000001-m0000", "a000001-c+000000001-m0000", "a000001_c0000000001_m0000"),
        *("a00000\u0661-c0000000001-m0000", "a000001-c000000000\uff11-m0000", "a000001-c" + "9" * 5000 + "-m0000"),
    ],
    parse_attempt: [
        *("", "000000.json", "1.json", "00001.json", "0000001.json", "000001", "000001.json ", "000001.json\n"),
        *("000001.jsonx", "000001_json", ".000001.json", ".000001.json.0a1b2c3d4e5f6071.tmp", "a00001.json"),
        *("-00001.json", "00000\u0661.json", "00000\uff11.json", "00000\u00b2.json"),
    ],
    parse_frozen: [
        *("", "a000000", "a00001", "a0000001", "000001", "A000001", "a000001/", "a00000\u0661", "a000001\n"),
    ],
    parse_segment: [
        *("a000000-0001.jsonl", "a000001-0000.jsonl", "a000001-00001.jsonl", "a000001-1.jsonl", "a000001-0001.json"),
    ],
}


def test_near_misses_are_neither_names_nor_keys():
    keys = ["/etc/passwd", "../x", "x/../y", "./x", "x/./y", "x/.hidden", "x//y", "x/", "x\\y", "x\0", "x\n", "C:/x"]
    keys += ["file://x", "~/x", "x y", "x\u0660", "", "x/" * 300 + "x"]
    assert unrefused(ValueError, checked_key, [(key, "not a plain relative path") for key in keys]) == {}
    parsed = {(parse.__qualname__, text): parse(text) for parse, texts in NEAR_MISSES.items() for text in texts}
    assert {name: value for name, value in parsed.items() if value is not None} == {}


def test_a_key_tells_whose_it_is():
    folder = "checkpoints/a000002-c0000000001-m0002"
    keys = {
        **{"attempts/000003.json": 3, f"{folder}/COMMIT": 2, f"{folder}/rank-00000/weights-000.safetensors": 2},
        **{"frozen/a000007/x.safetensors": 7, "events/a000002-0001.jsonl": 2},
        **dict.fromkeys(["attempts/3.json", "attempts/000003.json/x", "attempts", folder, "run.json", ""]),
        **dict.fromkeys(["frozen/a000007", "frozen/a7/x", "events/a000002-1.jsonl", "events/a000002-0001.jsonl/x"]),
        **dict.fromkeys(["checkpoints/a000002-c1-m2/COMMIT", "other/a000002-c0000000001-m0002/COMMIT"]),
    }
    assert {key: attempt_of(key) for key in keys} == keys
