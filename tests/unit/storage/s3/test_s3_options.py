"""What a user types for a bucket, and what becomes of it: addresses, regions, keys, and errors that help."""

import dataclasses
from datetime import datetime, timedelta, timezone

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.storage.s3.options import (
    Keys,
    RenewedCredentials,
    S3Options,
    with_endpoint,
)

NOWHERE = "http://127.0.0.1:1"
GIVEN = {"key": "a", "secret": "b", "endpoint_url": NOWHERE}
PUBLIC = "https://obs.cn-north-4.myhuaweicloud.com"


@pytest.fixture(autouse=True)
def _no_keys_around(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def client_of(url="s3://bucket/a", **options):
    return open_storage(url, {**GIVEN, **options})._bucket._client.api


def test_what_is_no_root_or_option_is_named():
    rows = [(root, GIVEN, "folder") for root in ("s3://", "s3://bucket", "s3:///runs", "s3://bucket//runs", "obs://b/")]
    with_keys = ("s3://AKIA4711@bucket/a", "obs://AKIA4711:hush4711@bucket/a", "s3://bucket:443/a")
    rows += [(root, GIVEN, "URL must not contain keys") for root in with_keys]
    rows += [("s3://bucket/a?versionId=1", GIVEN, "must not have a query")]
    rows += [("s3://bucket/runs\x1b[2J", GIVEN, r"s3://bucket/\.\.\. has characters that cannot be printed")]
    options = [
        ({"keys": "a"}, "takes no storage_options keys; it takes key, secret"),
        ({"key": "a"}, "one of key and secret"),
        ({"secret": "a"}, "one of key and secret"),
        ({"default_block_size": (5 << 20) - 1}, "5 MiB"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"retry_for": 60}, "timedelta"),
        ({"answer_within": 3}, "answer_within"),
        ({"request_timeout": timedelta(0)}, "timedelta"),
        ({"retry_for": timedelta(seconds=-1)}, "above zero"),
        ({"config_kwargs": {"no_such": 1}}, "could not use these storage_options"),
        ({"client_kwargs": {"no_such": 1}}, "could not use these storage_options"),
        ({"settle": 2}, "settle must be a timedelta"),
        ({"endpoint_url": NOWHERE, "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}}, "SSEKMSKeyId"),
    ]
    returned = [None, {"key": "a"}, {"key": "a", "secret": "b", "expire": 1}, {"key": "a", "secret": "b", "expires": 5}]
    returned += [{"key": "a", "secret": "b", "expires": datetime(2026, 1, 1)}]
    options += [({"endpoint_url": NOWHERE, "credentials": lambda it=it: it}, "credentials=") for it in returned]
    for root, given, message in [*rows, *(("s3://bucket/a", given, message) for given, message in options)]:
        with pytest.raises(StorageError, match=message):
            open_storage(root, given)


def test_url_is_as_typed_without_trailing_slash():
    for root in ("s3://bucket/a", "s3://bucket/a/", "s3a://bucket/a", "obs://bucket/a/b/"):
        assert open_storage(root, GIVEN).url == root.rstrip("/")


def test_s3fs_options_reach_the_client():
    client = client_of(
        client_kwargs={"region_name": "eu-north-1"},
        config_kwargs={"s3": {"addressing_style": "path"}, "read_timeout": 7},
        max_concurrency=3,
        request_timeout=timedelta(seconds=4),
    )
    config = client.meta.config
    assert (client.meta.endpoint_url, client.meta.region_name) == (NOWHERE, "eu-north-1")
    assert config.s3 == {"addressing_style": "path", "payload_signing_enabled": False}
    assert (config.read_timeout, config.connect_timeout) == (7, 4)
    assert config.retries["total_max_attempts"] == 1
    assert (config.request_checksum_calculation, config.response_checksum_validation) == ("when_required",) * 2
    assert config.tcp_keepalive
    for asked, seconds in [({}, (30, 10)), ({"request_timeout": timedelta(seconds=4)}, (4, 4))]:
        config = client_of(**asked).meta.config  # silence ends within the request timeout
        assert (config.read_timeout, config.connect_timeout) == seconds
    for use_ssl, scheme in [(True, "https"), (False, "http")]:
        assert client_of(endpoint_url=None, use_ssl=use_ssl).meta.endpoint_url.startswith(f"{scheme}://")


def test_parts_lanes_and_settling_time_are_as_asked():
    asked = {"default_block_size": 6 << 20, "max_concurrency": 40, "settle": timedelta(seconds=9)}
    asked["request_timeout"] = timedelta(minutes=7)
    storage = open_storage("s3://bucket/a", {**GIVEN, **asked})
    assert storage.window_bytes == 2 * 40 * (6 << 20)
    assert storage._bucket._client.api.meta.config.max_pool_connections > 2 * 40  # a connection for every lane
    assert storage._lease._settle == timedelta(seconds=9)
    assert storage._bucket._retry._patience.request == timedelta(minutes=7)
    assert open_storage("s3://bucket/a", {**GIVEN, "max_concurrency": 1}).window_bytes == 2 * (16 << 20)


def test_an_option_of_none_is_not_given():
    given = dict.fromkeys(S3Options.__dataclass_fields__)
    assert S3Options.of(given, "s3") == S3Options()
    assert open_storage("s3://bucket/a", {**given, **GIVEN}).url == "s3://bucket/a"


def signed_url(**options):
    """What a request to read a file would be sent to, by the keys that it is signed with."""
    api = open_storage("s3://bucket/a", {"endpoint_url": NOWHERE, **options})._bucket._client.api
    return api.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})


def test_requests_are_signed_with_the_keys_asked_for(tmp_path, monkeypatch):
    """Those of the options count before those in the environment, and a profile has its own."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = other\naws_secret_access_key = b\n"
        "[training]\naws_access_key_id = trainer\naws_secret_access_key = b\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert "trainer" in signed_url(profile="training")
    assert "other" in signed_url()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "around")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert "around" in signed_url()
    given = {"key": "mine", "secret": "b", "token": "temporary"}
    for options in (given, {"credentials": lambda: given}, {"credentials": lambda: Keys(*given.values())}):
        url = signed_url(**options)
        assert "Credential=mine%2F" in url or "AWSAccessKeyId=mine&" in url
        assert "oken=temporary" in url
    asked = []
    assert signed_url(anon=True, credentials=lambda: asked.append(1)) == signed_url(anon=True, key="a", secret="b")
    assert signed_url(anon=True).endswith("/k")
    assert asked == []


def test_amazons_region_is_the_command_lines(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    (tmp_path / "config").write_text("[profile training]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert client_of(endpoint_url=None).meta.region_name == "us-east-1"
    assert client_of(endpoint_url=None, profile="training").meta.region_name == "eu-west-3"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert client_of(endpoint_url=None).meta.region_name == "eu-west-3"


# OBS


def test_addressing_and_region_follow_from_the_endpoint(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")  # another cloud's
    for endpoint, style, region in [
        (PUBLIC, "virtual", "cn-north-4"),
        ("https://obs.ap-southeast-3.myhuaweicloud.com:443", "virtual", "ap-southeast-3"),
        ("https://obs.eu-west-101.myhuaweicloud.eu", "virtual", "eu-west-101"),
        ("https://other.myhuaweicloud.com", "virtual", "us-east-1"),
        ("http://10.0.0.7:9000", "path", "us-east-1"),
        ("http://[::1]:9000", "path", "us-east-1"),
        ("http://localhost:9000", "path", "us-east-1"),
        ("https://obs.example.com", "path", "us-east-1"),
    ]:
        meta = client_of("obs://bucket/a", endpoint_url=endpoint).meta
        assert (meta.config.s3["addressing_style"], meta.region_name) == (style, region), endpoint
    monkeypatch.setenv("OBS_REGION", "af-south-1")
    assert client_of("obs://bucket/a", endpoint_url=PUBLIC).meta.region_name == "af-south-1"


def test_obs_is_reached_as_obs_wants_it(monkeypatch):
    monkeypatch.setenv("OBS_ENDPOINT", PUBLIC)
    monkeypatch.setenv("OBS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("OBS_SECRET_ACCESS_KEY", "b")
    client = open_storage("obs://bucket/runs")._bucket._client.api
    assert client.meta.config.signature_version == "s3v4"
    assert client.meta.config.s3["addressing_style"] == "virtual"
    assert client.meta.config.request_checksum_calculation == "when_required"
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    assert url.startswith("https://bucket.obs.cn-north-4.myhuaweicloud.com/k?")
    own = {"config_kwargs": {"signature_version": "s3", "s3": {"addressing_style": "path"}}}
    config = open_storage("obs://bucket/runs", own)._bucket._client.api.meta.config
    assert (config.signature_version, config.s3["addressing_style"]) == ("s3", "path")
    other = {"config_kwargs": {"s3": {"use_accelerate_endpoint": False}}}
    assert open_storage("obs://bucket/runs", other)._bucket._client.api.meta.config.s3["addressing_style"] == "virtual"


KEYS = {
    "OBS_ACCESS_KEY_ID": ("OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    "HUAWEICLOUD_SDK_AK": ("HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    "ACCESS_KEY_ID": ("SECRET_ACCESS_KEY", "SECURITY_TOKEN"),
    "AWS_ACCESS_KEY_ID": ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
}


def test_obs_keys_come_from_first_complete_pair():
    environment = {}
    for number, (key, (secret, token)) in reversed(list(enumerate(KEYS.items()))):
        environment |= {key: f"key{number}", secret: f"secret{number}", token: f"token{number}"}
        received = S3Options().keys(environment)()
        assert received == Keys(f"key{number}", f"secret{number}", f"token{number}")
    del environment["OBS_SECRET_ACCESS_KEY"]
    assert S3Options().keys(environment)() == Keys("key1", "secret1", "token1")  # nothing of a half pair
    for options in ({}, {"anon": True}, {"profile": "training"}):
        assert S3Options(key="mine", secret="also", **options).keys(environment)() == Keys("mine", "also")
        for around in ({}, environment) if options else ():
            assert S3Options(**options).keys(around) is None
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
    assert not credentials.renew(credentials.generation)
    environment["OBS_SECRET_ACCESS_KEY"] = "c"
    assert credentials.get_frozen_credentials().secret_key == "b"
    used = credentials.generation
    assert credentials.renew(used)
    assert credentials.renew(used)  # another request that was signed with the old ones: no need to ask again
    assert credentials.get_frozen_credentials().secret_key == "c"


# Keys that end


def test_source_of_keys_is_asked_by_one_thread():
    alone = []

    def source():
        alone.append(credentials._lock.locked() if alone else True)
        return Keys("a", str(len(alone)), expires=datetime(2026, 1, 1, tzinfo=timezone.utc))

    credentials = None
    credentials = RenewedCredentials(source, lambda: datetime(2025, 12, 31, 23, 57, tzinfo=timezone.utc))
    credentials.get_frozen_credentials()
    credentials.renew(credentials.generation)
    assert alone == [True] * 3


def test_expiring_keys_are_renewed_in_advance():
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    clock = [now]
    given = [Keys("a", "1", "t1", now + timedelta(hours=1)), Keys("a", "2", "t2", now + timedelta(hours=2))]
    credentials = RenewedCredentials(lambda: given.pop(0), lambda: clock[0])
    assert credentials.get_frozen_credentials().token == "t1"
    clock[0] += timedelta(minutes=54)
    assert credentials.get_frozen_credentials().token == "t1"
    clock[0] += timedelta(minutes=1)
    assert credentials.get_frozen_credentials().token == "t2"


def test_no_secret_is_shown():
    keys = Keys("AKIAABCDEFGH", "hidden", "also hidden")
    assert "hidden" not in repr(keys)
    assert "hidden" not in repr(RenewedCredentials(lambda: keys))
    assert "hidden" not in repr(dataclasses.replace(S3Options(), key="AKIA", secret="hidden"))


def test_unanswering_endpoint_is_given_up_sooner():
    default = S3Options.of({}, "s3").patience
    assert (default.first, default.retrying) == (timedelta(seconds=30), timedelta(minutes=5))
    given = S3Options.of({"retry_for": timedelta(hours=2)}, "s3").patience
    assert (given.first, given.retrying) == (timedelta(hours=2), timedelta(hours=2))
    given = S3Options.of({"retry_for": timedelta(hours=2), "answer_within": timedelta(seconds=3)}, "s3").patience
    assert (given.first, given.retrying) == (timedelta(seconds=3), timedelta(hours=2))
