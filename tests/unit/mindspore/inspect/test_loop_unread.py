"""State behind what a loop calls is named where the code or the memory of that is not read: others may keep it."""

# ruff: noqa: S602, S605, S607, S314, RUF006 - processes, trees and tasks as people make them

from __future__ import annotations

import asyncio
import ctypes
import decimal
import gc
import multiprocessing
import queue
import random
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import xml.dom.minidom
import xml.etree.ElementTree as ET
from collections import deque

import mindspore as ms
import pytest
from test_loops import RestoredError, Training

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager

SCRIPT = "import sys\nfor line in sys.stdin:\n    print(float(line) / 2)"


async def mean_actor(inbox):
    mean = 0.0
    while True:
        value, reply = await inbox.get()
        mean = 0.9 * mean + 0.1 * value
        reply.set_result(mean)


async def halving_actor(inbox):
    while True:
        value, reply = await inbox.get()
        reply.set_result(value / 2)


async def asked(inbox, value):
    reply = asyncio.get_running_loop().create_future()
    await inbox.put((value, reply))
    return await reply


class Smoother:
    def __init__(self):
        self.inbox, self.mean = asyncio.Queue(), 0.0

    async def serve(self):
        while True:
            value, reply = await self.inbox.get()
            self.mean = 0.9 * self.mean + 0.1 * value
            reply.set_result(self.mean)


async def heart():
    beats = 0
    while True:
        await asyncio.sleep(1)
        beats += 1
        print(beats)


async def mean_of_an_actor(cell, batches, rate, restore):
    inbox = asyncio.Queue()
    asyncio.get_running_loop().create_task(mean_actor(inbox))
    restore()
    for x, y in batches:
        cell(x, y * await asked(inbox, float(x)))


async def mean_of_an_actor_that_waits(cell, batches, rate, restore):
    inbox = asyncio.Queue()
    task = asyncio.ensure_future(mean_actor(inbox))
    await asked(inbox, 1.0)
    restore()
    for x, y in batches:
        reply = asyncio.get_running_loop().create_future()
        inbox.put_nowait((float(x), reply))
        cell(x, y * await reply)
    task.cancel()


async def mean_in_an_object(cell, batches, rate, restore):
    smoother = Smoother()
    task = asyncio.ensure_future(smoother.serve())
    restore()
    for x, y in batches:
        cell(x, y * await asked(smoother.inbox, float(x)))
    task.cancel()


async def mean_beside_a_gathered_loop(cell, batches, rate, restore):
    inbox = asyncio.Queue()

    async def train():
        restore()
        for x, y in batches:
            cell(x, y * await asked(inbox, float(x)))

    actor = asyncio.ensure_future(mean_actor(inbox))
    await asyncio.gather(train(), asyncio.sleep(0))
    actor.cancel()


async def actor_that_keeps_nothing(cell, batches, rate, restore):
    inbox = asyncio.Queue()
    task = asyncio.ensure_future(halving_actor(inbox))
    restore()
    for x, y in batches:
        cell(x, y * await asked(inbox, float(x)))
    task.cancel()


async def beats_that_nobody_asks_for(cell, batches, rate, restore):
    task = asyncio.ensure_future(heart())
    restore()
    for x, y in batches:
        cell(x, y)
        await asyncio.sleep(0)
    task.cancel()


async def async_generator(cell, batches, rate, restore):
    async def means():
        mean = 0.0
        while True:
            mean = 0.9 * mean + 0.1 * (yield mean)

    mean = means()
    await mean.asend(None)
    restore()
    for x, y in batches:
        cell(x, y * await mean.asend(float(x)))


def loop_that_is_run_for_each_batch(cell, batches, rate, restore):
    loop = asyncio.new_event_loop()
    inbox = asyncio.Queue()
    loop.create_task(mean_actor(inbox))
    try:
        restore()
        for x, y in batches:
            cell(x, y * loop.run_until_complete(asked(inbox, float(x))))
    finally:
        loop.close()


def actor_in_a_thread(cell, batches, rate, restore):
    loop = asyncio.new_event_loop()
    inbox = asyncio.Queue()
    asyncio.run_coroutine_threadsafe(mean_actor(inbox), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        restore()
        for x, y in batches:
            cell(x, y * asyncio.run_coroutine_threadsafe(asked(inbox, float(x)), loop).result())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def coroutine_by_hand(cell, batches, rate, restore):
    waiting = mean_actor(asyncio.Queue())
    restore()
    for x, y in batches:
        cell(x, y * waiting.send(float(x)))


def child_that_counts(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = int(subprocess.run(["sh", "-c", "echo a >> log; wc -l < log"], capture_output=True, check=True).stdout)
        cell(x, y * n)


def child_by_a_function(cell, batches, rate, restore):
    def ask(loss):
        return float(subprocess.check_output(["./schedule", str(loss)]))

    restore()
    for x, y in batches:
        cell(x, y * ask(float(x)))


def child_that_is_opened(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        child = subprocess.Popen(["./schedule", "--next"], stdout=subprocess.PIPE)
        out, _ = child.communicate()
        cell(x, y * float(out))


def file_that_a_child_counts(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if float(cell(x, y)) > 1:
            with open("ledger", "a") as file:
                file.write("bad\n")
        if int(subprocess.getoutput("wc -l < ledger")) > 3:
            rate.set_data(rate * 0.5)


def file_that_a_child_writes(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with open("ledger") as file:
            n = len(file.readlines())
        cell(x, y * n)
        subprocess.run("echo bad >> ledger", shell=True, check=True)


def child_that_computes(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        half = subprocess.check_output(["awk", f"BEGIN {{ print {float(x)} / 2 }}"], text=True)
        cell(x, y * float(half))


def child_of_python_that_computes(cell, batches, rate, restore):
    command = [sys.executable, "-c", SCRIPT]
    restore()
    for x, y in batches:
        half = subprocess.run(command, input=str(float(x)), capture_output=True, text=True, check=True).stdout
        cell(x, y * float(half))


def child_that_only_reports(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = cell(x, y)
        subprocess.run(["./report.sh", str(float(loss))], check=True)
        print(subprocess.check_output(["./report.sh"]))


def answer_of_a_socket(cell, batches, rate, restore):
    near, far = socket.socketpair()
    try:
        restore()
        for x, y in batches:
            near.sendall(struct.pack("f", float(x)))
            cell(x, y * struct.unpack("f", near.recv(4))[0])
    finally:
        near.close()
        far.close()


def answer_of_a_pipe(cell, batches, rate, restore):
    near, far = multiprocessing.Pipe()
    try:
        restore()
        for x, y in batches:
            near.send(float(x))
            cell(x, y * near.recv())
    finally:
        near.close()
        far.close()


def socket_that_is_only_told(cell, batches, rate, restore):
    near, far = socket.socketpair()
    try:
        restore()
        for x, y in batches:
            near.sendall(struct.pack("f", float(cell(x, y))))
    finally:
        near.close()
        far.close()


def elements_of_a_tree(cell, batches, rate, restore):
    root = ET.Element("losses")
    restore()
    for x, y in batches:
        ET.SubElement(root, "loss", value=str(float(cell(x, y))))
        if len(root.findall("loss")) > 5:
            rate.set_data(rate * 0.5)


def elements_below_a_tree(cell, batches, rate, restore):
    root = ET.Element("run")
    losses = ET.SubElement(root, "losses")
    restore()
    for x, y in batches:
        last = root.find("losses").findall("loss")
        cell(x, y * len(last))
        new = ET.SubElement(losses, "loss")
        new.text = str(float(x))


def attribute_of_an_element(cell, batches, rate, restore):
    root = ET.Element("run")
    root.set("best", "1")
    restore()
    for x, y in batches:
        best = float(root.get("best"))
        loss = float(cell(x, y * best))
        root.set("best", str(min(best, loss)))


def tree_that_is_only_written(cell, batches, rate, restore):
    root = ET.Element("run")
    scale = ET.fromstring("<scale value='2'/>")
    restore()
    for x, y in batches:
        loss = cell(x, y * float(scale.get("value")))
        ET.SubElement(root, "loss", value=str(float(loss)))
        ET.ElementTree(root).write("losses.xml")


def nodes_of_a_document(cell, batches, rate, restore):
    document = xml.dom.minidom.getDOMImplementation().createDocument(None, "run", None)
    root = document.documentElement
    restore()
    for x, y in batches:
        cell(x, y * len(document.getElementsByTagName("loss")))
        root.appendChild(document.createElement("loss"))


def flag_that_is_set(cell, batches, rate, restore):
    late = threading.Event()
    restore()
    for x, y in batches:
        cell(x, y * (2.0 if late.is_set() else 1.0))
        if float(x) > 1:
            late.set()


def structure_of_c(cell, batches, rate, restore):
    class Pair(ctypes.Structure):
        _fields_ = (("mean", ctypes.c_double), ("count", ctypes.c_int))

    pair = Pair()
    restore()
    for x, y in batches:
        pair.mean = 0.9 * pair.mean + 0.1 * float(x)
        cell(x, y * pair.mean)


def bytes_that_are_packed(cell, batches, rate, restore):
    memory = bytearray(8)
    restore()
    for x, y in batches:
        (mean,) = struct.unpack_from("d", memory, 0)
        cell(x, y * mean)
        struct.pack_into("d", memory, 0, mean + float(x))


def precision_of_decimals(cell, batches, rate, restore):
    context = decimal.Context(prec=12)
    restore()
    for x, y in batches:
        cell(x, y * float(context.divide(decimal.Decimal(1), decimal.Decimal(3))))
        context.prec = max(2, context.prec - 1)


def rows_in_memory(cell, batches, rate, restore):
    rows = sqlite3.connect(":memory:")
    rows.execute("create table losses(loss real)")
    try:
        restore()
        for x, y in batches:
            rows.execute("insert into losses values (?)", (float(x),))
            cell(x, y * rows.execute("select avg(loss) from losses").fetchone()[0])
    finally:
        rows.close()


def queue_that_is_asked(cell, batches, rate, restore):
    lock, last = threading.Lock(), deque(maxlen=5)
    restore()
    for x, y in batches:
        lock.acquire()
        cell(x, y)
        last.append(float(x))
        lock.release()
        if lock.locked():
            rate.set_data(rate * 0.5)


def work_given_to_a_loop(cell, batches, rate, restore):
    loop = asyncio.new_event_loop()

    async def half(x):
        return float(x) / 2

    try:
        restore()
        for x, y in batches:
            cell(x, y * loop.run_until_complete(half(x)))
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def found(loop):
    """What is named of a loop, also of one that is a coroutine."""
    training = Training()
    if not asyncio.iscoroutinefunction(loop):
        return training.found(loop)

    async def run():
        await loop(training.cell, training.batches, training.rate, training.restore)

    with pytest.raises(RestoredError) as raised:
        asyncio.run(run())
    return [*raised.value.args[0]]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (mean_of_an_actor, ["mean_actor(): mean"]),
        (mean_of_an_actor_that_waits, ["mean_actor(): mean"]),
        (mean_in_an_object, ["smoother (Smoother)"]),
        (mean_beside_a_gathered_loop, ["found(): inbox", "found(): mean"]),
        (async_generator, ["mean (async_generator)"]),
        (loop_that_is_run_for_each_batch, ["mean_actor(): mean"]),
        (actor_in_a_thread, ["mean_actor(): mean"]),
        (coroutine_by_hand, ["waiting (coroutine)"]),
        (child_that_counts, ["subprocess.run()"]),
        (child_by_a_function, ["subprocess.check_output()"]),
        (child_that_is_opened, ["subprocess.Popen()"]),
        (file_that_a_child_counts, ["file 'ledger'"]),
        (file_that_a_child_writes, ["file 'ledger'"]),
        (answer_of_a_socket, ["near"]),
        (answer_of_a_pipe, ["near"]),
        (elements_of_a_tree, ["root"]),
        (elements_below_a_tree, ["root", "losses"]),
        (attribute_of_an_element, ["root"]),
        (nodes_of_a_document, ["document"]),
        (flag_that_is_set, ["late"]),
        (structure_of_c, ["pair (Pair)"]),
        (bytes_that_are_packed, ["memory"]),
        (precision_of_decimals, ["context"]),
        (rows_in_memory, ["the database rows"]),
        (actor_that_keeps_nothing, []),
        (beats_that_nobody_asks_for, []),
        (child_that_computes, []),
        (child_of_python_that_computes, []),
        (child_that_only_reports, []),
        (socket_that_is_only_told, []),
        (tree_that_is_only_written, []),
        (queue_that_is_asked, []),
        (work_given_to_a_loop, []),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_others_keep_is_named(loop, where):
    assert [one.where.removeprefix(f"{loop.__name__}(): ") for one in found(loop)] == where
    gc.collect()  # coroutines that nobody awaited end here, where their warning is expected


class ReadAhead:
    """A loader whose thread draws, and then waits for the loop."""

    def __init__(self, rng):
        self.rng = rng
        self.ready, self.taken = queue.Queue(), threading.Event()

    def __iter__(self):
        thread = threading.Thread(target=self.fill, daemon=True)
        thread.start()
        yield self.ready.get()
        self.taken.set()
        thread.join()

    def fill(self):
        self.ready.put((ms.Tensor(self.rng.random()), ms.Tensor(0.0)))
        self.taken.wait()


@pytest.mark.parametrize(("is_data", "where"), [(True, []), (False, ["loop(): self.rng (Random)"])])
def test_what_a_thread_of_the_data_draws_is_read_again(is_data, where):
    """A restore that reads the data again has started their thread before the loop is examined."""
    training, loader = Training(), ReadAhead(random.Random(1))
    if is_data:
        training.batches = ck.data.resumable(loader, 2)
        training.manager = StateManager(training.cell, training.batches)

    def loop(cell, batches, rate, restore):
        reading = iter(loader)
        next(reading)
        try:
            restore()
            for x, y in batches:
                cell(x, y)
        finally:
            assert next(reading, None) is None

    assert [one.where for one in training.found(loop)] == where
