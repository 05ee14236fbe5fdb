"""Forks a process for each program that it is asked to run, with its arguments imported before: see `support.process`.

Reads one JSON object a line from stdin, and answers with the exit code of the program, null if it was killed after its
time, and its seconds of user time. A forked process leaves the loop and becomes the program: it ends as any interpreter
does, exit handlers included.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping
from types import TracebackType
from typing import Any


def without_waiting(descriptor: int | io.IOBase) -> None:
    """Take the place of ``os.fsync``, which takes a third of the suite's time on a disk that others use.

    What a killed process wrote is in the system's memory and stays; what a power cut leaves, `support.disk` models.
    """
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    os.fstat(number)  # an error, as of fsync, where it is closed


def with_one_thread() -> None:
    """Let this process compute in its own thread: those of kernels and of the runtime spin while they wait.

    What users have is in the processes that tests start, and under ``-m full`` everywhere.
    """
    mindspore = sys.modules.get("mindspore")
    if mindspore is None:
        return
    with contextlib.suppress(RuntimeError):  # it is taken once in a process
        mindspore.device_context.cpu.op_tuning.threads_num(1)
    mindspore.runtime.launch_blocking()


def serve() -> dict[str, Any]:
    """Fork for every request; returns in the forked process only, with its request."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            if request.get("session"):
                os.setsid()
            return request
        answers.write(json.dumps(_ended(child, request)) + "\n")
        answers.flush()
    os._exit(0)


def _ended(child: int, request: Mapping[str, Any]) -> tuple[int | None, float]:
    kill = os.killpg if request.get("session") else os.kill
    timer = threading.Timer(request["timeout"], kill, (child, signal.SIGKILL))
    timer.start()
    _, status, usage = os.wait4(child, 0)
    in_time = timer.is_alive()
    timer.cancel()
    timer.join()  # no thread may run when the next process is forked
    if request.get("session"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it has left behind
    return os.waitstatus_to_exitcode(status) if in_time else None, usage.ru_utime


def become(request: dict[str, Any]) -> None:
    """Take over the files, folder, environment and arguments of the program, and run it."""
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    paths = [path for path in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    program, *rest = request["arguments"]
    with_one_thread()
    try:
        if program == "-m":
            program, *rest = rest
            sys.path[:0] = ["", *paths]
            sys.argv = [program, *rest]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif program == "-c":
            code, *rest = rest
            sys.path[:0] = ["", *paths]
            sys.argv = ["-c", *rest]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))  # noqa: S102 - as an interpreter does
        else:
            sys.path[:0] = [os.path.dirname(os.path.abspath(program)), *paths]
            sys.argv = [program, *rest]
            runpy.run_path(program, run_name="__main__")
    except Exception as error:  # noqa: BLE001 - as an interpreter does: by the hook, without the frames of this file
        error.__traceback__ = _from_program(error.__traceback__)  # the hook prints this one, whatever it is given
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__  # as Python does
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _from_program(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's own first frame on."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        importlib.import_module(_name)
    os.fsync = without_waiting
    gc.collect()
    # MindSpore collects before it compiles: a forked process would go through all of this, and copy its pages.
    gc.freeze()
    become(serve())
