"""Makes a botocore client from ``storage_options``, which are named as in s3fs; an unknown option is an error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from ckptkit.errors import StorageError
from ckptkit.storage.lease import SETTLE
from ckptkit.storage.s3.credentials import Keys, RenewedCredentials, use
from ckptkit.storage.s3.retry import Patience

CONNECTIONS = 64  # kept open; this many small requests run at once
PART_BYTES = 16 << 20
LANES = 4

_SMALLEST_PART_BYTES = 5 << 20  # the limit of the S3 API for a multipart upload
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # a connection that gives no byte for so long counts as dead


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
        _refuse_own_keys(given.get("s3_additional_kwargs"))
        options = cls(**{name: value for name, value in given.items() if value is not None})
        if (options.key is None) != (options.secret is None):
            raise StorageError("storage_options has only one of key and secret; give both, or neither")
        if not isinstance(options.default_block_size, int) or options.default_block_size < _SMALLEST_PART_BYTES:
            raise StorageError(f"default_block_size must be at least {_SMALLEST_PART_BYTES} bytes (5 MiB)")
        if not isinstance(options.max_concurrency, int) or options.max_concurrency < 1:
            raise StorageError(f"max_concurrency must be a number of at least 1, got {options.max_concurrency!r}")
        if not isinstance(options.settle, timedelta):
            raise StorageError(f"settle must be a timedelta, got {options.settle!r}")
        try:
            options.patience  # noqa: B018 - called for its check
        except ValueError as error:
            raise StorageError(f"request_timeout, retry_for and answer_within: {error}") from error
        return options

    @property
    def patience(self) -> Patience:
        first = Patience.first if self.retry_for == Patience.retrying else self.retry_for
        return Patience(
            self.request_timeout, self.retry_for, first if self.answer_within is None else self.answer_within
        )

    def keys(self) -> Callable[[], Keys] | None:
        """Return a function that returns keys; None if these options have none."""
        if self.credentials is not None:
            source = self.credentials
            return lambda: Keys.of(source())
        if self.key is not None and self.secret is not None:
            fixed = Keys(self.key, self.secret, self.token)
            return lambda: fixed
        return None


def _refuse_own_keys(written_with: object) -> None:
    if isinstance(written_with, Mapping) and any(str(name).startswith("SSECustomer") for name in written_with):
        raise StorageError(
            "s3_additional_kwargs has SSECustomer..., which is not supported, because every read would need the key, "
            'too. Let the server keep the key: {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": ...}'
        )


@dataclass(frozen=True)
class Client:
    """Holds botocore's client, and its keys if they can be renewed: None if botocore finds its own, or none."""

    api: Any
    credentials: RenewedCredentials | None


def connect(
    options: S3Options, config: Mapping[str, Any], keys: Callable[[], Keys] | None, region: str | None = None
) -> Client:
    """Make a client with these arguments of `Config`; sends nothing.

    Without ``keys`` or ``region``, botocore looks where the AWS command line does.
    """
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    credentials = RenewedCredentials(keys) if keys is not None and not options.anon else None
    if credentials is not None:
        use(session, credentials)
    own = {
        "retries": {"total_max_attempts": 1},  # ours have a deadline, and draw nothing from training's generator
        "connect_timeout": min(_CONNECT_SECONDS, options.request_timeout.total_seconds()),
        "read_timeout": min(_SILENCE_SECONDS, options.request_timeout.total_seconds()),
        "request_checksum_calculation": "when_required",  # stores other than Amazon's refuse the others
        "response_checksum_validation": "when_required",
        "max_pool_connections": max(CONNECTIONS, 2 * options.max_concurrency + 4),
        "tcp_keepalive": True,
        **config,
        **options.config_kwargs,
    }
    # TLS protects bodies in transit, and the digests of the checkpoint later; a second hash costs half a core.
    own["s3"] = {"payload_signing_enabled": False, **config.get("s3", {}), **options.config_kwargs.get("s3", {})}
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
    if not _is_amazons(api.meta.endpoint_url) or options.endpoint_url or options.client_kwargs.get("endpoint_url"):
        # botocore follows redirects only between Amazon's regions, and in circles elsewhere, wherever the endpoint
        # was named: also by AWS_ENDPOINT_URL, or a profile.
        api.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return Client(api, credentials)


@functools.cache
def _models(data_path: str | None) -> Loader:
    """Return botocore's service descriptions; without the cache each client costs 12 MB and 0.1 s of parsing."""
    return create_loader(data_path)


def _is_amazons(endpoint_url: str) -> bool:
    return f"{urlsplit(endpoint_url).hostname}.".endswith((".amazonaws.com.", ".amazonaws.com.cn."))


def _ask_for_plain_keys(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if context.pop("encoding_type_auto_set", False):
        params.pop("EncodingType", None)


def _refuse_redirect(response: Any, **_: Any) -> None:
    if response is None or response[0].status_code not in (301, 302, 307, 308):
        return
    target = response[0].headers.get("Location") or "a location that it does not name"
    raise StorageError(f"the endpoint redirects to {target}: check its scheme and name, and give the right one")
