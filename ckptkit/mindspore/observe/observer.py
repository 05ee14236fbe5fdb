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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
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
from ckptkit.mindspore.observe.values import ATOMS, CONTAINERS, GENERATORS, MOST_ITEMS, OUTSIDE, text_of
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


@dataclass
class Look:
    """What one look saw.

    Attributes:
        nodes: By path.
        frames: The labels of the running functions.
        in_graph: Whether cells are compiled as graphs.
        given: The objects given by name that have a state of their own, by id.
    """

    nodes: dict[str, Node]
    frames: Set[str]
    in_graph: bool
    given: Set[int]

    def let_go(self) -> None:
        """Drop the objects, which training may delete."""
        for node in self.nodes.values():
            node.value = None


class Observer:
    """Observes one training.

    Args:
        reach: Gives what the training reaches, now.
        epoch: Gives the number of its epoch, now.
        ignore: Patterns of paths that are neither stored nor named, and objects.
        monotonic: Gives seconds.

    Attributes:
        slots: The ways to what is stored, by path.
        shown: The paths of these that lead to different objects.
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
        self._began: Look | None = None
        self._last: Look | None = None
        self._steps, self._epoch = 0, -1
        self._looked_at, self._looked_step, self._look_seconds = float("-inf"), -1, 0.0
        self._asks_next = False
        self._stored: set[int] = set()  # the ids of what the slots of one look lead to
        # What looks saw, by id: a weak reference, since another object may get the id, or None; its path.
        self._objects: dict[int, tuple[weakref.ref[Any] | None, str, Chain]] = {}
        self._seen: Mapping[str, Node] = {}
        self._whole: list[str] = []  # the paths of slots that have the parts of what they lead to
        self._identities: dict[str, int] = {}
        self._shared: dict[str, int] = {}  # at the first look, the ids of what several paths led to
        self.reaches_compiled = False
        self.reached_code: list[tuple[str, Any, bool]] = []
        self.slots: dict[str, Chain] = {}
        self.shown: list[str] = []
        self.unstored: dict[str, str] = {}

    @property
    def has_begun(self) -> bool:
        """Whether the first look is done."""
        return self._began is not None

    def load(self, saved: Mapping[str, Any] | None) -> None:
        """Keep the section of a checkpoint until `begin`; None for a run that begins."""
        self._saved, self._began = saved, None

    def begin(self) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """Look for the first time, as the first batch is handed out; put back what the checkpoint holds.

        Returns:
            The paths of what could not be put back, and why; the paths of what differs from the first look of the saved
            run, and its texts then and now.
        """
        saved, self._saved = self._saved, None
        lost: list[tuple[str, str]] = []
        differing: list[tuple[str, str, str]] = []
        observation = self._began = self._last = self._look(at_batch=True)
        self.reaches_compiled = any(is_compiled(node.value) for node in observation.nodes.values())
        self.reached_code = [*_reached_code(observation)]
        self._outside.begin()
        self._first = {path: node.text for path, node in observation.nodes.items()}
        if saved is not None:
            differing = self._differing(saved, observation)
            lost = self._put_back(saved, observation)
            self._finish(observation)  # paths lead to these objects in the next process
            observation = self._began = self._last = self._look(at_batch=True)
            self._packed_first = saved["first"]
            # What differs as a start begins has been said, and training has not changed it; what is stored has.
            texts: dict[bool, dict[str, str]] = {True: {}, False: {}}
            for node in observation.nodes.values():
                texts[self._slot_above(node) is not None][self._first_path(node)] = node.text
            self._first = texts[True] | _unpacked_texts(saved["first"]) | texts[False]
        by_parts = [node for node in _shareable(observation) if text_of(node.value) is None]
        may_share = {node.path: node.identity for node in by_parts}
        paths = Counter(may_share.values())
        self._shared = {path: identity for path, identity in may_share.items() if paths[identity] > 1}
        self._finish(observation)
        return lost, differing

    def end_step(self) -> None:
        """Look if one is due, at the end of a micro-step."""
        if self._began is None:
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
        if self._asks_next and self._last is not None:
            self._asks_next, before = False, self._last.nodes
            for path, node in [*self._look_at_changes(at_batch=True).nodes.items()]:
                slot = self._slot_above(node)
                if slot is not None and path in before and before[path].text != node.text:
                    self.unstored.setdefault(slot, _LATE)

    def texts(self, frame: types.FrameType) -> dict[str, str]:
        """Return the texts by path of a look that nothing depends on."""
        look = self._look(at_batch=False, frame=frame)
        look.let_go()
        return {path: node.text for path, node in look.nodes.items()}

    def section(self, frame: types.FrameType) -> dict[str, Any] | None:
        """Return what a checkpoint stores; None before the first batch."""
        if self._began is None or self._last is None:
            return None
        since = self._monotonic() - self._looked_at
        is_quick = len(self._last.nodes) < _FEW_NODES or since > self._look_seconds * _LOOK_SHARE
        if self._looked_step != self._steps and is_quick:
            self._look_at_changes(at_batch=False)
        if self._packed_first is None:
            self._packed_first = np.frombuffer(zlib.compress(json.dumps(self._first).encode()), np.uint8)
        reached = self._reach()
        places = Places(reached, [*users_frames(frame), *self._roots.generators()])
        packer = self._packer(places)
        slots: list[Any] = []
        for path, chain in sorted(self.slots.items(), key=lambda slot: len(slot[1][1])):  # owners before their parts
            try:
                slots.append([path, plain_chain(chain), *packer.slot(path, places.follow(chain))])
            except CannotPackError as error:
                if not is_below(path, self.slots.keys() - {path}):  # which stores it, or is named
                    self.unstored.setdefault(path, str(error))
        unstored = sorted(self.unstored.items())
        own = {"first": self._packed_first, "epochs": reached.epochs}
        return {**own, "slots": slots, "unstored": unstored}

    def _look(self, *, at_batch: bool, frame: types.FrameType | None = None) -> Look:
        began = self._monotonic()
        reached = self._reach()
        frames = users_frames(frame or sys._getframe(1))
        reached.known.stored |= {id(value) for value in (self, *self._ignored)}
        walk = Walk(reached.known)
        self._roots.add_to(walk, reached, frames, at_batch=at_batch)
        self._data.look(reached, -2 if at_batch else self._steps, is_handed_out=False)
        reached.known.data = self._data.objects
        walk.run()
        self._seen, self._whole = walk.nodes, []
        for path in self.slots.keys() & walk.nodes.keys():
            self._note_whole(walk.nodes[path])
        self._looked_at, self._looked_step = self._monotonic(), self._steps
        self._look_seconds = self._looked_at - began
        labels = {*map(label_of, frames)}
        methods = ("state_dict", "load_state_dict")
        given = {id(value) for _, value in reached.given if all(hasattr(type(value), name) for name in methods)}
        return Look(walk.nodes, labels, reached.in_graph, given)

    def _look_at_changes(self, *, at_batch: bool) -> Look:
        """Look, and add what differs from the first look to the slots, or to what cannot be stored."""
        observation = self._look(at_batch=at_batch)
        self._stored = {observation.nodes[path].identity for path in self.slots if path in observation.nodes}
        for path, node in observation.nodes.items():
            name = self._first_path(node)
            first = self._first.get(name, self._first.get(path))
            if first is None:
                if node.text.startswith("the parameter ") or not self._is_late(node):
                    self._first[name] = node.text
                    continue
            elif first == node.text and node.text != OUTSIDE and not self._is_swapped(node):
                continue
            if self._slot_above(node) is None and not self._is_ignored(node):
                self._add(node, observation)
        self._add_shared(observation)
        referred = [
            node.text.removeprefix(OF_DATA) for node in observation.nodes.values() if node.text.startswith(OF_DATA)
        ]
        changed = [(path, _OF_DATA) for path in self._data.changed(referred)]
        for name, why in (*changed, *self._outside.changed()):
            if not self._matches(name):
                self.unstored.setdefault(name, why)
        self._last = observation
        self._finish(observation)
        return observation

    def _finish(self, observation: Look) -> None:
        """Note which objects have which paths, and let go of them."""
        for node in observation.nodes.values():
            kind: Any = type(node.value)
            is_object = issubclass(kind, (nn.Cell, types.FunctionType)) or is_users_class(kind)
            if is_object and not issubclass(kind, tuple) and node.path in self._first and is_reachable(node):
                before = self._identities.setdefault(node.path, node.identity)
                if self._place_of(node.value) is None and not self._is_alive(before, node.path):
                    self._objects[node.identity] = _reference_to(node.value), node.path, node.chain()
        observation.let_go()

    def _is_late(self, node: Node) -> bool:
        """Return whether a path is new on an object that was there before, or a variable in a function that was."""
        assert self._began is not None  # noqa: S101 - a look came before
        assert self._last is not None  # noqa: S101
        if node.parent is None:
            root, _ = node.chain()
            return root.kind == "variable" and root.owner in self._began.frames
        before = self._last.nodes.get(node.parent.path)
        return before is not None and before.is_open and before.identity == node.parent.identity

    def _is_swapped(self, node: Node) -> bool:
        """Return whether a path leads to another object that was there at the first look, too."""
        before = self._identities.get(node.path)
        return before is not None and before != node.identity and self._place_of(node.value) is not None

    def _place_of(self, value: Any) -> tuple[str, Chain] | None:
        """Return the path to an object that a look has seen, as text and as a way."""
        if id(value) not in self._objects:
            return None
        alive, path, chain = self._objects[id(value)]  # which may be another object's, that is gone
        is_seen = path in self._seen and self._seen[path].identity == id(value)
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

    def _add(self, node: Node, observation: Look) -> None:
        owner = node.parent.value if node.parent is not None else None
        is_compiled_here = observation.in_graph or issubclass(type(owner), nn.Optimizer)
        if is_compiled_here and issubclass(type(owner), nn.Cell) and not issubclass(type(node.value), ms.Tensor):
            self.unstored.setdefault(node.path, _IN_GRAPH)
        slot, why = self._slot_of(node)
        if slot is not None:
            self._add_slot(slot)
            return
        is_walked = issubclass(type(node.value), (dict, list)) and len(node.value) <= MOST_ITEMS
        has_lost = any(path.startswith(f"{node.path}[") and path not in observation.nodes for path in self._first)
        if is_walked and not has_lost and is_followed(node):
            return  # what was added to it is judged by itself
        if self._is_given(node, observation):
            return  # it says itself how it is stored
        self.unstored.setdefault(_around(node)[-1].path, why)

    def _note_whole(self, slot: Node) -> None:
        place = self._place_of(slot.value)
        if not issubclass(type(slot.value), _BY_REFERENCE) and (place is None or place[0] == slot.path):
            self._whole.append(slot.path)

    def _add_slot(self, slot: Node) -> None:
        self.slots[slot.path] = slot.chain()
        self._note_whole(slot)
        if slot.identity not in self._stored or type(slot.value) in ATOMS:
            self.shown.append(slot.path)
        self._stored.add(slot.identity)

    def _add_shared(self, observation: Look) -> None:
        """Add what was one object at the first look and is several now, and what is in something stored, too."""
        nodes = _shareable(observation)
        moved = [node for node in nodes if self._shared.get(node.path) not in (None, node.identity)]
        born = [node for node in moved if (self._place_of(node.value) or [node.path])[0] == node.path]
        parted = {self._shared[node.path] for node in born}
        before = -1
        while before != len(self.slots):
            before, stored, others = len(self.slots), set[int](), []
            for node in nodes:
                if self._slot_above(node) is None:
                    others.append(node)
                elif issubclass(type(node.value), _SHARED):
                    stored.add(node.identity)
            for node in others:
                is_parted = self._shared.get(node.path) in parted
                if (is_parted or node.identity in stored) and not self._is_ignored(node) and is_reachable(node):
                    slot, _ = self._slot_of(node, alone=True)
                    if slot is not None:
                        self._add_slot(slot)
                    elif is_parted and self._slot_above(node) is None:
                        self._add(node, observation)

    def _is_given(self, node: Node | None, observation: Look) -> bool:
        while node is not None and node.identity not in observation.given:
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

    def _put_back(self, saved: Mapping[str, Any], observation: Look) -> list[tuple[str, str]]:
        places, lost = Places(self._reach(), users_frames(sys._getframe(1))), []
        unpacker = places.unpacker()
        # Had one of these led to what a slot has, it would have changed, too, and would be a slot or named.
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        for node in _shareable(observation):
            is_seen = is_reachable(node) and not self._is_ignored(node) and not self._is_given(node, observation)
            if is_seen and text_of(node.value) is not None and not is_below(node.path, changed):
                unpacker.filled[id(node.value)] = node.value
        places.resolve_before(unpacker, saved["slots"])
        for path, place, first, packed in saved["slots"]:
            try:
                places.put(unpacker, chain_of(place), first, packed)
                self.slots[path] = chain_of(place)
                self.shown.append(path)
            except CannotPackError as error:
                lost.append((path, str(error)))
        return lost

    def _differing(self, saved: Mapping[str, Any], observation: Look) -> list[tuple[str, str, str]]:
        """Return what is not as at the first look of the saved run, but for what training changes."""
        changed = [path for path, *_ in (*saved["slots"], *saved["unstored"])]
        epochs = f"int {saved['epochs']}", f"int {self._reach().epochs}"  # training longer is no difference
        nodes, texts = observation.nodes, _unpacked_texts(saved["first"])
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


def _reached_code(observation: Look) -> Iterator[tuple[str, Any, bool]]:
    for path, node in observation.nodes.items():
        if type(node.value) is types.FunctionType and is_users_function(node.value):
            holder = None if node.parent is None else node.parent.value
            is_wrapped = type(holder) is types.FunctionType and not is_users_function(holder)
            yield path, node.value, is_wrapped
        elif issubclass(type(node.value), nn.Cell):
            yield path, node.value, False


def _shareable(observation: Look) -> list[Node]:
    """Return the nodes of what a resume fills in place, but for the data's."""
    nodes = [node for node in observation.nodes.values() if not node.text.startswith(OF_DATA)]
    return [node for node in nodes if issubclass(type(node.value), _SHARED) or _is_users_object(node.value)]


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
