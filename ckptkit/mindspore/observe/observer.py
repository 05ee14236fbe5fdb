"""Finds what training changes, stores it, puts it back, and says what cannot be stored: `Observer`.

It looks before the first micro-step, after 1, 2, 4, 8, ... of them, at each end of an epoch, and before a save if a
look is quick, or if looks have taken less than a hundredth of the time since the last one. What differs from the first
look has changed, and is stored from the next save on.

An object that the first look sees has a *home*, the path at which it is seen. It is at home there in the next process,
too, whose first look sees what a script begins with. So all that is stored is said of these objects: their new content
(of a list, a dict, an array), and what one of their attributes, or a variable, leads to now: a plain value, a new
object, or one that has a home.

Guarantees: a look changes nothing. `Observer.begin` changes only what a checkpoint holds. Main thread only.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.observe.data_changes import DataChanges
from ckptkit.mindspore.observe.kinds import MOST_ITEMS, OUTSIDE, Known
from ckptkit.mindspore.observe.liveness import gathers
from ckptkit.mindspore.observe.outside import Outside
from ckptkit.mindspore.observe.packing import CannotPackError, Packer, Unpacker, has_content, refilled, signature_of
from ckptkit.mindspore.observe.paths import Chain, chain_of, is_below, plain_chain
from ckptkit.mindspore.observe.places import Places, is_followed, is_settable
from ckptkit.mindspore.observe.roots import Reached, Roots, is_module_level, label_of, users_frames
from ckptkit.mindspore.observe.users import is_users_function
from ckptkit.mindspore.observe.walk import OF_DATA, Home, Node, Walk
from ckptkit.mindspore.parameters.memory import is_compiled

MOST_BYTES = 1 << 24
_LOOK_SHARE = 100  # of the time
_FEW_NODES = 3_000  # looked at before each save
_CONTAINERS = (list, dict, set, deque)
_IN_GRAPH = "compiled into the graph with its first value in this process"
_LATE = "changes after step()"
_GATHERED = "comprehension around the batches", "what it has made of them lies in no variable"
_OF_DATA = "belongs to the data, but the steps change it"
_CHOICE = re.compile(r"[^\W\d][^\s\d]{0,39}")  # of a script; folders, names of runs and times are not so
_LARGEST = {int: 1 << 24, float: 100.0}  # numbers that a script begins with; times, addresses and hashes are larger


class Slot(NamedTuple):
    """Says what of an object is stored: its content, or else what a path leads to."""

    chain: Chain  # of an object that was there as the training began, or of a part of one
    is_content: bool
    path: str  # that it is told by


class Observer:
    """Observes one training.

    Args:
        reach: Gives what the training reaches, now.
        ignore: Patterns of paths that are neither stored nor named, and objects.
        monotonic: Gives seconds.

    Attributes:
        unstored: Why what changes is not stored, by path.
        reached_code: The user's functions, and the cells, of the first look: path, object, whether MindSpore wraps it.
        reaches_compiled: Whether the training reaches a function that ``@ms.jit`` has made.
    """

    def __init__(
        self,
        reach: Callable[[], Reached],
        *,
        ignore: Sequence[Any] = (),
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._reach = reach
        self._monotonic = monotonic
        patterns = [pattern for pattern in ignore if type(pattern) is str]
        self._patterns = [re.compile(re.escape(pattern).replace(r"\*", ".*")) for pattern in patterns]
        self._ignored = [value for value in ignore if type(value) is not str]
        self._roots, self._data, self._outside = Roots(), DataChanges(), Outside()
        self._saved: Mapping[str, Any] | None = None
        self._packed_first: Any = None  # the texts by path of the first look of the run's first start
        self._nodes: dict[str, Node] | None = None  # of the last look, by path, without their objects; None before one
        self._before: Mapping[str, Node] = {}  # of the look before that one
        self._homes: dict[int, Home] = {}  # by the id of an object, which may be another one's by now: `_home_of`
        self._first: dict[str, str] = {}  # texts of the first look, by homes, or by the paths of what has none
        self._links: dict[str, str | None] = {}  # the homes to which paths led at the first look
        self._slots: dict[tuple[str, bool], Slot] = {}  # by the home or the path, and whether it is content
        self._labels: Set[str] = frozenset()  # of the functions that ran at the first look
        self._modules: Set[Any] = frozenset()  # those whose own code loops over epochs
        self._around_epochs: Set[str] = frozenset()  # functions that run where a loop asks for its next epoch
        self._of_epochs: Set[str] = frozenset()  # those that run only where it asks for a batch, and end in each epoch
        self._given: Set[int] = frozenset()  # the ids of objects given by name that have a state of their own
        self._in_graph = self._asks_next = self.reaches_compiled = False
        self._steps, self._epoch = 0, -1
        self._looked_at, self._looked_step, self._look_seconds = float("-inf"), -1, 0.0
        self.reached_code: list[tuple[str, Any, bool]] = []
        self.unstored: dict[str, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the first look is done."""
        return self._nodes is not None

    @property
    def stored(self) -> list[str]:
        """The paths of what is stored."""
        return [*dict.fromkeys(slot.path for slot in self._slots.values())]

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Keep the section of a checkpoint until `begin`; None for a run that begins."""
        self._saved, self._nodes = saved, None

    def begin(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """Look for the first time, as the first batch is handed out; put back what the checkpoint holds.

        Returns:
            The paths of what could not be put back, and why; the paths of what differs from the first look of the saved
            run, and its texts then and now.
        """
        saved, self._saved = self._saved, None
        lost: list[tuple[str, str]] = []
        differing: list[tuple[str, str, str]] = []
        nodes = self._look(at_batch=True)
        for node in nodes.values():
            signature, chain = signature_of(node.value), node.chain()
            if signature is not None and is_followed(chain) and node.identity not in self._homes:
                self._homes[node.identity] = Home(node.path, chain, signature)
        self._labels = frozenset(map(label_of, users_frames(sys._getframe(1))))
        self.reaches_compiled = any(is_compiled(node.value) for node in nodes.values())
        self.reached_code = [*_reached_code(nodes)]
        self._outside.begin()
        first = {path: node.text for path, node in nodes.items()}
        if saved is None:
            self._packed_first = np.frombuffer(zlib.compress(json.dumps(first).encode()), np.uint8)
        else:
            self._packed_first = saved["first"]
            differing = self._differing(saved, nodes)
            lost = self._put_back(saved["slots"])
            self._finish(nodes)
            nodes = self._look(at_batch=True)
        self._settle(nodes)
        for node in nodes.values():
            self._note(node)
        self._finish(nodes)
        return lost, differing

    def note_place(self, *, is_within_epoch: bool) -> None:
        """Note the live variables of the functions that run now: in a loop of epochs a resume may begin here, too.

        Args:
            is_within_epoch: Whether the loop asks for a batch, and not for the next epoch.
        """
        frames = users_frames(sys._getframe(1))
        self._roots.note_live(frames, by_model=False)
        labels = frozenset(map(label_of, frames))
        if is_within_epoch:
            self._labels |= labels
            self._modules = frozenset(frame.f_globals.get("__name__") for frame in frames if is_module_level(frame))
            self._of_epochs = labels - self._around_epochs
        else:
            self._around_epochs = labels

    def end_step(self, epoch: int) -> None:
        """Look if one is due, at the end of a micro-step of ``epoch``, or of the one before it."""
        if self._nodes is None:
            return
        self._steps += 1
        if self._steps & (self._steps - 1) == 0 or epoch != self._epoch:
            self._look_at_changes(at_batch=False)
            self._asks_next = True
        self._epoch = epoch

    def hand_out(self, *, ends_epoch: bool) -> None:
        """Look at the data as a batch is handed out, if the step after it ends with a look."""
        if (self._steps + 1) & self._steps == 0 or ends_epoch:
            self._data.look(self._reach(), self._steps + 1, is_handed_out=True)

    def ask_batch(self) -> None:
        """Look once more before the next batch is made, if the last look was just now: a resume begins here."""
        if self._asks_next and (before := self._nodes) is not None:
            self._asks_next = False
            for path, node in self._look_at_changes(at_batch=True).items():
                slot = self._slot_of_content(node)
                if slot is not None and path in before and before[path].text != node.text:
                    self.unstored.setdefault(slot.path, _LATE)

    def texts(self, frame: types.FrameType) -> dict[str, str]:
        """Return the texts by path of a look that nothing depends on."""
        nodes = self._look(at_batch=False, frame=frame)
        self._finish(nodes)
        return {path: node.text for path, node in nodes.items()}

    def section(self, frame: types.FrameType) -> dict[str, Any] | None:
        """Return what a checkpoint stores; None before the first batch."""
        if self._nodes is None:
            return None
        since = self._monotonic() - self._looked_at
        is_quick = len(self._nodes) < _FEW_NODES or since > self._look_seconds * _LOOK_SHARE
        if self._looked_step != self._steps and is_quick:
            self._look_at_changes(at_batch=False)
        reached = self._reach()
        places = Places(reached, [*users_frames(frame), *self._roots.generators()])
        packer, slots = self._packer(reached.known, places), []
        at = {(node.key, False): node for node in self._nodes.values()}
        at |= {(node.home.path, True): node for node in self._nodes.values() if node.home is not None}
        ended = self._of_epochs - {*map(label_of, users_frames(frame))}  # their variables are gone
        for key, (chain, is_content, path) in self._slots.items():
            if key not in at:  # what is gone is of no use to anybody
                continue
            here = at[key].chain()
            if any(root.kind == "variable" and root.owner in ended for root, _ in (here, chain)):
                continue
            try:
                value = places.follow(here)
                slots.append([path, plain_chain(chain), *packer.slot(value, is_content=is_content)])
            except CannotPackError as error:
                self.unstored.setdefault(path, str(error))
        unstored = sorted(self.unstored.items())
        return {"first": self._packed_first, "epochs": reached.epochs, "slots": slots, "unstored": unstored}

    def _look(self, *, at_batch: bool, frame: types.FrameType | None = None) -> dict[str, Node]:
        began = self._monotonic()
        reached = self._reach()
        frames = users_frames(frame or sys._getframe(1))
        reached.known.stored |= {id(value) for value in (self, *self._ignored)}
        walk = Walk(reached.known)
        self._roots.add_to(walk, reached, frames, at_batch=at_batch)
        self._data.look(reached, -2 if at_batch else self._steps, is_handed_out=False)
        reached.known.data = self._data.objects
        walk.run()
        self._before, self._nodes = self._nodes or {}, walk.nodes
        self._looked_at, self._looked_step = self._monotonic(), self._steps
        self._look_seconds = self._looked_at - began
        methods = ("state_dict", "load_state_dict")
        self._given = {id(value) for _, value in reached.given if all(hasattr(type(value), name) for name in methods)}
        self._in_graph = reached.in_graph
        return walk.nodes

    def _settle(self, nodes: Mapping[str, Node]) -> None:
        """Give nodes their homes, and the paths that begin there.

        An object that replaces another one of its kind, which is gone, gets its home.
        """
        inhabited = {home.path for node in nodes.values() if (home := self._home_of(node.value)) is not None}
        left = {home.path: (identity, home) for identity, home in self._homes.items() if home.path not in inhabited}
        for node in nodes.values():  # those of owners come first
            owner = node.parent
            # Of what has no home, the parts are none of the object whose home its path is.
            start = "" if owner is None else owner.home.path if owner.home else f"{owner.key}*"
            node.key = f"{start}{node.step}"
            node.home = self._home_of(node.value)
            if node.home is None and node.key in left and left[node.key][1].signature == signature_of(node.value):
                identity, node.home = left.pop(node.key)
                del self._homes[identity]
                self._homes[node.identity] = node.home

    def _home_of(self, value: Any) -> Home | None:
        home = self._homes.get(id(value))
        return home if home is not None and home.signature == signature_of(value) else None

    def _note(self, node: Node) -> None:
        self._links.setdefault(node.key, node.home and node.home.path)
        self._first.setdefault(node.home.path if node.home else node.key, node.text)

    def _look_at_changes(self, *, at_batch: bool) -> dict[str, Node]:
        """Look, and add what differs from the first look to the slots, or to what cannot be stored."""
        nodes = self._look(at_batch=at_batch)
        self._settle(nodes)
        for node in nodes.values():
            home, is_new = node.home and node.home.path, node.key not in self._links
            is_moved = self._is_late(node) if is_new else self._links[node.key] != home
            is_moved = is_moved and node.step[0] != "class"  # MindSpore gives a cell another one of the same name
            is_changed = self._first.get(home or node.key, node.text) != node.text or node.text == OUTSIDE
            is_shared = home not in (None, node.key) and (home, True) in self._slots  # the next process may have two
            if (is_moved or is_shared or (is_changed and home is None)) and not self._slot_of_link(node):
                self._add_link(node, is_named=is_moved or home is None)
            if is_changed and home is not None and not self._slot_of_content(node):
                self._add_content(node, nodes)
            if not (is_new and is_moved):
                self._note(node)
        referred = [node.text.removeprefix(OF_DATA) for node in nodes.values() if node.text.startswith(OF_DATA)]
        changed = [(path, _OF_DATA) for path in self._data.changed(referred)]
        gathered = [_GATHERED] if any(map(gathers, users_frames(sys._getframe(1)))) else []
        for name, why in (*changed, *gathered, *self._outside.changed()):
            if not self._matches(name):
                self.unstored.setdefault(name, why)
        self._finish(nodes)
        return nodes

    def _finish(self, nodes: Mapping[str, Node]) -> None:
        """Let go of the objects, which training may delete."""
        for node in nodes.values():
            node.value = None

    def _is_late(self, node: Node) -> bool:
        """Return whether a path is new on an object that was there before, or a variable in a function that was."""
        if node.parent is None:
            root, _ = node.chain()
            return root.owner in {"variable": self._labels, "global": self._modules}.get(root.kind, ())
        before = self._before.get(node.parent.path)
        return before is not None and before.is_open and before.identity == node.parent.identity

    def _slot_of_link(self, node: Node) -> Slot | None:
        """Return the slot that stores what the path of a node leads to."""
        owner, slot = node.parent, self._slots.get((node.key, False))
        if slot is not None or owner is None:
            return slot
        return self._slot_of_content(owner) if owner.home is None or node.step[0] in ("item", "key") else None

    def _slot_of_content(self, node: Node) -> Slot | None:
        """Return the slot that stores the content of a node."""
        return self._slot_of_link(node) if node.home is None else self._slots.get((node.home.path, True))

    def _add_link(self, node: Node, *, is_named: bool = True) -> None:
        """Store what a path leads to, with the container around it or the nearest part of an object that can be set."""
        owner, why = node.parent, ""
        if self._is_ignored(node):
            return
        held_by = None if owner is None else owner.value
        is_compiled_here = is_named and (self._in_graph or issubclass(type(held_by), nn.Optimizer))
        if is_compiled_here and issubclass(type(held_by), nn.Cell) and not issubclass(type(node.value), ms.Tensor):
            self.unstored.setdefault(node.path, _IN_GRAPH)
        if owner is not None and owner.home is None:
            if not self._slot_of_link(owner):
                self._add_link(owner, is_named=is_named)
            return
        if issubclass(type(held_by), _CONTAINERS) and owner is not None and node.step[0] != "attribute":
            why = self._add(owner, is_content=True)
            if not why:
                return
        chain = node.chain()
        if owner is not None and owner.home is not None:
            root, steps = owner.home.chain
            chain = root, (*steps, node.step)  # type: ignore[arg-type]  # only a root has another
        why = self._add(node, chain) if is_settable(chain, held_by) else why or node.text
        if why and is_named and not self._is_given(node):
            self.unstored.setdefault(_label(node), why)

    def _add_content(self, node: Node, nodes: Mapping[str, Node]) -> None:
        why = self._add(node, is_content=True) if has_content(node.value) else node.text
        if not why or self._is_ignored(node) or self._is_given(node):
            return
        is_walked = issubclass(type(node.value), (dict, list)) and len(node.value) <= MOST_ITEMS
        has_lost = any(path.startswith(f"{node.path}[") and path not in nodes for path in self._before)
        if not is_walked or has_lost:  # else what was added to it is judged by itself
            self.unstored.setdefault(_label(node), why)

    def _add(self, node: Node, chain: Chain | None = None, *, is_content: bool = False) -> str:
        """Add a slot, and return nothing; or why the value cannot be stored."""
        if self._is_ignored(node):
            return ""
        try:
            reached = self._reach()
            places = Places(reached, users_frames(sys._getframe(1)))
            self._packer(reached.known, places).slot(node.value, is_content=is_content)
        except CannotPackError as error:
            return str(error)
        key = node.home.path if is_content and node.home else node.key
        chain = chain or (node.home.chain if node.home else node.chain())
        self._slots[key, is_content] = Slot(chain, is_content, _label(node))
        return ""

    def _packer(self, known: Known, places: Places) -> Packer:
        def reference(value: Any) -> Any:
            """Return how the next process reaches an object that it has too."""
            kind: Any = type(value)
            if issubclass(kind, (types.FunctionType, type)):
                name = value.__module__, value.__qualname__
                if "<" not in name[1] and places.named(*name) is value:
                    return ["named", *name]
            if (home := self._home_of(value)) is not None:
                return ["path", *plain_chain(home.chain)]
            if issubclass(kind, ms.Parameter) and id(value) in known.names:
                return ["stored", known.names[id(value)]]
            return None

        return Packer(reference, MOST_BYTES, places.owner_of, known.stored | self._homes.keys())

    def _put_back(self, slots: Sequence[Any]) -> list[tuple[str, str]]:
        """Make all values, then set them: paths and references lead to what is there before one of them is set."""
        places = Places(self._reach(), users_frames(sys._getframe(1)))
        lost: list[tuple[str, str]] = []
        ready: list[tuple[str, bool, Any, Any]] = []  # path, whether content, object or setter, value
        unpacker = Unpacker(places.resolve, places.class_of)
        for path, place, first, packed in slots:
            chain, is_content = chain_of(place), packed[0] == "content"
            try:
                target = places.follow(chain) if is_content else places.setter(chain)
                value = unpacker.slot(first, packed)
                if is_content and not _may_fill(target, value):
                    raise CannotPackError(f"a {type(target).__name__} in this process")
            except CannotPackError as error:
                lost.append((path, str(error)))
                continue
            ready.append((path, is_content, target, value))
            self._slots[_text(chain), is_content] = Slot(chain, is_content, path)
        for path, is_content, target, value in ready:
            try:
                if is_content:
                    refilled(target, value)
                else:
                    target(value)
            except (AttributeError, TypeError, IndexError, ValueError, KeyError) as error:
                lost.append((path, str(error)))
        for path, is_content, target, value in ready:  # a view has its content by now, if what it shows was stored
            is_array = is_content and issubclass(type(target), np.ndarray)
            if is_array and np.ndarray.tobytes(target) != value.tobytes():
                lost.append((path, "shows an array that is not stored"))
        return lost

    def _differing(self, saved: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[tuple[str, str, str]]:
        """Return what is not as at the first look of the saved run, but for what training changes."""
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        epochs = f"int {saved['epochs']}", f"int {self._reach().epochs}"  # training longer is no difference
        texts: dict[str, str] = json.loads(zlib.decompress(saved["first"].tobytes()))
        differing = []
        for path, text in texts.items():
            node = nodes.get(path)
            if node is None or text == node.text or (text, node.text) == epochs:
                continue
            home = self._homes.get(node.identity)  # it may be stored by another path
            is_stored = is_below(path, changed) or (home is not None and is_below(home.path, changed))
            if not (is_stored or _is_mark(node) or self._is_ignored(node)):
                differing.append((path, text, node.text))
        return differing

    def _is_given(self, node: Node) -> bool:
        """Return whether a node is a part of an object that says itself how it is stored."""
        return any(part.identity in self._given for part in node.outwards())

    def _is_ignored(self, node: Node) -> bool:
        """Return whether a node, or what it is a part of, is ignored."""
        return any(self._matches(part.path) for part in node.outwards())

    def _matches(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._patterns)


def _text(chain: Chain) -> str:
    return f"{chain[0]}{''.join(map(str, chain[1]))}"


def _label(node: Node) -> str:
    """Return the path of the outermost container or iterator around a node."""
    return next(part.path for part in node.outwards() if part.step[0] not in ("item", "key", "part"))


def _may_fill(present: Any, value: Any) -> bool:
    """Return whether an object can get the content of a value."""
    if isinstance(value, (ms.Tensor, np.ndarray)):
        return has_content(present) and (signature_of(present) or ())[1:] == signature_of(value)[1:]
    kinds: dict[type, Any] = {list: (list, deque), bytes: bytearray}  # as `Packer` stores the content of these
    return issubclass(type(present), kinds.get(type(value), type(value)))


def _is_mark(node: Node) -> bool:
    """Return whether a value may be one of the process, not of the training: an address, a hash, a time, a folder."""
    value = node.value
    if type(value) in _LARGEST:
        return bool(math.isfinite(value) and abs(value) > _LARGEST[type(value)])
    is_text = type(value) is str and _CHOICE.fullmatch(value) is None
    return is_text or issubclass(type(value), (bytes, PurePath)) or node.chain()[0].kind == "environment"


def _reached_code(nodes: Mapping[str, Node]) -> Iterator[tuple[str, Any, bool]]:
    for path, node in nodes.items():
        if type(node.value) is types.FunctionType and is_users_function(node.value):
            holder = None if node.parent is None else node.parent.value
            is_wrapped = type(holder) is types.FunctionType and not is_users_function(holder)
            yield path, node.value, is_wrapped
        elif issubclass(type(node.value), nn.Cell):
            yield path, node.value, False
