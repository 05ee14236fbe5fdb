"""Trains with PyTorch, saves, resumes: ``python torch_job.py torch.save|dcp FOLDER``.

``torch.save`` overwrites one file, as PyTorch's tutorial does; ``dcp`` writes a folder per save, and resumes from the
newest that has its metadata.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

STEPS, EVERY = 16, 4


def save(system: str, folder: Path, state: dict[str, Any]) -> None:
    if system == "dcp":
        dcp.save(state, checkpoint_id=str(folder / f"{state['step']:03d}"), no_dist=True)
    else:
        torch.save(state, folder / "checkpoint.pt")


def restore(system: str, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    if system == "dcp":
        complete = sorted(path.parent for path in folder.glob("*/.metadata"))
        if complete:
            dcp.load(state, checkpoint_id=str(complete[-1]), no_dist=True)
    elif (folder / "checkpoint.pt").exists():
        return torch.load(folder / "checkpoint.pt")
    return state


def main(system: str, folder: Path) -> None:
    torch.manual_seed(1)
    folder.mkdir(parents=True, exist_ok=True)
    rows = torch.rand(32, 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model(rows).sum().backward()
    optimizer.step()  # so that its state exists, which DCP loads in place
    state = restore(system, folder, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0})
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begun = state["step"]
    print("resumed from step", begun)
    for step in range(begun, STEPS):
        batch = rows[step % 4 * 8 : step % 4 * 8 + 8]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch[:, :1]).backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            save(system, folder, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1})
    tensors = [*model.parameters(), *(value for kept in optimizer.state.values() for value in kept.values())]
    (folder / "final.bin").write_bytes(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
