"""Runs what depends on MindSpore with each version of it that ckptkit supports: ``pip install nox && nox``."""

import nox

nox.options.default_venv_backend = "venv"
PARTS = ("tests/unit/mindspore", "tests/exactness/equivalence", "tests/exactness/cells", "tests/exactness/golden")


@nox.session
@nox.parametrize("mindspore", ["2.7.1", "2.8.0", "2.9.0", "2.10.0"])
def versions(session: nox.Session, mindspore: str) -> None:
    """The MindSpore part of the default suite; ``nox -- PATHS`` runs other tests."""
    session.install(f"mindspore=={mindspore}", ".[test]")
    session.run("pytest", *(session.posargs or PARTS))
