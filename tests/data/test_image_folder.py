"""Folders of photographs."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from paceline.data.image_folder import ImageFolderConfig
from paceline.errors import EnvironmentFault


def write(root: Path, part: str, classes: dict[str, tuple[int, int, int]], mode: str = "RGB") -> None:
    for name, colour in classes.items():
        folder = root / part / name
        folder.mkdir(parents=True)
        for index in range(2):
            Image.new("RGB", (40, 30 + index), colour).convert(mode).save(folder / f"{index}.png")


CLASSES = {"ant": (255, 0, 0), "bee": (0, 0, 255)}


def test_both_parts_with_their_transforms(tmp_path: Path) -> None:
    write(tmp_path, "train", CLASSES)
    write(tmp_path, "val", CLASSES)
    train, validation = ImageFolderConfig(name="image_folder", root=str(tmp_path), image_size=16).build()
    for part in (train, validation):
        assert len(part) == 4  # type: ignore[arg-type]
        assert [part[index][1] for index in range(4)] == [0, 0, 1, 1]
        image = part[3][0]
        assert (image.shape, image.dtype) == ((3, 16, 16), torch.float32)
        expected = [(0 - 0.485) / 0.229, (0 - 0.456) / 0.224, (1 - 0.406) / 0.225]
        torch.testing.assert_close(image[:, 8, 8], torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_training_is_random_and_validation_is_not(tmp_path: Path) -> None:
    for part in ("train", "val"):
        folder = tmp_path / part / "ant"
        folder.mkdir(parents=True)
        Image.effect_noise((40, 40), 80).save(folder / "noise.png")
    random_train, validation = ImageFolderConfig(name="image_folder", root=str(tmp_path), image_size=16).build()
    plain = {"random_resized_crop": False, "horizontal_flip": False}
    fixed_train, _ = ImageFolderConfig.model_validate(
        {"name": "image_folder", "root": str(tmp_path), "image_size": 16, "augmentation": plain}
    ).build()
    assert not random_train[0][0].equal(random_train[0][0])
    assert validation[0][0].equal(validation[0][0])
    assert fixed_train[0][0].equal(fixed_train[0][0])


def test_gray_images_become_three_channels(tmp_path: Path) -> None:
    write(tmp_path, "train", CLASSES, mode="L")
    write(tmp_path, "val", CLASSES, mode="L")
    train, _ = ImageFolderConfig(name="image_folder", root=str(tmp_path), image_size=8).build()
    assert train[0][0].shape == (3, 8, 8)


def test_a_missing_folder_is_an_environment_fault(tmp_path: Path) -> None:
    write(tmp_path, "train", CLASSES)
    with pytest.raises(EnvironmentFault, match=str(tmp_path / "val")):
        ImageFolderConfig(name="image_folder", root=str(tmp_path)).build()


def test_different_classes_are_an_environment_fault(tmp_path: Path) -> None:
    write(tmp_path, "train", CLASSES)
    write(tmp_path, "val", {"ant": (255, 0, 0), "cow": (0, 0, 0)})
    with pytest.raises(EnvironmentFault, match="different classes: bee, cow"):
        ImageFolderConfig(name="image_folder", root=str(tmp_path)).build()
