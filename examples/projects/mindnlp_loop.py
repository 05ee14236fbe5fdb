"""Trains a tiny BERT of transformers on random tokens, which mindnlp runs on MindSpore, in a loop of its own."""

import mindnlp  # noqa: F401 -- patches transformers
import mindtorch
import numpy as np
from mindtorch import autograd
from transformers import BertConfig, BertForSequenceClassification, set_seed

import ckptkit as ck


class Stored:
    """Gives the tensors of a module or an optimizer to ckptkit as NumPy arrays."""

    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return {name: tensor.detach().numpy().copy() for name, tensor in self.module.state_dict().items()}

    def load_state_dict(self, state):
        self.module.load_state_dict({name: mindtorch.tensor(array) for name, array in state.items()})


set_seed(1)
rng = np.random.default_rng(1)
rows = [(rng.integers(0, 64, (4, 8)), rng.integers(0, 2, 4)) for _ in range(8)]
config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config).train()


def forward(ids, labels):
    return model(input_ids=ids, labels=labels).loss


step = autograd.value_and_grad(forward, list(model.parameters()))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager("runs/mindnlp") as manager:
    state = ck.StateManager([], batches, model=Stored(model))
    manager.restore(state)
    for ids, labels in batches:
        loss = step(mindtorch.tensor(ids), mindtorch.tensor(labels))
        # No optimizer of mindtorch 0.5.1 has all of its operators on CPU.
        for parameter in model.parameters():
            parameter.data = parameter.data - 0.1 * parameter.grad
            parameter.grad = None
        print(float(loss))
        manager.step(state)
    manager.save_final(state)
