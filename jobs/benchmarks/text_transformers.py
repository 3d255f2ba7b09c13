"""A small language model of transformers for text, as `text_llama.yaml` trains it."""

from torch import Tensor, nn


class Llama(nn.Module):
    """The logits of a Llama with 2 layers of 64, with weights at random, for the bytes of a text."""

    def __init__(self) -> None:
        import transformers as hf

        super().__init__()
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = hf.LlamaConfig(vocab_size=256, max_position_embeddings=64, use_cache=False, **shape)
        self.model = hf.LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token: float, shape [N, T, 256].

        Args:
            tokens: int64, shape [N, T].
        """
        logits: Tensor = self.model(input_ids=tokens).logits
        return logits
