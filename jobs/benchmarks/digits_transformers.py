"""Small models of transformers for the digits: `digits_vit.yaml`, `digits_resnet.yaml` and `digits_convnext.yaml`."""

from typing import Literal

from torch import Tensor, nn


class Classifier(nn.Module):
    """The logits of an image classifier of transformers, with weights at random.

    Args:
        model: a vision transformer with 3 layers of 48, a ResNet with 3 stages of 16 to 64 channels, or a ConvNeXt V2
            with 2 stages of 24 and 48.
    """

    def __init__(self, model: Literal["vit", "resnet", "convnext"]) -> None:
        import transformers as hf

        super().__init__()
        if model == "vit":
            sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
            config = hf.ViTConfig(image_size=28, patch_size=7, num_channels=1, num_labels=10, **sizes)
            self.model = hf.ViTForImageClassification(config)
        elif model == "convnext":
            layers = {"patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48], "depths": [2, 2]}
            config = hf.ConvNextV2Config(image_size=28, num_channels=1, num_labels=10, **layers)
            self.model = hf.ConvNextV2ForImageClassification(config)
        else:
            layers = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1], "layer_type": "basic"}
            self.model = hf.ResNetForImageClassification(hf.ResNetConfig(num_channels=1, num_labels=10, **layers))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images: float, shape [N, 10].

        Args:
            images: float, shape [N, 1, 28, 28].
        """
        logits: Tensor = self.model(images).logits
        return logits
