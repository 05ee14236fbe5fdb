"""Finds what training changes, stores it, puts it back, and says what cannot be stored: `Observer`.

It looks before the first micro-step, after 1, 2, 4, 8, ... of them, at each end of an epoch, and before a save if a
look is quick, or if looks have taken less than a hundredth of the time since the last one. What differs from the first
look has changed. A part that has changed is stored from the next save on as its slot: the outermost container around it
that can be stored whole, in an attribute, a key, a global, a variable of a closure or of a running function.

Guarantees: a look changes nothing. `Observer.begin` changes only what a checkpoint holds. Main thread only.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.observe.data_changes import DataChanges
from ckptkit.mindspore.observe.outside import Outside
from ckptkit.mindspore.observe.packing import CannotPackError, Packer
from ckptkit.mindspore.observe.paths import Chain, chain_of, is_below, plain_chain
from ckptkit.mindspore.observe.places import Places, is_followed, is_reachable
from ckptkit.mindspore.observe.roots import Reached, Roots, label_of, users_frames
from ckptkit.mindspore.observe.users import is_users_class, is_users_function
from ckptkit.mindspore.observe.values import CONTAINERS, GENERATORS, MOST_ITEMS, OUTSIDE, text_of
from ckptkit.mindspore.observe.walk import OF_DATA, Node, Walk
from ckptkit.mindspore.parameters.memory import is_compiled

MOST_BYTES = 1 << 24
_LOOK_SHARE = 100  # of the time
_FEW_NODES = 3_000  # looked at before each save
_INSIDE = ("item", "key", "part")
_BY_REFERENCE = (nn.Cell, type, types.ModuleType, types.FunctionType)  # what they hold is not stored with a container
_SHARED = (list, dict, set, deque, bytearray, np.ndarray, *GENERATORS)  # several paths may lead to one and change it
_IN_GRAPH = "compiled into the graph with its first value in this process"
_LATE = "changes after step()"
_OF_DATA = "belongs to the data, but the steps change it"
_CHOICE = re.compile(r"[^\W\d][^\s\d]{0,39}")  # of a script; folders, names of runs and times are not so
_LARGEST = {int: 1 << 24, float: 100.0}  # numbers that a script begins with; times, addresses and hashes are larger


class Observer:
    """Observes one training.

    Args:
        reach: Gives what the training reaches, now.
        epoch: Gives the number of its epoch, now.
        ignore: Patterns of paths that are neither stored nor named, and objects.
        monotonic: Gives seconds.

    Attributes:
        slots: The ways to what is stored, by path.
        unstored: Why what changes is not stored, by path.
        reached_code: The user's functions, and the cells, of the first look: path, object, whether MindSpore wraps it.
        reaches_compiled: Whether the training reaches a function that ``@ms.jit`` has made.
    """

    def __init__(
        self,
        reach: Callable[[], Reached],
        epoch: Callable[[], int],
        *,
        ignore: Sequence[Any] = (),
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._reach, self._epoch_now, self._monotonic = reach, epoch, monotonic
        patterns = [pattern for pattern in ignore if type(pattern) is str]
        self._patterns = [re.compile(re.escape(pattern).replace(r"\*", ".*")) for pattern in patterns]
        self._ignored = [value for value in ignore if type(value) is not str]
        self._roots, self._data, self._outside = Roots(), DataChanges(), Outside()
        self._saved: Mapping[str, Any] | None = None
        self._first: dict[str, str] = {}  # texts by path of the first look, and of what came later when it came
        self._packed_first: Any = None  # those of the run's first start
        self._nodes: dict[str, Node] | None = None  # of the last look, by path, without their objects; None before one
        self._before: Mapping[str, Node] = {}  # of the look before that one
        self._labels: Set[str] = frozenset()  # of the functions that ran at the first look
        self._around_epochs: Set[str] = frozenset()  # functions that run where a loop asks for its next epoch
        self._of_epochs: Set[str] = frozenset()  # those that run only where it asks for a batch, and end in each epoch
        self._given: Set[int] = frozenset()  # the ids of objects given by name that have a state of their own
        self._in_graph = False
        self._steps, self._epoch = 0, -1
        self._looked_at, self._looked_step, self._look_seconds = float("-inf"), -1, 0.0
        self._asks_next = False
        # What looks saw, by id: a weak reference, since another object may get the id, or None; its path.
        self._objects: dict[int, tuple[weakref.ref[Any] | None, str, Chain]] = {}
        self._whole: list[str] = []  # the paths of slots that have the parts of what they lead to
        self._identities: dict[str, int] = {}  # of the first object at each path
        self._present: Set[int] = frozenset()  # the identities that the last look saw
        self.reaches_compiled = False
        self.reached_code: list[tuple[str, Any, bool]] = []
        self.slots: dict[str, Chain] = {}
        self.unstored: dict[str, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the first look is done."""
        return self._nodes is not None

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
        self._labels = frozenset(map(label_of, users_frames(sys._getframe(1))))
        self.reaches_compiled = any(is_compiled(node.value) for node in nodes.values())
        self.reached_code = [*_reached_code(nodes)]
        self._outside.begin()
        self._first = {path: node.text for path, node in nodes.items()}
        if saved is not None:
            differing = self._differing(saved, nodes)
            lost = self._put_back(saved, nodes)
            self._finish(nodes)  # paths lead to these objects in the next process
            nodes = self._look(at_batch=True)
            self._packed_first = saved["first"]
            # What differs as a start begins has been said, and training has not changed it; what is stored has.
            texts: dict[bool, dict[str, str]] = {True: {}, False: {}}
            for node in nodes.values():
                texts[self._slot_above(node) is not None][self._first_path(node)] = node.text
            self._first = texts[True] | _unpacked_texts(saved["first"]) | texts[False]
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
            self._of_epochs = labels - self._around_epochs
        else:
            self._around_epochs = labels

    def end_step(self) -> None:
        """Look if one is due, at the end of a micro-step."""
        if self._nodes is None:
            return
        self._steps += 1
        epoch = self._epoch_now()
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
            for path, node in [*self._look_at_changes(at_batch=True).items()]:
                slot = self._slot_above(node)
                if slot is not None and path in before and before[path].text != node.text:
                    self.unstored.setdefault(slot, _LATE)

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
        if self._packed_first is None:
            self._packed_first = np.frombuffer(zlib.compress(json.dumps(self._first).encode()), np.uint8)
        reached = self._reach()
        places = Places(reached, [*users_frames(frame), *self._roots.generators()])
        packer = self._packer(places)
        slots: list[Any] = []
        ended = self._of_epochs - {*map(label_of, users_frames(frame))}  # their variables are gone
        for path, chain in sorted(self.slots.items(), key=lambda slot: len(slot[1][1])):  # owners before their parts
            if chain[0].kind == "variable" and chain[0].owner in ended:
                continue
            try:
                slots.append([path, plain_chain(chain), *packer.slot(path, places.follow(chain))])
            except CannotPackError as error:
                if not is_below(path, self.slots.keys() - {path}):  # which stores it, or is named
                    self.unstored.setdefault(path, str(error))
        unstored = sorted(self.unstored.items())
        own = {"first": self._packed_first, "epochs": reached.epochs}
        return {**own, "slots": slots, "unstored": unstored}

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
        self._before, self._nodes, self._whole = self._nodes or {}, walk.nodes, []
        self._present = {node.identity for node in walk.nodes.values()}
        for path in self.slots.keys() & walk.nodes.keys():
            self._note_whole(walk.nodes[path])
        self._looked_at, self._looked_step = self._monotonic(), self._steps
        self._look_seconds = self._looked_at - began
        methods = ("state_dict", "load_state_dict")
        self._given = {id(value) for _, value in reached.given if all(hasattr(type(value), name) for name in methods)}
        self._in_graph = reached.in_graph
        return walk.nodes

    def _look_at_changes(self, *, at_batch: bool) -> dict[str, Node]:
        """Look, and add what differs from the first look to the slots, or to what cannot be stored."""
        nodes = self._look(at_batch=at_batch)
        for path, node in nodes.items():
            name = self._first_path(node)
            first = self._first.get(name, self._first.get(path))
            if first is None:
                if node.text.startswith("the parameter ") or not self._is_late(node):
                    self._first[name] = node.text
                    continue
            elif first == node.text and node.text != OUTSIDE and not self._is_swapped(node):
                continue
            if self._slot_above(node) is None and not self._is_ignored(node):
                self._add(node, nodes)
        self._add_shared(nodes)
        referred = [node.text.removeprefix(OF_DATA) for node in nodes.values() if node.text.startswith(OF_DATA)]
        changed = [(path, _OF_DATA) for path in self._data.changed(referred)]
        for name, why in (*changed, *self._outside.changed()):
            if not self._matches(name):
                self.unstored.setdefault(name, why)
        self._finish(nodes)
        return nodes

    def _finish(self, nodes: Mapping[str, Node]) -> None:
        """Note which objects have which paths, and let go of them, which training may delete."""
        for node in nodes.values():
            kind: Any = type(node.value)
            is_object = issubclass(kind, (nn.Cell, types.FunctionType)) or is_users_class(kind)
            if is_object and not issubclass(kind, tuple) and node.path in self._first and is_reachable(node):
                before = self._identities.setdefault(node.path, node.identity)
                if self._place_of(node.value) is None and not self._is_alive(before, node.path):
                    self._objects[node.identity] = _reference_to(node.value), node.path, node.chain()
            node.value = None

    def _is_late(self, node: Node) -> bool:
        """Return whether a path is new on an object that was there before, or a variable in a function that was."""
        if node.parent is None:
            root, _ = node.chain()
            return root.kind == "variable" and root.owner in self._labels
        before = self._before.get(node.parent.path)
        return before is not None and before.is_open and before.identity == node.parent.identity

    def _is_swapped(self, node: Node) -> bool:
        """Return whether a path leads to another object that has a path, or has parted from one that is still there."""
        before = self._identities.get(node.path, node.identity)
        return before != node.identity and (before in self._present or self._place_of(node.value) is not None)

    def _place_of(self, value: Any) -> tuple[str, Chain] | None:
        """Return the path to an object that a look has seen, as text and as a way."""
        if id(value) not in self._objects:
            return None
        alive, path, chain = self._objects[id(value)]  # which may be another object's, that is gone
        node = (self._nodes or {}).get(path)
        is_seen = node is not None and node.identity == id(value)
        return (path, chain) if (is_seen if alive is None else alive() is value) else None

    def _first_path(self, node: Node) -> str:
        """Return the path that a node had when the object that it is a part of was first seen."""
        part, path = "", node.path
        while node.parent is not None:
            part, node = f"{node.step}{part}", node.parent
            if (place := self._place_of(node.value)) is not None:
                return f"{place[0]}{part}"
        return path

    def _is_alive(self, identity: int, path: str) -> bool:
        """Return whether a path belongs to an object that is still there."""
        alive, place, _ = self._objects.get(identity, (None, "", None))
        return alive is not None and alive() is not None and place == path

    def _is_referred(self, value: Any, path: str) -> bool:
        """Return whether what is stored at a path, or around it, refers to an object and does not have its parts."""
        if issubclass(type(value), _BY_REFERENCE):
            return True
        place = self._place_of(value)
        return place is not None and not is_below(place[0], [path, *self._whole])

    def _add(self, node: Node, nodes: Mapping[str, Node]) -> None:
        owner = node.parent.value if node.parent is not None else None
        is_compiled_here = self._in_graph or issubclass(type(owner), nn.Optimizer)
        if is_compiled_here and issubclass(type(owner), nn.Cell) and not issubclass(type(node.value), ms.Tensor):
            self.unstored.setdefault(node.path, _IN_GRAPH)
        slot, why = self._slot_of(node)
        if slot is not None:
            self._add_slot(slot)
            return
        is_walked = issubclass(type(node.value), (dict, list)) and len(node.value) <= MOST_ITEMS
        has_lost = any(path.startswith(f"{node.path}[") and path not in nodes for path in self._first)
        if is_walked and not has_lost and is_followed(node):
            return  # what was added to it is judged by itself
        if self._is_given(node):
            return  # it says itself how it is stored
        self.unstored.setdefault(_around(node)[-1].path, why)

    def _note_whole(self, slot: Node) -> None:
        place = self._place_of(slot.value)
        if not issubclass(type(slot.value), _BY_REFERENCE) and (place is None or place[0] == slot.path):
            self._whole.append(slot.path)

    def _add_slot(self, slot: Node) -> None:
        self.slots[slot.path] = slot.chain()
        self._note_whole(slot)

    def _add_shared(self, nodes: Mapping[str, Node]) -> None:
        """Add what leads to something stored, too."""
        count, shareable = -1, _shareable(nodes)
        while count != len(self.slots):
            count = len(self.slots)
            above = {node.path: self._slot_above(node) for node in shareable}
            shared = (node for node in shareable if issubclass(type(node.value), _SHARED))
            stored = {node.identity for node in shared if above[node.path] is not None}
            for node in shareable:
                is_stored = above[node.path] is None and node.identity in stored
                if is_stored and not self._is_ignored(node) and is_reachable(node):
                    slot, _ = self._slot_of(node, alone=True)
                    if slot is not None:
                        self._add_slot(slot)

    def _is_given(self, node: Node | None) -> bool:
        while node is not None and node.identity not in self._given:
            node = node.parent
        return node is not None

    def _slot_above(self, node: Node | None) -> str | None:
        """Return the path of the slot that stores a node, too."""
        while node is not None and node.path not in self.slots:
            owner = node.parent
            node = None if owner is None or self._is_referred(owner.value, owner.path) else owner
        return None if node is None else node.path

    def _is_ignored(self, node: Node | None) -> bool:
        """Return whether a node, or what it is a part of, is ignored."""
        while node is not None and not self._matches(node.path):
            node = node.parent
        return node is not None

    def _matches(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._patterns)

    def _slot_of(self, node: Node, *, alone: bool = False) -> tuple[Node | None, str]:
        """Return the outermost node around a changed one that can be stored whole, or None; then why not."""
        nodes, why = [node] if alone else _around(node), ""
        above = nodes[-1]
        while not alone and above.parent is not None and not self._is_referred(above.parent.value, above.parent.path):
            above = above.parent
            if issubclass(type(above.value), CONTAINERS):
                nodes.append(above)
        packer = self._packer(Places(self._reach(), users_frames(sys._getframe(1))))
        for candidate in reversed(nodes):
            if not is_followed(candidate):
                why = why or nodes[-1].text
                continue
            try:
                packer.slot(candidate.path, candidate.value)
            except CannotPackError as error:
                why = why or str(error)
                continue
            return candidate, ""
        return None, why

    def _packer(self, places: Places) -> Packer:
        def reference(value: Any, path: str) -> Any:
            """Return how the next process reaches an object that has a path elsewhere, a function or a class."""
            kind: Any = type(value)
            if issubclass(kind, (types.FunctionType, type)):
                name = value.__module__, value.__qualname__
                if "<" not in name[1] and places.named(*name) is value:
                    return ["named", *name]
            place = self._place_of(value)
            if place is not None and self._is_referred(value, path):
                return ["path", *plain_chain(place[1])]
            if issubclass(kind, ms.Parameter):
                stored = self._reach().known.parameters.items()
                return next((["stored", name] for name, parameter in stored if parameter is value), None)
            return None

        def place_of(value: Any) -> Any:
            place = self._place_of(value)
            return place and ["path", *plain_chain(place[1])]

        addresses = self._reach().known.stored | self._objects.keys()
        return Packer(reference, MOST_BYTES, places.owner_of, addresses, place_of)

    def _put_back(self, saved: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[tuple[str, str]]:
        places, lost = Places(self._reach(), users_frames(sys._getframe(1))), []
        unpacker = places.unpacker()
        # Had one of these led to what a slot has, it would have changed, too, and would be a slot or named.
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        for node in _shareable(nodes):
            is_seen = is_reachable(node) and not self._is_ignored(node) and not self._is_given(node)
            if is_seen and not is_below(node.path, changed):
                unpacker.filled[id(node.value)] = node.value
        places.resolve_before(unpacker, saved["slots"])
        for path, place, first, packed in saved["slots"]:
            try:
                places.put(unpacker, chain_of(place), first, packed)
                self.slots[path] = chain_of(place)
            except CannotPackError as error:
                lost.append((path, str(error)))
        return lost

    def _differing(self, saved: Mapping[str, Any], nodes: Mapping[str, Node]) -> list[tuple[str, str, str]]:
        """Return what is not as at the first look of the saved run, but for what training changes."""
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        epochs = f"int {saved['epochs']}", f"int {self._reach().epochs}"  # training longer is no difference
        texts = _unpacked_texts(saved["first"])
        pairs = [(text, nodes[path]) for path, text in texts.items() if path in nodes and nodes[path].text != text]
        return [
            (node.path, text, node.text)
            for text, node in pairs
            if not (_is_mark(node) or self._is_ignored(node) or is_below(node.path, changed))
            and (text, node.text) != epochs
        ]


def _unpacked_texts(packed: Any) -> dict[str, str]:
    texts: dict[str, str] = json.loads(zlib.decompress(packed.tobytes()))
    return texts


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


def _shareable(nodes: Mapping[str, Node]) -> list[Node]:
    """Return the nodes of what a resume fills in place, but for the data's."""
    own = [node for node in nodes.values() if not node.text.startswith(OF_DATA)]
    return [node for node in own if issubclass(type(node.value), _SHARED) or _is_users_object(node.value)]


def _is_users_object(value: Any) -> bool:
    kind: Any = type(value)
    return is_users_class(kind) and not issubclass(kind, (*_BY_REFERENCE, tuple)) and text_of(value) is None


def _reference_to(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:  # of a class that has only slots
        return None


def _around(node: Node) -> list[Node]:
    """Return a node and the containers and iterators that it is inside of, outwards; the last is no item."""
    nodes = [node]
    while node.parent is not None and node.step[0] in _INSIDE:
        node = node.parent
        nodes.append(node)
    return nodes
