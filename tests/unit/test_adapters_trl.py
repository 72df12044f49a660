"""What TRL's trainers on a session refuse, by name and with what to write instead."""

from collections.abc import Iterator
from tempfile import gettempdir
from typing import Any

import pytest
import torch

from ringleader.errors import StepMisuse
from ringleader.train import Session, local_session

pytest.importorskip("trl", reason="trl is not installed: pip install -e .[trl]")

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, RewardTrainer, SFTConfig

from ringleader.adapters.transformers import ElasticTrainer
from ringleader.adapters.trl import ElasticDPOTrainer, ElasticSFTTrainer

SPEC = {"name": "refused", "entrypoint": "refused:train", "batch": {"global_size": 4}}
SETTINGS: dict[str, Any] = {
    "output_dir": gettempdir(),
    "per_device_train_batch_size": 4,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
}


@pytest.fixture
def session() -> Iterator[Session]:
    with local_session(SPEC) as opened:
        yield opened


def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))


def words() -> PreTrainedTokenizerFast:
    known = Tokenizer(WordLevel({f"w{n}": n for n in range(9)}, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=known, eos_token="w1", pad_token="w2")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"bf16": True}, r"bf16=True.*Write bf16=False, and precision: bf16 in the job file"),
        ({"activation_offloading": True}, r"SFTConfig\(activation_offloading=True\).*gradient_checkpointing"),
        ({"per_device_train_batch_size": 2}, "2 rows .* is 4"),
    ],
    ids=str,
)
def test_what_sft_cannot_keep_is_refused_by_name(session: Session, asked: dict[str, Any], says: str) -> None:
    rows = Dataset.from_dict({"prompt": ["w3"] * 4, "completion": ["w4"] * 4})
    with pytest.raises(StepMisuse, match=says):
        ElasticSFTTrainer(
            session,
            model=model(),
            args=SFTConfig(**SETTINGS | asked),
            train_dataset=rows,
            processing_class=words(),
        )


@pytest.mark.parametrize("asked", ["sync_ref_model", "precompute_ref_log_probs"])
def test_a_reference_that_is_no_constant_is_refused_by_name(session: Session, asked: str) -> None:
    rows = Dataset.from_dict({"prompt": ["w3"] * 4, "chosen": ["w4"] * 4, "rejected": ["w5"] * 4})
    with pytest.raises(StepMisuse, match=rf"DPOConfig\({asked}=True\).*Leave it out"):
        ElasticDPOTrainer(
            session,
            model=model(),
            ref_model=model(),
            args=DPOConfig(**SETTINGS | {asked: True}),
            train_dataset=rows,
            processing_class=words(),
        )


def test_other_trainers_of_trl_s_are_refused_by_name(session: Session) -> None:
    class Rewards(ElasticTrainer, RewardTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(StepMisuse, match=r"Rewards, a trainer with TRL's RewardTrainer, .*were not tried"):
        Rewards(session, model=model())
