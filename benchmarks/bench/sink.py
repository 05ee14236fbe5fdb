"""A server that costs next to nothing, so that the clients are what is measured: nginx that swallows and serves memory.

It checks nothing and keeps nothing; where nginx is not installed (``apt-get install nginx-light``), moto serves
instead, and is the bottleneck. Loopback only, stopped by its own pid.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn; user {user};
events {{ worker_connections 256; }}
http {{
  access_log off; client_max_body_size 0; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; client_body_buffer_size 1m; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{inner};
    location / {{ add_header ETag '"0cc175b9c0f1b6a831c399e269772661"' always; return 200 ''; }}
  }}
  server {{
    listen 127.0.0.1:{port}; root {folder}/data;
    location / {{
      if ($request_method = POST) {{ rewrite ^ /_post last; }}
      if ($request_method = PUT) {{ rewrite ^ /_put last; }}
    }}
    location = /_put {{
      internal; proxy_pass http://127.0.0.1:{inner}/; proxy_pass_request_body off;
      proxy_set_header Content-Length ""; proxy_method GET;
    }}
    error_page 404 /_absent;
    location = /_absent {{
      internal; default_type application/xml; return 404 '<Error><Code>NoSuchKey</Code><Message>none</Message></Error>';
    }}
    location = /_post {{ internal; default_type application/xml; return 200 '{answer}'; }}
  }}
}}
"""
_ANSWER = (
    '<?xml version="1.0"?><InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>'
    '<UploadId>u1</UploadId><ETag>"x"</ETag></InitiateMultipartUploadResult>'
)


@contextmanager
def sink(bucket: str, files: dict[str, int]) -> Iterator[tuple[str, str]]:
    """A server with ``files`` (size by key) in ``bucket``; yields what it is and its URL."""
    nginx = shutil.which("nginx")
    if nginx is None:
        with _moto(bucket, files) as url:
            yield "moto", url
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ckptkit-sink-") as name:
        folder = Path(name)
        port, inner = _free_ports(2)
        for key, size in files.items():
            path = folder / "data" / bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(range(256)) * (size // 256))
        text = _CONFIGURATION.format(folder=folder, port=port, inner=inner, answer=_ANSWER, user="root")
        (folder / "nginx.conf").write_text(text)
        process = subprocess.Popen([nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")])
        try:
            _wait(f"http://127.0.0.1:{port}/", process)
            yield "nginx", f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def _moto(bucket: str, files: dict[str, int]) -> Iterator[str]:
    from tests.support.servers.client import s3_client
    from tests.support.servers.moto_server import MotoServer

    with MotoServer() as server:
        client = s3_client(server.endpoint)
        client.create_bucket(Bucket=bucket)
        for key, size in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=bytes(range(256)) * (size // 256))
        yield server.endpoint


def _free_ports(count: int) -> list[int]:
    places = [socket.socket() for _ in range(count)]
    for place in places:
        place.bind(("127.0.0.1", 0))
    ports = [place.getsockname()[1] for place in places]
    for place in places:
        place.close()
    return ports


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1000):
        if process.poll() is not None:
            raise RuntimeError(f"nginx ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError:
            return
        except OSError:
            continue
        return
    raise RuntimeError("nginx does not answer")
