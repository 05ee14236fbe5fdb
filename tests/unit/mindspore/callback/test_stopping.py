"""A request to stop is held back and made again, as `Model.train` sees it."""

from __future__ import annotations

from types import SimpleNamespace

import mindspore.train
import pytest
from mindspore.train import Callback, RunContext

from ckptkit.mindspore.callback.session import TrainingSession, hold_back, may_stop


def test_stop_request_kept_elsewhere_is_an_error():
    class Moved(RunContext):
        def get_stop_requested(self):
            return True

    assert not hold_back(RunContext({}))
    with pytest.raises(AttributeError, match="elsewhere"):
        hold_back(Moved({}))


def test_exact_type_tells_whether_callback_may_stop():
    class Mine(mindspore.train.LossMonitor):
        pass

    assert not any(map(may_stop, (mindspore.train.LossMonitor(), mindspore.train.TimeMonitor())))
    stopping = (Mine(), mindspore.train.EarlyStopping(), mindspore.train.LambdaCallback(), Callback())
    assert all(map(may_stop, stopping))


class OfTwo(TrainingSession):
    """A session of which only the agreement on a stop is there; the other rank wishes what is told."""

    def __init__(self, other=False, *, may_stop=True):
        self.asked = []
        self.other = other
        self.manager = SimpleNamespace(ranks=2, agree=self._agree)
        self._state = SimpleNamespace(progress=lambda: SimpleNamespace(at_boundary=self.at_boundary))
        self._may_stop = may_stop
        self._wants_stop = False
        self.at_boundary = False

    def _agree(self, wish):
        self.asked.append(wish)
        return wish or self.other

    def stops(self, context, *, at_boundary):
        self.at_boundary = at_boundary
        return self._stops_here(context)


def test_mid_cycle_stop_request_waits_for_boundary():
    session, context = OfTwo(), RunContext({})
    context.request_stop()
    assert not session.stops(context, at_boundary=False)
    assert not context.get_stop_requested()
    context.request_stop()  # again, in the same cycle
    assert not session.stops(context, at_boundary=False)
    assert not context.get_stop_requested()
    assert not session.stops(context, at_boundary=False)
    assert session.asked == []
    assert session.stops(context, at_boundary=True)
    assert context.get_stop_requested()
    context._stop_requested = False
    assert not session.stops(context, at_boundary=True), "it was carried out"
    assert session.asked == [True, False]


def test_all_ranks_stop_where_one_wishes():
    session, context = OfTwo(other=True), RunContext({})
    assert not session.stops(context, at_boundary=False)
    assert session.stops(context, at_boundary=True)
    assert context.get_stop_requested()
    session, context = OfTwo(), RunContext({})
    assert not session.stops(context, at_boundary=True)
    assert session.asked == [False]
    silent = OfTwo(may_stop=False)
    assert not silent.stops(context, at_boundary=True)
    assert silent.asked == []
