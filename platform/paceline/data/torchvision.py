"""torchvision's classification data sets, by the names that they have there."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from paceline.config.data import Sizes
from paceline.config.limits import Pixels
from paceline.data._torchvision_sets import PHOTOS, SMALL
from paceline.data.augmentation import AugmentationConfig, PhotoAugmentationConfig
from paceline.data.base import DataConfig

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class TorchvisionDataConfig(DataConfig):
    """Fields that both kinds of torchvision data sets share."""

    root: Annotated[str, Field(min_length=1)] = "data"
    """Folder that holds the files, relative to the working folder; torchvision decides on the names within."""
    download: bool = True
    """Download missing files. `false`: missing files are an error."""

    def places(self) -> list[str]:
        """The folder with the files, where nothing is downloaded into it."""
        return [] if self.download else [self.root]


class SmallTorchvisionConfig(TorchvisionDataConfig):
    """Small images, held in memory and taken by the batch; float32, normalised with the set's mean and deviation.

    EMNIST is its `balanced` split, of 47 classes.
    """

    is_in_memory: ClassVar[bool] = True

    name: Literal["MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "USPS", "CIFAR10", "CIFAR100", "SVHN", "STL10"]
    """Selects the data set: the name of its class in `torchvision.datasets`."""
    image_size: Pixels | None = None
    """Resize to this height and width, 1 to 16,384 pixels; a batch at a time, so memory stays that of the originals.
    `null` keeps the images' own size."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Random changes of the training images, before they are resized; by default none."""

    def sizes(self) -> Sizes:
        """As published with the set."""
        return SMALL[self.name].sizes

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets.

        Raises:
            EnvironmentFault: the files are not there and cannot be downloaded.
        """
        from paceline.data._tensors import Pixels, TensorData
        from paceline.data._torchvision import open_parts, tensors_of

        source = SMALL[self.name]
        pixels = Pixels(source.mean, source.std, self.image_size)
        train, validation = open_parts(self.name, source, self.root, self.download)
        return (
            TensorData(*tensors_of(train), pixels=pixels, augmentation=self.augmentation),
            TensorData(*tensors_of(validation), pixels=pixels),
        )


class PhotoTorchvisionConfig(TorchvisionDataConfig):
    """Photographs, read from disk one by one; float32 of 3 channels, normalised with ImageNet's mean and deviation.

    Validation uses the set's validation part, else its test part. Of a set without parts, a fixed fifth is used for
    validation. Of `Places365`, the version with small images is used.
    """

    name: Literal[
        "CLEVRClassification",
        "Caltech101",
        "Caltech256",
        "Country211",
        "DTD",
        "EuroSAT",
        "FER2013",
        "FGVCAircraft",
        "Flowers102",
        "Food101",
        "GTSRB",
        "INaturalist",
        "ImageNet",
        "Imagenette",
        "OxfordIIITPet",
        "PCAM",
        "Places365",
        "RenderedSST2",
        "SUN397",
        "StanfordCars",
    ]
    """Selects the data set: the name of its class in `torchvision.datasets`. torchvision can't download FER2013,
    ImageNet and StanfordCars: put their files into `root` by hand."""
    image_size: Pixels = 224
    """Height and width that the model gets, 1 to 16,384 pixels."""
    augmentation: PhotoAugmentationConfig = PhotoAugmentationConfig()
    """Random changes of the training images; by default crop and flip."""

    def sizes(self) -> Sizes:
        """As published with the set."""
        return PHOTOS[self.name].sizes

    def build(self) -> "tuple[Dataset[Any], Dataset[Any]]":
        """The training and validation sets.

        Raises:
            EnvironmentFault: the files are not there and cannot be downloaded, or a package that reads them is missing.
        """
        from paceline.data._photos import training_transform, validation_transform
        from paceline.data._torchvision import open_parts

        transforms = (training_transform(self.image_size, self.augmentation), validation_transform(self.image_size))
        return open_parts(self.name, PHOTOS[self.name], self.root, self.download, transforms)
