"""Makes a botocore client from ``storage_options``, which are named as in s3fs; an unknown option is an error.

Each request is signed with the newest keys that their source gave. The source is asked again shortly before keys expire
and when the server says that they have expired, by one thread at a time. For Huawei OBS, the sources are "Accessing an
OBS Bucket Using a Domain Name" of the OBS documentation, and the names of environment variables in obsfs, the Huawei
Cloud SDK and MoXing. Not tested against the real service: see docs/obs.md. Any thread may call it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from ckptkit.errors import StorageError
from ckptkit.scrubber import learn
from ckptkit.storage.lease import SETTLE
from ckptkit.storage.s3.errors import Patience, Transient

_log = logging.getLogger("ckptkit")

CONNECTIONS = 64  # kept open; this many small requests run at once
PART_BYTES = 16 << 20
LANES = 4

_SMALLEST_PART_BYTES = 5 << 20  # the limit of the S3 API for a multipart upload
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # a connection that gives no byte for so long counts as dead
_EARLY = timedelta(minutes=5)  # keys are renewed so long before they expire

_PUBLIC = re.compile(r"obs\.([a-z0-9-]+)\.myhuaweicloud\.[a-z.]+")

# Rows of access key, secret key, session token, tried in this order. A token is used only with the keys of its row.
_KEYS = (
    ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SECURITY_TOKEN"),  # MoXing's
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
OBS_ENDPOINTS = ("OBS_ENDPOINT", "S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
OBS_SECRETS = tuple(name for names in _KEYS for name in names[1:])


@dataclass(frozen=True)
class Keys:
    """Holds the access key, secret key and session token that sign a request, and when they expire, if known."""

    key: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None

    @classmethod
    def of(cls, given: object) -> Keys:
        """Convert what a user's function returned: `Keys`, or a mapping with the names of its attributes."""
        if isinstance(given, Keys):
            return given
        known = {"key", "secret", "token", "expires"}
        if not isinstance(given, Mapping) or not {"key", "secret"} <= set(given) <= known:
            raise StorageError("credentials= must return a mapping with key, secret and optionally token and expires")
        keys = cls(**given)
        if keys.expires is not None and (not isinstance(keys.expires, datetime) or keys.expires.tzinfo is None):
            raise StorageError("expires, as returned by credentials=, must be a datetime with a time zone")
        return keys


class RenewedCredentials(Credentials):  # type: ignore[misc]  # botocore ships no types
    """Gives botocore the keys for each request, and renews them from ``source``."""

    def __init__(
        self,
        source: Callable[[], Keys],
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._source = source
        self._now = now
        self._lock = threading.Lock()
        self.keys = self._ask()
        super().__init__(self.keys.key, self.keys.secret, self.keys.token, method="ckptkit")

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        with self._lock:
            expires = self.keys.expires
            if expires is not None and self._now() >= expires - _EARLY:
                try:
                    self.keys = self._ask()
                except StorageError as error:
                    if self._now() >= expires:
                        raise
                    _log.warning("%s. The previous keys are used until %s", error, expires)
            return ReadOnlyCredentials(self.keys.key, self.keys.secret, self.keys.token)

    def renew(self, used: Keys | None) -> bool:
        """Ask the source, unless the keys are others than those ``used`` already; returns whether they are now."""
        with self._lock:
            if self.keys == used:
                try:
                    self.keys = self._ask()
                except StorageError as error:
                    raise Transient(str(error)) from error  # it may succeed later
            return self.keys != used

    def _ask(self) -> Keys:
        try:
            keys = self._source()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - from the user's function: it says nothing about the storage
            at = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__} at {at.filename}:{at.lineno}, in {at.name}"
        else:
            learn(keys.secret, keys.token)
            return keys
        # Outside of the handler, so that no traceback links to the error: its text may hold an unregistered secret.
        raise StorageError(
            f"credentials= failed: {failure}. The error text is omitted because it may contain a key; call the "
            "function yourself to see it"
        )


@dataclass(frozen=True)
class S3Options:
    """Holds the options of a bucket; all but the last five are named as in `s3fs.S3FileSystem`.

    docs/object-storage.md says what each one means.
    """

    key: str | None = None  # without it, botocore looks where the AWS command line does
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    anon: bool = False
    endpoint_url: str | None = None
    use_ssl: bool = True  # whether an endpoint without a scheme is https
    profile: str | None = None
    client_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    config_kwargs: Mapping[str, Any] = field(default_factory=dict)
    s3_additional_kwargs: Mapping[str, Any] = field(default_factory=dict)
    default_block_size: int = PART_BYTES
    max_concurrency: int = LANES  # parts that are transferred at once
    credentials: Callable[[], object] | None = None
    request_timeout: timedelta = Patience.request
    retry_for: timedelta = Patience.retrying
    answer_within: timedelta | None = None  # replaces ``retry_for`` until the endpoint has answered once
    settle: timedelta = SETTLE

    @classmethod
    def of(cls, given: Mapping[str, Any], scheme: str) -> S3Options:
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise StorageError(f"{scheme}:// takes no storage_options {', '.join(unknown)}; it takes {known}")
        written_with = given.get("s3_additional_kwargs")
        if isinstance(written_with, Mapping) and any(str(name).startswith("SSECustomer") for name in written_with):
            raise StorageError(
                "s3_additional_kwargs has SSECustomer..., which is not supported, because every read would need the "
                'key, too. Let the server keep the key: {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": ...}'
            )
        options = cls(**{name: value for name, value in given.items() if value is not None})
        if (options.key is None) != (options.secret is None):
            raise StorageError("storage_options has only one of key and secret; give both, or neither")
        if not isinstance(options.default_block_size, int) or options.default_block_size < _SMALLEST_PART_BYTES:
            raise StorageError(f"default_block_size must be at least {_SMALLEST_PART_BYTES} bytes (5 MiB)")
        if not isinstance(options.max_concurrency, int) or options.max_concurrency < 1:
            raise StorageError(f"max_concurrency must be a number of at least 1, got {options.max_concurrency!r}")
        if not isinstance(options.settle, timedelta):
            raise StorageError(f"settle must be a timedelta, got {options.settle!r}")
        for name in ("request_timeout", "retry_for", "answer_within"):
            limit = getattr(options, name)
            if limit is not None and (not isinstance(limit, timedelta) or limit <= timedelta()):
                raise StorageError(f"{name} must be a timedelta above zero, got {limit!r}")
        return options

    @property
    def patience(self) -> Patience:
        first = self.answer_within or (Patience.first if self.retry_for == Patience.retrying else self.retry_for)
        return Patience(self.request_timeout, self.retry_for, first)

    def keys(self, environment: Mapping[str, str] | None = None) -> Callable[[], Keys] | None:
        """Return the source of keys: these options, else ``environment``, which is read again whenever keys expired.

        Returns None if botocore is to find the keys, or requests are not signed.
        """
        if self.anon:
            return None
        if self.credentials is not None:
            source = self.credentials
            return lambda: Keys.of(source())
        if self.key is not None and self.secret is not None:
            fixed = Keys(self.key, self.secret, self.token)
            return lambda: fixed
        if environment is None or self.profile is not None:
            return None
        _from_environment(environment)  # fail now and not at the first request
        return lambda: _from_environment(environment)


@dataclass(frozen=True)
class Client:
    """Holds botocore's client, and its keys if they can be renewed: None if botocore finds its own, or none."""

    api: Any
    credentials: RenewedCredentials | None


def connect(options: S3Options, environment: Mapping[str, str] | None = None, region: str | None = None) -> Client:
    """Make a client; sends nothing.

    Without a region, or keys in ``options`` or ``environment``, botocore looks where the AWS command line does.
    """
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    keys = options.keys(environment)
    credentials = RenewedCredentials(keys) if keys is not None else None
    if credentials is not None:  # rather than with keys that botocore would find itself
        provider = SimpleNamespace(METHOD="ckptkit", load=lambda: credentials)
        session.get_component("credential_provider").providers.insert(0, provider)
    own = {
        "retries": {"total_max_attempts": 1},  # ours have a deadline, and draw nothing from training's generator
        "connect_timeout": min(_CONNECT_SECONDS, options.request_timeout.total_seconds()),
        "read_timeout": min(_SILENCE_SECONDS, options.request_timeout.total_seconds()),
        "request_checksum_calculation": "when_required",  # stores other than Amazon's refuse the others
        "response_checksum_validation": "when_required",
        "max_pool_connections": max(CONNECTIONS, 2 * options.max_concurrency + 4),
        "tcp_keepalive": True,
        **options.config_kwargs,
        # TLS protects bodies in transit, and the digests of the checkpoint later; a second hash costs half a core.
        "s3": {"payload_signing_enabled": False, **options.config_kwargs.get("s3", {})},
    }
    if options.anon:
        own["signature_version"] = UNSIGNED
    try:
        api = session.create_client(
            "s3",
            **{
                "region_name": region or session.get_config_variable("region") or "us-east-1",
                "endpoint_url": options.endpoint_url,
                "use_ssl": options.use_ssl,
                **options.client_kwargs,
                "config": Config(**own),
            },
        )
    except (BotoCoreError, TypeError, ValueError) as error:
        hint = ""
        if "Invalid endpoint" in str(error):
            hint = ". Write it with its scheme, as in https://s3.example.com or http://localhost:9000"
        raise StorageError(f"could not use these storage_options: {error}{hint}") from error
    # botocore asks for encoded keys and decodes them, but not every server encodes them so. Our keys need no encoding.
    api.meta.events.register_last("before-parameter-build.s3.ListObjects", _ask_for_plain_keys)
    host = f"{urlsplit(api.meta.endpoint_url).hostname}."
    is_amazons = host.endswith((".amazonaws.com.", ".amazonaws.com.cn."))
    if not is_amazons or options.endpoint_url or options.client_kwargs.get("endpoint_url"):
        # botocore follows redirects only between Amazon's regions, and in circles elsewhere, wherever the endpoint
        # was named: also by AWS_ENDPOINT_URL, or a profile.
        api.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return Client(api, credentials)


@functools.cache
def _models(data_path: str | None) -> Loader:
    """Return botocore's service descriptions; without the cache each client costs 12 MB and 0.1 s of parsing."""
    return create_loader(data_path)


def _ask_for_plain_keys(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if context.pop("encoding_type_auto_set", False):
        params.pop("EncodingType", None)


def _refuse_redirect(response: Any, **_: Any) -> None:
    if response is None or response[0].status_code not in (301, 302, 307, 308):
        return
    target = response[0].headers.get("Location") or "a location that it does not name"
    raise StorageError(f"the endpoint redirects to {target}: check its scheme and name, and give the right one")


def connect_obs(options: S3Options) -> Client:
    """Make a client for OBS; sends nothing."""
    options = with_endpoint(options)
    host = urlsplit(str(options.endpoint_url)).hostname or ""
    public = _PUBLIC.fullmatch(host)
    # Huawei's public cloud refuses "path".
    style = "virtual" if public or host.endswith(".myhuaweicloud.com") else "path"
    region = os.environ.get("OBS_REGION") or (public[1] if public else "us-east-1")
    own = options.config_kwargs
    config = {"signature_version": "s3v4", **own, "s3": {"addressing_style": style, **own.get("s3", {})}}
    return connect(replace(options, config_kwargs=config), os.environ, region)


def with_endpoint(options: S3Options, environment: Mapping[str, str] = os.environ) -> S3Options:
    """Return ``options`` with an endpoint, taken from the environment if they name none."""
    endpoint = options.endpoint_url or options.client_kwargs.get("endpoint_url")
    endpoint = endpoint or next((environment[name] for name in OBS_ENDPOINTS if environment.get(name)), None)
    if not endpoint:
        raise StorageError(
            "obs:// needs an endpoint such as https://obs.cn-north-4.myhuaweicloud.com: set OBS_ENDPOINT, or give "
            'storage_options={"endpoint_url": ...}'
        )
    if "://" not in endpoint:
        secure = options.use_ssl and environment.get("S3_USE_HTTPS", "1") != "0"  # the latter is MoXing's
        endpoint = f"{'https' if secure else 'http'}://{endpoint}"
    rest = {name: value for name, value in options.client_kwargs.items() if name != "endpoint_url"}
    return replace(options, endpoint_url=endpoint, client_kwargs=rest)


def _from_environment(environment: Mapping[str, str]) -> Keys:
    for key, secret, token in _KEYS:
        if environment.get(key) and environment.get(secret):
            return Keys(environment[key], environment[secret], environment.get(token) or None)
    names = " or ".join(f"{key} and {secret}" for key, secret, _ in _KEYS)
    raise StorageError(f"obs:// needs credentials: set {names}, or give key and secret in storage_options")
