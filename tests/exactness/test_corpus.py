"""Resumes of the corpus are exact, named or refused; a sample, another one each day or as CORPUS_SEED says."""

import itertools
import os
import re
import time
from collections import Counter

import pytest

from benchmarks.corpus.__main__ import results_of, sample, table
from benchmarks.corpus.job import CLASSES, HEADS, JOBS, TRUTHS, Job, all_jobs, read
from benchmarks.corpus.lives import Life, Result, compared

SAMPLE, SILENT = 40, 5  # if 4 % of all are silent, more than 5 of 40 are so once in two hundred samples
NAME = {"level": "WARNING", "message": "The resumed run may not be bit-exact. x"}


def test_each_job_is_a_script_with_a_truth_and_a_class():
    jobs = all_jobs()
    assert len(jobs) > 1000
    assert ({job.truth for job in jobs}, {job.place for job in jobs}) == ({*TRUTHS}, {*CLASSES})
    for job in jobs:
        compile(job.source, job.name, "exec")
    heads = Counter(path.read_text().partition("# head: ")[2].partition("\n")[0] for path in JOBS.glob("*.py"))
    assert {path.stem for path in HEADS.glob("*.py")} == {*heads} - {""}
    assert min(heads.values()) > 1


def test_what_differs_without_a_name_is_silent():
    rows = (({2: {"w": ["b"]}}, "exact"), ({2: {"w": ["c"]}}, "differs"), ({1: {"w": ["a"]}}, "differs"))
    for (steps, outcome), log in itertools.product(rows, ([], [NAME])):
        whole = Life(0, steps={1: {"w": ["a"]}, 2: {"w": ["b"]}}, log=log)
        result = Result(Job("lost", "differs", "other", ""), *compared(whole, Life(0, steps=steps)), {"whole": whole})
        assert result.outcome == outcome, steps
        silent = outcome == "differs" and not log
        assert ("lost: silent" in table([result])) == (result.category == "silent") == silent, steps


def test_runner_tells_lost_state_from_stored_state_and_from_a_defect():
    """And a job of two runs continues exactly, a rate that a callback assigns too; new memory for it is refused."""
    outcomes = {"r012_number_or_none_yet": "differs", "b31_statedict_good": "exact", "bq31_pretrain_finetune": "exact"}
    outcomes |= {"ac02_cb_warm_restarts_stateful_exact": "exact", "q035_set_data_rate": "refused"}
    defect = Job("defect", "exact", "other", "raise ValueError('no training')")
    results = {
        result.job.name: result for result in results_of([*(read(JOBS / f"{name}.py") for name in outcomes), defect])
    }
    assert {name: result.outcome for name, result in results.items()} == outcomes | {"defect": "broken"}
    assert "no training" in results["defect"].about
    assert re.search(r"learning_rate got new memory.*ops\.assign", results["q035_set_data_rate"].about)


def test_own_checkpoints_of_mindspore_lose_what_they_do_not_store():
    jobs = [read(JOBS / f"{name}.py") for name in ("a09_enum_by_step", "b31_statedict_good", "f019_meters_only")]
    assert [result.category for result in results_of(jobs, system="ms-checkpoint")] == ["exact", "silent", "exact"]


@pytest.mark.extended
def test_optimizers_networks_and_precisions_resume_exactly():
    results = [*results_of([read(path) for path in sorted(JOBS.glob("t[0-9]*.py"))], at_once=2, is_killed=True)]
    assert {result.job.name: result.about for result in results if result.category != "exact"} == {}
    assert len(results) == 13


@pytest.mark.extended
@pytest.mark.timeout(3000)
def test_sample_of_the_corpus_is_seldom_silent():
    seed = int(os.environ.get("CORPUS_SEED", time.localtime().tm_yday))
    results = [*results_of(sample(all_jobs(), SAMPLE, seed), at_once=2)]
    print(f"CORPUS_SEED={seed}", table(results), sep="\n")
    counts = Counter(result.category for result in results)
    assert counts["broken"] == 0
    assert counts["silent"] <= SILENT
