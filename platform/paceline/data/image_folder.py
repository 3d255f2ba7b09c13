"""Photographs in folders, one folder for each class."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from paceline.config.limits import Pixels
from paceline.data.augmentation import PhotoAugmentationConfig
from paceline.data.base import DataConfig
from paceline.errors import EnvironmentFault

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from torchvision.datasets import ImageFolder


class ImageFolderConfig(DataConfig):
    """`<root>/train/<class>/*.jpg` and `<root>/val/<class>/*.jpg`, as `torchvision.datasets.ImageFolder` reads them.

    Classes are numbered in the order of their folders' names. Normalised with ImageNet's mean and deviation.
    """

    name: Literal["image_folder"]
    """Selects this data set."""
    root: Annotated[str, Field(min_length=1)]
    """Folder that holds the two below; relative to the working folder."""
    train_folder: Annotated[str, Field(min_length=1)] = "train"
    """Folder of the training images, within `root` (or an absolute path)."""
    validation_folder: Annotated[str, Field(min_length=1)] = "val"
    """Folder of the validation images, within `root` (or an absolute path)."""
    image_size: Pixels = 224
    """Height and width that the model gets, 1 to 16,384 pixels."""
    augmentation: PhotoAugmentationConfig = PhotoAugmentationConfig()
    """Random changes of the training images; by default crop and flip."""

    def places(self) -> list[str]:
        """The two folders."""
        return [str(Path(self.root) / folder) for folder in (self.train_folder, self.validation_folder)]

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets: float32 of shape [3, image_size, image_size] and the class's number.

        Raises:
            EnvironmentFault: a folder is missing or empty, or the two hold different classes.
        """
        from paceline.data._photos import training_transform, validation_transform

        train = _open(Path(self.root) / self.train_folder, training_transform(self.image_size, self.augmentation))
        validation = _open(Path(self.root) / self.validation_folder, validation_transform(self.image_size))
        if train.classes != validation.classes:
            differing = ", ".join(sorted(set(train.classes) ^ set(validation.classes)))
            raise EnvironmentFault(
                f"data image_folder: {train.root} and {validation.root} hold different classes: {differing}",
                "different-classes",
                classes=differing,
            )
        return train, validation


def _open(folder: Path, transform: Any) -> "ImageFolder":
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(folder), transform)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise EnvironmentFault(
            f"data image_folder: {folder.absolute()} must hold one folder of images for each class: {error}",
            "data-missing",
            folder=str(folder.absolute()),
        ) from error
