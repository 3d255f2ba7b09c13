"""5,000 real MNIST images that are installed with Paceline, so that nothing is downloaded."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from paceline.config.data import Sizes
from paceline.data.augmentation import AugmentationConfig
from paceline.data.base import DataConfig

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class Mnist5kConfig(DataConfig):
    """Handwritten digits: float32 images of shape [1, 28, 28], normalised, and classes 0 to 9.

    400 images of each class are for training, 100 for validation; the split is always the same.
    """

    is_in_memory: ClassVar[bool] = True

    name: Literal["mnist5k"]
    """Selects this data set."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Random changes of the training images; by default none."""

    def sizes(self) -> Sizes:
        """4,000 training and 1,000 validation images."""
        return Sizes(4000, 1000)

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets.

        Raises:
            EnvironmentFault: the package that holds the images is missing, or holds other ones.
        """
        from paceline.data._mnist5k import load, split
        from paceline.data._tensors import Pixels, TensorData

        images, targets = load()
        train, validation = split(targets)
        pixels = Pixels(mean=[0.1307], std=[0.3081])
        return (
            TensorData(images[train], targets[train], pixels=pixels, augmentation=self.augmentation),
            TensorData(images[validation], targets[validation], pixels=pixels),
        )
