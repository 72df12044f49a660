"""Fine-tuning with transformers: a causal language model reads on in a text, by `ElasticTrainer`, in bytes."""

from typing import Any

import fsspec
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, TrainingArguments

import ringleader
from ringleader.adapters.transformers import ElasticTrainer

BYTES = 256
HELD_OUT = 0.1


class ByteTokens(Dataset[dict[str, Tensor]]):
    """A text in pieces of one length: a token is a byte, and each piece is its own label, as these models shift it."""

    def __init__(self, text: bytes, length: int) -> None:
        whole = len(text) // length * length
        self.pieces = torch.frombuffer(bytearray(text[:whole]), dtype=torch.uint8).view(-1, length).long()

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.pieces[row], "labels": self.pieces[row]}


def byte_model(folder: str | None, length: int) -> Any:
    """The model in a folder that transformers saved, or on its hub; without one a small Llama for bytes, made anew."""
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder)
    return AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=BYTES,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=length,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def train(session: ringleader.Session) -> None:
    """Params: `text` (a path or URI), `model` (of byte tokens; begins anew without), `length`, `batch` (rows of one
    logical shard), `lr`, `epochs`.
    """
    params = session.params
    length = params.get("length", 128)
    with fsspec.open(params["text"], "rb") as file:
        text = file.read()
    cut = int(len(text) * (1 - HELD_OUT))

    trainer = ElasticTrainer(
        session,
        model=byte_model(params.get("model"), length),
        args=TrainingArguments(
            output_dir="unused",  # checkpoints are the job's
            per_device_train_batch_size=params.get("batch", 8),
            num_train_epochs=params.get("epochs", 2),
            learning_rate=params.get("lr", 3e-3),
            lr_scheduler_type="cosine",
            warmup_steps=20,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=50,
            use_cpu=session.device.type == "cpu",
        ),
        train_dataset=ByteTokens(text[:cut], length),
        eval_dataset=ByteTokens(text[cut:], length),
    )
    trainer.train()
