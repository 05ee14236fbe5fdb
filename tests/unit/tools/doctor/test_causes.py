"""Each rule, on lives made by hand."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.doctor_lives import NAMES, SIZE, URL, life, stepped

from ckptkit.manager.hooks import Suspect
from ckptkit.tools.doctor.causes import Diagnosis, diagnose_disagreement, diagnose_resume
from ckptkit.tools.doctor.compare import (
    TraceDifference,
    begun_too_early,
    differing,
    first_difference,
    other_losses,
)
from ckptkit.tools.doctor.lives.trace import SavedEvent, Stepped
from ckptkit.tools.doctor.lost_values import owner_of

LAST = 12
MAP = Suspect(kind="pipeline", where="MapDataset: augment()", why="it draws", fix="do not")
DROPOUT = Suspect(kind="operator", where="net.drop (nn.Dropout)", why="it draws", fix="do not")


def reference(unseen=None, suspects=()):
    lines = [stepped(step, unseen(step) if unseen else None) for step in range(1, LAST + 1)]
    return life(lines, suspects=suspects)


def resumed(*lines: Stepped, begun: int = 5, **options):
    return life(list(lines), begun=begun, **options)


def diagnosed(life, full, **options) -> Diagnosis:
    difference = first_difference(life, full, max(life.steps))
    assert difference is not None
    return diagnose_resume(difference, frozenset(options.get("unstable", ())))


def test_batch_of_another_place_is_named():
    for line, full, words in (
        (stepped(9, batch="batch/x 8"), reference(), "micro-step 8, the first of its epoch"),
        (stepped(6, batch="batch/x 1"), reference(), "micro-step 1, the first of its epoch"),
        (stepped(6, batch="batch/x 5"), reference(), "got the batch of micro-step 5"),
        (
            stepped(6, batch="batch 5"),
            life([stepped(step, batch=f"batch {step % SIZE}") for step in range(1, LAST + 1)]),
            "got the batch of micro-step 5",
        ),
    ):
        found = diagnosed(resumed(line, begun=line.step - 1), full)
        assert (found.code, found.where) == ("data-shifted", "the data pipeline"), words
        assert words in found.cause
        assert ("first of its epoch" in found.cause) == ("first of its epoch" in words)


def test_data_that_came_as_it_had_to_is_not_blamed():
    """What a loop makes of it with what it has forgotten may be what it made in another micro-step."""

    def line(at, made, **began):
        traced = stepped(at, {"bank.rows": f"int {made}"}, loss=f"of {made}", **began)
        return traced.model_copy(update={"digests": {**traced.digests, "input/2": f"made {made}"}})

    full = life([line(at, at) for at in range(1, LAST + 1)])
    for step, other in ((9, 1), (6, 5)):  # begun anew, and of another place
        found = diagnosed(resumed(line(step, other, began={"bank.rows": "int 0"}), begun=step - 1), full)
        assert (found.code, found.where) == ("forgotten-state", "bank.rows"), step


def of_state(step, began=None, **options):
    return stepped(step, {"net.level": f"int {step}", "net.total": f"int {step * step}"}, began, **options)


FULL = life([of_state(step) for step in range(1, LAST + 1)])


def test_value_lost_or_never_stored_is_the_cause():
    began = {"net.level": "int 0", "net.total": "int 25"}
    line = stepped(6, {"net.level": "int 1", "net.total": "int 26"}, began, loss="new", weights="new")
    found = diagnosed(resumed(line), FULL)
    assert (found.code, found.where, found.also) == ("forgotten-state", "net.level", ())
    assert "net.level (was 5, is 0)" in found.cause
    assert diagnosed(resumed(line), FULL, unstable=["net.level"]).code == "unknown"
    lines = [of_state(step).model_copy(update={"unstored": {"a.json": "file"}}) for step in range(1, LAST + 1)]
    found = diagnosed(resumed(of_state(6, weights="new")), life(lines))  # no value differs
    assert (found.code, found.where) == ("forgotten-state", "a.json")
    assert "a.json (file)" in found.cause
    assert diagnosed(life([of_state(1, weights="new")]), life(lines)).code == "unknown", "nothing was resumed"


def test_value_that_differs_before_the_difference_is_the_best_lead():
    equal = {"net.level": "int 5", "net.total": "int 25"}
    lines = [
        of_state(6, equal),
        of_state(7).model_copy(update={"unseen": {"net.level": "int 0", "net.total": "int 49"}}),
        stepped(8, {"net.level": "int 0", "net.total": "int 0"}, weights="new"),
    ]
    found = diagnosed(resumed(*lines), FULL)
    assert (found.code, found.where, found.also) == ("forgotten-state", "net.level", ())
    assert diagnosed(resumed(lines[0], stepped(7, {"net.level": "int 0"}, weights="new")), FULL).code == "unknown"


def restored_as(again, digests):
    return replace(again, events=[again.begun.model_copy(update={"digests": digests}), *again.events[1:]])


def test_what_an_object_does_not_restore_is_known_right_after_the_restore():
    """Not only by what follows from it, such as the batch; what was restored and differs since is an effect."""
    for name in ("named/statistics.spread", "parameters/statistics/spread"):

        def line(step, value, name=name):
            traced = stepped(step, batch="other" if value == "0" else "batch/x")
            return traced.model_copy(update={"digests": {**traced.digests, name: value}})

        full = life([line(step, str(step)) for step in range(1, LAST + 1)])
        resumption = resumed(line(6, "0"))
        found = diagnosed(restored_as(resumption, {name: "0"}), full)
        assert (found.code, found.where) == ("forgotten-state", "stateful['statistics'].spread")
        assert diagnosed(restored_as(resumption, {name: "5"}), full).code != "forgotten-state"


def test_generator_that_a_loader_does_not_restore_comes_before_other_batches():
    """A loader is compared after its first micro-step, since it loads its state when it is read."""

    def line(at, state, *, other=False):
        unseen = {
            "loader Shuffled.at": f"int {at}",
            "loader Shuffled.order": "array new" if other else "array old",
            "loader Shuffled.rng": f"generator {state}",
        }
        return stepped(at, unseen, batch="batch/x 1" if other else f"batch/x {at}")

    full = life([line(at, "drawn") for at in range(1, LAST + 1)])
    for step in (6, 8):
        found = diagnosed(resumed(*(line(at, "fresh", other=at == step) for at in range(6, step + 1))), full)
        assert (found.code, found.where, found.also) == ("forgotten-state", "loader Shuffled.rng", ())


def test_owner_of_a_path_is_what_a_script_can_give():
    known = {"agent": "<Agent>", "main(): agent": "<Agent>", "tools.server": "<Server>", "main(): best": "int 1"}
    known |= {"rows": "list of 3", "stateful['a']": "<A>", "Meter()": "<Meter>"}
    given = {"agent.moments.count": "agent", "main(): agent.moments['a']": "agent", "tools.server.v": "tools.server"}
    unowned = ("main(): best", "rows[0].seen", "stateful['a'].n", "Meter().total")
    for path, owner in {**given, **dict.fromkeys(unowned, "")}.items():
        assert owner_of(path, known) == owner, path


MOVED, TOLD = {"moved": ("rng/numpy",)}, {"moved": ("told/kept.at",)}
PROVEN = {"by": ("replay (Replay)",), **MOVED}


def test_save_that_moved_a_generator_is_blamed():
    """What a save moves shows in the micro-step after it; a map's thread may have moved it, too."""
    before = [stepped(step) for step in range(1, 6)]
    drawn, shifted = stepped(6, rng="new"), stepped(6, batch="batch/x 5", rng="new")
    kept = drawn.model_copy(update={"digests": {**drawn.digests, "told/kept.at": "0"}})
    changes, rng = "saving-changes-state", "rng/numpy"
    for saves, last, suspects, code, where in (
        ({5: PROVEN}, drawn, (), changes, "replay (Replay)"),
        ({5: MOVED}, drawn, (), changes, rng),
        ({5: MOVED}, drawn, (MAP,), "random-pipeline", MAP.where),
        ({5: {}}, drawn, (), "unknown", rng),
        ({6: PROVEN}, drawn, (), "unknown", rng),
        ({2: MOVED, 4: PROVEN}, shifted, (MAP,), changes, "replay (Replay)"),  # proven, it comes before the data
        ({5: TOLD}, drawn, (), "unknown", rng),  # a state that tells the time is not blamed for another difference
        ({5: TOLD}, kept, (), changes, "told/kept.at"),
    ):
        saved = [SavedEvent(step=step, **more) for step, more in saves.items()]
        found = diagnosed(life([*before, last], saved=saved), reference(suspects=suspects))
        assert (found.code, found.where) == (code, where), (saves, suspects)


def test_own_saves_that_change_the_training_are_blamed():
    found = diagnosed(life([stepped(1, rng="new")], own_saves=True), reference())
    assert (found.code, found.where) == ("saving-changes-state", "the script's own saves")
    assert diagnosed(life([stepped(1, rng="new")]), reference()).code == "unknown"
    for own_saves, code in ((True, "saving-changes-state"), (False, "unknown")):
        resumption = resumed(stepped(6, loss="new", weights="new"), own_saves=own_saves)
        torn = restored_as(resumption, {**stepped(5).digests, "weights/w": "later"})
        found = diagnosed(torn, reference())
        assert (found.code, found.where) == (code, "weights/w" if own_saves else "loss")


def test_suspect_is_blamed_for_what_it_can_cause():
    """A batch that the reference never had is the fault of a map that is known to draw."""
    unseen = ({"Step.accum": "int 1"}, {"Step.accum": "int 0"})
    both = {"loss": "new", "weights": "new"}
    for line, begun, suspects, code, where in (
        (stepped(6, batch="new"), 5, (DROPOUT, MAP), "random-pipeline", MAP.where),
        (stepped(6, **both), 5, (MAP, DROPOUT), "random-operator", DROPOUT.where),
        (stepped(1, batch="batch/x 1"), 0, (), "unknown", "batch/x"),
        (stepped(6, *unseen, batch="new"), 5, (), "forgotten-state", "Step.accum"),
        (stepped(6, weights="new"), 5, (DROPOUT,), "unknown", "weights/w"),
        (stepped(6, weights="new"), 5, (MAP,), "unknown", "weights/w"),
        (stepped(6, **both), 5, (MAP,), "unknown", "loss"),
    ):
        lines = [stepped(1), line.model_copy(update={"step": 2})] if not begun else [line]
        full = reference(lambda step, line=line: {"Step.accum": f"int {step}"} if line.unseen else {}, suspects)
        found = diagnosed(life(lines, begun=begun), full)
        assert (found.code, found.where) == (code, where), (line.step, suspects)
        assert (found.also != ()) == (code.startswith("random")), (line.step, suspects)


def test_life_that_did_not_get_as_far_went_back_or_ended():
    full = reference()

    def named(resumption, step):
        return diagnose_resume(TraceDifference(step, (), full.steps[step], None, resumption, full), frozenset())

    for url, word in (("/runs/now", "another run root"), (URL, "began afresh")):
        found = named(life([stepped(step) for step in range(1, LAST + 1)], url=url), 6)
        assert (found.code, word in found.cause) == ("never-resumed", True)
    for last in (6, 9, 12):  # it ended before, came by, or ended later
        found = named(resumed(*map(stepped, range(4, last + 1)), begun=3), 9)
        assert (found.code, found.where) == ("never-resumed", "at 3")
        assert "from the checkpoint after micro-step 3, although there is one after micro-step 8" in found.cause
    for begun in (3, 5, 6):
        assert named(resumed(*map(stepped, range(begun + 1, 7)), begun=begun), 7).code == "ends-elsewhere", begun


def test_a_job_that_does_not_agree_with_itself():
    for changed, suspects, code in (
        (("loss", "weights"), (MAP, DROPOUT), "random-operator"),
        (("batch",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (DROPOUT, MAP), "random-pipeline"),
        (("rng",), (), "not-reproducible"),
        (("batch",), (DROPOUT,), "random-operator"),
    ):
        full = reference(suspects=suspects)
        difference = first_difference(life([stepped(1, **dict.fromkeys(changed, "new"))]), full, 1)
        assert diagnose_disagreement(difference).code == code, (changed, suspects)


def healthy(begun: int = 0) -> list[Stepped]:
    return [stepped(step) for step in range(begun + 1, LAST + 1)]


def altered(line: Stepped, name: str) -> Stepped:
    return line.model_copy(update={"digests": {**line.digests, name: "another"}})


@given(st.data())
def test_the_earliest_altered_digest_is_found_and_named(data):
    begun = data.draw(st.integers(0, LAST - 1))
    wrong = data.draw(st.dictionaries(st.integers(begun + 1, LAST), st.sampled_from(NAMES), min_size=1))
    lines = [altered(line, wrong[line.step]) if line.step in wrong else line for line in healthy(begun)]
    found = first_difference(life(lines, begun=begun), life(healthy()), LAST)
    if set(wrong.values()) == {"loss"}:
        assert found is None
        assert other_losses(life(lines, begun=begun), life(healthy()), LAST) == sorted(wrong)
        return
    assert found is not None
    assert (found.step, found.names, found.resumed_at) == (min(wrong), (wrong[min(wrong)],), begun)


def test_life_that_does_again_what_its_checkpoint_held_differs():
    """Also if the checkpoint is of the last micro-step, after which nothing is left to do."""
    for begun in (3, LAST):
        assert begun_too_early(life(healthy(begun), begun=begun), life(healthy()), begun) is None
        found = begun_too_early(life(healthy(2), begun=2), life(healthy()), begun)
        assert (found.step, found.names, found.found) == (min(begun + 1, LAST), (), None)


def test_shorter_life_differs_at_its_end():
    for shorter in (life(healthy()[:5]), life(healthy(6), begun=5)):  # the second leaves out its first micro-step
        found = first_difference(shorter, life(healthy()), LAST)
        assert (found.step, found.names, found.found) == (6, (), None)
    lines = [*healthy()[:5], altered(healthy()[5], "rng/numpy"), *healthy()[6:8]]
    found = first_difference(life(lines), life(healthy()), LAST)
    assert (found.step, found.names) == (6, ("rng/numpy",)), "it comes before the early end"
    names = [*NAMES, "named/a", "told/a"]  # and causes come before their effects
    assert differing(dict.fromkeys(reversed(names), "one"), dict.fromkeys(names[1:], "other")) == names


def test_loss_alone_counts_unless_it_is_rounded():
    """Gradients are equal, so a forgotten counter scales a part of the loss that has none."""
    rows = (("1.25", "1.2500001", True), ("4.296", "2.082", False), ("nan", "1.0", False), ("1f2e", "3d4c", True))
    for expected, found, rounds in rows:
        mine, full = (life([stepped(1, loss=value)]) for value in (found, expected))
        assert (first_difference(mine, full, 1) is None) == rounds, expected
        assert other_losses(mine, full, 1) == [1] * rounds, expected
