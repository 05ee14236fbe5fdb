"""Nothing is wrong with it: a trainer with a loop of its own, whose sampler draws from `numpy.random`."""

import sys
from pathlib import Path

import mindspore as ms

sys.path.insert(0, str(Path(__file__).parents[3]))
from support.looping_trainer import LoopingTrainer

import ckptkit as ck

ms.set_seed(11)
trainer = LoopingTrainer(epochs=6, k=2, size=5)
ck.CheckpointCallback("runs/looping").attach(trainer)
trainer.train()
