"""No secret that a storage is opened with is told to anybody: planted everywhere, and looked for in every byte."""

import dataclasses
import io
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

import fsspec
import pytest
from support.live import Stall
from typer.testing import CliRunner

from ckptkit import scrubber
from ckptkit.cli.app import app
from ckptkit.errors import StorageError
from ckptkit.format.events import plain_line
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Preemption
from ckptkit.scrubber import clean_url, scrub, scrubbed
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.s3 import options
from ckptkit.storage.s3.options import Keys, RenewedCredentials, S3Options
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.history import read_story
from ckptkit.tools.report.page import page_of

SECRET = "hunter2-Pa55/w0rd+x"
WITHOUT_SLASH = "hunter2-Pa55w0rd+x"
QUICK = {"retry_for": timedelta(seconds=1), "answer_within": timedelta(seconds=1)}
NOWHERE = "127.0.0.1:9"


def told_by(error: BaseException) -> str:
    said = "".join(traceback.format_exception(error))
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            said += f"{one}\n{one!r}\n{one.args!r}\n"
            links = (one.__cause__, one.__context__, *one.args)
            todo += [link for link in links if isinstance(link, BaseException)]
    return said


def assert_hidden(text: str | bytes) -> None:
    whole = text if isinstance(text, bytes) else text.encode()
    for secret in (SECRET, WITHOUT_SLASH):
        for form in (secret, quote(secret), quote(secret, safe=""), secret[:12]):
            # Lines of this file in a traceback have names, never values.
            assert form.encode() not in whole, text


def forget() -> None:
    """As at the start of a process: what one row of a table taught must not hide the secret of the next one."""
    scrubber._known.clear()
    scrubber._pattern = None


def error_of(call: Callable[[], object]) -> Exception:
    """What is raised in a process that knew no secret before: no part of it tells one."""
    forget()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it is looked through
        call()
    assert_hidden(told_by(caught.value))
    return caught.value


def planted(name: str) -> object:
    """A value of the right kind for an option of `S3Options`, with the secret in it."""
    url = f"http://someuser:{WITHOUT_SLASH}@{NOWHERE}/?token={WITHOUT_SLASH}"
    return {
        "endpoint_url": url,
        "client_kwargs": {"verify": True, "endpoint_url": url, "aws_session_token": SECRET, "wrong": SECRET},
        "config_kwargs": {"proxies": {"http": url}, "user_agent_extra": SECRET, "wrong": [SECRET]},
        "s3_additional_kwargs": {"SSEKMSKeyId": SECRET, "Tagging": {"wrong": SECRET}},
        "credentials": lambda: {"key": SECRET, "secret": SECRET, "token": SECRET, "expires": SECRET},
    }.get(name, SECRET)


@pytest.mark.parametrize("scheme", ["s3", "obs"])
def test_a_secret_in_any_option_stays_hidden(scheme, caplog):
    caplog.set_level(logging.DEBUG, "ckptkit")
    for name in sorted({field.name for field in dataclasses.fields(S3Options)} - {"profile"}):
        base = {"endpoint_url": f"http://{NOWHERE}", "key": "AKIA", "secret": SECRET, **QUICK}
        if name == "credentials":
            base = {one: value for one, value in base.items() if one not in ("key", "secret")}
        given = {**base, name: planted(name)}
        error_of(lambda given=given: open_storage(f"{scheme}://bucket/run", given).probe())
    assert_hidden(caplog.text)


@pytest.mark.parametrize("place", ["option", "environment"])
def test_a_gateway_with_a_password_is_named_without(place, monkeypatch):
    for endpoint in (f"user:{SECRET}@{NOWHERE}", f"http://user:{quote(SECRET, safe='')}@{NOWHERE}"):
        given = {"key": "AKIA", "secret": "secret", **QUICK}
        if place == "environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        else:
            given["endpoint_url"] = endpoint
        error = error_of(lambda given=given: open_storage("s3://bucket/run", given).probe())
        assert isinstance(error, StorageError)
        assert "127.0.0.1:9" in str(error)


def test_keys_in_the_environment_are_hidden(monkeypatch):
    """A library may quote them, whoever uses them."""
    for scheme in ("s3", "obs"):
        for name in options.OBS_SECRETS:
            secret = f"{scheme}-{name}-zQ8"
            monkeypatch.setenv(name, secret)
            given = {"key": "AKIA", "secret": "other-4711", "endpoint_url": f"http://{NOWHERE}"}
            open_storage(f"{scheme}://bucket/run", given)
            assert secret not in scrub(f"refused: {secret}")


def test_what_a_vault_says_is_left_out_and_its_keys_are_hidden_at_once():
    def vault():
        raise RuntimeError(f"this key is no longer valid: {SECRET}")

    error = error_of(lambda: open_storage("s3://bucket/run", {"credentials": vault, **QUICK}))
    assert isinstance(error, StorageError)
    assert "RuntimeError" in str(error)
    assert "in vault" in str(error)
    given = [{"key": "AKIA", "secret": f"Secret-{n}-zQ8", "token": f"Token-{n}-zQ8"} for n in range(2)]
    left = iter(given)
    credentials = RenewedCredentials(lambda: Keys.of(next(left)))
    for number, keys in enumerate(given):
        assert scrub(f"{keys['secret']} and {keys['token']}") == "*** and ***", number
        assert number or credentials.renew(credentials.keys)


URLS = [
    f"ftp://user:{WITHOUT_SLASH}@{NOWHERE}/run",
    f"ftp://user:x@{WITHOUT_SLASH}@{NOWHERE}/run",
    f"ftp://user:{SECRET}@{NOWHERE}/run",
    f"ftp://{WITHOUT_SLASH}@{NOWHERE}/run",
    f"simplecache::ftp://user:{WITHOUT_SLASH}@{NOWHERE}/run",
    f"nope://user:{WITHOUT_SLASH}@host/run",
    f"s3://AKIA:{SECRET}@bucket/run",
    f"s3://bucket/run?X-Amz-Signature={WITHOUT_SLASH}",
    f"s3:/AKIA:{SECRET}@bucket/run",
    f"https://user:{WITHOUT_SLASH}@host/run?X-Amz-Signature={WITHOUT_SLASH}",
    f"jupyter://{NOWHERE}/run?token={WITHOUT_SLASH}",
    f"webhdfs://user:{WITHOUT_SLASH}@{NOWHERE}/run?delegation={WITHOUT_SLASH}",
]


def test_a_secret_in_any_url_part_stays_hidden(caplog):
    caplog.set_level(logging.DEBUG, "ckptkit")
    for url in URLS:
        error_of(lambda url=url: open_storage(url).probe())
    assert_hidden(caplog.text)


def test_urls_in_a_text_lose_user_and_query():
    """What is taken away is never what tells two roots apart."""
    texts = {
        "could not reach http://user:pw@host:9000/b?sig=abc, as said": "could not reach http://host:9000/b?***",
        "abfs://container:pw@account/x": "abfs://account/x",
        **{text: text for text in (
            "s3://bucket/run#2/checkpoints is fine", "abfs://container@account.dfs.core.windows.net/x",
            "Is it at s3://bucket/run? Look there", "/data/runs/a@b?c and user@host stay",
        )},
    }  # fmt: skip
    for text, told in texts.items():
        assert scrub(text).startswith(told)
        assert scrub(scrub(text)) == scrub(text)
        assert "pw" not in scrub(text)
    assert clean_url("abfs://one@account/x") != clean_url("abfs://two@account/x")
    assert clean_url("ftp://[::1]/runs/a@b") == "ftp://[::1]/runs/a@b"
    chained = "zip://*.bin?a=b::filecache::https://u:pw@host/x.zip?sig=c::d"
    assert clean_url(chained) == "zip://*.bin::filecache::https://host/x.zip"


def test_a_secret_of_any_kind_stays_hidden():
    for given, text in [
        ({"keys": ["first-Pa55word", "second-Pa55word"]}, "second-Pa55word"),
        ({"keys": ("in-a-tuple-Pa55",)}, "in-a-tuple-Pa55"),
        ({"keys": frozenset({"in-a-set-Pa55"})}, "in-a-set-Pa55"),
        ({"client": {"deep": [{"deeper": "nested-Pa55word"}]}}, "nested-Pa55word"),
        ({"headers": {"X-Auth": [b"as-bytes-Pa55"]}}, "as-bytes-Pa55"),
        ({"password": 48151623}, "48151623"),
        ({"headers": "Bearer=of-a-header-Pa55; path=/"}, "of-a-header-Pa55"),
        ({"password": "kept/slash+Pa55"}, "kept/slash%2BPa55"),
        ({"password": "quoted/slash+Pa55"}, "quoted%2Fslash%2BPa55"),
        ({"password": "was%2Fquoted+Pa55"}, "was/quoted+Pa55"),
        ({"password": "back\\slash-Pa55"}, "back\\\\slash-Pa55"),  # as `repr` writes it
        ({"proxy": "http://user-alone-Pa55@host/"}, "user-alone-Pa55"),  # as tokens are given
    ]:
        assert scrub(f"wrong: {text}") == f"wrong: {text}"
        open_storage("memory://shown-place/run", given)
        assert scrub(f"wrong: {text}") == "wrong: ***"


def test_what_is_no_secret_is_shown():
    """Parts of words, numbers that open nothing, what the root shows; of two secrets, the longer is hidden whole."""
    open_storage("memory://shown-place/run", {"password": "stor", "port": 20222, "auth_required": True})
    open_storage("memory://shown-place/run", {"password": "shown-place", "token": "Pa55-beginning"})
    open_storage("memory://shown-place/run", {"token": "Pa55-beginning-and-end"})
    assert scrub("the storage has stor, and restored it") == "the storage has ***, and restored it"
    for text in ("no answer at port 20222", "use_ssl=True", "memory://shown-place/run"):
        assert scrub(text) == text
    assert scrub("wrong: Pa55-beginning-and-end") == "wrong: ***"


class Talkative(fsspec.AbstractFileSystem):
    """A file system whose every failure quotes what it was opened with, and so do the causes."""

    protocol = "talkative"
    cachable = False

    def __init__(self, password: str = "", **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.password = password

    def _fail(self, *_: object, **__: object) -> None:
        try:
            try:
                raise OSError(5, f"no answer to {self.password}", f"/home/{self.password}")
            except OSError as error:
                raise _OddError(self.password) from error
        except _OddError:
            inner = ValueError(f"Authorization: Bearer {self.password}")
            raise RuntimeError(inner, f"ftp://user:{self.password}@host/x?sig={self.password}")  # noqa: B904 - as they do

    ls = info = cat_file = pipe_file = rm_file = rmdir = makedirs = _open = _fail


class _OddError(Exception):
    """One whose words are no arguments of it."""

    def __init__(self, password: str) -> None:
        super().__init__()
        self.password = password

    def __str__(self) -> str:
        return f"odd {self.password}"


CALLS: dict[str, Callable[[Storage], object]] = {
    "probe": lambda one: one.probe(),
    "list": lambda one: one.list("a"),
    "walk": lambda one: one.walk("a/"),
    "read": lambda one: one.read("a", 1),
    "read_into": lambda one: one.read_into("a", [memoryview(bytearray(1))]),
    "write": lambda one: one.write("a", io.BytesIO(b"x"), 1),
    "create": lambda one: one.create("a", b"x"),
    "delete": lambda one: one.delete(["a"]),
}


def test_no_link_of_an_error_holds_a_secret():
    open_storage("memory://shown-place/run", {"password": SECRET})
    cause = OSError(2, f"no {SECRET}", f"/from/{SECRET}", None, f"/to/{SECRET}")
    cause.__cause__ = _OddError(SECRET)
    nested = RuntimeError("nested")
    nested.__cause__ = KeyError(SECRET)
    context = ValueError("context")
    context.__context__ = _OddError(SECRET)
    error = StorageError("outer", nested)
    error.__cause__, error.__context__ = cause, context

    with pytest.raises(StorageError), scrubbed():
        raise error
    assert_hidden(told_by(error))
    assert (cause.strerror, cause.filename, cause.filename2) == ("no ***", "/from/***", "/to/***")
    assert error.__suppress_context__  # as before: of the two, a traceback shows the cause


def test_a_library_that_tells_all_is_not_quoted(caplog):
    caplog.set_level(logging.DEBUG, "ckptkit")
    verbs = {name for name in vars(Storage) if not name.startswith("_") and callable(getattr(Storage, name))}
    assert verbs - {"clear_unfinished"} == CALLS.keys()  # which does nothing in a storage of fsspec
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    for name, call in CALLS.items():
        error = error_of(lambda call=call: call(open_storage("talkative://host/run", {"password": SECRET})))
        assert isinstance(error, StorageError), name
        assert "Authorization" in told_by(error)  # what is no secret still helps
        assert "no answer to ***" in told_by(error)
    logging.getLogger("ckptkit").warning("it failed: %s", f"{SECRET}!", exc_info=error)
    logging.getLogger("ckptkit").warning("another", exc_info=RuntimeError(SECRET))
    assert "it failed: ***!" in caplog.text
    assert_hidden(caplog.text)


@pytest.mark.parametrize("answer", [Exception, FileNotFoundError, FileExistsError])
def test_words_that_cannot_change_are_replaced(answer):
    """Of an error that is raised as it is; a storage's answer stays one."""

    class OddAnswerError(_OddError, answer):
        """That a key is there, or is not, as a library says it."""

    open_storage("memory://odd/run", {"password": SECRET})

    with pytest.raises(answer, match=r"^OddAnswerError: odd \*\*\*$") as caught, scrubbed():
        raise OddAnswerError(SECRET)
    assert_hidden("".join(traceback.format_exception(caught.value)))


@pytest.fixture
def gateway(proxy, bucket) -> dict[str, object]:
    """Options for a gateway behind a password; `proxy` takes it away."""
    authority = proxy.endpoint.removeprefix("http://")
    return {
        "endpoint_url": f"http://user:{WITHOUT_SLASH}@{authority}",
        "key": "AKIA",
        "secret": SECRET,
        **QUICK,
        "request_timeout": timedelta(seconds=3),
    }


def test_a_run_in_a_bucket_holds_no_secret(gateway, proxy, bucket, caplog, capsys):
    """Neither in a byte of it, nor in the log, the errors or the report, whatever failed on the way."""
    root = f"s3://{bucket.name}/run"
    run = NumpyRun()
    manager = CheckpointManager(root, storage_options=gateway, preemption=Preemption(then="off"))
    manager.restore(run)
    manager.save(run).result()
    proxy.down()
    for _ in run.train_until(2):
        manager.step(run, {"loss": 1.0})
    failed = manager.save(run).exception()
    proxy.up()
    for _ in run.train_until(4):
        manager.step(run, {"loss": 1.0})
    manager.save(run).result()
    mistake = RuntimeError(f"my own code says {SECRET} at http://user:{WITHOUT_SLASH}@host")
    manager.__exit__(RuntimeError, mistake, None)
    assert isinstance(failed, StorageError)
    assert_hidden(told_by(failed))
    assert plain_line("x" * 505 + SECRET) == "x" * 505 + "***"  # of an event: cut after it was hidden
    kept = b"".join(bucket.get(key) for key in bucket.keys())  # noqa: SIM118 - a method of it
    assert b"Could not connect" in kept
    assert b"my own code says" in kept
    assert_hidden(kept)
    assert "failed" in caplog.text
    assert_hidden(caplog.text)
    page = page_of(read_story(open_storage(root, gateway), datetime(2026, 1, 1, tzinfo=timezone.utc)))
    assert "my own code says" in page
    assert_hidden(page)
    assert_hidden("".join(capsys.readouterr()))


def test_a_command_shows_no_secret():
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    for root in ("talkative://host/run", f"nope://user:{WITHOUT_SLASH}@host/run", f"s3://AK:{SECRET}@b/r"):
        for debug in ((), ("--debug",)):
            forget()
            ended = CliRunner().invoke(app, ["ls", root, "--option", f"password={SECRET}", *debug])
            assert ended.exit_code != 0
            assert ended.stderr
            assert_hidden(ended.stdout + ended.stderr)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_hides_secrets_while_its_parent_does():
    scrubber.learn(SECRET)
    stall = Stall()

    def hold():
        with scrubber._lock:
            stall()

    holder = threading.Thread(target=hold)
    holder.start()
    assert stall.reached.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(7 if scrub(SECRET) == "***" else 1)
    ended = os.waitpid(child, 0)[1]
    stall.let_go()
    holder.join()
    assert os.waitstatus_to_exitcode(ended) == 7
