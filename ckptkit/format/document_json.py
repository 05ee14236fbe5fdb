"""Encodes and decodes the documents of a run.

Guarantees: what parses is a document as `ckptkit.format.documents` describes it, with every field present and, if it is
sealed, with its own digest; anything else is a `CorruptCheckpointError` that names the file. Any thread.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from ckptkit.errors import CorruptCheckpointError, FormatVersionError
from ckptkit.format.documents import FORMAT_VERSION, Commit, Sealed, Void, canonical, digest_of

Model = TypeVar("Model", bound=BaseModel)


def encode(document: BaseModel) -> bytes:
    """Return the bytes of ``document`` on storage; sealed documents must be sealed already."""
    if isinstance(document, Sealed | Void):
        return canonical(document.model_dump(mode="json"))
    # Not the json module: for 100,000 tensors it would hold the interpreter, and thus training, for seconds.
    return document.model_dump_json().encode()


def decode(data: bytes, model: type[Model], key: str) -> Model:
    """Parse ``data``, the content of ``key``."""
    try:
        if issubclass(model, Sealed):
            _check_seal(data)
    except ValueError as error:
        raise CorruptCheckpointError(f"{key} is not a valid {model.__name__}: {_first_line(error)}") from error
    try:
        document = model.model_validate_json(data)
    except ValidationError as error:
        _refuse_other_version(data, key)
        raise CorruptCheckpointError(f"{key} is not a valid {model.__name__}: {_first_line(error)}") from error
    # Defaults only help the writing code; on storage every field is present.
    absent = sorted(model.model_fields.keys() - document.model_fields_set)
    if absent:
        raise CorruptCheckpointError(f"{key} is not a valid {model.__name__}: it lacks {', '.join(absent)}")
    return document


def decode_commit(data: bytes, key: str) -> Commit | Void:
    """Parse a ``COMMIT`` file, real or void; raises as `decode` does."""
    try:
        there = Void.model_validate_json(data)
    except ValidationError:
        return decode(data, Commit, key)
    if encode(there) != data:
        raise CorruptCheckpointError(f"{key} is a void marker that is not canonical JSON, so it was altered")
    return there


def _check_seal(data: bytes) -> None:
    """Raise ValueError unless ``data`` is canonical JSON with a correct ``digest``."""
    fields = from_json(data, allow_inf_nan=False)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if canonical(fields) != data:
        raise ValueError("it is not canonical JSON, so it was altered")
    found = fields.pop("digest", None)
    expected = digest_of(canonical(fields))
    if found != expected:
        raise ValueError(f"its recorded digest is {str(found)[:40]}, but its content has the digest {expected}")


class _AnyVersion(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    format_version: int = Field(le=10**9)


def _refuse_other_version(data: bytes, key: str) -> None:
    try:
        version = _AnyVersion.model_validate_json(data).format_version
    except ValidationError:
        return
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{key} has format version {version}; this ckptkit reads up to {FORMAT_VERSION}. Upgrade ckptkit."
        )


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where + ': ' if where else ''}{first['msg']}"[:400]
    return str(error)[:400]
