"""Writes a model that needs no download: a configuration and a small tokenizer; the weights are random (`dummy`).

Run by the engine's own interpreter, which has the `tokenizers` package: ``python model.py DIR``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"  # token ids 0, 1, 2
CONTEXT = 32768
VOCABULARY = 2048
TOKENIZER_VOCABULARY = 1024
"""Ids from here on exist in the model only."""
TRAINING_TEXT = [
    "the quick brown fox jumps over the lazy dog. " * 4,
    "an inference server on many GPUs spends its time in all-reduce; measure, compare, decide. ",
] * 20

SPECIAL_IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "use_cache": True,
    **SPECIAL_IDS,
}
"""Four million parameters: about 300 tokens a second on one core."""


def write_model(folder: Path) -> None:
    """Writes all files of the model into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    tokenizer_config = {
        **special,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
    }
    files = {
        "config.json": MODEL,
        "generation_config.json": SPECIAL_IDS,
        "special_tokens_map.json": special,
        "tokenizer_config.json": tokenizer_config,
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    _write_tokenizer(folder / "tokenizer.json")


def _write_tokenizer(path: Path) -> None:
    """A byte-level BPE, trained on two sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_VOCABULARY,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.save(str(path))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
