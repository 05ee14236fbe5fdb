"""A training that is killed again and again goes through the same bits as one that nobody disturbed."""

import shutil
from dataclasses import fields
from typing import get_args

import pytest

from exactness.equivalence.chain import Chain, last_committed, run
from exactness.equivalence.comparison import assert_continues, assert_equal, steps
from exactness.equivalence.job import (
    BATCHES_PER_EPOCH,
    EPOCHS,
    MICRO_STEPS,
    SAMPLES_PER_BATCH,
    Case,
    Job,
    Kill,
    Moment,
)

CASES = [
    Case("graph", 1, "Momentum", "dense", "train", "micro_steps", "before_save", window="slice"),
    Case("pynative", 1, "Adam", "dense", "fit", "micro_steps", "after_save", window="slice"),
    Case("graph", 1, "AdamWeightDecay", "conv", "fit", "micro_steps", "after_save"),
    Case("pynative", 1, "RMSProp", "conv", "train", "micro_steps", "before_save", window="slice"),
    Case("pynative", 3, "Momentum", "conv", "train", "micro_steps", "after_save"),
    Case("graph", 3, "Adam", "conv", "fit", "micro_steps", "before_save"),
    Case("pynative", 3, "AdamWeightDecay", "dense", "fit", "optimizer_steps", "before_save", window="slice"),
    Case("graph", 3, "RMSProp", "dense", "train", "micro_steps", "after_save", window="slice"),
    Case("graph", 4, "Momentum", "dense", "fit", "micro_steps", "after_save"),
    Case("pynative", 4, "Adam", "dense", "train", "micro_steps", "before_save"),
    Case("graph", 4, "AdamWeightDecay", "conv", "train", "micro_steps", "before_save", window="slice"),
    Case("pynative", 4, "RMSProp", "conv", "fit", "optimizer_steps", "after_save"),
    Case("pynative", 5, "Momentum", "conv", "fit", "micro_steps", "before_save"),
    Case("graph", 5, "Adam", "conv", "train", "optimizer_steps", "after_save"),
    Case("pynative", 5, "AdamWeightDecay", "dense", "train", "micro_steps", "after_save", window="slice"),
    Case("graph", 5, "RMSProp", "dense", "fit", "micro_steps", "before_save", window="slice"),
]
# What is not combined with everything: each with what it may clash with. Tracing comes last, after the end of epochs.
SPECIAL = [
    Case(
        "graph", 3, "Adam", "dense", "fit", traced="after_save", remainder="flush", normalize="samples", scaled="scaler"
    ),
    Case(
        "pynative", 4, "Momentum", "conv", "train", traced="after_save", remainder="drop", scaled="cell", window="slice"
    ),
    Case("pynative", 5, "Adam", "dense", "fit", mid_cycle="align", started_by="script"),
    Case("graph", 3, "Momentum", "dense", "train", started_by="script"),
    Case("graph", 4, "Momentum", "dense", "train", mid_cycle="rewind", window="slice"),
    Case("pynative", 3, "RMSProp", "dense", "fit", mid_cycle="rewind", started_by="resume"),
]
# What the default suite runs, and how many of the kills of its plan: every value of every parameter, every moment.
DEFAULT = {CASES[2]: (2, 5), SPECIAL[0]: (1, 8), SPECIAL[1]: (2, 5, 8), SPECIAL[2]: (1, 4, 5), SPECIAL[5]: (0, 6)}


def plan(case: Case) -> list[Kill]:
    """Where the processes of a chain die, one after the other."""
    k = case.accumulation_steps
    first_end, second_end = BATCHES_PER_EPOCH, 2 * BATCHES_PER_EPOCH
    if case.save == "optimizer_steps":
        saved = next(cycle_end for cycle_end in range(0, MICRO_STEPS, k) if cycle_end > second_end)
        return [
            Kill("committed", k),
            *(Kill("step_saved" if j % 2 else "step_end", k + j) for j in range(1, k)),
            Kill("in_update", 2 * k),
            Kill("after_update", 2 * k),
            Kill("in_eval" if case.api == "fit" else "epoch_end", second_end),
            Kill("committed", saved),
            Kill("train_begin", saved),
            Kill("in_write", saved + k),
        ]
    if case.mid_cycle != "exact":
        return [
            *(Kill("step_saved" if j % 2 else "step_end", j) for j in range(2, k + 1)),
            Kill("epoch_saved", first_end),
            Kill("in_update", (first_end // k + 1) * k),
            Kill("after_update", (first_end // k + 1) * k),
            Kill("step_saved", second_end - 1),
            Kill("in_eval" if case.api == "fit" else "epoch_end", second_end),
            Kill("train_begin", case.place(second_end)[0] * k),
            Kill("step_end", MICRO_STEPS),
        ]
    last = max(k, 2)  # of the cycle in which they die at every micro-step
    return [
        *(Kill("committed", j) for j in range(1, last)),
        Kill("in_update", last),
        Kill("after_update", last),
        Kill("in_eval" if case.api == "fit" else "epoch_end", first_end),
        Kill("committed", first_end),
        Kill("train_begin", first_end),
        Kill("in_write", first_end + 3),
        # The last cycle that began in this epoch; unless K = 1 it ends in the next one.
        Kill("step_saved" if case.api == "fit" else "step_end", second_end - 1),
        Kill("epoch_saved", second_end),
        *([Kill("committed", MICRO_STEPS)] if case.api == "train" else []),
    ]


def default_kills(case: Case) -> list[Kill]:
    return [plan(case)[number] for number in DEFAULT[case]]


@pytest.mark.parametrize("case", DEFAULT, ids=str)
def test_killed_at_some_moments_equals_uninterrupted(case, tmp_path):
    hold(default_kills(case), case, Chain(case, tmp_path))


@pytest.mark.extended
@pytest.mark.parametrize("case", [*CASES, *SPECIAL], ids=str)
def test_killed_and_resumed_equals_uninterrupted(case, tmp_path):
    hold(plan(case), case, Chain(case, tmp_path))


# In a bucket, where each save takes longer: both modes, both ways to train, both ways to take the state.
@pytest.mark.extended
@pytest.mark.parametrize("case", [CASES[6], CASES[7], CASES[13]], ids=str)
@pytest.mark.usefixtures("moto_in_environment")
def test_killed_and_resumed_in_a_bucket_equals_uninterrupted(case, tmp_path, bucket):
    hold(plan(case), case, Chain(case, tmp_path, root=f"s3://{bucket.name}/run"))
    assert any(key.endswith("/COMMIT") for key in bucket.keys())  # noqa: SIM118 - of a bucket


def hold(kills: list[Kill], case: Case, chain: Chain) -> None:
    """Let the processes of the chain die one after the other, and the last one end."""
    for kill in kills:
        chain.start(kill)
    chain.start()
    missing = {(line.event, line.at) for line in chain.reference} - chain.covered
    # Death right after COMMIT comes from the writer's thread: a step that is traced only after its save may or may
    # not be reached before it. The step after it was compared in any case.
    at_commits = {kill.at for kill in kills if kill.moment == "committed" and case.traced == "after_save"}
    assert {at for _, at in missing} <= at_commits
    assert len(missing) <= len(at_commits)


def test_every_moment_is_killed_at():
    """And the default suite has each value of each option."""
    for api, never in (("train", "in_eval"), ("fit", "epoch_end")):
        assert {kill.moment for case in CASES if case.api == api for kill in plan(case)} == {*get_args(Moment)} - {
            never
        }
    assert {kill.moment for case in DEFAULT for kill in default_kills(case)} == {*get_args(Moment)}
    for case in CASES:
        killed, k = [kill.at for kill in plan(case)], case.accumulation_steps
        # Every micro-step of one whole cycle, and the end of an epoch, which is in mid-cycle unless K is 1.
        assert any({*range(k * n + 1, k * n + k + 1)} <= {*killed} for n in range(MICRO_STEPS // k))
        assert any(at % k for at in killed if at % BATCHES_PER_EPOCH == 0) == (k > 1)
    for name in {field.name for field in fields(Case)} - {"save", "seed"}:
        assert {getattr(case, name) for case in DEFAULT} == {getattr(case, name) for case in [*CASES, *SPECIAL]}, name


# Where the user sets no seed, a run still goes on with its own order of data, and every sample comes once.

KILLED_AT = 11  # with K = 4 and what must have been committed, the resumed process begins in mid-cycle


@pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.extended)])
def test_two_resumes_of_an_unseeded_run_are_equal(mode, tmp_path):
    case = Case(mode, 4, "Adam", "dense", "train", seed=None)
    root = tmp_path / "run"
    first = run(Job(case, str(root), str(tmp_path / "first"), Kill("step_end", KILLED_AT)))
    committed = last_committed(root)
    assert committed in (KILLED_AT - 2, KILLED_AT - 1)
    shutil.copytree(root, tmp_path / "copy")
    resumed = run(Job(case, str(root), str(tmp_path / "resumed")))
    again = run(Job(case, str(tmp_path / "copy"), str(tmp_path / "again")))
    assert_continues(case, resumed, again, None, committed)
    assert_equal(first, [line for line in resumed if line.event == "step" and line.at <= KILLED_AT])
    trace = [*(line for line in first if line.at <= committed), *resumed]
    assert steps(trace) == list(range(1, MICRO_STEPS + 1))
    delivered, size = [sample for line in trace for sample in line.samples], BATCHES_PER_EPOCH * SAMPLES_PER_BATCH
    epochs = [delivered[begin : begin + size] for begin in range(0, EPOCHS * size, size)]
    assert len({*delivered}) == size
    assert [sorted(epoch) for epoch in epochs] == [sorted({*delivered})] * EPOCHS, "every sample once per epoch"
    assert epochs[0] != epochs[1]
    other = run(Job(case, str(tmp_path / "other"), str(tmp_path / "trace-other"), Kill("step_end", 1)))
    assert first[1].samples != other[1].samples, "otherwise nothing was drawn"
