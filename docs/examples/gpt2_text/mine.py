"""A tiny GPT-2 on texts of different lengths: what is padded does not count."""

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel


def net() -> torch.nn.Module:
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2, **drop))


def pad(texts: list) -> BatchEncoding:
    labels = pad_sequence(texts, batch_first=True, padding_value=-100)
    return BatchEncoding({"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels})


def data() -> dict:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 30, (120,), generator=generator).tolist()
    texts = [torch.randint(0, 100, (length,), generator=generator) for length in lengths]
    return {"train": texts[:96], "validation": texts[96:], "collate_fn": pad}
