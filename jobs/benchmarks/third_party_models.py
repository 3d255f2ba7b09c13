"""Small models of transformers with weights at random, and texts for them, for `memory_prediction.py`."""

from typing import Any

import torch

VOCABULARY, LENGTH, SAMPLES = 2000, 128, 64


def build(kind: str) -> torch.nn.Module:
    """Return a model that computes its own loss."""
    import transformers as hf

    size = {"vocab_size": VOCABULARY}
    if kind == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=4, n_head=4, n_embd=256, n_positions=LENGTH, **size))
    if kind == "llama":
        shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
        return hf.LlamaForCausalLM(hf.LlamaConfig(max_position_embeddings=LENGTH, **shape, **size))
    if kind == "t5":
        shape = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 4, "decoder_start_token_id": 0}
        return hf.T5ForConditionalGeneration(hf.T5Config(**shape, **size))
    if kind == "distilbert":
        shape = {"dim": 192, "hidden_dim": 768, "n_layers": 3, "n_heads": 4}
        return hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**shape, **size))
    shape = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
    return hf.BertForSequenceClassification(hf.BertConfig(num_labels=2, **shape, **size))


def texts(kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return training and validation samples of random tokens, with the labels that the model takes."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number in range(SAMPLES):
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        is_classifier = kind in ("bert", "distilbert")
        samples.append({"input_ids": tokens, "labels": torch.tensor(number % 2) if is_classifier else tokens})
    return samples, samples[:8]
