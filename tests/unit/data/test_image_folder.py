"""Folders of photographs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paceline.data.image_folder import ImageFolderConfig
from paceline.errors import EnvironmentFault
from support.refusals import refused


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
    for part in ("train", "val"):
        write(tmp_path, part, CLASSES, mode="L")
    train, _ = ImageFolderConfig(name="image_folder", root=str(tmp_path), image_size=8).build()
    assert train[0][0].shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("validation", "code"), [({}, "data-missing"), ({"ant": (255, 0, 0), "cow": (0, 0, 0)}, "different-classes")]
)
def test_folders_that_do_not_fit_are_an_environment_fault(
    validation: Any, code: str, tmp_path: Path, golden: Any
) -> None:
    write(tmp_path, "train", CLASSES)
    write(tmp_path, "val", validation)
    refusal = refused(EnvironmentFault, ImageFolderConfig(name="image_folder", root=str(tmp_path)).build)
    assert refusal.code == code
    golden(str(refusal))
