"""Trains a tiny ALBERT on random tokens with mindone's Trainer, which has a loop of its own."""

import sys

import numpy as np
from mindone.transformers import AlbertForSequenceClassification
from mindone.transformers.trainer import Trainer
from mindone.transformers.trainer_utils import set_seed
from mindone.transformers.training_args import TrainingArguments
from transformers import AlbertConfig

import ckptkit as ck

ACCUMULATION = int(sys.argv[1]) if len(sys.argv) > 1 else 1


class Rows:
    """Random tokens with a label."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.ids = rng.integers(0, 64, (28, 8)).astype(np.int32)
        self.labels = rng.integers(0, 2, 28).astype(np.int32)

    def __getitem__(self, index):
        return {"input_ids": self.ids[int(index)], "labels": self.labels[int(index)]}

    def __len__(self):
        return len(self.ids)


class Accumulating(Trainer):
    """Has what mindone 0.5.0 forgets on one rank: parameters for the sums of the gradients."""

    def _wrap_model(self, model, dataloader=None):
        model, train_model = super()._wrap_model(model, dataloader)
        train_model.accumulated_grads = self.optimizer.parameters.clone(prefix="accum_grad", init="zeros")
        return model, train_model


args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=ACCUMULATION,
    num_train_epochs=2,
    learning_rate=1e-3,
    logging_steps=2,
    save_strategy="no",
    report_to=[],
    dataloader_num_workers=1,
    remove_unused_columns=False,
)
set_seed(1)
model = AlbertForSequenceClassification(
    AlbertConfig(
        vocab_size=64,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
)
ck.nn.replace_dropout(model)
# mindone 0.5.0 counts micro-steps in a schedule that has a rate for each update only.
optimizers = (None, args.learning_rate if ACCUMULATION > 1 else None)
trainer = Accumulating(model=model, args=args, train_dataset=Rows(), optimizers=optimizers)
ck.CheckpointCallback("runs/albert").attach(trainer)
trainer.train()
