"""Positions a ``mindspore.dataset`` pipeline inside training, by the number of batches delivered since epoch 0.

Guarantees: a deterministic pipeline continues with exactly the next batch, in the order of its epoch; what differs is
refused before the first batch. In addition to `is_fast`, the digest of the last delivered batch, taken before other
code can change it, is compared with the batch that the pipeline gives there now. One that draws from the process's
global generators is replayed from their state when the run began, and they stay where that leaves them. Main thread.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import mindspore.dataset as ds

from ckptkit.core.text import listed
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import Probe, digest_of
from ckptkit.mindspore.data.pipeline_nodes import (
    describe,
    differences,
    drawing_workers,
    fingerprint,
    is_fast,
    nodes,
    python_code_here,
    samplers_that_carry_epochs,
)
from ckptkit.mindspore.data.replay import another_batch, replay_epochs
from ckptkit.mindspore.rng import capture_host_rng, host_rng_drawn, restore_host_rng, undisturbed

_log = logging.getLogger("ckptkit")

_UNSET_SEED = 5489  # the default seed of std::mt19937; MindSpore takes it as "not set", and then seeds at random
_ENDLESS = 2**31 - 1  # epochs; fast recovery refuses MindSpore's own -1
_MAKERS = ("create_tuple_iterator", "create_dict_iterator")

Augmentation = Literal["stateless"] | None


class DatasetPosition:
    """Moves a pipeline to a position.

    Training makes its own iterator; so that it is positioned, the dataset's two methods that make iterators are
    shadowed from `prepare` to `iterator_made`.

    Args:
        dataset: The root of the pipeline, as passed to ``Model.train``.
        augmentation: ``"stateless"`` declares that the user's own Python code in it depends on its input only,
            so that skipped batches need not be replayed.
        seed: The dataset seed of the run; None for the one that the process has set.
    """

    def __init__(self, dataset: ds.Dataset, *, augmentation: Augmentation = None, seed: int | None = None) -> None:
        if ds.config.get_debug_mode():
            raise ResumeError("dataset debug mode ignores positions; call ds.config.set_debug_mode(False)")
        for name in dataset.get_sync_notifiers():
            raise ResumeError(
                f'sync_wait("{name}"): no checkpoint holds what training tells the pipeline there, so its batches '
                "could not be reproduced. Let them depend on (seed, epoch, index of the sample) only, as with "
                "ckptkit.data.Augmented, and remove sync_wait"
            )
        if augmentation not in (None, "stateless"):
            raise ValueError(f'augmentation must be None or "stateless", got {augmentation!r}')
        if seed == _UNSET_SEED:
            raise ValueError(f"the dataset seed {_UNSET_SEED} means no seed to MindSpore; use another one")
        self.dataset = dataset
        # Before any seed is set: for some sources MindSpore runs the whole pipeline to learn its size.
        self._fingerprint = fingerprint(dataset)
        self.size: int = self._fingerprint["size"]
        if self.size < 1:
            raise ResumeError("the dataset delivers no batch; check its source, and drop_remainder=True")
        self.is_declared_stateless = stateless = augmentation == "stateless"
        self._fast = is_fast(dataset, stateless=stateless)
        self._matters = {name for name, _ in drawing_workers(dataset, stateless=stateless)}
        self._may_draw_here = bool(python_code_here(dataset))
        self._given_seed = seed
        self._seed: int | None = None
        self._seed_before: int | None = None
        self._delivered = 0
        self._probe: str | None = None
        self._probed = 0
        self._base: Mapping[str, Any] | None = None
        self._shadows: dict[str, Callable[..., Any]] = {}
        self._made = False
        self._digests = Probe()
        self.own_draws: frozenset[str] = frozenset()  # the global generators that the pipeline was seen to draw from

    @property
    def seed(self) -> int:
        """The dataset seed in force when the iterator is made."""
        if self._seed is None:
            raise ResumeError("the dataset was not prepared: restore the state before the iterator is made")
        return self._seed

    @property
    def delivered(self) -> int:
        """Batches delivered, as of the last `prepare`."""
        _ = self.seed  # raises before that
        return self._delivered

    def at(self, delivered: int) -> tuple[int, int]:
        return divmod(delivered, self.size)

    def ends_epoch(self, delivered: int) -> bool:
        return delivered % self.size == 0

    def state(self, delivered: int) -> dict[str, Any]:
        probe = self._probe if delivered == self._probed else None  # None if a loop reads ahead and counts for itself
        return {**self._fingerprint, "seed": self.seed, "probe": probe, "generators": self._base}

    def check(self, recorded: Mapping[str, Any]) -> None:
        if "iterable" in recorded:
            raise ResumeError(
                f"the checkpoint was made with a {recorded['iterable']}, but this training reads a MindSpore "
                "pipeline. Use the same data as before, or start under another root"
            )
        lines = differences(recorded, self._fingerprint, self._matters)
        seed = self._seed_in_force()
        if seed not in (_UNSET_SEED, recorded["seed"]):
            lines.append(
                f"the dataset seed: the checkpoint has {recorded['seed']}, this process set {seed} "
                f"(use ms.set_seed({recorded['seed']}) or none)"
            )
        if lines:
            raise ResumeError(
                "the data would not continue where it stopped. Build the dataset as before, or start under another "
                f"root:{listed(lines)}"
            )

    def folded(self, recorded: Mapping[str, Any], ranks: int, onto: int) -> dict[str, Any]:
        """Convert as `Position.folded`, without the last batch's digest: no rank of this world delivers that batch."""
        order, before = self._fingerprint["global_order"], recorded.get("global_order")
        if order is None or before is None:
            raise ResumeError(
                f"the order of the samples in {describe(self.dataset) if order is None else 'the checkpoint'} does "
                f"not come from a GlobalSampler alone, so nothing guarantees that {onto} ranks continue where "
                f"{ranks} ranks stopped: give the source one with every number of ranks "
                "(ckptkit.data.Augmented(...).dataset(columns, ranks=ckptkit.data.GlobalSampler(...))), without "
                "shuffle or repeat after it" + ("" if order is None else f"; this run must continue with {ranks} ranks")
            )
        for batch_size in (recorded["batch_size"], self._fingerprint["batch_size"]):
            if batch_size != order["micro_batch"]:
                raise ResumeError(
                    f"micro_batch={order['micro_batch']} of the GlobalSampler, but batches of {batch_size}: samples "
                    "are dealt to ranks by micro-batches, whose size must stay the same; the checkpoint has batches "
                    f"of {recorded['batch_size']}"
                )
        if recorded["size"] * ranks != self.size * onto:
            raise ResumeError(
                f"an epoch was {ranks} ranks x {recorded['size']} batches = {ranks * recorded['size']}, and is "
                f"{onto} x {self.size} = {onto * self.size} now; the same samples must make up an epoch in every world"
            )
        mine = self._seed_in_force()
        # When several ranks continue from one, each may have its own seed; the order does not depend on it.
        seed = mine if onto > ranks and mine != _UNSET_SEED else recorded["seed"]
        return {**recorded, "size": self.size, "probe": None, "seed": seed}

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let the next iterator begin at the batch after ``delivered``; any code may make it, as usual."""
        if self._seed_before is None:
            self._seed_before = ds.config.get_seed()
        self._seed = int(recorded["seed"]) if recorded is not None else self._fresh_seed()
        with undisturbed():
            ds.config.set_seed(self._seed)
        self._delivered = delivered
        self._probe = recorded["probe"] if recorded is not None else None
        self._probed = delivered
        self._base = recorded["generators"] if recorded is not None else None
        self.own_draws = frozenset()
        self._made = False
        self._shadow()

    def iterator_made(self) -> None:
        """Undo what was only needed while the iterator was made; ResumeError if none was, or the seed was changed."""
        self.release()
        self._check_seed()
        if self._delivered and not self._made:
            raise ResumeError(
                "no iterator was made of the dataset that was restored, so no iterator is at batch "
                f"{self._delivered}; call its create_tuple_iterator or create_dict_iterator after the restore"
            )

    def nothing_left(self) -> None:
        """Declare that no iterator will be made: every epoch has been trained."""
        self._made = True

    def leave(self) -> None:
        """Leave the process as it was before `prepare`, including the seed: a later training may be another run."""
        self.release()
        if self._seed_before is not None and ds.config.get_seed() == self._seed:
            with undisturbed():
                ds.config.set_seed(self._seed_before)
        self._seed_before = None

    def release(self) -> None:
        """Let later iterators begin at the beginning; the seed stays in force for those of evaluation."""
        for name, shadow in self._shadows.items():
            if vars(self.dataset).get(name) is shadow:
                delattr(self.dataset, name)
        self._shadows.clear()

    def _shadow(self) -> None:
        self.release()
        for name in _MAKERS:
            self._shadows[name] = self._shadow_of(getattr(type(self.dataset), name))
            setattr(self.dataset, name, self._shadows[name])

    def _shadow_of(self, maker: Callable[..., Any]) -> Callable[..., Any]:
        # Must be a plain function: MindSpore copies the tree to make an iterator, and does not copy functions.
        return lambda *args, **kwargs: self._positioned(maker, args, kwargs)

    def _positioned(self, maker: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_seed()
        call = inspect.signature(maker).bind(self.dataset, *args, **kwargs)
        epochs = call.arguments.get("num_epochs", -1)
        if 0 <= epochs * self.size <= self._delivered and self._delivered:
            raise ResumeError(
                f"num_epochs={epochs} are {epochs * self.size} batches, but {self._delivered} were delivered: pass the "
                "total since epoch 0 to one iterator for all epochs; make none if training has reached that total"
            )

        def make(skipped_epochs: int = 0) -> Any:
            if self._delivered:
                call.arguments["num_epochs"] = (epochs if epochs >= 0 else _ENDLESS) - skipped_epochs
            return maker(*call.args, **call.kwargs)

        if not self._delivered:
            self._base = capture_host_rng() if self._may_draw_here else None
            iterator = make()
        else:
            if any(type(node).__name__ == "ShuffleDataset" for node in nodes(self.dataset)):
                words = "the pipeline has a shuffle buffer, so MindSpore reads every sample before batch %d again"
                _log.info(words, self._delivered)
            iterator = (self._forwarded(make) if self._fast else None) or self._replayed(make)
        self._made = True
        return _CountedIterator(iterator, self._delivered, self)

    def note_delivered(self, batch: Any, delivered: int) -> None:
        self._probe, self._probed = self._digests.of(batch), delivered

    def _forwarded(self, make: Callable[[int], Any]) -> Any:
        """Return an iterator by MindSpore's fast recovery; None if it gives another batch as the last delivered one."""
        recovery = ds.config.get_fast_recovery()
        start = self._delivered - (self._probe is not None)
        # MindSpore asks a sampler for the order of every skipped epoch; these samplers can begin at a later epoch.
        samplers = samplers_that_carry_epochs(self.dataset)
        skipped_epochs = start // self.size if samplers else 0
        if any(isinstance(node, ds.MapDataset) for node in nodes(self.dataset)):
            _log.info(
                "if MindSpore warns next of a skip node below a map node: that is about random transformations, and "
                "this pipeline has none"
            )
        with undisturbed():
            try:
                ds.config.set_fast_recovery(True)
                # On the root, in batches. The object keeps the setting, hence the reset.
                self.dataset.set_init_step(start - skipped_epochs * self.size)
                for sampler in samplers:
                    sampler.epoch = skipped_epochs
                iterator = make(skipped_epochs)
            finally:
                self.dataset.set_init_step(0)
                for sampler in samplers:
                    sampler.epoch = 0
                ds.config.set_fast_recovery(recovery)
            if self._probe is None:
                return iterator
            digest = digest_of(next(iterator, None))
            # After an epoch's last batch an iterator ends once, and then continues with the next epoch.
            if digest == self._probe and (self._delivered % self.size or next(iterator, None) is None):
                return iterator
            iterator.stop()
        _log.warning(
            "%s gives a different batch %d when the batches before it are skipped, so a part of it is not "
            "stateless; replaying it instead",
            *(describe(self.dataset), self._delivered - 1),
        )
        return None

    def _replayed(self, make: Callable[[], Any]) -> Any:
        """Return an iterator that has delivered every trained batch, all discarded."""
        before = capture_host_rng()
        base = self._base if self._base is not None else before
        restore_host_rng(base)
        iterator = make()
        last = replay_epochs(iterator, self._delivered, self.size)
        if self._probe is not None and digest_of(last) != self._probe:
            iterator.stop()
            restore_host_rng(before)
            raise ResumeError(another_batch(describe(self.dataset), self._delivered - 1))
        self.own_draws = host_rng_drawn(base) if self._base is not None else frozenset()
        # Its threads read ahead and keep drawing: leave the generators that they draw from alone.
        restore_host_rng({name: state for name, state in before.items() if name not in self.own_draws})
        if self.own_draws:
            _log.warning(
                "%s draws from the global generators of %s. That resumes exactly only as long as nothing else draws "
                "from them while training; let it draw from ckptkit.data.sample_rng(seed, epoch, index)",
                *(describe(self.dataset), " and ".join(sorted(self.own_draws))),
            )
        return iterator

    def _check_seed(self) -> None:
        seed = ds.config.get_seed()
        if seed != self._seed:
            raise ResumeError(
                f"the dataset seed was {self._seed} when the run was resumed and is {seed} now; "
                "call ms.set_seed before resume(), not after it"
            )

    def _seed_in_force(self) -> int:
        return self._given_seed if self._given_seed is not None else int(ds.config.get_seed())

    def _fresh_seed(self) -> int:
        seed = self._seed_in_force()
        if seed != _UNSET_SEED:
            return seed
        seed = secrets.randbelow(2**31 - 1)
        seed += seed >= _UNSET_SEED  # never that one
        _log.info(
            "no dataset seed was set, which could not be resumed: drew %d and recorded it in the run; "
            "ms.set_seed(%d) gives the same order of data again",
            *(seed, seed),
        )
        return seed


class _CountedIterator:
    """Tells a position of each batch before it delivers it; otherwise the iterator of MindSpore that it wraps."""

    def __init__(self, iterator: Any, delivered: int, position: DatasetPosition) -> None:
        self._iterator = iterator
        self._delivered = delivered
        self._position = position

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._delivered += 1
        self._position.note_delivered(batch, self._delivered)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)
