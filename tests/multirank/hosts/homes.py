"""The homes of a run on hosts: how they are opened, and what lies there. Needs no MindSpore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage

if TYPE_CHECKING:
    from support.hosts.cluster import Cluster  # a life needs no servers


def opened(home: str, **options: Any) -> tuple[str, dict[str, Any] | None]:
    """The root and the ``storage_options`` of a home, as in `multirank.hosts.life.Life`."""
    if home.startswith("http://"):
        address, _, folder = home.removeprefix("http://").partition("/")
        return f"s3://{folder}", {**options, "endpoint_url": f"http://{address}"}
    return home, options if "://" in home else None


def checkpoints(cluster: Cluster, home: str) -> list[tuple[str, int]]:
    """The names of the checkpoints that lie at a home, and their micro-steps, the oldest first.

    A host that serves the home looks itself, so its cable may be cut.
    """

    def look() -> list[tuple[str, int]]:
        variables = cluster.variables()
        root, options = opened(
            home,
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            key=variables["AWS_ACCESS_KEY_ID"],
            secret=variables["AWS_SECRET_ACCESS_KEY"],
        )
        found = list_checkpoints(open_storage(root, options))
        return sorted(
            ((info.name, info.progress.batches_delivered) for info in found if info.progress is not None),
            key=lambda one: (one[1], one[0]),
        )

    serving = (host for host in cluster.hosts if home.startswith(host.endpoint))
    return next(serving, cluster.storage).call(look)


def newest(cluster: Cluster, home: str) -> tuple[str, int] | None:
    """The newest one of `checkpoints`; None if there is none."""
    found = checkpoints(cluster, home)
    return found[-1] if found else None
