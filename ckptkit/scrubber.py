"""Removes secrets from everything that ckptkit writes for a person or into a file.

It learns the URLs and options with which a storage is opened. Every error of ckptkit, every record of its log and every
line of an event passes `scrub`; errors of a storage's library pass `scrubbed` with their causes. No such text holds a
learned value, nor the user or the query of any URL. Not covered: loggers of other libraries, local variables that some
tracebacks show, output of the user's program, and secrets of fewer than `LEAST` characters, which occur in every text.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, unquote

HIDDEN = "***"
LEAST = 4

# Options whose values help a reader and give no access; all text of any other option is a secret.
PUBLIC = frozenset(
    {
        *("endpoint_url", "profile", "region_name", "verify", "signature_version", "addressing_style"),
        *("ServerSideEncryption", "StorageClass", "ACL", "protocol", "host", "hostname"),
    }
)

_TELLING = re.compile("pass|pwd|secret|token|key|sig|sas|cred|auth", re.IGNORECASE)
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})  # their URLs show half the bucket's name as user
_WORD_BELOW = 8  # characters; a shorter secret is hidden only as a whole word, or it would hide half of each text
_DEEPEST = 8  # nesting depth of options

# Separates the links of a chained fsspec URL. Not every "::": a bracketed address or a query may contain one.
_LINK = re.compile(r"::(?=(?:[a-z][\w+.-]*::)*[a-z][\w+.-]*://)", re.IGNORECASE)
_IN_TEXT = re.compile(r"\b([a-z][a-z0-9+.-]+)(:/{1,2})([^\s\"'<>]*)", re.IGNORECASE)

_lock = threading.RLock()  # a signal handler may log while it is taken; in C, for the reason that ADR 17 gives
_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def learn_root(url: str, options: Mapping[str, object]) -> None:
    """Learn the secrets in the URL of a run root and in its storage options, except what the root itself shows."""
    shown = set(re.split(r"[^\w-]+", clean_url(url)))
    _remember(secret for secret in (*_of_url(url), *_of_option(options, "", _DEEPEST)) if secret not in shown)


def learn(*secrets: str | None) -> None:
    """Learn whole secrets, such as keys that were renewed."""
    _remember(filter(None, secrets))


def learn_url(url: str | None) -> None:
    """Learn the secrets in the URL of a server, which may lack its scheme."""
    _remember(_of_url(url or ""))


def scrub(text: str) -> str:
    """Return ``text`` without any known secret, and without the user and the query of URLs."""
    pattern = _current()
    if pattern is not None:
        text = pattern.sub(HIDDEN, text)
    return _IN_TEXT.sub(_shown, text) if ":/" in text else text


def clean_url(url: str) -> str:
    """Return ``url`` without user, password, query and fragment, in each fsspec link; a path is unchanged."""
    return "::".join(_clean_link(link) for link in _LINK.split(url))


@contextmanager
def scrubbed() -> Iterator[None]:
    """Remove secrets from errors raised in this context, including their causes."""
    try:
        yield
    except Exception as error:
        clean = scrub_error(error)
        if clean is error:
            raise
        raise clean from None


def scrub_error(error: BaseException) -> BaseException:
    """Remove secrets from ``error`` and all its causes in place; returns a replacement if that is impossible."""
    clean = _clean_error(error)
    seen: set[int] = set()
    waiting = [clean]
    while waiting:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        is_quiet = link.__suppress_context__  # which setting a cause changes
        for name in ("__cause__", "__context__"):
            before = getattr(link, name)
            if before is not None:
                setattr(link, name, _clean_error(before))
                waiting.append(getattr(link, name))
        link.__suppress_context__ = is_quiet
        waiting += [arg for arg in link.args if isinstance(arg, BaseException)]
    return clean


class _CleanError(Exception):
    """Replaces an error whose own text cannot be changed."""


_ANSWERS = (FileNotFoundError, FileExistsError)  # answers of a storage, which the caller distinguishes from failures


def _clean_error(error: BaseException) -> BaseException:
    if not _leaks(error):
        return error
    for arg in error.args:
        if isinstance(arg, BaseException):
            _clean_error(arg)
    error.args = tuple(scrub(arg) if isinstance(arg, str) else arg for arg in error.args)
    if isinstance(error, OSError):
        for name in ("filename", "filename2", "strerror"):
            value = getattr(error, name)
            if isinstance(value, str):
                setattr(error, name, scrub(value))
    if not _leaks(error):
        return error
    kind = next((answer for answer in _ANSWERS if isinstance(error, answer)), _CleanError)
    stand_in = kind(f"{type(error).__name__}: {scrub(str(error))}").with_traceback(error.__traceback__)
    stand_in.__cause__, stand_in.__context__ = error.__cause__, error.__context__
    stand_in.__suppress_context__ = error.__suppress_context__
    return stand_in


def _leaks(error: BaseException) -> bool:
    return any(scrub(text) != text for text in (str(error), repr(error)))


class _Scrubbing(logging.Filter):
    """Filters the log: changes only records that hold a secret."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        clean = scrub(text).encode(errors="backslashreplace").decode()  # a file of the program's may get it
        if clean != text:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            error = scrub_error(record.exc_info[1])
            record.exc_info = (type(error), error, record.exc_info[2])
        return True


logging.getLogger("ckptkit").addFilter(_Scrubbing())


# A thread that had taken the lock does not exist after a fork.
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


def _remember(secrets: Iterable[str]) -> None:
    global _pattern  # noqa: PLW0603 - one for the process, as the module says
    forms = {
        form for text in secrets for form in (text, unquote(text), quote(text), quote(text, safe=""), repr(text)[1:-1])
    }
    new = {form for form in forms if len(form) >= LEAST and HIDDEN not in form}
    with _lock:
        if not new <= _known:
            _known.update(new)
            _pattern = None


def _current() -> re.Pattern[str] | None:
    global _pattern  # noqa: PLW0603 - as above
    with _lock:
        if _pattern is None and _known:
            longest_first = sorted(_known, key=lambda secret: (-len(secret), secret))
            _pattern = re.compile("|".join(map(_matching, longest_first)))
        return _pattern


def _matching(secret: str) -> str:
    return re.escape(secret) if len(secret) >= _WORD_BELOW else rf"(?<!\w){re.escape(secret)}(?!\w)"


def _of_option(value: object, name: str, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            yield from _of_option(inner, str(key), depth - 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth:
        for inner in value:
            yield from _of_option(inner, name, depth - 1)
    elif isinstance(value, bytes):
        yield from _of_option(value.decode("latin-1"), name, depth)
    elif isinstance(value, str):
        yield from _of_text(value, name)
    elif isinstance(value, int) and not isinstance(value, bool) and _TELLING.search(name):
        yield str(value)


def _of_text(text: str, name: str) -> Iterator[str]:
    yield from _of_url(text)
    if name in PUBLIC or ("://" in text and not _TELLING.search(name)):
        return
    yield text
    # An error may quote a part of a header or a connection string.
    for piece in re.split(r"[\s;&,]+", text):
        yield from (part for part in (piece, piece.partition("=")[2]) if len(part) >= _WORD_BELOW)


def _of_url(url: str) -> Iterator[str]:
    for link in _LINK.split(url):
        scheme, rest = _cut_scheme(link)
        if scheme is None and "@" not in rest:
            continue  # a path or a name
        user, _ = _cut_user(rest)
        name, has_password, password = user.partition(":")
        if has_password:
            yield user
            yield password
            yield from re.split("[/?#@:]", password)  # a parser that splits the URL there quotes half of it
            yield base64.b64encode(user.encode()).decode()  # as in a header
        if len(name) >= _WORD_BELOW and (has_password or scheme not in _CONTAINERS):
            yield name
        for pair in re.split("[?#&]", rest)[1:]:
            value = pair.partition("=")[2] or pair
            if len(value) >= _WORD_BELOW:
                yield value


def _clean_link(link: str) -> str:
    scheme, rest = _cut_scheme(link)
    if scheme is None or "://" not in link:
        return link
    user, place = _cut_user(re.split("[?#]", rest, maxsplit=1)[0])
    return f"{scheme}://{_kept_user(scheme, user)}{place}"


def _shown(match: re.Match[str]) -> str:
    """Return a matched URL without secrets; keeps text after a number sign, which a folder's name may contain."""
    scheme, slashes, rest = match.groups()
    place, question, query = rest.partition("?")
    authority, slash, path = place.partition("/")
    user, at, host = authority.rpartition("@")
    kept = f"{_kept_user(scheme, user)}{host}" if at else authority
    return f"{scheme}{slashes}{kept}{slash}{path}{question}{HIDDEN if query else ''}"


def _kept_user(scheme: str, user: str) -> str:
    return f"{user}@" if scheme.lower() in _CONTAINERS and user and ":" not in user else ""


def _cut_scheme(link: str) -> tuple[str | None, str]:
    """Return the scheme, or None if there is none, and the rest."""
    match = re.match(r"([a-z][\w+.-]*):/{1,2}", link, re.IGNORECASE)
    return (match[1], link[match.end() :]) if match else (None, link)


def _cut_user(rest: str) -> tuple[str, str]:
    """Split what follows a scheme into the user with its password, and the place."""
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at:
        return user, f"{host}{slash}{path}"
    port = authority.rpartition(":")[2]
    if ":" in authority and not authority.endswith("]") and port and not port.isdigit() and "@" in path:
        user, _, place = rest.rpartition("@")  # a password with a slash in it, which should have been %2F
        return user, place
    return "", rest
