"""Defines the documents of format version 1: what each JSON file of a run may hold, and how to read and write it.

A document that parses has every field and no other, plain relative keys, bounded numbers, a tensor table without
overlaps and, if it is sealed, its own digest; anything else is a `CorruptCheckpointError` that names the file. The
normative text is ``docs/format.md``. Any thread.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal, TypeVar

import xxhash
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json
from typing_extensions import Self

from ckptkit.core.placement import Tag, is_one_run, lies_inside
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import DTYPES, Role, size_bytes_of
from ckptkit.errors import CorruptCheckpointError, FormatVersionError

FORMAT_VERSION = 1

MAX_SEALED_BYTES = 64 * 1024  # run.json, attempts, COMMIT
MAX_DOCUMENT_BYTES = 128 * 1024 * 1024  # manifest.json and rank files: about 500,000 tensors
MAX_ATTEMPT = 999_999
MAX_SIZE_BYTES = 1 << 50  # of a shard: a petabyte
MAX_TOTAL_BYTES = 1 << 59  # of all shards of a checkpoint
MAX_BLOCK_BYTES = 1 << 20  # of a file with sharded leaves; each block is verified separately

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def checked_key(key: str) -> str:
    """Return ``key`` if it is a plain relative path below the run root."""
    if len(key) > 512 or not _KEY.fullmatch(key):
        raise ValueError(f"not a plain relative path below the run root: {key[:80]!r}")
    return key


Key = Annotated[str, AfterValidator(checked_key)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Text = Annotated[str, Field(max_length=4096)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
SizeBytes = Annotated[int, Field(ge=0, le=MAX_SIZE_BYTES)]
Dimension = Annotated[int, Field(ge=0, le=MAX_SIZE_BYTES)]
Version = Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]  # a Literal[1] would accept true and 1.0


def _all_finite(state: dict[str, JsonValue]) -> dict[str, JsonValue]:
    rest: list[JsonValue] = [*state.values()]
    while rest:
        value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not JSON; ckptkit.core.state_encoding encodes such numbers")
        if isinstance(value, dict | list):
            rest.extend(value.values() if isinstance(value, dict) else value)
    return state


class StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sealed(StrictModel):
    """Represents a small create-only document: canonical JSON with the digest of all its other fields."""

    format_version: Version = FORMAT_VERSION
    digest: Digest | None = None

    def sealed(self) -> Self:
        rest = self.model_dump(mode="json", exclude={"digest"})
        return self.model_copy(update={"digest": digest_of(canonical(rest))})


class CopiedFrom(StrictModel):
    url: Text
    run_id: Token | None
    checkpoint: Text | None
    last_attempt: int = Field(ge=1, le=MAX_ATTEMPT)


class RunDocument(Sealed):
    """Represents ``run.json``: created once, by the first start or as the first file of a copy."""

    run_id: Token
    created_at: Text
    copied_from: CopiedFrom | None = None


class PassedOver(StrictModel):
    checkpoint: Text
    reason: Text


class AttemptDocument(Sealed):
    """Represents ``attempts/000002.json``: one life of the training job."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    token: Token
    parent: Text | None
    branch: Text | None = None
    host: Text
    created_at: Text
    passed_over: list[PassedOver] = []


class Commit(Sealed):
    """Represents ``COMMIT`` of a checkpoint: its existence commits the folder."""

    token: Token
    manifest_digest: Digest
    manifest_size_bytes: SizeBytes


class Void(StrictModel):
    """Represents ``COMMIT`` of a folder that must never be committed."""

    void_by: Token


Shape = Annotated[list[Dimension], Field(max_length=32)]

PartShape = Annotated[list[Dimension], Field(max_length=31)]  # NumPy has 32 axes, and readers need one for the bytes


class Part(StrictModel):
    """Locates a tensor in a whole leaf; the tensor's shape is the part's shape."""

    global_shape: PartShape
    offsets: PartShape


class TensorEntry(StrictModel):
    """Describes one tensor inside a shard."""

    name: Annotated[str, Field(min_length=1, max_length=2048)]
    dtype: Text
    shape: Shape
    offset_bytes: SizeBytes
    size_bytes: SizeBytes
    placement: Tag
    part: Part | None

    @property
    def whole_shape(self) -> tuple[int, ...]:
        return tuple(self.shape if self.part is None else self.part.global_shape)

    @model_validator(mode="after")
    def _size_is_that_of_the_shape(self) -> Self:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor {self.name[:80]!r}: unknown dtype {self.dtype[:20]!r}")
        expected = size_bytes_of(self.dtype, self.shape)
        if self.size_bytes != expected:
            raise ValueError(f"tensor {self.name[:80]!r}: {self.size_bytes} bytes, its shape needs {expected}")
        # An empty tensor with huge dimensions needs no byte, but NumPy cannot create it.
        if math.prod(dimension or 1 for dimension in self.whole_shape) > MAX_SIZE_BYTES:
            raise ValueError(f"tensor {self.name[:80]!r}: its shape is too large")
        return self

    @model_validator(mode="after")
    def _part_lies_in_the_whole(self) -> Self:
        if self.part is None:
            if self.placement == "sharded":
                raise ValueError(f"tensor {self.name[:80]!r} is sharded, but does not say which part it is")
            return self
        if self.placement == "per_rank":
            raise ValueError(f"tensor {self.name[:80]!r} belongs to one rank alone, so it cannot be a part")
        if not lies_inside(self.part.global_shape, self.part.offsets, self.shape):
            raise ValueError(f"tensor {self.name[:80]!r} is outside the whole tensor")
        if self.placement == "replicated" and not is_one_run(self.part.global_shape, self.shape):
            raise ValueError(f"tensor {self.name[:80]!r} is not a consecutive part of the whole tensor")
        return self


class FileEntry(StrictModel):
    key: Key
    size_bytes: SizeBytes
    digest: Digest


class Blocks(StrictModel):
    """Holds the digests of a file's blocks, all but the last of one size, so that a part can be read alone."""

    size_bytes: int = Field(ge=1, le=MAX_BLOCK_BYTES)
    digests: list[Digest]


class ShardEntry(FileEntry):
    """Describes a safetensors file and its tensors in file order; all have the same placement."""

    role: Role
    tensors: list[TensorEntry]
    blocks: Blocks | None

    @property
    def placement(self) -> Tag:
        return self.tensors[0].placement if self.tensors else "per_rank"

    @model_validator(mode="after")
    def _one_placement(self) -> Self:
        if any(tensor.placement != self.placement for tensor in self.tensors):
            raise ValueError(f"{self.key} holds tensors of several placements")
        if (self.blocks is None) == (self.placement == "sharded"):
            raise ValueError(
                f"{self.key} must have block digests if its tensors are sharded, and must not have them otherwise"
            )
        if self.blocks is not None and len(self.blocks.digests) != -(-self.size_bytes // self.blocks.size_bytes):
            raise ValueError(f"{self.key} has {len(self.blocks.digests)} block digests, which does not match its size")
        return self

    @model_validator(mode="after")
    def _tensors_lie_inside_and_apart(self) -> Self:
        end = 0
        for tensor in self.tensors:
            if tensor.offset_bytes < end:
                raise ValueError(f"tensor {tensor.name[:80]!r} overlaps the one before it in {self.key}")
            end = tensor.offset_bytes + tensor.size_bytes
        if end > self.size_bytes:
            raise ValueError(f"the tensors of {self.key} end at byte {end}, but the file ends at {self.size_bytes}")
        return self


class RankManifest(StrictModel):
    """Represents ``rank-00000.json``: what one rank wrote."""

    format_version: Version = FORMAT_VERSION
    checkpoint: Text
    rank: int = Field(ge=0, le=99_999)
    token: Token
    save_number: int = Field(ge=1, le=10**15)
    shards: list[ShardEntry]
    state: Annotated[dict[str, JsonValue], AfterValidator(_all_finite)]

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        # A file listed n times would be read into n times its memory.
        keys = [shard.key for shard in self.shards]
        if len(set(keys)) != len(keys):
            raise ValueError("a shard is listed twice")
        seen: set[str] = set()
        for shard in self.shards:
            for tensor in shard.tensors:
                if tensor.name in seen:
                    raise ValueError(f"tensor {tensor.name[:80]!r} is listed twice")
                seen.add(tensor.name)
        return self


class Cost(StrictModel):
    """Holds the cost of the save when its manifest was written; see `ckptkit.core.save_report.SaveCost`."""

    stall_seconds: Seconds
    fence_seconds: Seconds
    fence_wait_seconds: Seconds
    queue_seconds: Seconds
    digest_seconds: Seconds
    write_seconds: Seconds
    copied_bytes: SizeBytes
    fenced_bytes: SizeBytes
    streamed_bytes: SizeBytes
    in_place_bytes: SizeBytes
    buffer_bytes: SizeBytes
    skipped_saves: int = Field(ge=0, le=10**15)


class Manifest(StrictModel):
    """Represents ``manifest.json``: the checkpoint as a whole."""

    format_version: Version = FORMAT_VERSION
    checkpoint: Text
    created_at: Text
    progress: Progress
    world_size: int = Field(ge=1, le=100_000)
    mid_cycle: Literal["exact"] = "exact"
    size_bytes: int = Field(ge=0, le=MAX_TOTAL_BYTES)
    metrics: dict[str, FiniteFloat | None] = {}  # None stands for NaN and infinities
    rank_files: Annotated[list[FileEntry], Field(min_length=1)]
    libraries: dict[str, Text] = {}
    cost: Cost


def digest_of(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def canonical(value: Any) -> bytes:
    """Return JSON in UTF-8 with sorted keys and no white space: equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


Model = TypeVar("Model", bound=BaseModel)


def encode(document: BaseModel) -> bytes:
    """Return the bytes of ``document`` on storage; sealed documents must be sealed already."""
    # Only these are sorted: a dict of the user's state must keep its order, which a loop may follow.
    if isinstance(document, Sealed | Void):
        return canonical(document.model_dump(mode="json"))
    # Not the json module: for 100,000 tensors it would hold the interpreter, and thus training, for seconds.
    return document.model_dump_json().encode()


def decode(data: bytes, model: type[Model], key: str) -> Model:
    """Parse ``data``, the content of ``key``."""
    try:
        if issubclass(model, Sealed):
            _check_seal(data)
        try:
            document = model.model_validate_json(data)
        except ValidationError:
            _refuse_other_version(data, key)
            raise
        # Defaults only help the writing code; on storage every field is present.
        absent = sorted(model.model_fields.keys() - document.model_fields_set)
        if absent:
            raise ValueError(f"it lacks {', '.join(absent)}")
    except FormatVersionError:
        raise
    except ValueError as error:
        raise CorruptCheckpointError(f"{key} is not a valid {model.__name__}: {first_problem(error)}") from error
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
    digest = fields.pop("digest", None)
    expected = digest_of(canonical(fields))
    if digest != expected:
        raise ValueError(f"its recorded digest is {str(digest)[:40]}, but its content has the digest {expected}")


def _refuse_other_version(data: bytes, key: str) -> None:
    try:
        fields = from_json(data)
    except ValueError:
        return
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if type(version) is int and FORMAT_VERSION < version <= 10**9:
        raise FormatVersionError(
            f"{key} has format version {version}; this ckptkit reads up to {FORMAT_VERSION}. Upgrade ckptkit."
        )


def first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where + ': ' if where else ''}{first['msg']}"[:400]
    return str(error)[:400]
