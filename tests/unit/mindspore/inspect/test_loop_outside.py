"""What is outside of the process is one thing, however code calls it, and what is written whole is no state."""

# ruff: noqa: SIM115 - files as people open them

from __future__ import annotations

import contextlib
import csv
import glob
import json
import os
import queue
import shutil
import sqlite3
import threading
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from test_loops import Training


def variable_that_is_set(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if "A" not in os.environ:
            ops.assign(rate, rate * 0.5)
        cell(x, y)
        os.environ["A"] = "1"


def variable_that_is_taken(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if "A" in os.environ:
            ops.assign(rate, rate * 0.5)
            del os.environ["A"]
        cell(x, y)


def variables_that_are_counted(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len([k for k in os.environ if k.startswith("A_")])
        loss = float(cell(x, y * n))
        os.environ[f"A_{loss}"] = "1"


def variable_by_a_keyword(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = float(os.environ.get("A", "0"))
        cell(x, y * n)
        os.environ.update(A=str(n + 1))


def variable_with_a_computed_name(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        v = float(os.environ.get("SEEN_" + str(y.shape), "0"))
        cell(x, y * v)
        os.environ["SEEN_" + str(y.shape)] = "1"


def path_made_after_the_restore(cell, batches, rate, restore):
    restore()
    marker = Path("marker")
    for x, y in batches:
        if marker.exists():
            ops.assign(rate, rate * 0.5)
        if float(cell(x, y)) < 3:
            marker.touch()


def suffix_that_numpy_adds(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if os.path.exists("m.npy"):
            ops.assign(rate, rate * 0.5)
        np.save("m", cell(x, y).asnumpy())


def number_or_no_file_yet(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        try:
            with open("n") as f:
                n = int(f.read())
        except FileNotFoundError:
            n = 0
        cell(x, y * n)
        with open("n", "w") as f:
            f.write(str(n + 1))


def file_that_is_moved(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = float(Path("state").read_text())
        cell(x, y * n)
        Path("state.tmp").write_text(str(n + 1))
        shutil.move("state.tmp", "state")


def file_that_is_copied(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = float(open("best").read())
        loss = float(cell(x, y * n))
        with open("last", "w") as f:
            f.write(str(loss))
        shutil.copy("last", "best")


def file_that_is_replaced(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = json.load(open("s.json"))
        cell(x, y * n)
        with open("s.json.tmp", "w") as f:
            json.dump(n + 1, f)
        os.replace("s.json.tmp", "s.json")


def file_that_is_renamed(cell, batches, rate, restore):
    s = Path("s")
    restore()
    for x, y in batches:
        n = float(s.read_text())
        cell(x, y * n)
        t = s.with_suffix(".tmp")
        t.write_text(str(n + 1))
        t.replace(s)


def file_that_is_moved_away(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if os.path.exists("todo"):
            ops.assign(rate, rate * 0.5)
        if float(cell(x, y)) < 4:
            os.rename("todo", "done")


def cursor_made_before(cell, batches, rate, restore):
    db = sqlite3.connect("rows.db")
    cur = db.cursor()
    restore()
    for x, y in batches:
        cur.execute("select count(*) from rows")
        n = cur.fetchone()[0]
        loss = float(cell(x, y * n))
        db.execute("insert into rows values (?)", (loss,))


def cursor_made_in_the_loop(cell, batches, rate, restore):
    db = sqlite3.connect("rows.db")
    restore()
    for x, y in batches:
        cur = db.cursor()
        cur.execute("select count(*) from rows")
        (n,) = cur.fetchone()
        loss = float(cell(x, y * n))
        cur.execute("insert into rows values (?)", (loss,))
        db.commit()


def connection_for_each_question(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with sqlite3.connect("rows.db") as db:
            cur = db.cursor()
            cur.execute("select count(*) from rows")
            n = cur.fetchone()[0]
        loss = float(cell(x, y * n))
        with contextlib.closing(sqlite3.connect("rows.db")) as db:
            db.execute("insert into rows values (?)", (loss,))


def cursor_that_is_iterated(cell, batches, rate, restore):
    db = sqlite3.connect("rows.db")
    cur = db.cursor()
    restore()
    for x, y in batches:
        cur.execute("select loss from rows")
        total = 0.0
        for row in cur:
            total += row[0]
        loss = float(cell(x, y * total))
        cur.execute("insert into rows values (?)", (loss,))


def number_of_the_last_row(cell, batches, rate, restore):
    db = sqlite3.connect("rows.db")
    restore()
    for x, y in batches:
        at = db.execute("insert into rows values (?)", (1.0,)).lastrowid
        cell(x, y * at)


def place_in_a_log(cell, batches, rate, restore):
    log = open("log.txt", "a")
    restore()
    for x, y in batches:
        cell(x, y * log.tell())
        log.write("1\n")


def place_in_a_log_that_is_opened(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with open("log.txt", "a") as log:
            log.write("1\n")
            n = log.tell()
        cell(x, y * n)


def place_in_a_table(cell, batches, rate, restore):
    log = open("log.txt", "a")
    w = csv.writer(log)
    restore()
    for x, y in batches:
        w.writerow([float(cell(x, y * log.tell()))])


def path_with_a_dot(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len(open("./log.txt").read())
        cell(x, y * n)
        with open("log.txt", "a") as f:
            f.write("1")


def path_that_is_joined(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len(open(os.path.join("a", "log.txt")).read())
        cell(x, y * n)
        with open("a/log.txt", "a") as f:
            f.write("1")


def path_that_is_divided(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len((Path("a") / "log.txt").read_text())
        cell(x, y * n)
        with open("a/log.txt", "a") as f:
            f.write("1")


def path_that_is_resolved(cell, batches, rate, restore):
    log = Path("log.txt").resolve()
    restore()
    for x, y in batches:
        n = len(log.read_text())
        cell(x, y * n)
        with open("log.txt", "a") as f:
            f.write("1")


def folder_by_two_names(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len(os.listdir())
        loss = float(cell(x, y * n))
        Path(f"./{loss}.txt").touch()


def folder_that_is_searched(cell, batches, rate, restore):
    kept = Path("a")
    restore()
    for x, y in batches:
        n = len(glob.glob("a/*.txt"))
        loss = float(cell(x, y * n))
        (kept / f"{loss}.txt").touch()


def path_by_a_keyword(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        n = len(open(file="log.txt").read())
        cell(x, y * n)
        with open("log.txt", mode="a") as f:
            f.write("1")


def path_below_an_unknown_one(cell, batches, rate, restore):
    restore()
    root = os.environ["L"]
    for x, y in batches:
        n = len(open(f"{root}/log.txt").read())
        cell(x, y * n)
        with open(os.path.join(root, "log.txt"), "a") as f:
            f.write("1")


class Journal:
    def __init__(self, p):
        self.p = p
        self.q = Path(p)

    def load(self):
        return len(open(self.p).read())

    def save(self, n):
        with self.q.open("a") as f:
            f.write("a")


def path_in_an_object(cell, batches, rate, restore):
    st = Journal("log.txt")
    restore()
    for x, y in batches:
        cell(x, y * st.load())
        st.save(3)


def text_of_this_iteration(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with open("tmp", "w") as f:
            f.write("1.5")
        with open("tmp") as f:
            v = float(f.read())
        cell(x, y * v)


def array_of_this_iteration(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, y)
        np.save("tmp.npy", x.asnumpy())
        v = np.load("tmp.npy")
        cell(ms.Tensor(v), y)


def number_of_this_iteration(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        with open("tmp.json", "w") as f:
            json.dump({"loss": loss}, f)
        v = json.loads(Path("tmp.json").read_text())
        ops.assign(rate, ms.Tensor(v["loss"]))


def text_by_its_path(cell, batches, rate, restore):
    p = Path("tmp")
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        p.write_text(str(loss))
        ops.assign(rate, ms.Tensor(float(p.read_text())))


def text_that_is_moved(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        Path("tmp").write_text(str(loss))
        os.replace("tmp", "final")
        ops.assign(rate, ms.Tensor(float(Path("final").read_text())))


def file_that_is_closed(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        f = open("tmp", "w")
        json.dump(float(cell(x, y)), f)
        f.close()
        f = open("tmp")
        ops.assign(rate, ms.Tensor(json.load(f)))
        f.close()


def variable_of_this_iteration(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        os.environ["L"] = str(float(cell(x, y)))
        ops.assign(rate, ms.Tensor(float(os.environ["L"])))


def two_databases(cell, batches, rate, restore):
    log = sqlite3.connect("log.db")
    data = sqlite3.connect("rows.db")
    restore()
    for x, y in batches:
        v = data.execute("select avg(loss) from rows").fetchone()[0]
        loss = float(cell(x, y * v))
        log.execute("insert into rows values (?)", (loss,))


def two_databases_and_a_cursor(cell, batches, rate, restore):
    log = sqlite3.connect("log.db")
    data = sqlite3.connect("rows.db")
    restore()
    cur = log.cursor()
    for x, y in batches:
        v = data.execute("select avg(loss) from rows").fetchone()[0]
        loss = float(cell(x, y * v))
        cur.execute("insert into rows values (?)", (loss,))
        log.commit()


class Rows:
    def __init__(self, path):
        self.path = path
        self.db = sqlite3.connect(path)

    def ask(self):
        return self.db.execute("select avg(loss) from rows").fetchone()[0]

    def tell(self, v):
        self.db.execute("insert into rows values (?)", (v,))


def two_databases_in_objects(cell, batches, rate, restore):
    log = Rows("log.db")
    data = Rows("rows.db")
    restore()
    for x, y in batches:
        loss = float(cell(x, y * data.ask()))
        log.tell(loss)


class Asking:
    def __init__(self, path):
        self.path = path

    def ask(self):
        with sqlite3.connect(self.path) as db:
            return db.execute("select avg(loss) from rows").fetchone()[0]

    def tell(self, v):
        with sqlite3.connect(self.path) as db:
            db.execute("insert into rows values (?)", (v,))


def two_databases_for_each_question(cell, batches, rate, restore):
    log, data = Asking("log.db"), Asking("rows.db")
    restore()
    for x, y in batches:
        loss = float(cell(x, y * data.ask()))
        log.tell(loss)


class Texts:
    def __init__(self, path):
        self.path = path

    def ask(self):
        with open(self.path) as f:
            return float(f.read())

    def tell(self, v):
        with open(self.path, "a") as f:
            f.write(str(v))


def two_files_by_one_method(cell, batches, rate, restore):
    restore()
    log, data = Texts("log.txt"), Texts("s")
    for x, y in batches:
        loss = float(cell(x, y * data.ask()))
        log.tell(loss)


def load(path):
    return np.load(path)


def store(path, v):
    np.save(path, v)


def two_files_below_an_unknown_folder(cell, batches, rate, restore):
    restore()
    root = os.getcwd()
    for x, y in batches:
        v = load(root + "/best.npy")
        loss = cell(x, y * v)
        store(root + "/last.npy", loss.asnumpy())


def file_made_where_there_is_none(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        answers = Path(f"{y.shape}.npy")
        if not answers.exists():
            np.save(answers.with_suffix(".part.npy"), cell.network(x, y).asnumpy())
            os.replace(answers.with_suffix(".part.npy"), answers)
        cell(x, y * np.load(answers))


def scale_where_there_is_no_file(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        scale = 1.0
        if not os.path.exists("marker"):
            scale = 0.5
            Path("marker").write_text("done")
        cell(x, y * scale)


def path_with_fields(cell, batches, rate, restore):
    kept = "a"
    restore()
    for x, y in batches:
        cell(x, y * len(open("%s/log.txt" % kept).read()))  # noqa: UP031 - as people write it
        with open("{}/{}.txt".format("a", "log"), "a") as log:
            log.write("1")


def folder_that_is_moved(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, y * len(open("final/n.txt").read()))
        Path("part/n.txt").write_text("1" * y.size)
        os.replace("part", "final")


def file_that_is_asked_for_by_an_error(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        try:
            os.stat("marker")
        except FileNotFoundError:
            ops.assign(rate, rate * 0.5)
        if float(cell(x, y)) < 3:
            open("marker", "w").close()


class Counting(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.losses, self.count = queue.Queue(), 0

    def run(self):
        while self.losses.get() is not None:
            self.count += 1


@contextlib.contextmanager
def counting():
    thread = Counting()
    thread.start()
    yield thread
    thread.losses.put(None)
    thread.join()


def count_of_a_thread(cell, batches, rate, restore):
    with counting() as thread:
        restore()
        for x, y in batches:
            thread.losses.put(float(cell(x, y * thread.count)))


def count_that_nobody_asks_for(cell, batches, rate, restore):
    with counting() as thread:
        restore()
        for x, y in batches:
            thread.losses.put(float(cell(x, y)))
            print(thread.count)


def thread_made_after_the_restore(cell, batches, rate, restore):
    restore()
    thread = Counting()
    thread.start()
    try:
        for x, y in batches:
            thread.losses.put(float(cell(x, y * thread.count)))
    finally:
        thread.losses.put(None)
        thread.join()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("L", "1")
    Path("a").mkdir()
    for name in ("log.txt", "a/log.txt", "s", "state", "best", "s.json"):
        Path(name).write_text("1.0")
    for name in ("rows.db", "log.db"):
        with contextlib.closing(sqlite3.connect(name)) as rows, rows:
            rows.execute("create table rows(loss real)")
            rows.execute("insert into rows values (1)")
    np.save("best.npy", np.ones(1))
    np.save("tmp.npy", np.ones(1))


@pytest.mark.filterwarnings("ignore:.*unclosed")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (variable_that_is_set, ["os.environ['A']"]),
        (variable_that_is_taken, ["os.environ['A']"]),
        (variables_that_are_counted, ["os.environ"]),
        (variable_by_a_keyword, ["os.environ['A']"]),
        (variable_with_a_computed_name, ["os.environ"]),
        (path_made_after_the_restore, ["file 'marker'"]),
        (suffix_that_numpy_adds, ["file 'm.npy'"]),
        (number_or_no_file_yet, ["file 'n'"]),
        (cursor_made_before, ["the database 'rows.db'"]),
        (cursor_made_in_the_loop, ["the database 'rows.db'"]),
        (connection_for_each_question, ["the database 'rows.db'"]),
        (cursor_that_is_iterated, ["the database 'rows.db'"]),
        (number_of_the_last_row, ["the database 'rows.db'"]),
        (place_in_a_log, ["file 'log.txt'"]),
        (place_in_a_log_that_is_opened, ["file 'log.txt'"]),
        (place_in_a_table, ["file 'log.txt'"]),
        (path_with_a_dot, ["file './log.txt'"]),
        (path_that_is_joined, ["file 'a/log.txt'"]),
        (path_that_is_divided, ["file 'a/log.txt'"]),
        (path_that_is_resolved, ["file 'log.txt'"]),
        (folder_by_two_names, ["folder '.'"]),
        (folder_that_is_searched, ["folder 'a'"]),
        (path_by_a_keyword, ["file 'log.txt'"]),
        (path_below_an_unknown_one, ["file f'{root}/log.txt'"]),
        (path_in_an_object, ["file 'log.txt'"]),
        (file_that_is_moved, ["file 'state'"]),
        (file_that_is_copied, ["file 'best'"]),
        (file_that_is_replaced, ["file 's.json'"]),
        (file_that_is_renamed, ["file 's'"]),
        (file_that_is_moved_away, ["file 'todo'"]),
        (scale_where_there_is_no_file, ["file 'marker'"]),
        (path_with_fields, ["file 'a/log.txt'"]),
        (folder_that_is_moved, ["folder 'final'", "file 'part'"]),
        (file_that_is_asked_for_by_an_error, ["file 'marker'"]),
        (count_of_a_thread, ["thread (Counting)"]),
        (thread_made_after_the_restore, ["thread (Counting)"]),
        (text_of_this_iteration, []),
        (array_of_this_iteration, []),
        (number_of_this_iteration, []),
        (text_by_its_path, []),
        (text_that_is_moved, []),
        (file_that_is_closed, []),
        (variable_of_this_iteration, []),
        (two_databases, []),
        (two_databases_and_a_cursor, []),
        (two_databases_in_objects, []),
        (two_databases_for_each_question, []),
        (two_files_by_one_method, []),
        (two_files_below_an_unknown_folder, []),
        (file_made_where_there_is_none, []),
        (count_that_nobody_asks_for, []),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_a_loop_writes_outside_and_reads_is_named(loop, where):
    found = [one.where.removeprefix(f"{loop.__name__}(): ") for one in Training().found(loop)]
    assert [one.replace(f"{Path.cwd()}/", "") for one in found] == where
