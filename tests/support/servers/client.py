"""botocore without anything of its own between a test and the server: no retries, no hidden checksums."""

from functools import cache
from typing import Any

ACCESS_KEY = SECRET_KEY = "testing"
REGION = "us-east-1"


@cache  # reads S3's description, which takes longer than a test
def _session() -> Any:
    import botocore.session

    return botocore.session.Session()


def s3_client(endpoint: str, *, read_timeout: float = 30) -> Any:
    """A botocore client whose every call is one request; may be used by several threads."""
    from botocore.config import Config

    return _session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            retries={"total_max_attempts": 1},
            proxies={},  # none but ours, whatever the environment says
            s3={"addressing_style": "path"},
            connect_timeout=10,
            read_timeout=read_timeout,
            max_pool_connections=16,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
