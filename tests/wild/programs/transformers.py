"""transformers: a collator that masks words, alone and in the Trainer."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from wild.tape import Tape

WORDS = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(200))]


def tokens():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, cls_token="[CLS]", sep_token="[SEP]", **named)


def program(tape: Tape, workers: int, folder: Path) -> None:
    tokenizer = tokens()
    texts = [" ".join(f"w{(i * 7 + j) % 200}" for j in range(3 + i % 9)) for i in range(160)]
    dataset = [tokenizer(text) for text in texts]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers, collate_fn=collator)
    for _ in tape.epochs():
        for batch in loader:
            tape.saw(batch)
    train(tape, workers, folder, dataset, collator)


def train(tape: Tape, workers: int, folder: Path, dataset, collator) -> None:
    class Watching(BertForMaskedLM):
        def forward(self, *args, **kwargs):
            tape.saw((args, kwargs))
            return super().forward(*args, **kwargs)

    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    arguments = TrainingArguments(
        str(folder),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        dataloader_num_workers=workers,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(Watching(config), arguments, train_dataset=dataset, data_collator=collator)
    with tape.timed():
        trainer.train()
    tape.saw(dict(trainer.model.state_dict()))
