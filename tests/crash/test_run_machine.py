"""A run under random saves, failures, deaths, takeovers, damage and pruning, against a model of a few names."""

import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.runs.roots import LocalRoot
from support.runs.scenario import (
    Life,
    attempts,
    batches_of,
    committed,
    corrupt,
    digest_at,
    digest_of,
    folders,
    name_at,
    tree,
)

from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.run.catalog import latest_checkpoint, list_checkpoints
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.retention import Retention
from ckptkit.testing.faults import DIVISIBLE, EVERY, Fault, Killed

steps = st.integers(1, 5)
keeps = st.integers(1, 3)
places = st.tuples(st.integers(1, 30), st.sampled_from(["before", "during", "after"]))


class RunMachine(RuleBasedStateMachine):
    """The model: what is committed, which of it is on the lineage, and what is corrupt."""

    def __init__(self):
        super().__init__()
        self.root = LocalRoot(tempfile.mkdtemp())
        self.life = None
        self.attempt = 0
        self.present: set[str] = set()
        self.lineage: list[str] = []  # of the newest attempt: oldest first, present or not
        self.head: list[str] = []  # the same of the newest that has committed, which is what a start goes by
        self.parent = None
        self.keep = 2
        self.bad: set[str] = set()
        self.void_or_worse: set[str] = set()  # folders that must never become checkpoints

    def teardown(self):
        self.root.clear()

    def on_lineage(self):
        return [name for name in self.lineage if name in self.present]

    def startable(self):
        return [name for name in self.head if name in self.present]

    def sound(self):
        return [name for name in self.startable() if name not in self.bad]

    def kept(self, keep):
        own = [name for name in self.on_lineage() if name.startswith(f"a{self.attempt:06d}")]
        kept = set(self.on_lineage()[-max(2, keep) :])
        return kept | ({self.parent} & self.present if len(own) < 2 else set())

    def pruned(self, keep):
        """What is present after retention: all that it keeps, and all that is off the lineage."""
        return self.kept(keep) | (self.present - set(self.lineage))

    def commit(self, name):
        self.present.add(name)
        self.lineage.append(name)
        self.head = [*self.lineage]

    @initialize()
    def starts_fresh(self):
        self.starts(2)

    @rule(keep=keeps)
    def starts(self, keep):
        """A new process; the old one, if there was one, is simply gone."""
        before = folders(tree(self.root))
        self.life = Life(self.root, keep=KeepLatest(keep))
        self.keep = keep
        expected = self.sound()[-1] if self.sound() else None
        assert self.life.restore().checkpoint == expected
        self.parent = expected
        self.lineage = self.head[: self.head.index(expected) + 1] if expected else []
        self.attempt = max(attempts(tree(self.root)))
        after = folders(tree(self.root))
        assert after.uncommitted == []
        assert after.committed == before.committed
        assert self.life.run.digest() == digest_at(batches_of(expected) if expected else 0)

    @precondition(lambda self: self.life)
    @rule(more=steps)
    def saves(self, more):
        batches = self.life.run.batches + more
        name = self.life.saved_at(batches)
        assert name == name_at(self.attempt, batches)
        self.commit(name)
        self.present = self.pruned(self.keep)

    @precondition(lambda self: self.life)
    @rule(more=steps, place=places)
    def fails_to_save_and_tries_again(self, more, place):
        batches = self.life.run.batches + more
        outcome, fired = self._save_with_a_fault("error", batches, place)
        name = name_at(self.attempt, batches)
        if outcome is None:
            self._committed_with_whatever_retention_did(name)
            return
        assert fired
        assert isinstance(outcome, StorageError)
        assert set(committed(self.root)) == self.present
        again = self.life.saved_at(batches)
        assert again in {name, name_at(self.attempt, batches, 2)}
        self.commit(again)
        self.present = self.pruned(self.keep)

    @precondition(lambda self: self.life)
    @rule(more=steps, place=places)
    def dies_while_saving(self, more, place):
        batches = self.life.run.batches + more
        outcome, fired = self._save_with_a_fault("kill", batches, place)
        name = name_at(self.attempt, batches)
        assert isinstance(outcome, Killed) == bool(fired)
        if name in committed(self.root):
            self._committed_with_whatever_retention_did(name)
        else:
            assert set(committed(self.root)) == self.present
        if fired:
            self.life = None

    @precondition(lambda self: self.life)
    @rule(keep=keeps, more=steps)
    def is_taken_over(self, keep, more):
        old = self.life
        self.starts(keep)
        before = tree(self.root)
        assert self._is_refused(old, more)
        assert tree(self.root) == before

    @precondition(lambda self: self.life)
    @rule(keep=keeps, more=steps, nth=st.integers(1, 30))
    def is_taken_over_while_saving(self, keep, more, nth):
        old = self.life
        name = name_at(self.attempt, old.run.batches + more)
        kept = self.present | {name}

        def take_over():
            # What landed before the takeover counts, if it landed.
            if name in committed(self.root):
                self._committed_with_whatever_retention_did(name)
            self.starts(keep)

        fault = old.storage.inject(Fault(take_over, nth=nth))
        outcome = old.save_at(old.run.batches + more).exception()
        if not fault.fired:
            self._committed_with_whatever_retention_did(name)
            old.storage.clear()
            return
        assert outcome is None or isinstance(outcome, StaleAttemptError), outcome
        there = set(committed(self.root))
        assert there <= kept
        # The old one may have been in its retention already, which spares the newest two and thereby the parent.
        assert set(self.on_lineage()[-2:]) <= there
        self.present = there
        assert self._is_refused(old, 1)

    @precondition(lambda self: len(self.sound()) > 1 and self.startable()[-1] not in self.bad)
    @rule(file=st.sampled_from(["manifest.json", "rank-00000.json", "rank-00000/optimizer-000.safetensors"]))
    def latest_is_damaged(self, file):
        corrupt(self.root, self.startable()[-1], file)
        self.bad.add(self.startable()[-1])

    @precondition(lambda self: self.life)
    @rule(keep=keeps)
    def is_pruned(self, keep):
        storage = self.root.storage()
        removed = Retention(storage, Index(storage).document(self.attempt), KeepLatest(keep)).prune()
        assert {str(name) for name in removed} == self.present - self.pruned(keep)
        self.present = self.pruned(keep)

    def _save_with_a_fault(self, action, batches, place):
        nth, when = place
        operations = DIVISIBLE if when == "during" else EVERY
        fault = self.life.storage.inject(Fault(action, operations=operations, nth=nth, when=when))
        outcome = self.life.save_at(batches).exception()
        self.life.storage.clear()
        return outcome, fault.fired

    def _is_refused(self, old, more):
        try:
            outcome = old.save_at(old.run.batches + more).exception()
        except StaleAttemptError:
            return True  # a save before this one found out
        return isinstance(outcome, StaleAttemptError)

    def _committed_with_whatever_retention_did(self, name):
        self.commit(name)
        there = set(committed(self.root))
        assert self.pruned(self.keep) <= there <= self.present
        self.present = there

    @invariant()
    def only_what_was_committed_and_not_removed_is_listed(self):
        assert [info.name for info in list_checkpoints(self.root.storage())] == sorted(self.present)

    @invariant()
    def every_sound_checkpoint_restores_bit_by_bit(self):
        for name in self.present - self.bad:
            assert digest_of(self.root, name) == digest_at(batches_of(name))

    @invariant()
    def the_latest_is_the_newest_on_the_lineage(self):
        latest = latest_checkpoint(self.root.storage())
        assert (latest.name if latest else None) == (self.startable() or [None])[-1]

    @invariant()
    def a_run_that_ever_committed_can_always_be_continued(self):
        assert bool(self.sound()) == bool(self.present)

    @invariant()
    def what_was_void_or_uncommitted_once_never_becomes_a_checkpoint(self):
        state = folders(tree(self.root))
        assert not self.void_or_worse & set(state.committed)
        self.void_or_worse |= {*state.void, *state.uncommitted}


RunMachine.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRun = RunMachine.TestCase
