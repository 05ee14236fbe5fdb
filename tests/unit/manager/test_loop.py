"""`CheckpointManager.loop`: one step after each body, one final save after the last one, and nothing claimed before."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.process import forked

import ckptkit as ck
from ckptkit.errors import Preempted, ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.testing.state import NumpyRun

BATCHES = 10  # and three of them are an epoch
LEFT = "the loop was left in batch"


class Looped(NumpyRun):
    """Has numbers as batches; the loop trains."""

    def __init__(self):
        super().__init__(batches_per_epoch=3)

    def handed_out_by(self, iterator):
        pass

    def remaining(self):
        for number in range(self.batches, BATCHES):  # as those of `resumable`: known when the loop begins
            yield f"batch {number}"


def manager_of(root, every=4, **options):
    return CheckpointManager(root, save=ck.SaveEvery(micro_steps=every), saving=ck.Saving(when_busy="wait"), **options)


def train(manager, run, error=None):
    for number, _ in manager.loop(run):
        run.train_step()
        if error is not None and number == 5:
            raise error


def uninterrupted():
    run = Looped()
    for _ in run.train_until(BATCHES):
        pass
    return run.digest()


def saved(root):
    """The numbers of batches of the checkpoints."""
    return [one.progress.batches_delivered for one in manager_of(root).checkpoints()]


def test_loop_trains_and_saves_by_itself(tmp_path):
    run, seen = Looped(), []
    for number, batch in manager_of(tmp_path).loop(run):
        seen.append((number, batch))
        run.train_step()
    assert seen == [(number, f"batch {number}") for number in range(BATCHES)]
    assert saved(tmp_path) == [4, 8, 10]
    assert run.digest() == uninterrupted()


def test_continue_does_not_skip_the_step(tmp_path):
    run = Looped()
    for number, _ in manager_of(tmp_path, every=2).loop(run):
        run.train_step()
        if number:
            continue
    assert saved(tmp_path)[-3:] == [6, 8, 10]


@pytest.mark.parametrize("leaves_at", range(1, BATCHES + 1))
def test_numbers_continue_after_a_restart(tmp_path, leaves_at):
    first = Looped()
    with manager_of(tmp_path, every=1) as manager:
        for number, _ in manager.loop(first):
            if number == leaves_at:
                break
            first.train_step()
    again, numbers = Looped(), []
    for number, batch in manager_of(tmp_path).loop(again):
        assert batch == f"batch {number}"
        numbers.append(number)
        again.train_step()
    assert numbers == [*range(leaves_at, BATCHES)]
    assert again.digest() == uninterrupted()


def test_complete_training_is_started_again_without_a_batch(tmp_path):
    for _ in range(2):
        train(manager_of(tmp_path), Looped())
    again = Looped()
    assert [*manager_of(tmp_path).loop(again)] == []
    assert again.digest() == uninterrupted()


def test_step_of_the_body_is_the_only_one(tmp_path, monkeypatch):
    run, steps = Looped(), []
    manager = manager_of(tmp_path)
    original = manager.step
    monkeypatch.setattr(manager, "step", lambda state, metrics=None: steps.append(metrics) or original(state, metrics))
    for number, _ in manager.loop(run):
        run.train_step()
        if number % 2:
            manager.step(run, {"loss": number})
    assert steps == [{"loss": number} if number % 2 else None for number in range(BATCHES)]


def test_break_makes_no_final_save(tmp_path, caplog):
    run = Looped()
    with manager_of(tmp_path) as manager:
        for number, _ in manager.loop(run):
            run.train_step()
            if number == 5:
                break
    assert saved(tmp_path) == [4]
    assert f"{LEFT} 6" in caplog.text


def test_break_can_end_the_training(tmp_path, caplog):
    run = Looped()
    with manager_of(tmp_path) as manager:
        for number, _ in manager.loop(run):
            run.train_step()
            if number == 5:
                manager.step(run)
                break
        manager.save_final(run)
    assert saved(tmp_path) == [4, 6]
    assert LEFT not in caplog.text


def test_final_save_after_the_loop_is_the_same_one(tmp_path):
    run = Looped()
    with manager_of(tmp_path) as manager:
        for _ in manager.loop(run):
            run.train_step()
        name = manager.save_final(run)
        assert len({one.name for one in manager.checkpoints()}) == 3
    assert name == manager_of(tmp_path).latest().name


def test_loop_closes_the_manager_at_its_end(tmp_path):
    run, manager = Looped(), manager_of(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    for _ in manager.loop(run):
        assert signal.getsignal(signal.SIGTERM) is not before
        run.train_step()
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ResumeError, match="not after close"):
        manager.save_final(run)


def test_signal_after_a_break_has_the_effect_that_it_had_before(tmp_path):
    """Nothing saves any more; within a ``with`` block, a final save may come."""
    before = signal.getsignal(signal.SIGTERM)
    with manager_of(tmp_path) as within:
        for _ in within.loop(Looped()):
            break
        assert signal.getsignal(signal.SIGTERM) is not before
    alone = manager_of(tmp_path / "alone")
    for _ in alone.loop(Looped()):
        assert signal.getsignal(signal.SIGTERM) is not before
        break
    assert signal.getsignal(signal.SIGTERM) is before
    alone.close()


def test_with_block_closes_the_manager(tmp_path):
    run = Looped()
    with manager_of(tmp_path) as manager:
        for _ in manager.loop(run):
            run.train_step()
        manager.save(run, {"accuracy": 0.5}).result()
    assert manager_of(tmp_path).latest().metrics == {"accuracy": 0.5}


def test_error_in_the_body_passes_unchanged(tmp_path, caplog):
    run, error = Looped(), ValueError("of the body")
    with pytest.raises(ValueError, match="of the body") as raised, manager_of(tmp_path) as manager:
        train(manager, run, error)
    assert raised.value is error
    assert saved(tmp_path) == [4]
    assert LEFT not in caplog.text  # the error says it


def test_error_of_the_batches_closes_the_manager(tmp_path):
    class Broken(Looped):
        def handed_out_by(self, iterator):
            pass

        def remaining(self):
            yield from range(3)
            raise OSError("the disk of the data")

    run, manager = Broken(), manager_of(tmp_path, every=2)
    with pytest.raises(OSError, match="the disk of the data"):
        train(manager, run)
    assert saved(tmp_path) == [2]
    with pytest.raises(ResumeError, match="not after close"):
        manager.save(run)


def test_preempted_loop_saves_and_raises(tmp_path):
    run = Looped()
    preemption = ck.Preemption(when=lambda: run.batches == 6)
    with pytest.raises(Preempted):
        train(manager_of(tmp_path, preemption=preemption), run)
    assert run.batches in saved(tmp_path)
    assert run.batches < BATCHES


def test_preempted_loop_returns_if_asked_to(tmp_path):
    run = Looped()
    manager = manager_of(tmp_path, preemption=ck.Preemption(then="return", when=lambda: run.batches == 6))
    for _ in manager.loop(run):
        run.train_step()
    assert manager.preempted
    assert run.batches < BATCHES
    assert saved(tmp_path)[-1] == run.batches


def test_loop_continues_what_was_restored(tmp_path):
    run = Looped()
    train(manager_of(tmp_path), run)
    first = manager_of(tmp_path).checkpoints()[0]
    again, numbers = Looped(), []
    with manager_of(tmp_path) as manager:
        point = manager.restore(again, checkpoint=first.name, rewind=True)
        for number, _ in manager.loop(again):
            numbers.append(number)
            again.train_step()
    assert numbers == [*range(point.batches_delivered, BATCHES)] == [*range(4, BATCHES)]


PROGRAM = """
import atexit, sys
from ckptkit.manager.heartbeat import HEARTBEAT
atexit.register(lambda: print(HEARTBEAT._record.last_phase.name))
from ckptkit.testing.state import NumpyRun
import ckptkit as ck

class Looped(NumpyRun):
    def handed_out_by(self, iterator):
        pass

    def remaining(self):
        return range(self.batches, 10)

run = Looped()
for number, _ in ck.CheckpointManager(sys.argv[1], save=ck.SaveEvery(micro_steps=4)).loop(run):
    run.train_step()
    if number == 5:
        {leaves}
print("after")
{after}
"""


def left_by(tmp_path: Path, leaves: str, expect: int, *, after: str = "", program: str = PROGRAM):
    """What a program says whose loop is left so, and how its events tell the end."""
    ended = forked("-c", program.format(leaves=leaves, after=after), tmp_path / "run", expect=expect)
    return ended, "".join(one.read_text() for one in sorted((tmp_path / "run/events").iterdir()))


def test_program_says_at_its_end_what_break_lost(tmp_path):
    ended, events = left_by(tmp_path, "break", 0)
    assert ended.stdout.splitlines() == ["after", "ENDED"]
    assert f"{LEFT} 6" in ended.stderr
    assert '"how":"closed"' in events.replace(" ", "")
    assert saved(tmp_path / "run") == [4]


def test_program_records_the_error_of_the_body(tmp_path):
    ended, events = left_by(tmp_path, "raise KeyError(number)", 1)
    assert "KeyError: 5" in ended.stderr
    assert ended.stdout.splitlines() == ["TRAINING"]
    assert LEFT not in ended.stderr
    assert '"how":"failed"' in events.replace(" ", "")
    assert "KeyError" in events
    assert saved(tmp_path / "run") == [4]


def test_error_after_a_break_was_not_in_training(tmp_path):
    ended, events = left_by(tmp_path, "break", 1, after="raise KeyError(number)")
    assert ended.stdout.splitlines() == ["after", "EVALUATING"]
    assert "KeyError" in events


def test_loop_that_a_variable_holds_ends_in_silence(tmp_path):
    """Its generator ends with the interpreter, when modules are gone."""
    held = PROGRAM.replace("for number, _ in ck.", "batches = ck.").replace(
        ".loop(run):", ".loop(run)\nfor number, _ in batches:"
    )
    ended, _ = left_by(tmp_path, "break", 0, program=held)
    assert "Exception ignored" not in ended.stderr
    assert saved(tmp_path / "run") == [4]
