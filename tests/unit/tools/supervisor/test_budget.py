from datetime import timedelta

from support.heartbeats import life_of, record_of

from ckptkit.manager.heartbeat import Phase
from ckptkit.tools.supervisor.diagnosis import CODE_OR_DATA, GIVEN_UP, LifeFinding, RestartBudget, diagnose
from ckptkit.tools.supervisor.supervisor import pause_before


def died(step: int, *, number: int, restored: int = 0, committed: int = -1, phase=Phase.TRAINING, code: int = -9):
    fields = {"micro_step": step, "restored_step": restored, "committed_step": committed, "root": "r"}
    return life_of(record_of(phase, **fields), number=number, returncode=code)


def judged(budget: RestartBudget, life):
    return budget.judge(life, diagnose(life))


def test_lives_without_progress_in_a_row_end_it():
    budget = RestartBudget(3)
    codes = [judged(budget, died(step, number=step, committed=-1)).exit_code for step in (5, 6, 7)]
    assert codes == [None, None, GIVEN_UP]
    assert judged(RestartBudget(1), died(5, number=1)).next_move.startswith("1 life in a row committed nothing new")
    before = died(117, number=1, restored=110, committed=110)
    assert judged(RestartBudget(1), before).exit_code == GIVEN_UP, "it was committed before"


def test_same_commit_again_is_no_progress():
    budget = RestartBudget(2)
    assert judged(budget, died(15, number=1, committed=10)).in_a_row == 0
    assert judged(budget, died(16, number=2, committed=10)).in_a_row == 1
    assert judged(budget, died(17, number=3, restored=10)).exit_code == GIVEN_UP


def test_second_death_in_the_same_micro_step_ends_it():
    for code in (-9, -11, 7):
        budget = RestartBudget(9)
        assert judged(budget, died(99, number=1, restored=80, committed=90, code=code)).exit_code is None
        assert judged(budget, died(95, number=2, restored=90)).finding.cause == "killed"
        elsewhere = died(99, number=3, code=code)
        elsewhere.records[0].put("root", "another")
        assert judged(budget, elsewhere).exit_code is None, "another run is another place"
        decision = judged(budget, died(99, number=4, restored=90, code=code))
        assert (decision.exit_code, decision.finding.cause) == (CODE_OR_DATA, "code-or-data"), code
        assert "lives 1, 4 died" in decision.finding.why


def test_two_kills_in_one_compilation_prove_nothing():
    for code, causes in ((-9, ["killed", "killed", "code-or-data"]), (-11, ["crash", "code-or-data"])):
        budget = RestartBudget(9)
        lives = [died(80, number=n, restored=80, phase=Phase.FIRST_STEP, code=code) for n in range(len(causes))]
        assert [judged(budget, life).finding.cause for life in lives] == causes


def test_runs_of_one_command_make_progress_by_themselves():
    budget = RestartBudget(2)
    first = record_of(Phase.ENDED, root="a", micro_step=1000, restored_step=1000, committed_step=-1)
    for number, committed in enumerate((10, 20, 30), 1):
        fields = {"root": "b", "micro_step": committed + 5, "restored_step": committed - 10, "opened_at": 9.0}
        second = record_of(committed_step=committed, attempt=1, **fields)
        assert judged(budget, life_of(first, second, number=number, returncode=-9)).in_a_row == 0


def test_same_error_before_any_training_is_no_matter_of_the_machine():
    def ended(number, error, *records):
        words = f"Traceback (most recent call last):\n{error}\n"
        return life_of(*records, number=number, returncode=1, last_words=words)

    errors = ["KeyError: 1", "KeyError: 2", "KeyError: 2"]
    budget = RestartBudget(3)
    assert [judged(budget, ended(n, error)).exit_code for n, error in enumerate(errors)] == [None, None, GIVEN_UP]
    other = judged(RestartBudget(1), ended(1, "KeyError: 2", record_of()))
    assert "a restart fails again" not in other.next_move
    budget = RestartBudget(3)
    last = [judged(budget, ended(number, "KeyError: 1")) for number in (1, 2, 3)][-1]
    assert (last.exit_code, last.finding.cause) == (CODE_OR_DATA, "code-or-data")


def test_outage_and_full_disk_are_never_the_batch():
    budget = RestartBudget(9)
    said = {"error": "TimeoutError", "category": "outage", "message": "no answer", "failed_in": Phase.TRAINING}
    lives = [life_of(record_of(micro_step=80, **said), number=number, returncode=1) for number in (1, 2, 3, 4)]
    assert [judged(budget, life).finding.cause for life in lives] == ["outage"] * 4
    budget = RestartBudget(3)
    life = life_of(record_of(micro_step=9, error="E", category="disk-full", how="failed"), returncode=1)
    assert [judged(budget, life).exit_code for _ in range(3)] == [None, None, GIVEN_UP]


def test_same_message_about_data_is_the_data_wherever_it_comes_up():
    def died_of(step, number, message):
        said = {"error": "RuntimeError", "category": "data", "message": message, "failed_in": Phase.TRAINING}
        return life_of(record_of(Phase.TRAINING, micro_step=step, root="r", **said), number=number, returncode=1)

    budget = RestartBudget(9)
    first = [judged(budget, died_of(*one)) for one in ((80, 1, "a.jpg is broken"), (80, 2, "b.jpg is broken"))]
    assert [one.finding.cause for one in first] == ["data", "data"]
    third = judged(budget, died_of(83, 3, "a.jpg is broken"))
    assert (third.exit_code, third.finding.cause) == (CODE_OR_DATA, "code-or-data")
    assert "lives 1, 3 died of the same data, at last before the end of micro-step 84 " in third.finding.why
    assert "a.jpg is broken" in third.finding.why


def test_some_ends_are_the_last():
    ends = {"finished": 0, "preempted": 143, "interrupted": 143, "usage": 2, "overtaken": 65, "refused": 65}
    for cause, code in ends.items():
        assert RestartBudget(9).judge(life_of(returncode=1), LifeFinding(cause, "")).exit_code == code, cause


def test_pauses_double_up_to_the_longest():
    pauses = [pause_before(one, timedelta(seconds=10)).total_seconds() for one in range(6)]
    assert pauses == [0, 1, 2, 4, 8, 10]
