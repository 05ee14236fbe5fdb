"""What an elastic resume promises, on traces made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.progress import Progress
from ckptkit.core.rescale import fold_progress
from ckptkit.manager.hooks import Unseen
from ckptkit.tools.doctor.lives.trace import Begun, Restored, Saved, Stepped, total_of
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.promises import (
    Starts,
    begun_anew,
    converted,
    cut_leaves,
    dealt_after,
    unkept_by_end,
    unkept_by_restore,
)

PER_UPDATE, URL = 12, "/runs/mine"  # micro-batches of an update, in every world
SUMS = np.array([3.0, -5.0, 0.25], np.float32)


def progress(step: int, ranks: int) -> Progress:
    k = PER_UPDATE // ranks
    cycles, micro_step = divmod(step, k)
    return Progress(
        epoch=0,
        batch=step,
        cycles=cycles,
        updates=cycles,
        micro_step=micro_step,
        accumulation_steps=k,
        batches_delivered=step,
        cycle_first_batch=step - micro_step,
    )


def held(rank: int, at: float) -> dict[str, str]:
    """What a rank holds after so many updates: shared weights, and its own random state and object."""
    return {"weights/w": f"{at}", "rng/numpy": f"{at} of {rank}", "named/tally.seen": f"{at} of {rank}"}


def begun_with(at, digests: dict[str, str], totals=None) -> Begun:
    restored = Restored(progress=at, totals=totals or {})
    return Begun(url=URL, step=0, checkpoint=None, digests=digests, restored=restored, unseen={})


def with_restored(begun: Begun, **changes: object) -> Begun:
    return begun.model_copy(update={"restored": begun.restored.model_copy(update=changes)})


class Job:
    """Makes lives of one number of ranks, which take a micro-batch each from one order.

    Args:
        ranks: The number.
        batch: The micro-batch that a rank trains in a micro-step.
    """

    def __init__(self, ranks: int, batch=lambda step, rank, ranks: (step - 1) * ranks + rank) -> None:
        self.ranks = ranks
        self._batch = batch

    def life(self, first: int, last: int, begun: list[Begun], *, saved: int = 0, url: str = URL) -> Life:
        parts = []
        for rank in range(self.ranks):
            where = {"url": url, "step": first, "checkpoint": f"at {first}" if first else None, "ranks": self.ranks}
            start = begun[rank].model_copy(update=where)
            lines = [self.line(step, rank) for step in range(first + 1, last + 1)]
            saves = [Saved(step=saved, totals={"a": total_of(SUMS * (rank + 1))})] if saved else []
            parts.append(Life("life", 0, [start, *lines, *saves], Path("log"), rank=rank))
        return replace(parts[0], rank=None, ranks=tuple(parts) if self.ranks > 1 else ())

    def line(self, step: int, rank: int) -> Stepped:
        batch = {"batch/x": f"micro-batch {self._batch(step, rank, self.ranks)}"}
        at = progress(step, self.ranks)
        digests = {**held(rank, step * self.ranks), **batch, "loss": "1", "accumulators/a": f"{rank}"}
        return Stepped(step=step, progress=at, digests=digests)

    def fresh(self, last: int, saved: int = 0, **built: str) -> Life:
        digests = {"weights/w": "built", "rng/numpy": "built", "named/tally.seen": "built", **built}
        start = begun_with(progress(0, self.ranks), digests)
        return self.life(0, last, [start] * self.ranks, saved=saved)


class Change:
    """A change from one number of ranks to another, in which nothing is wrong yet."""

    def __init__(self, ranks: int, onto: int, micro_batches: int) -> None:
        self.old, self.new = Job(ranks), Job(onto)
        self.after = micro_batches // ranks
        self.reference = self.old.fresh(36 // ranks)
        self.before = self.old.fresh(self.after, saved=self.after)
        self.starts = Starts(self.reference, self.new.fresh(1))
        at = fold_progress(progress(self.after, ranks), ranks, onto)
        total = sum(SUMS * (rank + 1) for rank in range(ranks))
        self.restored = [
            begun_with(
                at,
                {**held(rank % ranks, micro_batches), "accumulators/a": f"{rank % ranks}"},
                totals={"a": total_of(total / onto)},
            )
            for rank in range(onto)
        ]
        self.begun = at.batches_delivered

    @property
    def life(self) -> Life:
        return self.new.life(self.begun, 36 // self.new.ranks, self.restored)

    def alter(self, rank: int, **digests: str) -> None:
        one = self.restored[rank]
        names = {name.replace("_", "/", 1): value for name, value in digests.items()}
        self.restored[rank] = one.model_copy(update={"digests": {**one.digests, **names}})

    def unkept(self):
        return unkept_by_restore(self.life, self.before, self.after, self.starts)

    def dealt(self):
        return dealt_after(self.life, self.reference, self.after)


WORLDS = [(2, 1), (1, 2), (2, 4), (4, 2), (2, 3), (3, 2), (4, 1)]


@pytest.mark.parametrize("micro_batches", [12, 24, 0], ids=["boundary", "later", "mid-cycle"])
@pytest.mark.parametrize(("ranks", "onto"), WORLDS)
def test_sound_change_keeps_all(ranks, onto, micro_batches):
    inside = np.lcm(ranks, onto)
    change = Change(ranks, onto, int(micro_batches or (inside if inside < PER_UPDATE else 0) + PER_UPDATE))
    assert change.unkept() is None
    assert converted(change.life, change.before, change.after, change.starts) == []
    dealt = change.dealt()
    left = 36 - change.after * ranks
    assert (dealt.unkept, dealt.micro_batches, dealt.updates) == (None, left, -(-left // PER_UPDATE))
    assert unkept_by_end(change.life, change.reference, 36 // onto) is None


@pytest.mark.parametrize("name", ["weights/w", "rng/numpy"])
def test_other_bits_right_after_restore_are_named_with_their_rank(name):
    change = Change(2, 4, 12)
    change.alter(3, **{name.replace("/", "_"): "other"})
    found = change.unkept()
    assert (found.difference.rank, found.difference.names, found.difference.step) == (3, (name,), 3)
    assert (found.diagnosis.code, found.diagnosis.where) == ("lost-on-change", name)
    assert "rank 3 is not what rank 1 of 2 had after micro-step 6" in found.diagnosis.cause


def test_each_new_rank_is_held_to_its_own_old_rank():
    change = Change(2, 4, 12)
    change.restored[2], change.restored[1] = change.restored[1], change.restored[2]
    assert change.unkept().difference.names == ("accumulators/a", "rng/numpy")


def test_what_a_rank_lacks_is_lost():
    change = Change(2, 1, 12)
    digests = {name: one for name, one in change.restored[0].digests.items() if name != "named/tally.seen"}
    change.restored[0] = change.restored[0].model_copy(update={"digests": digests})
    assert change.unkept().difference.names == ("named/tally.seen",)


def test_object_that_begins_anew_is_lost_and_converted_one_is_told():
    change = Change(2, 1, 12)
    change.alter(0, **{"named_tally.seen": "built"})
    assert change.unkept().diagnosis.where == "named/tally.seen"
    change.alter(0, **{"named_tally.seen": "twice as much"})
    assert change.unkept() is None
    assert converted(change.life, change.before, change.after, change.starts) == ["named/tally.seen"]


@pytest.mark.parametrize("name", ["told/tally.pid", "parameters/discriminator/accum.w"])
def test_mark_of_a_process_in_a_state_is_no_loss(name):
    """Such as its id, which each start tells otherwise; or sums of a second train cell, which a restore converts."""
    change = Change(2, 1, 12)
    line = change.before.ranks[0].steps[6]
    line.digests[name] = "of two"
    restored = change.restored[0]
    digests = {**restored.digests, name: "of one"}
    change.restored[0] = restored.model_copy(update={"digests": digests})
    assert change.unkept() is None


def test_attribute_that_the_number_of_ranks_decides_is_no_loss():
    """The same one may be lost state, if the old job had changed it."""
    change = Change(2, 1, 12)
    name = "named/tally.seen"
    of_two = change.before.ranks[0].steps[6].digests[name]
    change.alter(0, **{"named_tally.seen": "of one"})
    starts = Starts(change.old.fresh(18, **{name: of_two}), change.new.fresh(1, **{name: "of one"}))
    change.starts = starts
    assert change.unkept() is None
    assert converted(change.life, change.before, change.after, starts) == []
    change.starts = Starts(change.old.fresh(18, **{name: "0"}), starts.new)
    assert change.unkept().difference.names == (name,)


def test_counters_must_be_those_that_were_folded():
    change = Change(2, 1, 12)
    other = change.restored[0].restored.progress.model_copy(update={"updates": 0, "cycles": 2})
    change.restored[0] = with_restored(change.restored[0], progress=other)
    assert change.unkept().difference.names == ("counters/cycles", "counters/updates")


@pytest.mark.parametrize(("factor", "kept"), [(1 + 1e-7, True), (1.001, False), (2.0, False), (0.0, False)])
def test_sums_of_accumulators_are_kept_but_for_rounding(factor, kept):
    change = Change(2, 4, 4)
    totals = {"a": total_of(SUMS * np.float64(3 / 4 * factor))}
    change.restored = [with_restored(one, totals=totals) for one in change.restored]
    found = change.unkept()
    assert (found is None) == kept
    if found is not None:
        assert (found.diagnosis.code, found.difference.names) == ("sums-not-kept", ("accumulators/a",))


def test_sum_that_one_rank_lacks_is_not_kept():
    change = Change(2, 4, 4)
    change.restored[2] = with_restored(change.restored[2], totals={})
    assert change.unkept().diagnosis.code == "sums-not-kept"


def test_accumulators_are_compared_bit_for_bit_at_a_boundary_only():
    for micro_batches, expected in ((12, ("accumulators/a",)), (4, None)):
        change = Change(2, 4, micro_batches)
        change.alter(1, accumulators_a="other")
        found = change.unkept()
        assert (found and found.difference.names) == expected


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=5), min_size=1, max_size=4))
def test_totals_of_parts_add_up(parts):
    arrays = [np.array(one, np.float32).astype(np.float64) for one in parts]
    whole, totals = total_of(sum(arrays)), [total_of(one) for one in arrays]
    for name in ("plain", "signed"):
        added = sum(getattr(one, name) for one in totals)
        assert abs(getattr(whole, name) - added) <= 1e-9 * sum(one.size for one in totals)


def test_totals_tell_exchanged_elements_and_survive_json():
    ascending = np.arange(64, dtype=np.float32)
    assert total_of(ascending).plain == total_of(ascending[::-1]).plain
    assert total_of(ascending).signed != total_of(ascending[::-1]).signed
    infinite = total_of(np.array([1, np.inf], np.float32))
    assert type(infinite).model_validate_json(infinite.model_dump_json()) == infinite


def by_rank(step: int, rank: int, ranks: int) -> int:
    """Each rank has its own part of the samples."""
    return rank * (36 // ranks) + step - 1


def test_sampler_by_rank_trains_samples_again():
    change = Change(2, 1, 12)
    change.old, change.new = Job(2, by_rank), Job(1, by_rank)
    change.reference = change.old.fresh(18)
    found = change.dealt()
    assert found.unkept.diagnosis.code == "samples-repeated"
    assert found.unkept.difference.step == 19  # micro-batch 18 of one rank is the first of rank 1 of two
    assert "in micro-step 1 of rank 1" in found.unkept.diagnosis.cause
    assert "12 of its 12 micro-batches are not in it" in found.unkept.diagnosis.cause


def test_sample_that_is_trained_again_in_a_later_update_is_named():
    change = Change(2, 1, 12)
    change.new = Job(1, lambda step, rank, ranks: {14: 30, 26: 3}.get(step, step - 1))
    found = change.dealt().unkept
    assert (found.difference.step, found.diagnosis.code) == (14, "samples-repeated")
    assert "update 3 " in found.diagnosis.cause


@pytest.mark.parametrize(
    ("batch", "code", "words"),
    [
        (lambda step, rank, ranks: step - 1 if step != 14 else 12, "samples-repeated", "micro-step 7 of rank 0 twice"),
        (lambda step, rank, ranks: step - 1 if step != 14 else 30, "data-shifted", "of micro-step 16 of rank 0"),
        (lambda step, rank, ranks: step - 1 if step != 14 else 99, "data-differs", "no rank of the uninterrupted job"),
    ],
    ids=["twice", "too early", "strange"],
)
def test_one_wrong_micro_batch_is_named(batch, code, words):
    change = Change(2, 1, 12)
    change.new = Job(1, batch)
    found = change.dealt()
    assert found.unkept.diagnosis.code == code
    assert words in found.unkept.diagnosis.cause
    assert "update 2 " in found.unkept.diagnosis.cause
    assert "1 of its 12 micro-batches" in found.unkept.diagnosis.cause
    assert found.unkept.difference.step == 14


def test_update_of_fewer_micro_batches_leaves_samples_out():
    change = Change(2, 1, 12)
    whole = change.life
    life = replace(whole, events=[one for one in whole.events if not isinstance(one, Stepped) or one.step != 14])
    found = dealt_after(life, change.reference, change.after)
    assert found.unkept.diagnosis.code == "samples-left-out"


def test_order_of_micro_batches_within_an_update_does_not_matter():
    change = Change(2, 1, 12)
    change.new = Job(1, lambda step, rank, ranks: 12 * ((step - 1) // 12) + 11 - (step - 1) % 12)
    assert change.dealt().unkept is None


def test_traces_without_batches_say_so():
    change = Change(2, 1, 12)

    def blind(life):
        events = [one.model_copy(update={"digests": {}}) if isinstance(one, Stepped) else one for one in life.events]
        return replace(life, events=events, ranks=tuple(map(blind, life.ranks)))

    found = dealt_after(blind(change.life), blind(change.reference), change.after)
    assert (found.unkept, found.micro_batches) == (None, 0)


def test_life_that_did_not_continue_is_named():
    change = Change(2, 1, 12)
    afresh = change.new.life(0, 9, [change.starts.new.begun], url="/runs/of-1")
    found = unkept_by_restore(afresh, change.before, change.after, change.starts)
    assert (found.diagnosis.code, found.difference.found) == ("never-resumed", None)
    assert "another run root: /runs/mine, then /runs/of-1" in found.diagnosis.cause
    early = change.new.life(3, 9, change.restored)
    found = unkept_by_restore(early, change.before, change.after, change.starts)
    assert "continued after micro-step 3" in found.diagnosis.cause
    assert "after micro-step 12" in found.diagnosis.cause


def test_end_before_that_of_the_old_job_is_named():
    change = Change(2, 1, 12)
    found = unkept_by_end(change.new.life(12, 20, change.restored), change.reference, 36)
    assert (found.diagnosis.code, found.difference.step) == ("ended-early", 21)


def test_cut_leaves_are_not_compared():
    change = Change(2, 1, 12)
    change.alter(0, weights_w="a half")
    change.restored[0] = with_restored(change.restored[0], cut=("weights/w",))
    assert change.unkept() is None
    assert cut_leaves(change.life) == ["weights/w"]


def test_values_in_no_checkpoint_that_begin_anew_are_told():
    """Those that training never changed, or that the script has converted, are not."""

    def unseen(life, at, **values):
        given = {path: Unseen(digest=one, text=one) for path, one in values.items()}
        events = [
            one.model_copy(update={"unseen": given})
            if (isinstance(one, Begun) and at is None) or (isinstance(one, Stepped) and one.step == at)
            else one
            for one in life.events
        ]
        return replace(life, events=events, ranks=tuple(unseen(one, at, **values) for one in life.ranks))

    change = Change(2, 1, 12)
    before = unseen(change.before, None, n="0", k="6", step="0")
    before = unseen(before, 6, n="6", k="6", step="6")
    fresh = unseen(change.starts.new, None, n="0", k="12", step="0")
    life = unseen(change.life, None, n="0", k="12", step="12")
    assert begun_anew(life, fresh, before, 6) == [(None, "n")]
