"""What a user types for a bucket, and what becomes of it: addresses, regions, keys, and errors that help."""

import dataclasses
from datetime import datetime, timedelta, timezone

import pytest
from botocore.loaders import JSONFileLoader

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.storage.s3.options import (
    Keys,
    RenewedCredentials,
    S3Options,
    addressing_of,
    keys_of,
    region_of,
    with_endpoint,
)

GIVEN = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:1"}
PUBLIC = "https://obs.cn-north-4.myhuaweicloud.com"


@pytest.fixture(autouse=True)
def _no_keys_around(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "root", ["s3://", "s3://bucket", "s3://bucket/", "s3:///runs", "s3://bucket//runs", "obs://bucket"]
)
def test_a_root_is_a_folder_in_a_bucket(root):
    with pytest.raises(StorageError, match="folder"):
        open_storage(root, GIVEN)


@pytest.mark.parametrize("root", ["s3://AKIA4711@bucket/a", "obs://AKIA4711:hush4711@bucket/a", "s3://bucket:443/a"])
def test_a_url_takes_no_keys(root):
    with pytest.raises(StorageError, match="URL must not contain keys"):
        open_storage(root, GIVEN)


def test_unprintable_roots_are_refused():
    with pytest.raises(StorageError, match=r"s3://bucket/\.\.\. has characters that cannot be printed"):
        open_storage("s3://bucket/runs\x1b[2J", GIVEN)


@pytest.mark.parametrize("root", ["s3://bucket/a", "s3://bucket/a/", "s3a://bucket/a", "obs://bucket/a/b/"])
def test_url_is_as_typed_without_trailing_slash(root):
    assert open_storage(root, GIVEN).url == root.rstrip("/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "a"}, "takes no storage_options keys; it takes key, secret"),
        ({"key": "a"}, "one of key and secret"),
        ({"secret": "a"}, "one of key and secret"),
        ({"default_block_size": 1000}, "5 MiB"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"retry_for": 60}, "timedelta"),
        ({"request_timeout": timedelta(0)}, "timedelta"),
        ({"config_kwargs": {"no_such": 1}}, "could not use these storage_options"),
        ({"client_kwargs": {"no_such": 1}}, "could not use these storage_options"),
        ({"settle": 2}, "settle must be a timedelta"),
    ],
)
def test_options_that_cannot_be_are_named(options, message):
    with pytest.raises(StorageError, match=message):
        open_storage("s3://bucket/a", options)


def test_s3fs_options_reach_the_client():
    options = {
        **GIVEN,
        "client_kwargs": {"region_name": "eu-north-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "read_timeout": 7},
        "max_concurrency": 3,
        "request_timeout": timedelta(seconds=4),
    }
    client = open_storage("s3://bucket/a", options)._bucket._client.api
    config = client.meta.config
    assert client.meta.endpoint_url == "http://127.0.0.1:1"
    assert client.meta.region_name == "eu-north-1"
    assert config.s3 == {"addressing_style": "path", "payload_signing_enabled": False}
    assert (config.read_timeout, config.connect_timeout) == (7, 4)
    assert config.retries["total_max_attempts"] == 1
    assert (config.request_checksum_calculation, config.response_checksum_validation) == ("when_required",) * 2


def test_parts_lanes_and_settling_time_are_as_asked():
    options = {**GIVEN, "default_block_size": 6 << 20, "max_concurrency": 40, "settle": timedelta(seconds=9)}
    storage = open_storage("s3://bucket/a", options)
    assert storage.window_bytes == 2 * 40 * (6 << 20)
    assert storage._bucket._client.api.meta.config.max_pool_connections > 2 * 40  # a connection for every lane
    assert storage._lease._settle == timedelta(seconds=9)


def test_one_request_at_a_time_may_be_asked():
    options = {**GIVEN, "default_block_size": 6 << 20, "max_concurrency": 1}
    assert open_storage("s3://bucket/a", options).window_bytes == 2 * (6 << 20)


@pytest.mark.parametrize(("asked", "seconds"), [({}, (30, 10)), ({"request_timeout": timedelta(seconds=4)}, (4, 4))])
def test_silence_ends_within_the_request_timeout(asked, seconds):
    config = open_storage("s3://bucket/a", {**GIVEN, **asked})._bucket._client.api.meta.config
    assert (config.read_timeout, config.connect_timeout) == seconds


@pytest.mark.parametrize(("use_ssl", "scheme"), [(True, "https"), (False, "http")])
def test_an_endpoint_that_is_not_named_may_be_plain(use_ssl, scheme):
    api = open_storage("s3://bucket/a", {"key": "a", "secret": "b", "use_ssl": use_ssl})._bucket._client.api
    assert api.meta.endpoint_url.startswith(f"{scheme}://")


def test_an_option_of_none_is_not_given():
    given = dict.fromkeys(S3Options.__dataclass_fields__)
    assert S3Options.of(given, "s3") == S3Options()
    assert open_storage("s3://bucket/a", {**given, **GIVEN}).url == "s3://bucket/a"


def signed_url(options):
    """What a request to read a file would be sent to, by the keys that it is signed with."""
    api = open_storage("s3://bucket/a", {"endpoint_url": "http://127.0.0.1:1", **options})._bucket._client.api
    return api.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})


@pytest.mark.parametrize(
    "options",
    [
        {"key": "mine", "secret": "b", "token": "temporary"},
        {"credentials": lambda: {"key": "mine", "secret": "b", "token": "temporary"}},
        {"credentials": lambda: Keys("mine", "b", "temporary")},
    ],
    ids=["options", "mapping", "keys"],
)
def test_temporary_keys_go_with_their_token(options, monkeypatch):
    """They count before those in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "c")
    url = signed_url(options)
    assert "Credential=mine%2F" in url or "AWSAccessKeyId=mine&" in url
    assert "oken=temporary" in url


def test_anonymous_requests_are_not_signed(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "around")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert "around" in signed_url({})
    assert signed_url({"anon": True}) == signed_url({"anon": True, "key": "a", "secret": "b"})
    assert signed_url({"anon": True}).endswith("/k")


@pytest.mark.parametrize("where", ["environment", "profile", "nowhere"])
def test_amazons_region_is_the_command_lines(where, tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    (tmp_path / "config").write_text("[profile training]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if where == "environment":
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    options = {"key": "a", "secret": "b", **({"profile": "training"} if where == "profile" else {})}
    meta = open_storage("s3://bucket/a", options)._bucket._client.api.meta
    assert meta.region_name == ("us-east-1" if where == "nowhere" else "eu-west-3")


def test_idle_connections_are_kept_alive():
    assert open_storage("s3://bucket/a", GIVEN)._bucket._client.api.meta.config.tcp_keepalive


def test_anonymous_requests_need_no_keys():
    asked = []
    open_storage("s3://bucket/a", {"anon": True, "credentials": lambda: asked.append(1)})
    assert asked == []


def test_a_profile_has_its_own_keys(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = other\naws_secret_access_key = b\n"
        "[training]\naws_access_key_id = trainer\naws_secret_access_key = b\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert "trainer" in signed_url({"profile": "training"})
    assert "other" in signed_url({})


# OBS


@pytest.mark.parametrize(
    ("endpoint", "style", "region"),
    [
        (PUBLIC, "virtual", "cn-north-4"),
        ("https://obs.ap-southeast-3.myhuaweicloud.com:443", "virtual", "ap-southeast-3"),
        ("https://obs.eu-west-101.myhuaweicloud.eu", "virtual", "eu-west-101"),
        ("http://10.0.0.7:9000", "path", "us-east-1"),
        ("http://[::1]:9000", "path", "us-east-1"),
        ("http://localhost:9000", "path", "us-east-1"),
        ("https://obs.example.com", "path", "us-east-1"),
    ],
)
def test_addressing_and_region_follow_from_the_endpoint(endpoint, style, region, monkeypatch):
    assert addressing_of(endpoint) == style
    assert region_of(endpoint, {}) == region
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")  # another cloud's
    given = {**GIVEN, "endpoint_url": endpoint}
    assert open_storage("obs://bucket/runs", given)._bucket._client.api.meta.region_name == region
    assert region_of(endpoint, {"OBS_REGION": "af-south-1"}) == "af-south-1"


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


def test_keys_come_from_first_complete_pair():
    environment = {}
    for number, (key, (secret, token)) in reversed(list(enumerate(KEYS.items()))):
        environment |= {key: f"key{number}", secret: f"secret{number}", token: f"token{number}"}
        found = keys_of(S3Options(), environment)()
        assert found == Keys(f"key{number}", f"secret{number}", f"token{number}")
    del environment["OBS_SECRET_ACCESS_KEY"]
    assert keys_of(S3Options(), environment)() == Keys("key1", "secret1", "token1")  # nothing of a half pair
    explicit = S3Options(key="mine", secret="also")
    assert keys_of(explicit, environment)() == Keys("mine", "also", None)


@pytest.mark.parametrize("options", [{"anon": True}, {"profile": "training"}])
def test_obs_may_have_keys_elsewhere_or_none(options):
    around = {"OBS_ACCESS_KEY_ID": "other", "OBS_SECRET_ACCESS_KEY": "b"}
    for environment in ({}, around):
        assert keys_of(S3Options(**options), environment) is None
    assert keys_of(S3Options(key="mine", secret="also", **options), {})() == Keys("mine", "also")


def test_missing_keys_or_endpoint_name_every_way():
    """Without keys or an endpoint, the error names every way to give them."""
    with pytest.raises(StorageError, match="OBS_ENDPOINT"):
        with_endpoint(S3Options(), {})
    with pytest.raises(StorageError, match=r"OBS_ACCESS_KEY_ID.*HUAWEICLOUD_SDK_AK"):
        keys_of(S3Options(), {})


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({"OBS_ENDPOINT": "obs.cn-north-4.myhuaweicloud.com"}, PUBLIC),
        ({"S3_ENDPOINT": "obs.cn-north-4.myhuaweicloud.com", "S3_USE_HTTPS": "1"}, PUBLIC),
        ({"S3_ENDPOINT": "10.0.0.7:9000", "S3_USE_HTTPS": "0"}, "http://10.0.0.7:9000"),
        ({"OBS_ENDPOINT": PUBLIC, "S3_ENDPOINT": "http://other"}, PUBLIC),
    ],
)
def test_the_endpoint_may_lack_its_scheme(environment, endpoint):
    assert with_endpoint(S3Options(), environment).endpoint_url == endpoint
    own = S3Options(client_kwargs={"endpoint_url": "http://mine", "verify": False})
    assert with_endpoint(own, environment) == S3Options(endpoint_url="http://mine", client_kwargs={"verify": False})
    insecure = with_endpoint(S3Options(use_ssl=False), environment).endpoint_url
    given = "://" in next(iter(environment.values()))
    assert insecure == (endpoint if given else endpoint.replace("https://", "http://"))


def test_keys_in_the_environment_are_read_again(monkeypatch):
    environment = {"OBS_ACCESS_KEY_ID": "a", "OBS_SECRET_ACCESS_KEY": "b"}
    credentials = RenewedCredentials(keys_of(S3Options(), environment))
    assert not credentials.renew(credentials.generation)
    environment["OBS_SECRET_ACCESS_KEY"] = "c"
    assert credentials.get_frozen_credentials().secret_key == "b"
    used = credentials.generation
    assert credentials.renew(used)
    assert credentials.renew(used)  # another request that was signed with the old ones: no need to ask again
    assert credentials.get_frozen_credentials().secret_key == "c"


# Keys that end


def test_source_of_keys_is_asked_by_one_thread():
    """A vault's client may not stand two."""
    alone = []

    def source():
        alone.append(credentials._lock.locked() if alone else True)
        return Keys("a", str(len(alone)), expires=datetime(2026, 1, 1, tzinfo=timezone.utc))

    credentials = None
    credentials = RenewedCredentials(source, lambda: datetime(2025, 12, 31, 23, 57, tzinfo=timezone.utc))
    credentials.get_frozen_credentials()
    credentials.renew(credentials.generation)
    assert alone == [True] * 3


def test_keys_that_expired_are_asked_for_once():
    """Many requests are under way with them, and each learns it."""
    asked = []
    credentials = RenewedCredentials(lambda: asked.append(1) or Keys("a", str(len(asked))))
    used = credentials.generation
    assert credentials.renew(used)
    assert credentials.renew(used)
    assert credentials.get_frozen_credentials().secret_key == "2"
    assert credentials.renew(credentials.generation)
    assert credentials.get_frozen_credentials().secret_key == "3"


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


@pytest.mark.parametrize(
    "returned",
    [
        *(None, {"key": "a"}, {"key": "a", "secret": "b", "expire": 1}, {"key": "a", "secret": "b", "expires": 5}),
        {"key": "a", "secret": "b", "expires": datetime(2026, 1, 1)},
    ],
)
def test_credentials_function_without_keys_is_explained(returned):
    with pytest.raises(StorageError, match="credentials="):
        open_storage("s3://bucket/a", {"endpoint_url": "http://127.0.0.1:1", "credentials": lambda: returned})


def test_credentials_function_may_return_keys_object():
    options = {"endpoint_url": "http://127.0.0.1:1", "credentials": lambda: Keys("a", "b", "c")}
    frozen = open_storage("s3://bucket/a", options)._bucket._client.credentials.get_frozen_credentials()
    assert (frozen.access_key, frozen.secret_key, frozen.token) == ("a", "b", "c")


def test_no_secret_is_shown():
    keys = Keys("AKIAABCDEFGH", "hidden", "also hidden")
    assert "hidden" not in repr(keys)
    assert "hidden" not in repr(RenewedCredentials(lambda: keys))
    assert "hidden" not in repr(dataclasses.replace(S3Options(), key="AKIA", secret="hidden"))


def test_unanswering_endpoint_is_given_up_sooner():
    """An endpoint that never answered is given up sooner, unless the options say otherwise."""
    default = S3Options.of({}, "s3").patience
    assert (default.first, default.retrying) == (timedelta(seconds=30), timedelta(minutes=5))
    given = S3Options.of({"retry_for": timedelta(hours=2)}, "s3").patience
    assert (given.first, given.retrying) == (timedelta(hours=2), timedelta(hours=2))
    given = S3Options.of({"retry_for": timedelta(hours=2), "answer_within": timedelta(seconds=3)}, "s3").patience
    assert (given.first, given.retrying) == (timedelta(seconds=3), timedelta(hours=2))
    with pytest.raises(StorageError, match="answer_within"):
        S3Options.of({"answer_within": 3}, "s3")


def test_later_clients_parse_no_models_again(monkeypatch):
    """They take 12 MB and 0.1 s otherwise, and a start opens several."""
    open_storage("s3://bucket/a", GIVEN)
    parsed = []
    load = JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: parsed.append(path) or load(self, path))
    open_storage("s3://bucket/b", GIVEN)
    assert parsed == []
