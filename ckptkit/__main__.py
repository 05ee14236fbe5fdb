"""``python -m ckptkit``: the same as the ``ckptkit`` command."""

from ckptkit.cli import app

app(prog_name="ckptkit")
