"""A stretch of a run that is trained again is certified, or what differs is named with its cause."""

import json
import re
import sys
from datetime import timedelta

import pytest
from support import ranked_training
from support.doctor_lives import NUMPY_RUN
from support.junit import cases_of, read_junit
from support.process import python
from support.process_ranks import launcher
from typer.testing import CliRunner

from ckptkit.checkpoint.commit import remove_checkpoint
from ckptkit.cli import app
from ckptkit.cli.commands.ls import run_ls
from ckptkit.cli.commands.replay import run_replay
from ckptkit.cli.commands.verify import run_verify
from ckptkit.cli.errors import WrongUsageError
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from ckptkit.tools import replay
from ckptkit.tools.doctor.result import UnusableScriptError
from ckptkit.tools.replay import ReplayVerdict, certify, stretch_of

RANKED = ranked_training.__file__
# Saves after 4, 8, 12 and 16 of 18 micro-steps. FLIP is where the hardware computes wrongly, once.
SCRIPT = (
    NUMPY_RUN
    + """
run = Run(accumulation_steps=2)
root, keep = "elsewhere" if "elsewhere" in what else "run", ck.KeepLatest(2 if "few" in what else 9)
with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=4), keep=keep) as manager:
    manager.restore(run)
    if "crashes" in what:
        raise SystemExit("out of luck")
    while run.batches < (10 if "stops" in what else 18):
        run.train_step()
        if run.batches == int(os.environ.get("FLIP", -1)):
            run.weights.view(np.uint32).reshape(-1)[3] ^= 1 << 20
        if "noisy" in what and run.batches == 10:
            run.weights.reshape(-1)[0] = np.frombuffer(os.urandom(2), np.uint16)[0]
        if "saves" not in what:
            manager.step(run)
        manager.wait()
        if "evaluates" in what and run.batches % 8 == 0 or "saves" in what and run.batches % 4 == 0:
            np.random.random()
            run.moments.reshape(-1)[0] += 1  # what the evaluation changes, after the step
            if run.batches == int(os.environ.get("FLIP_LATER", -1)):
                run.weights.view(np.uint32).reshape(-1)[3] ^= 1 << 20
            manager.save(run, {"acc": 0.5})
            manager.wait()
    if "ends" in what:
        run.weights.reshape(-1)[0] += 1  # as a callback at the end of training does
        manager.save_final(run)
        open("exported", "w").close()
"""
)


@pytest.fixture
def here(ranked):
    (ranked / "train.py").write_text(SCRIPT)
    return ranked


def command(*what):
    return [sys.executable, "train.py", *what]


def trained(here, *what, **environment):
    python("train.py", *what, cwd=here, environment=environment)
    return names(here / "run")


def names(root):
    return [info.name for info in list_checkpoints(open_storage(root))]


def replayed(capsys, *what, **options):
    code = run_replay("run", command(*what), timeout=60, as_json=True, **options)
    out, said = capsys.readouterr()
    return code, json.loads(out) if out else said


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_record_names_beside_each_certified_checkpoint_where_it_began(here, capsys):
    """Up to the first that differs, as of hardware that computes wrongly once; the run goes on as before."""
    at = trained(here, FLIP="14")
    before = contents(here / "run")
    code, found = replayed(capsys, begin=at[0], record=True)
    assert (code, found["equal"], found["differing"], found["recorded"]) == (1, at[1:3], at[3], at[1:3])
    assert "weights" in [leaf["name"] for leaf in found["leaves"]]
    assert (found["deterministic"], found["versions"]) == (True, [])
    certificates = {f"checkpoints/{name}/receipts/certified-from-{at[0]}": b"" for name in at[1:3]}
    assert contents(here / "run") == {**before, **certificates}
    assert replayed(capsys, begin=at[1], end=at[2], record=True)[1]["recorded"] == [at[2]]
    assert run_verify("run", None, as_json=True) == 0
    capsys.readouterr()
    assert run_ls("run", as_json=True) == 0
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [checkpoint["certified_from"] for checkpoint in listed] == [[], [at[0]], at[:2], []]
    run_ls("run")
    lines = [line for line in capsys.readouterr().out.splitlines() if "a000001-" in line]
    assert [", certified" in line for line in lines] == [False, True, True, False]
    python("train.py", cwd=here)  # a start finds nothing wrong
    assert names(here / "run")[:4] == at


def test_noise_of_the_script_is_told_from_the_hardwares(here, capsys, monkeypatch):
    at = trained(here, "noisy")
    monkeypatch.setattr(replay, "changed", lambda recorded: [("numpy", "1.0", "2.0")])
    code, found = replayed(capsys, "noisy", begin=at[0])
    assert (code, found["differing"], found["deterministic"]) == (1, at[2], False)
    assert found["versions"] == [["numpy", "1.0", "2.0"]]


def test_last_stretch_is_replayed_by_default_whatever_the_script_keeps(here, capsys):
    """Without ``record``, nothing is stored; what was trained stays where it is wanted."""
    at = trained(here)
    (here / "run").rename(here / "real")
    (here / "run").symlink_to(here / "real")
    (here / "train.py").write_text(SCRIPT.replace('else "run"', 'else "real"'))
    _, found = replayed(capsys, "few", keep="kept")
    assert (found["begin"], found["equal"], found["recorded"]) == (at[-2], at[-1:], [])
    assert not list((here / "real").rglob("certified-*"))
    assert (here / "kept" / "run-1" / "checkpoints").is_dir()
    assert replayed(capsys, keep="kept")[0] == 2  # not empty
    _, found = replayed(capsys, "few", begin=at[0], end=at[2])
    assert found["equal"] == at[1:3]


def test_stretch_follows_the_lineage_of_its_end(here):
    """Of a run that was killed and went on, what a later attempt left behind is no part."""
    at = trained(here, "stops")
    python("train.py", cwd=here)
    storage = open_storage("run")
    whole = names("run")
    assert [str(end.name) for end in stretch_of(storage, at[0], "latest").ends] == whole[1:]
    assert [str(end.name) for end in stretch_of(storage, None, at[1]).ends] == at[1:]
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint 'a000009"):
        stretch_of(storage, "a000009-c0000000001-m0000", "latest")
    with pytest.raises(CheckpointNotFoundError, match="there is nothing to begin at"):
        stretch_of(storage, None, at[0])
    stretch = stretch_of(storage, at[0], "latest")
    remove_checkpoint(storage, stretch.ends[0].name)  # by the job, while it was replayed
    assert certify(storage, stretch, ReplayVerdict(tuple(whole[1:]))) == whole[2:]
    for file in (here / "run" / "attempts").iterdir():
        file.unlink()
    with pytest.raises(CorruptCheckpointError, match="attempts/"):
        stretch_of(storage, None, whole[-1])


def test_script_that_cannot_be_replayed_is_refused(here, capsys, monkeypatch):
    trained(here)
    for what, code, said in (
        ("elsewhere", 2, "the script trains the run at"),
        ("stops", 1, "of 16 micro-steps"),
        ("saves", 2, "where a000001-c0000000008-m0000 was taken"),
    ):
        if what == "saves":  # and is never at that micro-step
            (here / "train.py").write_text(SCRIPT.replace("run.batches % 4", "run.batches % 6"))
        found = replayed(capsys, what)
        assert found[0] == code, what
        assert said in found[1]
    limits = []

    def refuse(*_, time_limit, **others):
        limits.append(time_limit)
        raise UnusableScriptError("no")

    monkeypatch.setattr("ckptkit.cli.commands.replay.StretchReplay", refuse)
    assert replayed(capsys)[0] == 2
    assert limits == [timedelta(seconds=60)]  # as it was typed


@pytest.mark.parametrize("what", [["saves"], ["evaluates", "ends"]])
def test_saves_that_the_script_makes_itself_are_compared_with_their_likes(here, capsys, what):
    """After an evaluation, without steps, or at the end; what the script does afterwards does not run."""
    at = trained(here, *what)
    (here / "exported").unlink(missing_ok=True)
    code, found = replayed(capsys, *what, begin=at[0])
    later = [name for name in at if name.partition("-t")[0] != at[0].partition("-t")[0]]
    assert (code, found["equal"]) == (0, later)
    assert not (here / "exported").exists()


def test_second_checkpoint_of_a_micro_step_is_compared_too(here, capsys):
    at = trained(here, "evaluates", FLIP_LATER="16")
    assert at[-1].endswith("-t02")
    code, found = replayed(capsys, "evaluates")
    assert (code, found["differing"]) == (1, at[-1])
    assert at[-2] in found["equal"]


def test_the_command_line_prints_a_verdict(here):
    """Each checkpoint is a case of JUnit; what comes after the one that differs is not known."""
    at = trained(here, FLIP="7")
    before = contents(here / "run")

    def said(begin, *what, end="latest"):
        options = ["replay", "run", "--from", begin, "--to", end, "--junit", "ci/replay.xml"]
        done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*options, "--", *command(*what)])
        return done.exit_code, done.stdout, [case[:2] for case in cases_of("ci/replay.xml")]

    code, out, cases = said(at[0])
    assert (code, cases) == (1, [(at[1], "failure"), (at[2], "skipped"), (at[3], "skipped")])
    assert f"DIFFERS: {at[1]}, and the difference came after {at[0]}" in out
    assert re.search("what differs: .*weights", out)
    assert "cause: two replays agree with each other and not with the run" in out
    code, out, cases = said(at[1], end=at[2])
    assert (code, cases) == (0, [(at[2], None)])
    assert f"equal, bit for bit: {at[2]}\ncertified: this stretch, trained again, is that of the run\n" in out
    assert said(at[0], "crashes")[0] == 1
    (error,) = read_junit("ci/replay.xml").iter("error")
    assert "out of luck" in error.text
    assert contents(here / "run") == before
    with pytest.raises(WrongUsageError, match="after two dashes"):
        run_replay("run", [])


def trained_ranks(ranked, **also):
    python(*launcher(2, RANKED)[1:], cwd=ranked, environment=also)
    return names(ranked / "run")


def run_ranks(capsys, command, begin):
    code = run_replay("run", command, begin=begin, end="latest", keep="kept", timeout=60, as_json=False)
    return code, "".join(capsys.readouterr())


def test_accumulator_that_one_rank_computed_wrongly_names_the_rank(ranked, capsys):
    at = trained_ranks(ranked, FLIP="1 8 accumulators 22")
    assert (ranked / "flipped").read_text() == "1 8 accumulators 22"  # the fault fired
    code, said = run_ranks(capsys, launcher(2, RANKED), at[0])
    assert code == 1
    assert f"DIFFERS: {at[1]}" in said
    assert "what differs: rank 1: accumulators\n" in said
    assert "cause: two replays agree with each other" in said


def test_another_number_of_ranks_is_refused(ranked, capsys):
    """Also by a script that could go on with it, and would give other bits."""
    at = trained_ranks(ranked)
    script = ranked / "elastic.py"
    script.write_text(
        f"import sys\nsys.argv = [{RANKED!r}]\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "whole = NumpyRun.apply\n"
        "def apply(run, contents):\n"
        "    object.__setattr__(contents, 'world_size', run.world.size)\n"
        "    whole(run, contents)\n"
        "NumpyRun.apply = apply\n"
        f"exec(compile(open({RANKED!r}).read(), {RANKED!r}, 'exec'))\n"
    )
    code, said = run_ranks(capsys, [sys.executable, str(script)], at[0])
    assert code == 2
    assert f"{at[0]} is of a job of 2 ranks, and this command trains 1" in said
