"""Which call is named where two records part; the records are made by hand."""

from __future__ import annotations

import pytest

from ckptkit.manager.hooks import Recorded
from ckptkit.tools.doctor.culprit import culprit_after_resume, culprit_in_calls, culprit_in_data, culprit_in_data_again


def call(where, depth=0, kind="cell", line="train.py:9", drawn=None, **values):
    """``drawn`` are numbers that a function of the user's got."""
    given = dict(drawn or {})
    return Recorded(event="call", where=where, depth=depth, kind=kind, line=line, values=values, drawn=given)


def back(where, depth=0, kind="cell", drawn="", called=(), **values):
    numbers = {"output.0": drawn} if drawn else {}
    line = "train.py:9"
    return Recorded(
        event="return", where=where, depth=depth, kind=kind, line=line, values=values, drawn=numbers, called=called
    )


def end(step, weights="w"):
    return Recorded(event="step", where=str(step), values={"loss": "l", "weights/w": weights})


def record(*of_second: Recorded, weights="w"):
    """Two micro-steps, of which the second has these calls."""
    return [end(0), call("net (Net)", x="1"), back("net (Net)", output="2"), end(1), *of_second, end(2, weights)]


def dropped(output, weights="w"):
    return record(
        call("net (Net)", x="1"),
        call("net.drop (nn.Dropout)", 1, "random cell", x="1"),
        call("operator Dropout", 2, "random operator", x="1"),
        back("operator Dropout", 2, "random operator", output=output),
        back("net.drop (nn.Dropout)", 1, "random cell", output=output),
        back("net (Net)", output=output),
        weights=weights,
    )


def test_innermost_call_with_equal_inputs_is_named():
    found = culprit_in_calls(dropped("3", "v"), dropped("4", "u"), 2)
    assert (found.kind, found.where, found.cell) == ("random operator", "operator Dropout", "net.drop (nn.Dropout)")
    assert (found.line, found.step) == ("train.py:9", 2)


def test_equal_records_have_no_culprit():
    assert culprit_in_calls(dropped("3"), dropped("3"), 2) is None
    assert culprit_in_calls(dropped("3"), dropped("3")[:-4], 2) is None  # one file was full


def test_number_is_traced_to_the_function_that_returned_it():
    def one(number):
        return record(
            call("jitter()", kind="code"),
            back("jitter()", kind="code", drawn=number, called=("time.time",)),
            call("ops.mul", kind="function", x="1", y=number),
            back("ops.mul", kind="function", output=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert (found.kind, found.where, found.called) == ("code", "jitter()", ("time.time",))


def test_number_of_unknown_origin_is_of_the_line():
    def one(number):
        return record(
            call("other()", kind="code"),
            back("other()", kind="code", drawn="5"),
            call("ops.mul", kind="function", x="1", y=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert (found.kind, found.where) == ("code", "train.py:9")


def test_number_made_of_another_is_of_the_last_function_that_gave_one():
    """Such as ``float(np.clip(loss(), 0, 1))``."""

    def one(number):
        return record(
            call("loss()", kind="code"),
            back("loss()", kind="code", drawn=f"{number} before"),
            call("same()", kind="code"),
            back("same()", kind="code", drawn="5"),
            call("ops.mul", kind="function", x="1", y=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert (found.kind, found.where) == ("code", "loss()")


@pytest.mark.parametrize("where", ["<genexpr>() in train.py:9", "Trainer.step.<lambda>() in train.py:9"])
def test_expression_with_its_own_scope_is_of_the_function_whose_number_it_reads(where):
    def one(number):
        return record(
            call("rate()", kind="code"),
            back("rate()", kind="code", drawn=number),
            call(where, kind="code", x="1"),
            back(where, kind="code", output=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert found.where == "rate()"
    same = [record(call(where, kind="code"), back(where, kind="code", output=number)) for number in "34"]
    assert culprit_in_calls(*same, 2).where == where


@pytest.mark.parametrize("passed", ["3", "5"], ids=["as it is", "made of it"])
def test_number_that_a_function_got_is_of_what_gave_it(passed):
    """The function that passes it on has not made it. It may be read where nothing is recorded, as by `ChainMap`."""

    def one(number, later):
        given = {"limit.0": number}
        return record(
            call("scaled()", kind="code", line="train.py:40", drawn=given),
            call("clipped()", 1, kind="code", line="train.py:20", drawn=given),
            call("ops.mul", 2, kind="function", x="1", y=later),
        )

    found = culprit_in_calls(one("3", passed), one("4", f"{passed} else" if passed == "5" else "4"), 2)
    assert (found.where, found.passed, found.within) == ("train.py:40", "limit of scaled()", ())


@pytest.mark.parametrize("inner", ["clipped.<genexpr>() in train.py:9", "", "clipped.<lambda>() in train.py:9"])
def test_what_a_function_makes_of_another_number_is_of_what_gave_it(inner):
    def one(number):
        made = [call(inner, 1, kind="code", x="1"), back(inner, 1, kind="code", output=number)]
        return record(
            call("limit()", kind="code"),
            back("limit()", kind="code", drawn=number, called=("ChainMap.get",)),
            call("clipped()", kind="code", drawn={"limit.0": number}, x="1"),
            *(made if inner else []),
            back("clipped()", kind="code", output=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert (found.where, found.called) == ("limit()", ("ChainMap.get",))


def test_function_that_began_in_an_earlier_micro_step_is_named():
    one, other = (record(back("epoch()", kind="code", output=number)) for number in "34")
    assert culprit_in_calls(one, other, 2).where == "epoch()"


def test_another_way_through_the_code_is_of_the_line():
    found = culprit_in_calls(record(call("net.a (A)", x="1")), record(call("net.b (B)", x="1")), 2)
    assert (found.kind, found.where) == ("code", "train.py:9")


def test_number_drawn_inside_a_function_is_told():
    def one(number):
        return record(
            call("augment()", kind="code", x="1"),
            call("jitter()", 1, kind="code"),
            back("jitter()", 1, kind="code", drawn=number),
            back("augment()", kind="code", output=number),
        )

    found = culprit_in_calls(one("3"), one("4"), 2)
    assert (found.where, found.through) == ("augment()", "jitter()")


@pytest.mark.parametrize(("kind", "named"), [("graph", ("graph", "net (Net)")), ("cell", ("update", "weights/w"))])
def test_change_in_place_is_of_the_graph_or_parameter(kind, named):
    def one(weights):
        return record(call("net (Net)", kind=kind, x="1"), back("net (Net)", kind=kind, output="2"), weights=weights)

    found = culprit_in_calls(one("v"), one("u"), 2)
    assert (found.kind, found.where) == named


def test_number_that_an_object_holds_is_changed_by_no_graph():
    def one(level):
        line = Recorded(event="step", where="2", values={"named/curriculum.level": level})
        return [*record(call("net", kind="graph", x="1"), back("net", kind="graph", output="2"))[:-1], line]

    found = culprit_in_calls(one("v"), one("u"), 2)
    assert (found.kind, found.where) == ("update", "named/curriculum.level")


def test_first_micro_step_that_differs_comes_before_older_noise():
    """What differed before, without any effect on the state, is not the cause."""

    def one(noise, output):
        first = [end(0), call("metric()", kind="code", x="1"), back("metric()", kind="code", output=noise)]
        return [*first, *dropped(output)[3:]]

    assert culprit_in_calls(one("5", "3"), one("6", "4"), 2).where == "operator Dropout"
    assert culprit_in_calls(one("5", "3"), one("6", "3"), 2).where == "metric()"


def sample(at, where, given, made):
    return Recorded(event="sample", kind=str(at), where=where, values={"input": given, "output": made})


def test_first_operation_that_makes_something_else_is_named():
    one = [sample(1, "crop", "b", "c"), sample(0, "source", "1", "a"), sample(0, "source", "2", "b")]
    assert culprit_in_data(one, [*reversed(one)]) is None  # workers have no order
    assert culprit_in_data(one, one[:2]) is None  # one life has read further ahead
    assert culprit_in_data(one, [one[1], one[2], sample(1, "crop", "b", "d")]).where == "crop"
    both = [sample(1, "crop", "b", "d"), one[1], sample(0, "source", "2", "x")]
    assert culprit_in_data(one, both).where == "source"


def test_operation_that_makes_it_in_another_order_is_the_same():
    one = [sample(0, "source", "1", "a"), sample(0, "source", "1", "b")]
    assert culprit_in_data(one, [*reversed(one)]) is None
    assert culprit_in_data(one, [sample(0, "source", "1", "a"), sample(0, "source", "1", "a")]) is not None


def test_calls_that_a_resume_repeats_are_passed_over():
    """A resumed life reads batches again before its first micro-step."""
    again = [call("read()", kind="code"), back("read()", kind="code", output="b")]
    one, other = dropped("3"), dropped("4")
    resumed = [*other[3:4], *again, *again, *other[4:]]
    found = culprit_after_resume(one, resumed, 1, 2)
    assert (found.where, found.step) == ("operator Dropout", 2)
    assert culprit_after_resume(one, [*one[3:4], *again, *one[4:]], 1, 2) is None


def test_call_that_a_resume_leaves_out_is_of_the_line():
    one = record(call("first()", kind="code"), call("net.a (A)", 1, x="1"), back("net.a (A)", 1, output="2"))
    found = culprit_after_resume(one, [one[3], one[4], one[-1]], 1, 2)
    assert (found.kind, found.where) == ("code", "train.py:9")


def test_samples_that_a_resume_makes_more_often_are_no_culprit():
    one = [sample(0, "source", "1", "a"), sample(0, "source", "1", "b")]
    assert culprit_in_data_again(one, [sample(0, "source", "1", "b"), *one]) is None
    assert culprit_in_data_again(one, [sample(0, "source", "1", "c")]).where == "source"


def test_samples_that_were_equal_in_an_early_epoch_differ_after_a_resume():
    first = [sample(0, "source", name, f"{name}{epoch}") for epoch in range(3) for name in "abc"]
    resumed = [sample(0, "source", name, f"{name}{level}") for level in (0, 5) for name in "abc"]
    assert culprit_in_data_again(first, resumed).where == "source"
    assert culprit_in_data_again(first, [*first, sample(0, "source", "a", "a3")]) is None  # read further ahead


def test_long_records_are_read_a_few_times_however_many_micro_steps_they_have():
    class Counted(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    def steps(last):
        lines = [(call("a", x="1"), back("a", output=last if at == 50 else "1"), end(at)) for at in range(1, 51)]
        return Counted([end(0), *(event for line in lines for event in line)])

    one, other = steps("1"), steps("2")
    assert culprit_after_resume(one, other, 0, 50).where == "a"
    assert one.times + other.times <= 4
