"""What a user types for a bucket, and what becomes of it: addresses, regions, keys, and errors that help."""

import re
from datetime import datetime, timedelta, timezone

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.storage.s3.options import Keys, RenewedCredentials, S3Options, with_endpoint

NOWHERE = "http://127.0.0.1:1"
GIVEN = {"key": "a", "secret": "b", "endpoint_url": NOWHERE}
PUBLIC = "https://obs.cn-north-4.myhuaweicloud.com"


@pytest.fixture(autouse=True)
def _no_keys_around(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def client_of(url="s3://bucket/a", **options):
    return open_storage(url, {**GIVEN, **options})._client.api


def test_what_is_no_root_or_option_is_named():
    rows = [(root, GIVEN, "folder") for root in ("s3://", "s3://bucket", "s3:///runs", "s3://bucket//runs", "obs://b/")]
    with_keys = ("s3://AKIA4711@bucket/a", "obs://AKIA4711:hush4711@bucket/a", "s3://bucket:443/a")
    rows += [(root, GIVEN, "URL must not contain keys") for root in with_keys]
    rows += [("s3://bucket/a?versionId=1", GIVEN, "must not have a query")]
    rows += [("s3://bucket/runs\x1b[2J", GIVEN, r"s3://bucket/\.\.\. has characters that cannot be printed")]
    options = [
        ({"keys": "a"}, "takes no storage_options keys; it takes key, secret"),
        *(({name: "a"}, "one of key and secret") for name in ("key", "secret")),
        ({"default_block_size": (5 << 20) - 1}, "5 MiB"),
        ({"max_concurrency": 0}, "max_concurrency"),
        *(({name: 60}, f"{name} must be a timedelta") for name in ("retry_for", "answer_within", "settle")),
        ({"request_timeout": timedelta(0)}, "above zero"),
        *(({name: {"no_such": 1}}, "could not use these") for name in ("config_kwargs", "client_kwargs")),
        ({"endpoint_url": NOWHERE, "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}}, "SSEKMSKeyId"),
    ]
    returned = [None, {"key": "a"}, *({"key": "a", "secret": "b", **more} for more in ({"expire": 1}, {"expires": 5}))]
    returned += [{"key": "a", "secret": "b", "expires": datetime(2026, 1, 1)}]
    options += [({"endpoint_url": NOWHERE, "credentials": lambda it=it: it}, "credentials=") for it in returned]
    for root, given, message in [*rows, *(("s3://bucket/a", given, message) for given, message in options)]:
        with pytest.raises(StorageError, match=message):
            open_storage(root, given)


def test_url_is_as_typed_without_trailing_slash():
    given = {**dict.fromkeys(S3Options.__dataclass_fields__), **GIVEN}  # an option of None is not given
    for root in ("s3://bucket/a", "s3://bucket/a/", "s3a://bucket/a", "obs://bucket/a/b/"):
        assert open_storage(root, given).url == root.rstrip("/")


def test_s3fs_options_reach_the_client():
    client = client_of(
        client_kwargs={"region_name": "eu-north-1"},
        config_kwargs={"s3": {"addressing_style": "path"}, "read_timeout": 7},
        request_timeout=timedelta(seconds=4),
    )
    config = client.meta.config
    assert (client.meta.endpoint_url, client.meta.region_name) == (NOWHERE, "eu-north-1")
    assert config.s3 == {"addressing_style": "path", "payload_signing_enabled": False}
    assert (config.read_timeout, config.connect_timeout) == (7, 4)
    assert (config.retries["total_max_attempts"], config.tcp_keepalive) == (1, True)
    assert (config.request_checksum_calculation, config.response_checksum_validation) == ("when_required",) * 2
    for asked, seconds in [({}, (30, 10)), ({"request_timeout": timedelta(seconds=4)}, (4, 4))]:
        config = client_of(**asked).meta.config  # silence ends within the request timeout
        assert (config.read_timeout, config.connect_timeout) == seconds
    for use_ssl, scheme in [(True, "https"), (False, "http")]:
        assert client_of(endpoint_url=None, use_ssl=use_ssl).meta.endpoint_url.startswith(f"{scheme}://")


def test_parts_lanes_and_settling_time_are_as_asked():
    asked = {"default_block_size": 6 << 20, "max_concurrency": 40, "settle": timedelta(seconds=9)}
    storage = open_storage("s3://bucket/a", {**GIVEN, **asked, "request_timeout": timedelta(minutes=7)})
    assert storage.window_bytes == 2 * 40 * (6 << 20)
    assert storage._client.api.meta.config.max_pool_connections > 2 * 40  # a connection for every lane
    assert storage._lease._settle == timedelta(seconds=9)
    assert storage._retry._patience.request == timedelta(minutes=7)


def signed_url(**options):
    api = open_storage("s3://bucket/a", {"endpoint_url": NOWHERE, **options})._client.api
    return api.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})


def test_requests_are_signed_with_the_keys_asked_for(tmp_path, monkeypatch):
    """Those of the options count before those in the environment, and a profile has its own."""
    profiles = {"default": "other", "training": "trainer"}.items()
    lines = [f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = b\n" for name, key in profiles]
    (tmp_path / "credentials").write_text("".join(lines))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert "trainer" in signed_url(profile="training")
    assert "other" in signed_url()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "around")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert "around" in signed_url()
    given = {"key": "mine", "secret": "b", "token": "temporary"}
    for options in (given, {"credentials": lambda: given}, {"credentials": lambda: Keys(*given.values())}):
        assert re.search("(Credential=mine%2F|AWSAccessKeyId=mine&).*oken=temporary", signed_url(**options))
    assert signed_url(anon=True, credentials=lambda: pytest.fail("asked")).endswith("/k")


def test_addressing_and_region_follow_from_the_endpoint(tmp_path, monkeypatch):
    """Amazon's region is the command line's."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    (tmp_path / "config").write_text("[profile training]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for options, region in [({}, "us-east-1"), ({"profile": "training"}, "eu-west-3")]:
        assert client_of(endpoint_url=None, **options).meta.region_name == region
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")  # another cloud's
    for endpoint, style, region in [
        (PUBLIC, "virtual", "cn-north-4"),
        ("https://obs.ap-southeast-3.myhuaweicloud.com:443", "virtual", "ap-southeast-3"),
        ("https://obs.eu-west-101.myhuaweicloud.eu", "virtual", "eu-west-101"),
        ("https://other.myhuaweicloud.com", "virtual", "us-east-1"),
        *((endpoint, "path", "us-east-1") for endpoint in ("http://[::1]:9000", "https://obs.example.com")),
    ]:
        meta = client_of("obs://bucket/a", endpoint_url=endpoint).meta
        assert (meta.config.s3["addressing_style"], meta.region_name) == (style, region), endpoint
    monkeypatch.setenv("OBS_REGION", "af-south-1")
    assert client_of("obs://bucket/a", endpoint_url=PUBLIC).meta.region_name == "af-south-1"


def test_obs_is_reached_as_obs_wants_it(monkeypatch):
    around = {"OBS_ENDPOINT": PUBLIC, "OBS_ACCESS_KEY_ID": "a", "OBS_SECRET_ACCESS_KEY": "b"}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    client = open_storage("obs://bucket/runs")._client.api
    assert client.meta.config.signature_version == "s3v4"
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    assert url.startswith("https://bucket.obs.cn-north-4.myhuaweicloud.com/k?")
    own = {"signature_version": "s3", "s3": {"addressing_style": "path"}}
    for given, expected in [(own, ("s3", "path")), ({"s3": {"use_accelerate_endpoint": False}}, ("s3v4", "virtual"))]:
        config = open_storage("obs://bucket/runs", {"config_kwargs": given})._client.api.meta.config
        assert (config.signature_version, config.s3["addressing_style"]) == expected


KEYS = [
    ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SECURITY_TOKEN"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
]


def test_obs_keys_come_from_first_complete_pair():
    environment = {}
    for number, names in reversed(list(enumerate(KEYS))):
        values = [f"{kind}{number}" for kind in ("key", "secret", "token")]
        environment |= dict(zip(names, values, strict=True))
        assert S3Options().keys(environment)() == Keys(*values)
    del environment["OBS_SECRET_ACCESS_KEY"]
    assert S3Options().keys(environment)() == Keys("key1", "secret1", "token1")  # nothing of a half pair
    for profile in (None, "training"):
        assert S3Options(key="mine", secret="also", profile=profile).keys(environment)() == Keys("mine", "also")
    for options in ({"anon": True}, {"anon": True, "key": "mine", "secret": "also"}, {"profile": "training"}):
        assert S3Options(**options).keys(environment) is None
    with pytest.raises(StorageError, match="OBS_ENDPOINT"):
        with_endpoint(S3Options(), {})
    with pytest.raises(StorageError, match=r"OBS_ACCESS_KEY_ID.*HUAWEICLOUD_SDK_AK"):
        S3Options().keys({})


def test_the_endpoint_may_lack_its_scheme():
    for environment, endpoint in [
        ({"OBS_ENDPOINT": "obs.cn-north-4.myhuaweicloud.com"}, PUBLIC),
        ({"S3_ENDPOINT": "obs.cn-north-4.myhuaweicloud.com", "S3_USE_HTTPS": "1"}, PUBLIC),
        ({"S3_ENDPOINT": "10.0.0.7:9000", "S3_USE_HTTPS": "0"}, "http://10.0.0.7:9000"),
        ({"OBS_ENDPOINT": PUBLIC, "S3_ENDPOINT": "http://other"}, PUBLIC),
    ]:
        assert with_endpoint(S3Options(), environment).endpoint_url == endpoint
        own = S3Options(client_kwargs={"endpoint_url": "http://mine", "verify": False})
        assert with_endpoint(own, environment) == S3Options(endpoint_url="http://mine", client_kwargs={"verify": False})
        insecure = with_endpoint(S3Options(use_ssl=False), environment).endpoint_url
        given = "://" in next(iter(environment.values()))
        assert insecure == (endpoint if given else endpoint.replace("https://", "http://"))


def test_keys_in_the_environment_are_read_again(monkeypatch):
    environment = {"OBS_ACCESS_KEY_ID": "a", "OBS_SECRET_ACCESS_KEY": "b"}
    credentials = RenewedCredentials(S3Options().keys(environment))
    assert not credentials.renew(credentials.keys)
    environment["OBS_SECRET_ACCESS_KEY"] = "c"
    assert credentials.get_frozen_credentials().secret_key == "b"
    used = credentials.keys
    assert credentials.renew(used)
    assert credentials.renew(used)  # another request that was signed with the old ones: no need to ask again
    assert credentials.get_frozen_credentials().secret_key == "c"


def test_expiring_keys_are_renewed_in_advance_by_one_thread():
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    given = [Keys("a", str(hour), f"t{hour}", now + timedelta(hours=hour)) for hour in (1, 2)]
    clock, locked, credentials = [now], [], None

    def source():
        locked.append(credentials is None or credentials._lock.locked())
        return given.pop(0)  # and fails when there is none

    credentials = RenewedCredentials(source, lambda: clock[0])
    for minutes, token in [(0, "t1"), (54, "t1"), (1, "t2"), (62, "t2")]:
        clock[0] += timedelta(minutes=minutes)
        assert credentials.get_frozen_credentials().token == token
    clock[0] += timedelta(minutes=3)
    with pytest.raises(StorageError, match=r"credentials= failed: IndexError at .*, in source"):
        credentials.get_frozen_credentials()
    assert locked == [True] * 4
    keys = Keys("AKIAABCDEFGH", "hidden", "also hidden")
    for shown in (keys, RenewedCredentials(lambda: keys), S3Options(key="AKIA", secret="hidden")):
        assert "hidden" not in repr(shown)


def test_unanswering_endpoint_is_given_up_sooner():
    hours, seconds = timedelta(hours=2), timedelta(seconds=3)
    for given, first, retrying in [
        ({}, timedelta(seconds=30), timedelta(minutes=5)),
        ({"retry_for": hours}, hours, hours),
        ({"retry_for": hours, "answer_within": seconds}, seconds, hours),
    ]:
        patience = S3Options.of(given, "s3").patience
        assert (patience.first, patience.retrying) == (first, retrying)
