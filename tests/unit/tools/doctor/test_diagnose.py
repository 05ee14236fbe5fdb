"""Each rule, on lives made by hand."""

from __future__ import annotations

import fnmatch
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.doctor_lives import SIZE, URL, life, stepped

from ckptkit.manager.hooks import Suspect
from ckptkit.tools.doctor import diagnose
from ckptkit.tools.doctor.compare import TraceDifference, first_difference
from ckptkit.tools.doctor.diagnose import Diagnosis, diagnose_disagreement, diagnose_resume
from ckptkit.tools.doctor.lives.trace import SavedEvent, Stepped
from ckptkit.tools.doctor.lost import owner_of, pattern_of

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
    assert (found.code, found.where) == ("data-shifted", "the data pipeline")
    assert diagnosed(resumed(stepped(6, batch="batch/x 1")), reference()).code == "data-shifted"


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

    def line(at, made, **began):
        one = stepped(at, {"bank.rows": f"int {made}"}, loss=f"of {made}", **began)
        return one.model_copy(update={"digests": {**one.digests, "input/2": f"made {made}"}})

    full = life([line(at, at) for at in range(1, LAST + 1)])
    again = resumed(line(step, other, began={"bank.rows": "int 0"}), begun=step - 1)
    found = diagnosed(again, full)
    assert (found.code, found.where) == ("forgotten-state", "bank.rows")


def test_unknown_batch_blames_map_that_draws():
    """A batch that the reference never had is the fault of a map that is known to draw."""
    found = diagnosed(resumed(stepped(6, batch="new")), reference(suspects=(DROPOUT, MAP)))
    assert (found.code, found.where, found.also) == ("random-pipeline", MAP.where, (DROPOUT.where,))


def test_different_loss_on_equal_batches_blames_random_operator():
    found = diagnosed(resumed(stepped(6, loss="new", weights="new")), reference(suspects=(MAP, DROPOUT)))
    assert (found.code, found.where) == ("random-operator", DROPOUT.where)


def of_state(step, began=None, **options):
    """A line of a training with a value that counts, and an effect of it."""
    return stepped(step, {"net.level": f"int {step}", "net.total": f"int {step * step}"}, began, **options)


FULL = life([of_state(step) for step in range(1, LAST + 1)])


def test_value_lost_at_the_restore_is_the_cause():
    """One that differs only later has followed from it."""
    began = {"net.level": "int 0", "net.total": "int 25"}
    line = stepped(6, {"net.level": "int 1", "net.total": "int 26"}, began, loss="new", weights="new")
    found = diagnosed(resumed(line), FULL)
    assert (found.code, found.where, found.also) == ("forgotten-state", "net.level", ())
    assert "net.level (was 5, is 0)" in found.cause
    assert diagnosed(resumed(line), FULL, unstable=["net.level"]).code == "unknown"


def test_value_that_differs_before_the_difference_is_the_best_lead():
    """That which differs with it may be an effect."""
    equal = {"net.level": "int 5", "net.total": "int 25"}
    lines = [
        of_state(6, equal),
        of_state(7).model_copy(update={"unseen": {"net.level": "int 0", "net.total": "int 49"}}),
        stepped(8, {"net.level": "int 0", "net.total": "int 0"}, weights="new"),
    ]
    found = diagnosed(resumed(*lines), FULL)
    assert (found.code, found.where, found.also) == ("forgotten-state", "net.level", ())
    assert diagnosed(resumed(lines[0], stepped(7, {"net.level": "int 0"}, weights="new")), FULL).code == "unknown"


def test_what_cannot_be_stored_is_the_cause_if_no_value_differs():
    lines = [of_state(step).model_copy(update={"unstored": {"a.json": "file"}}) for step in range(1, LAST + 1)]
    found = diagnosed(resumed(of_state(6, weights="new")), life(lines))
    assert (found.code, found.where) == ("forgotten-state", "a.json")
    assert "a.json (file)" in found.cause
    assert diagnosed(life([of_state(1, weights="new")]), life(lines)).code == "unknown", "nothing was resumed"


def test_unrestored_value_of_stateful_is_forgotten():
    full = reference(lambda step: {"stateful['a'].n": f"int {step}"})
    line = stepped(6, {"stateful['a'].n": "int 1"}, {"stateful['a'].n": "int 0"}, loss="new", weights="new")
    found = diagnosed(resumed(line), full)
    assert (found.code, found.where) == ("forgotten-state", "stateful['a'].n")
    assert "its owner does not restore" in found.cause


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
    assert (found.code, found.where) == ("forgotten-state", "stateful['statistics'].spread")
    assert diagnosed(restored_as(again, {name: "5"}), full).code != "forgotten-state"


@pytest.mark.parametrize("step", [6, 8])
def test_generator_that_a_loader_does_not_restore_comes_before_other_batches(step):
    """A loader is compared after its first micro-step, since it loads its state when it is read."""

    def line(at, state, *, other=False):
        unseen = {
            "loader Shuffled.at": f"int {at}",
            "loader Shuffled.order": "array new" if other else "array old",
            "loader Shuffled.rng": f"generator {state}",
        }
        return stepped(at, unseen, batch="batch/x 1" if other else f"batch/x {at}")

    full = life([line(at, "drawn") for at in range(1, LAST + 1)])
    again = resumed(*(line(at, "fresh", other=at == step) for at in range(6, step + 1)))
    found = diagnosed(again, full)
    assert (found.code, found.where) == ("forgotten-state", "loader Shuffled.rng")
    assert found.also == ()


def test_values_that_look_alike_are_called_so():
    long = "array float32(900,) "
    full = reference(lambda step: {"net.level": f"{long * 3}{step}"})
    line = stepped(6, {}, {"net.level": f"{long * 3}0"}, loss="new", weights="new")
    assert "net.level (another value of the same kind)" in diagnosed(resumed(line), full).cause


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("agent.moments.count", "agent"),
        ("main(): agent.moments['a']", "agent"),
        ("agent", "agent"),
        ("tools.server.velocity", "tools.server"),
        ("main(): best", ""),
        ("rows[0].seen", ""),
        ("stateful['a'].n", ""),
        ("Meter().total", ""),
    ],
)
def test_owner_of_a_path_is_what_a_script_can_give(path, owner):
    known = {"agent": "<Agent>", "main(): agent": "<Agent>", "tools.server": "<Server>", "main(): best": "int 1"}
    known |= {"rows": "list of 3", "stateful['a']": "<A>", "Meter()": "<Meter>"}
    assert owner_of(path, known) == owner


def test_pattern_ignores_the_path_that_it_is_made_of():
    """A bracket means a choice of letters in a pattern."""
    for path in ("agent.count", "best['loss']", "main(): rows[2].x", "Callback().n", "a.json"):
        assert fnmatch.fnmatchcase(path, pattern_of(path))


def test_a_save_that_draws_names_the_object():
    saved = [SavedEvent(step=5, moved=("rng/numpy",), by=("replay (Replay)",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    found = diagnosed(life(lines, saved=saved), reference())
    assert (found.code, found.where) == ("saving-changes-state", "replay (Replay)")
    assert "rng/numpy" in found.cause


def test_generator_moved_in_save_blames_drawing_map():
    """A generator that moved during a save is blamed on the thread of a map, where one is known to draw."""
    saved = [SavedEvent(step=5, moved=("rng/numpy",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=saved), reference()).code == "saving-changes-state"
    assert diagnosed(life(lines, saved=saved), reference(suspects=(MAP,))).code == "random-pipeline"


def test_save_that_moved_nothing_is_not_blamed():
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=[SavedEvent(step=5)]), reference()).code == "unknown"


@pytest.mark.parametrize(("own_saves", "code"), [(True, "saving-changes-state"), (False, "unknown")])
def test_parameter_that_changed_while_the_own_save_was_read_is_named(own_saves, code):
    again = resumed(stepped(6, loss="new", weights="new"), own_saves=own_saves)
    digests = {**stepped(5).digests, "weights/w": "later"}
    start = again.begun.model_copy(update={"digests": digests})
    found = diagnosed(replace(again, events=[start, *again.events[1:]]), reference())
    assert (found.code, found.where) == (code, "weights/w" if own_saves else "loss")


@pytest.mark.parametrize(("names", "code"), [({}, "unknown"), ({"told/kept.at": "0"}, "saving-changes-state")])
def test_state_that_tells_the_time_is_not_blamed_for_another_difference(names, code):
    saved = [SavedEvent(step=5, moved=("told/kept.at",))]
    last = stepped(6, rng="new")
    lines = [*map(stepped, range(1, 6)), last.model_copy(update={"digests": {**last.digests, **names}})]
    assert diagnosed(life(lines, saved=saved), reference()).code == code


def test_later_save_is_not_to_blame():
    """What a save moves shows in the micro-step after it."""
    saved = [SavedEvent(step=6, moved=("rng/numpy",), by=("replay (Replay)",))]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, rng="new")]
    assert diagnosed(life(lines, saved=saved), reference()).code == "unknown"


@pytest.mark.parametrize("suspects", [(), (MAP,)])
def test_save_proven_to_draw_is_blamed_first(suspects):
    saved = [
        SavedEvent(step=2, moved=("rng/numpy",)),
        SavedEvent(step=4, moved=("rng/python",), by=("replay (Replay)",)),
    ]
    lines = [stepped(step) for step in range(1, 6)] + [stepped(6, batch="batch/x 5", rng="new")]
    found = diagnosed(life(lines, saved=saved), reference(suspects=suspects))
    assert (found.code, found.where) == ("saving-changes-state", "replay (Replay)")


def test_saving_is_blamed_before_the_data():
    saved = [SavedEvent(step=6, moved=("rng/numpy",), by=("replay (Replay)",))]
    again = resumed(stepped(6), stepped(7, batch="batch/x 6"), saved=saved)
    assert diagnosed(again, reference()).code == "saving-changes-state"


@pytest.mark.parametrize(
    ("lines", "begun", "suspects", "code"),
    [
        ([stepped(1), stepped(2, batch="batch/x 1")], 0, (), "unknown"),
        ([stepped(6, {"Step.accum": "int 1"}, {"Step.accum": "int 0"}, batch="new")], 5, (), "forgotten-state"),
        ([stepped(6, weights="new")], 5, (DROPOUT,), "unknown"),
        ([stepped(6, weights="new")], 5, (MAP,), "unknown"),
        ([stepped(6, loss="new", weights="new")], 5, (MAP,), "unknown"),
    ],
    ids=["no resume", "another batch", "an equal loss", "equal data", "equal batches"],
)
def test_what_cannot_be_the_cause_is_not_blamed(lines, begun, suspects, code):
    full = reference(lambda step: {"Step.accum": f"int {step}"} if lines[0].unseen else {}, suspects)
    assert diagnosed(life(lines, begun=begun), full).code == code


@pytest.mark.parametrize(("url", "word"), [("/runs/now", "another run root"), (URL, "began afresh")])
def test_a_run_that_is_never_resumed(url, word):
    again = life([stepped(step) for step in range(1, LAST + 1)], url=url)
    full = reference()
    found = diagnose_resume(TraceDifference(6, (), full.steps[6], None, again, full), frozenset())
    assert found.code == "never-resumed"
    assert word in found.cause


@pytest.mark.parametrize("last", [6, 9, 12], ids=["ended before", "came by", "ended later"])
def test_going_on_from_older_checkpoint_is_named(last):
    full = reference()
    again = resumed(*map(stepped, range(4, last + 1)), begun=3)
    found = diagnose_resume(TraceDifference(9, (), full.steps[9], None, again, full), frozenset())
    assert (found.code, found.where) == ("never-resumed", "at 3")
    assert "from the checkpoint after micro-step 3, although there is one after micro-step 8" in found.cause


@pytest.mark.parametrize("begun", [3, 6], ids=["after a while", "at once"])
def test_life_that_ended_there_went_not_back(begun):
    full = reference()
    again = resumed(*map(stepped, range(begun + 1, 7)), begun=begun)
    found = diagnose_resume(TraceDifference(7, (), full.steps[7], None, again, full), frozenset())
    assert found.code == "ends-elsewhere"


def test_a_script_that_ends_early_after_a_resume():
    full = reference()
    again = resumed(stepped(6))
    found = diagnose_resume(TraceDifference(7, (), full.steps[7], None, again, full), frozenset())
    assert found.code == "ends-elsewhere"


@pytest.mark.parametrize(
    ("changed", "suspects", "code"),
    [
        (("loss", "weights"), (MAP, DROPOUT), "random-operator"),
        (("batch",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (), "not-reproducible"),
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
