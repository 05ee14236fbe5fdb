"""Ways to checkpoint for DLIO: its own with PyTorch, as it is meant to be, and ckptkit; for two ranks or more.

DLIO imports this in an environment without MindSpore. At its commit in `benchmarks.environments`, it reads its options
``checkpoint.fsync`` and ``checkpoint.recovery_rank_shift`` into attributes that nothing uses. Here each rank makes its
files durable; with the shift, each reads what the next one wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from dlio_benchmark.checkpointing.pytorch_checkpointing import PyTorchCheckpointing
from dlio_benchmark.checkpointing.pytorch_s3_checkpointing import PyTorchS3Checkpointing
from mpi4py import MPI

import ckptkit as ck
from ckptkit.core.contents import Buffers, Capture, Contents
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, Role, bytes_of, leaf_of
from ckptkit.errors import StateMismatchError


class Own:
    """What all of them share: one object of each class, and the options that DLIO forgets."""

    args: Any
    data_parallelism_rank: int

    @classmethod
    def get_instance(cls) -> Any:
        if "_instance" not in vars(cls):
            cls._instance = cls()
        return cls._instance

    def take_options(self) -> None:
        self.args.checkpoint_fsync = True
        shift = int(getattr(self.args, "checkpoint_recover_rank_shift", False))
        self.data_parallelism_rank = (self.data_parallelism_rank + shift) % self.args.comm_size


class Default(Own, PyTorchCheckpointing):
    """`torch.save` and `torch.load`, two files for each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.take_options()


class DefaultS3(Own, PyTorchS3Checkpointing):
    """The same with ``s3torchconnector``."""

    def __init__(self) -> None:
        super().__init__()
        self.take_options()


class MpiRanks:
    """Is a `ckptkit.core.process_group.World`, whose ranks are ordered by ``rank``."""

    def __init__(self, rank: int) -> None:
        self._ranks = MPI.COMM_WORLD.Split(0, rank)
        self.rank, self.size = self._ranks.rank, self._ranks.size

    def gather(self, message: str) -> list[str]:
        return self._ranks.allgather(message)

    def broadcast(self, message: str) -> str:
        return self._ranks.bcast(message)


class State:
    """Is a `ckptkit.snapshot.Capturable`: tensors of one rank, which no training changes."""

    def __init__(self, world: MpiRanks, tensors: Mapping[str, torch.Tensor], updates: int = 0) -> None:
        self.world, self.updates = world, updates
        self._arrays = {name: tensor.numpy() for name, tensor in tensors.items()}

    def progress(self) -> Progress:
        counts = dict.fromkeys(("batch", "cycles", "updates", "batches_delivered", "cycle_first_batch"), self.updates)
        return Progress(epoch=0, micro_step=0, accumulation_steps=1, **counts)

    complete_step = progress

    def is_over(self) -> bool:
        return False

    def leaves(self, *, at_boundary: bool) -> list[Leaf]:
        def role_of(name: str) -> Role:
            return "optimizer" if name.startswith("optimizer") else "weights"

        return [leaf_of(name, array, role=role_of(name), lifetime="cycle") for name, array in self._arrays.items()]

    def capture(self) -> Capture:
        return Capture(self.progress(), tuple(self.leaves(at_boundary=True)), {})

    def guard(self, fence: Callable[[], None]) -> None:
        """Do nothing: nothing changes."""

    def begin(self, root: str) -> None:
        """Accept any state."""

    def apply(self, contents: Contents) -> None:
        if contents.entries.keys() != self._arrays.keys():
            raise StateMismatchError(f"{contents.checkpoint} has other tensors")
        contents.read_into(Buffers({name: bytes_of(array).data for name, array in self._arrays.items()}))
        self.updates = contents.progress.updates


class CkptKit(Own, PyTorchCheckpointing):
    """`ckptkit.CheckpointManager`; a load is a whole start, with its own manager."""

    def __init__(self) -> None:
        super().__init__()
        self.take_options()
        kinds = {"weights": self.layer_state, "optimizer": self.optimization_state}
        self._tensors = {name: tensor for kind, state in kinds.items() for name, tensor in _flat(kind, state)}
        self._saving: tuple[ck.CheckpointManager, State] | None = None

    def save_checkpoint(self, epoch: int, step_number: int) -> None:
        if self._saving is None:
            self._saving = self._manager(), State(MpiRanks(self.data_parallelism_rank), self._tensors)
            manager, state = self._saving
            manager.restore(state)
        self.checkpoint_storage.create_node(f"global_epoch{epoch}_step{step_number}", exist_ok=True)  # DLIO counts them
        manager, state = self._saving
        state.updates = step_number
        manager.save(state).result()

    def load_checkpoint(self, epoch: int, step_number: int) -> None:
        with self._manager() as manager:
            state = State(MpiRanks(self.data_parallelism_rank), self._tensors)
            point = manager.restore(state, checkpoint=step_number, rewind=True)
            assert point.optimizer_step == step_number

    def finalize(self) -> None:
        if self._saving is not None:
            self._saving[0].close()

    def _manager(self) -> ck.CheckpointManager:
        options = self.args.storage_options
        return ck.CheckpointManager(
            f"{self.args.checkpoint_folder}/run",
            keep=ck.KeepEvery(optimizer_steps=1),
            saving=ck.Saving(on_error="raise"),
            preemption=ck.Preemption(then="off"),
            storage_options={"endpoint_url": options["endpoint_url"]} if options else None,
        )


def _flat(name: str, state: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dicts with their paths."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _flat(f"{name}.{key}", value)
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from _flat(f"{name}.{number}", value)
    elif state is not None:
        yield name, state
