"""Trains a tiny ChatGLM2 on random tokens with MindFormers' Trainer."""

import numpy as np
from mindformers import Trainer, build_context
from mindformers.models import ChatGLM2Config, ChatGLM2ForConditionalGeneration
from mindformers.tools.register import MindFormerConfig
from mindspore.dataset import GeneratorDataset

import ckptkit as ck


class Tokens:
    def __init__(self):
        rng = np.random.default_rng(1)
        self.rows = rng.integers(0, 64, (24, 17)).astype(np.int32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index, :-1], self.rows[index, 1:]


config = MindFormerConfig("tiny.yaml")
build_context(config)
model = ChatGLM2ForConditionalGeneration(
    ChatGLM2Config(
        batch_size=2,
        num_layers=1,
        padded_vocab_size=64,
        hidden_size=32,
        ffn_hidden_size=64,
        kv_channels=8,
        num_attention_heads=4,
        seq_length=16,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        param_init_type="float32",
        compute_dtype="float32",
        rmsnorm=False,
    )
)
dataset = GeneratorDataset(Tokens(), ["input_ids", "labels"], shuffle=True).batch(2)
ck.CheckpointCallback("runs/chatglm2").attach()
Trainer(args=config, task="text_generation", model=model, train_dataset=dataset).train()
