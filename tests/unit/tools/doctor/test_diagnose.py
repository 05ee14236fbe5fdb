"""Each rule, on lives made by hand."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.doctor_lives import SIZE, URL, life, stepped

from ckptkit.manager.hooks import Suspect, Unseen
from ckptkit.tools.doctor import diagnose
from ckptkit.tools.doctor.compare import Difference, first_difference
from ckptkit.tools.doctor.diagnose import Diagnosis, diagnose_disagreement, diagnose_resume
from ckptkit.tools.doctor.lives.trace import Saved, Stepped

LAST = 12
MAP = Suspect(kind="pipeline", where="MapDataset: augment()", why="it draws", fix="do not")
DROPOUT = Suspect(kind="operator", where="net.drop (nn.Dropout)", why="it draws", fix="do not")


def reference(unseen=None, suspects=()):
    lines = [stepped(step, unseen(step) if unseen else None) for step in range(1, LAST + 1)]
    return life(lines, suspects=suspects)


def resumed(*lines: Stepped, begun: int = 5, **options):
    return life(list(lines), begun=begun, **options)


def diagnosed(one, other, **options) -> Diagnosis:
    difference = first_difference(one, other, max(one.steps))
    assert difference is not None
    return diagnose_resume(difference, frozenset(options.get("unstable", ())))


def test_an_epoch_begun_anew():
    again = resumed(stepped(9, batch="batch/x 8"), begun=8)
    found = diagnosed(again, reference())
    assert (found.code, found.where) == ("data-restarted", "the data pipeline")
    assert diagnosed(resumed(stepped(6, batch="batch/x 1")), reference()).code == "data-restarted"


def test_the_batch_of_another_place():
    found = diagnosed(resumed(stepped(6, batch="batch/x 5")), reference())
    assert found.code == "data-shifted"
    assert "micro-step 5" in found.cause


def test_batch_that_comes_each_epoch_is_the_first():
    full = life([stepped(step, batch=f"batch {step % SIZE}") for step in range(1, LAST + 1)])
    found = diagnosed(resumed(stepped(6, batch="batch 5")), full)
    assert (found.code, "of micro-step 5" in found.cause) == ("data-shifted", True)


@pytest.mark.parametrize(("step", "other"), [(9, 1), (6, 5)], ids=["begun anew", "of another place"])
def test_data_that_came_as_it_had_to_is_not_blamed(step, other):
    """What a loop makes of it with what it has forgotten may be what it made in another micro-step."""

    def line(at, made):
        one = stepped(at, {"script:bank.rows": f"after {at}, {made}"}, loss=f"of {made}")
        return one.model_copy(update={"digests": {**one.digests, "input/2": f"made {made}"}})

    full = life([line(at, at) for at in range(1, LAST + 1)])
    again = resumed(line(step, other), begun=step - 1)
    start = again.begun.model_copy(update={"unseen": {"script:bank.rows": told("empty")}})
    found = diagnosed(replace(again, events=[start, *again.events[1:]]), full)
    assert (found.code, found.where) == ("forgotten-state", "script:bank.rows")


def test_unknown_batch_blames_map_that_draws():
    """A batch that the reference never had is the fault of a map that is known to draw."""
    found = diagnosed(resumed(stepped(6, batch="new")), reference(suspects=(DROPOUT, MAP)))
    assert (found.code, found.where, found.also) == ("random-pipeline", MAP.where, (DROPOUT.where,))


def test_different_loss_on_equal_batches_blames_random_operator():
    found = diagnosed(resumed(stepped(6, loss="new", weights="new")), reference(suspects=(MAP, DROPOUT)))
    assert (found.code, found.where) == ("random-operator", DROPOUT.where)


def test_restarted_value_is_reported_before_differing_value():
    """A value that began afresh is reported before one that merely differs."""
    full = reference(lambda step: {"net.level": str(step), "net.total": f"{step * step} in all", "main():i": str(step)})
    again = resumed(stepped(6, {"net.level": "1", "net.total": "7 in all", "main():i": "1"}, loss="new", weights="new"))
    found = diagnosed(again, full)
    assert (found.code, found.where) == ("forgotten-state", "net.level")
    assert found.also == ("main():i", "net.total")
    assert "6 uninterrupted, 1 here" in found.cause
    assert diagnosed(again, full, unstable=["net.level"]).where == "main():i"


def test_unrestored_value_of_stateful_is_incomplete_state():
    full = reference(lambda step: {"stateful['a'].n": str(step)})
    found = diagnosed(resumed(stepped(6, {"stateful['a'].n": "1"}, loss="new", weights="new")), full)
    assert (found.code, found.where) == ("incomplete-state", "stateful['a'].n")


def restored_as(again, digests):
    """A life whose restore gave these digests."""
    return replace(again, events=[again.begun.model_copy(update={"digests": digests}), *again.events[1:]])


@pytest.mark.parametrize("name", ["named/statistics.spread", "parameters/statistics/spread"])
def test_what_an_object_does_not_restore_is_known_right_after_the_restore(name):
    """Not only by what follows from it, such as the batch; what was restored and differs since is an effect."""

    def line(step, value):
        one = stepped(step, batch="other" if value == "0" else "batch/x")
        return one.model_copy(update={"digests": {**one.digests, name: value}})

    full = life([line(step, str(step)) for step in range(1, LAST + 1)])
    again = resumed(line(6, "0"))
    found = diagnosed(restored_as(again, {name: "0"}), full)
    assert (found.code, found.where) == ("incomplete-state", "stateful['statistics'].spread")
    assert diagnosed(restored_as(again, {name: "5"}), full).code != "incomplete-state"


@pytest.mark.parametrize("step", [6, 8])
def test_generator_that_a_loader_does_not_restore_comes_before_other_batches(step):
    """A loader is compared after its first micro-step, since it loads its state when it is read."""

    def line(at, state, *, other=False):
        unseen = {
            "loader Shuffled.at": Unseen(digest=str(at), text=str(at)),
            "loader Shuffled.order": Unseen(digest="new" if other else "old", text="array"),
            "loader Shuffled.rng": Unseen(digest=state, text="state of a Generator"),
        }
        one = stepped(at, batch="batch/x 1" if other else f"batch/x {at}")
        return one.model_copy(update={"unseen": unseen})

    full = life([line(at, "drawn") for at in range(1, LAST + 1)])
    again = resumed(*(line(at, "fresh", other=at == step) for at in range(6, step + 1)))
    begun = again.begun.model_copy(update={"unseen": {"loader Shuffled.at": Unseen(digest="0", text="0")}})
    found = diagnosed(replace(again, events=[begun, *again.events[1:]]), full)
    assert (found.code, found.where) == ("incomplete-state", "loader Shuffled.rng")
    assert found.also == ()


def lost(line, begun, held, **options):
    """A life that resumed with these values, in place of those that the reference held then."""
    full = reference(lambda step: held if step == 5 else {})
    again = resumed(line, **options)
    start = again.begun.model_copy(update={"unseen": {path: told(text) for path, text in begun.items()}})
    return replace(again, events=[start, *again.events[1:]]), full


def told(text):
    return Unseen(digest=text, text=text)


def test_value_lost_at_restore_comes_before_what_follows_from_it():
    """A loop's variables and what was restored well differ as well, but later."""
    line = stepped(6, {"script:grads": "x", "script:ema.value": "y", "script:plan.level": "z"}, loss="l", weights="w")
    begun = {"script:plan.level": "0", "script:ema.value": "5"}
    found = diagnosed(*lost(line, begun, {"script:plan.level": "5", "script:ema.value": "5"}))
    assert (found.code, found.where, found.also) == ("forgotten-state", "script:plan.level", ())


@pytest.mark.parametrize(("begun", "where"), [("list of 0", "script:history"), (None, "script:w")])
def test_list_that_was_empty_right_after_the_restore_is_lost(begun, where):
    """One that was not there then may have been made by the first micro-step."""
    held = {"script:level": "0", "script:history": "list of 5", "script:w": "1.0"}
    line = stepped(6, {"script:level": "0", "script:history": "list of 1", "script:w": "1.0"}, weights="w")
    empty = {} if begun is None else {"script:history": begun}
    again, full = lost(line, {"script:level": "0", **empty}, held)
    full.steps[1].unseen["script:w"] = told("1.0")  # as so long after the start
    assert diagnosed(again, full).where == where


def test_gradients_of_a_loop_are_no_accumulators():
    found = diagnosed(*lost(stepped(6, {"script:grads": "x"}, weights="w"), {}, {}))
    assert found.code == "unknown"


def test_value_set_right_again_after_the_restore_is_named():
    """Such as what a graph was compiled with before a callback set it."""
    full_line = {"net.smooth": "0.1"}
    again, full = lost(stepped(6, loss="l", weights="w"), {"net.smooth": "0.2"}, full_line)
    found = diagnosed(again, full)
    assert (found.code, found.where) == ("forgotten-state", "net.smooth")
    assert "0.1 uninterrupted, 0.2 here" in found.cause


def test_number_with_such_a_name_is_no_accumulator():
    full = reference(lambda step: {"unfreeze.pending": str(step)})
    assert diagnosed(resumed(stepped(6, {"unfreeze.pending": "1"}, weights="new")), full).code == "forgotten-state"


def test_name_of_a_class_does_not_make_accumulators():
    full = reference(lambda step: {"callback GradualPruning.masks": str(step)})
    found = diagnosed(resumed(stepped(6, {"callback GradualPruning.masks": "1"}, weights="new")), full)
    assert (found.code, found.where) == ("forgotten-state", "callback GradualPruning.masks")


def test_values_that_look_alike_are_called_so():
    full = reference(lambda step: {"net.level": str(step)})
    line = stepped(6, loss="new", weights="new")
    line.unseen["net.level"] = Unseen(digest="another", text="6")
    assert "net.level (another value of the same kind)" in diagnosed(resumed(line), full).cause
    absent = diagnosed(resumed(stepped(6, loss="new", weights="new")), full)
    assert "net.level (6 uninterrupted, absent here)" in absent.cause


@pytest.mark.parametrize("path", ["Step.accum", "Step.grads", "Step.pending_sum"])
def test_gathered_gradients_are_known_by_their_name(path):
    full = reference(lambda step: {path: f"array {step}", "Step.a": str(step)})
    found = diagnosed(resumed(stepped(6, {path: "array 1", "Step.a": "1"}, weights="new")), full)
    assert (found.code, found.where) == ("accumulators-left-out", path)


@pytest.mark.parametrize(("cycle", "code"), [(3, "accumulators-left-out"), (99, "forgotten-state")])
def test_gathered_gradients_are_known_by_their_shapes(cycle, code):
    """And by their return to what they were: an anchor, or control variates, have these shapes, too."""
    line = stepped(6, weights="new")
    line.unseen["Step.box"] = Unseen(digest="x", text="list of 1", like_weights=True)
    found = diagnosed(resumed(line), reference(lambda step: {"Step.z": str(step), "Step.box": str(step % cycle)}))
    assert (found.code, found.where) == (code, "Step.box")


@pytest.mark.parametrize(("still", "code"), [(True, "accumulators-left-out"), (False, "forgotten-state")])
def test_job_that_updates_each_time_has_no_accumulators(still, code):
    """A cell that counts no cycles may have some, unless each micro-step changes the weights."""

    def line(step, **digests):
        kept = {"weights": "same"} if still and step < 6 else {}
        value = Unseen(digest=str(step % 4) + "".join(digests), text="list of 1 (1 arrays)", like_weights=True)
        made = stepped(step, **{**kept, **digests})
        at = made.progress.model_copy(update={"accumulation_steps": 1})
        return made.model_copy(update={"unseen": {"script:ts": value}, "progress": at})

    full = life([line(step) for step in range(1, LAST + 1)])
    assert diagnosed(resumed(line(6, weights="new")), full).code == code


def test_another_loss_is_not_put_down_to_accumulators():
    full = reference(lambda step: {"Step.accum": str(step)})
    assert (
        diagnosed(resumed(stepped(6, {"Step.accum": "1"}, loss="new", weights="new")), full).code == "forgotten-state"
    )


def test_a_save_that_draws_names_the_object():
    saved = [Saved(step=5, moved=("rng/numpy",), by=("replay (Replay)",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    found = diagnosed(life(lines, saved=saved), reference())
    assert (found.code, found.where) == ("saving-changes-state", "replay (Replay)")
    assert "rng/numpy" in found.cause


def test_generator_moved_in_save_blames_drawing_map():
    """A generator that moved during a save is blamed on the thread of a map, where one is known to draw."""
    saved = [Saved(step=5, moved=("rng/numpy",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=saved), reference()).code == "saving-changes-state"
    assert diagnosed(life(lines, saved=saved), reference(suspects=(MAP,))).code == "random-pipeline"


def test_save_that_moved_nothing_is_not_blamed():
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=[Saved(step=5)]), reference()).code == "unknown"


@pytest.mark.parametrize(("own_saves", "code"), [(True, "changed-while-saved"), (False, "unknown")])
def test_parameter_that_changed_while_the_own_save_was_read_is_named(own_saves, code):
    again = resumed(stepped(6, loss="new", weights="new"), own_saves=own_saves)
    digests = {**stepped(5).digests, "weights/w": "later"}
    start = again.begun.model_copy(update={"digests": digests})
    found = diagnosed(replace(again, events=[start, *again.events[1:]]), reference())
    assert (found.code, found.where) == (code, "weights/w" if own_saves else "loss")


@pytest.mark.parametrize(("names", "code"), [({}, "unknown"), ({"told/kept.at": "0"}, "saving-changes-state")])
def test_state_that_tells_the_time_is_not_blamed_for_another_difference(names, code):
    saved = [Saved(step=5, moved=("told/kept.at",))]
    last = stepped(6, rng="new")
    lines = [*map(stepped, range(1, 6)), last.model_copy(update={"digests": {**last.digests, **names}})]
    assert diagnosed(life(lines, saved=saved), reference()).code == code


def test_later_save_is_not_to_blame():
    """What a save moves shows in the micro-step after it."""
    saved = [Saved(step=6, moved=("rng/numpy",), by=("replay (Replay)",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=saved), reference()).code == "unknown"


@pytest.mark.parametrize("suspects", [(), (MAP,)])
def test_save_proven_to_draw_is_blamed_first(suspects):
    saved = [Saved(step=2, moved=("rng/numpy",)), Saved(step=4, moved=("rng/python",), by=("replay (Replay)",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, batch="batch/x 5", rng="new")]
    found = diagnosed(life(lines, saved=saved), reference(suspects=suspects))
    assert (found.code, found.where) == ("saving-changes-state", "replay (Replay)")


def test_saving_is_blamed_before_the_data():
    saved = [Saved(step=6, moved=("rng/numpy",), by=("replay (Replay)",))]
    again = resumed(stepped(6), stepped(7, batch="batch/x 6"), saved=saved)
    assert diagnosed(again, reference()).code == "saving-changes-state"


@pytest.mark.parametrize(
    ("lines", "begun", "suspects", "code"),
    [
        ([stepped(1), stepped(2, batch="batch/x 1")], 0, (), "unknown"),
        ([stepped(6, {"Step.accum": "1"}, batch="new")], 5, (), "forgotten-state"),
        ([stepped(6, weights="new")], 5, (DROPOUT,), "unknown"),
        ([stepped(6, weights="new")], 5, (MAP,), "unknown"),
        ([stepped(6, loss="new", weights="new")], 5, (MAP,), "unknown"),
    ],
    ids=["no resume", "another batch", "an equal loss", "equal data", "equal batches"],
)
def test_what_cannot_be_the_cause_is_not_blamed(lines, begun, suspects, code):
    full = reference(lambda step: {"Step.accum": str(step)} if lines[0].unseen else {}, suspects)
    assert diagnosed(life(lines, begun=begun), full).code == code


@pytest.mark.parametrize(("url", "word"), [("/runs/now", "another run root"), (URL, "began afresh")])
def test_a_run_that_is_never_resumed(url, word):
    again = life([stepped(step) for step in range(1, LAST + 1)], url=url)
    full = reference()
    found = diagnose_resume(Difference(6, (), full.steps[6], None, again, full), frozenset())
    assert found.code == "never-resumed"
    assert word in found.cause


@pytest.mark.parametrize("last", [6, 9, 12], ids=["ended before", "came by", "ended later"])
def test_going_on_from_older_checkpoint_is_named(last):
    full = reference()
    again = resumed(*map(stepped, range(4, last + 1)), begun=3)
    found = diagnose_resume(Difference(9, (), full.steps[9], None, again, full), frozenset())
    assert (found.code, found.where) == ("went-back", "at 3")
    assert "from the checkpoint after micro-step 3, although there is one after micro-step 8" in found.cause


@pytest.mark.parametrize("begun", [3, 6], ids=["after a while", "at once"])
def test_life_that_ended_there_went_not_back(begun):
    full = reference()
    again = resumed(*map(stepped, range(begun + 1, 7)), begun=begun)
    found = diagnose_resume(Difference(7, (), full.steps[7], None, again, full), frozenset())
    assert found.code == "ended-early"


def test_a_script_that_ends_early_after_a_resume():
    full = reference()
    again = resumed(stepped(6))
    found = diagnose_resume(Difference(7, (), full.steps[7], None, again, full), frozenset())
    assert found.code == "ended-early"


@pytest.mark.parametrize(
    ("changed", "suspects", "code"),
    [
        (("loss", "weights"), (MAP, DROPOUT), "random-operator"),
        (("batch",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (), "racing-generator"),
        (("loss", "weights"), (MAP,), "random-pipeline"),
        (("batch",), (DROPOUT,), "random-operator"),
        (("loss", "weights"), (), "not-reproducible"),
        (("batch",), (), "not-reproducible"),
    ],
)
def test_a_job_that_does_not_agree_with_itself(changed, suspects, code):
    full = reference(suspects=suspects)
    difference = first_difference(life([stepped(1, **dict.fromkeys(changed, "new"))]), full, 1)
    assert difference is not None
    assert diagnose_disagreement(difference).code == code


def test_what_is_recommended_exists():
    names = set(re.findall(r"ckptkit(?:\.\w+)+", Path(diagnose.__file__).read_text()))
    assert {"ckptkit.data.resumable", "ckptkit.data.sample_rng", "ckptkit.StateManager"} <= names
    for name in names:
        assert pkgutil.resolve_name(name) is not None
