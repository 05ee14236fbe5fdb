"""What is said of stored, unstored and differing state names it, in few lines."""

from ckptkit.mindspore.observe.message import in_words, named, stored


def test_paths_are_named_in_few_lines_with_why_and_what_to_do():
    assert stored([f"a{index}" for index in range(11)]).endswith("them: a0, a1, a2, a3, a4, a5, a6, a7 and 3 more")
    text = named({f"worker.mean{index}": "a _thread.lock" for index in range(9)})
    lines = text.splitlines()[1:10]
    assert (lines[0], lines[-1]) == ("    worker.mean0   a _thread.lock", "    and 1 more")
    for words in ("Training(ignore=['worker.mean0'])", "StateManager(...)", "ckptkit doctor"):
        assert words in text


def test_what_differs_is_told_with_both_values():
    for before, now, words in (
        ("float 0.5", "NoneType None", "was 0.5, is None"),
        ("str 'a b'", "int 3", "was 'a b', is 3"),
        ("list of 2 str '([], [1, 2])'", "list of 0 str '([], [])'", "was list of 2 str '([], [1, 2])', is list of 0"),
        (f"str {'x' * 99!r}", "bool True", f"was '{'x' * 36}..., is True"),
    ):
        assert words in in_words([], [("limit", before, now)])
    both = in_words([("agent.count", "there is no count")], [("limit", "int 1", "int 2")])
    assert (
        both
        == "could not be put back: agent.count (there is no count). differs from the saved run: limit (was 1, is 2)"
    )
    assert in_words([], []) == ""
