"""A small vision transformer of transformers for the digits, as `digits_vit.yaml` trains it."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """The logits of an image classifier of transformers, with weights at random."""

    def __init__(self) -> None:
        import transformers as hf

        super().__init__()
        sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
        config = hf.ViTConfig(image_size=28, patch_size=7, num_channels=1, num_labels=10, **sizes)
        self.model = hf.ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images: float, shape [N, 10].

        Args:
            images: float, shape [N, 1, 28, 28].
        """
        logits: Tensor = self.model(images).logits
        return logits
