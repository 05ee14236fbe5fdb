"""Runs what depends on MindSpore with other versions of it, and of Python: ``pip install nox && nox``."""

import nox

nox.options.default_venv_backend = "venv"
PARTS = ("tests/unit/mindspore", "tests/exactness/equivalence", "tests/exactness/cells", "tests/exactness/golden")


@nox.session
@nox.parametrize("mindspore", ["2.7.1", "2.8.0", "2.9.0", "2.10.0"])
def versions(session: nox.Session, mindspore: str) -> None:
    """The MindSpore part of the default suite; ``nox -- PATHS`` runs other tests."""
    session.install(f"mindspore=={mindspore}", ".[test]")
    session.run("pytest", *(session.posargs or PARTS))


@nox.session(python=["3.10", "3.11", "3.12"])
def pythons(session: nox.Session) -> None:
    """The same with the newest MindSpore and each Python; leaves out what is not on PATH (``nox -s pythons-3.12``)."""
    session.install(".[test]")
    session.run("pytest", *(session.posargs or PARTS))
