"""Makes S3 clients for Huawei OBS: endpoint, addressing, region, and the sources of keys.

Sources: "Accessing an OBS Bucket Using a Domain Name" of the OBS documentation (virtual-hosted addressing on
``obs.<region>.myhuaweicloud.com``; path style is refused there), and the names of environment variables in obsfs, the
Huawei Cloud SDK and MoXing. Not tested against the real service: see docs/obs.md. Any thread may call it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from ckptkit.errors import StorageError
from ckptkit.storage.s3.credentials import Keys
from ckptkit.storage.s3.options import Client, S3Options, connect

_PUBLIC = re.compile(r"obs\.([a-z0-9-]+)\.myhuaweicloud\.[a-z.]+")

# Rows of access key, secret key, session token, tried in this order. A token is used only with the keys of its row.
_KEYS = (
    ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SECURITY_TOKEN"),  # MoXing's
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
ENDPOINTS = ("OBS_ENDPOINT", "S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
SECRETS = tuple(name for names in _KEYS for name in names[1:])


def client_of(options: S3Options) -> Client:
    """Make a client for OBS; sends nothing."""
    options = with_endpoint(options)
    endpoint = str(options.endpoint_url)
    config = {"signature_version": "s3v4", "s3": {"addressing_style": addressing_of(endpoint)}}
    return connect(options, config, keys_of(options), region_of(endpoint))


def with_endpoint(options: S3Options, environment: Mapping[str, str] = os.environ) -> S3Options:
    """Return ``options`` with an endpoint, taken from the environment if they name none."""
    endpoint = options.endpoint_url or options.client_kwargs.get("endpoint_url")
    endpoint = endpoint or next((environment[name] for name in ENDPOINTS if environment.get(name)), None)
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


def region_of(endpoint_url: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the region to sign requests for: ``OBS_REGION``, else that in the endpoint's name, else ``us-east-1``."""
    match = _PUBLIC.fullmatch(urlsplit(endpoint_url).hostname or "")
    return environment.get("OBS_REGION") or (match[1] if match else "us-east-1")


def addressing_of(endpoint_url: str) -> str:
    """Return ``"virtual"``, or ``"path"`` for an IP address, or a name outside of Huawei's public cloud."""
    host = urlsplit(endpoint_url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "virtual" if _PUBLIC.fullmatch(host) or host.endswith(".myhuaweicloud.com") else "path"
    return "path"


def keys_of(options: S3Options, environment: Mapping[str, str] = os.environ) -> Callable[[], Keys] | None:
    """Return the source of keys: the options, else the environment, which is read again whenever keys have expired.

    Returns None if requests are not signed or ``profile`` names the keys.
    """
    given = options.keys()
    if given is not None or options.anon or options.profile is not None:
        return given
    _from_environment(environment)  # fail now and not at the first request
    return lambda: _from_environment(environment)


def _from_environment(environment: Mapping[str, str]) -> Keys:
    for key, secret, token in _KEYS:
        if environment.get(key) and environment.get(secret):
            return Keys(environment[key], environment[secret], environment.get(token) or None)
    names = " or ".join(f"{key} and {secret}" for key, secret, _ in _KEYS)
    raise StorageError(f"obs:// needs credentials: set {names}, or give key and secret in storage_options")
