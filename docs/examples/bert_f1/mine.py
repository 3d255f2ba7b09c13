"""A tiny BERT that classifies sentences, padded to the longest of each micro-batch."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification


def net() -> BertForSequenceClassification:
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=3, **size, **drop))


def pad(samples: list) -> BatchEncoding:
    ids = pad_sequence([tokens for tokens, _ in samples], batch_first=True)
    labels = torch.tensor([label for _, label in samples])
    return BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels})


def data() -> dict:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (120,), generator=generator).tolist()
    tokens = [torch.randint(1, 90, (length,), generator=generator) for length in lengths]
    samples = [(each + index % 3, index % 3) for index, each in enumerate(tokens)]
    return {"train": samples[:96], "validation": samples[96:], "collate_fn": pad}
