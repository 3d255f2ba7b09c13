"""LightningModules and a LightningDataModule. Importing them takes seconds: configs name them by path."""

from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support.toys import Points, net


class Lit(lightning.LightningModule):  # type: ignore[misc]
    """A classifier as Lightning's documentation writes one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.indices: list[tuple[int, int, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.indices.append((self.current_epoch, self.global_step, batch_idx))
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_nll", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.log_dict(
            {"val_loss": F.cross_entropy(logits, batch[1]), "val_acc": (logits.argmax(1) == batch[1]).double().mean()}
        )
        self.log("val_count", float(len(batch[1])), reduce_fx="sum")


class WithMetric(Lit):
    """Logs a metric object, and one more at the end of the validation."""

    def __init__(self) -> None:
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.acc = MulticlassAccuracy(3, average="micro")
        self.late = MulticlassAccuracy(3, average="micro")
        self.trained = MulticlassAccuracy(3, average="micro")
        self.right: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            self.right = []
        right = self.net(batch[0]).argmax(1) == batch[1]
        self.right.append(right)
        self.trained(right.long(), torch.ones_like(batch[1]))
        self.log("train_acc", self.trained)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.acc(logits, batch[1])
        self.late.update(logits, batch[1])
        self.log("val/object", self.acc)
        super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log("val_late", self.late.compute())
        self.late.reset()


class WithOptimizer(Lit):
    """Configures an optimizer and a schedule of its own, and hooks into the end of epochs."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def on_train_epoch_end(self) -> None:
        raise AssertionError("never called")

    def test_step(self, batch: Any) -> None:
        raise AssertionError("never called")


class Manual(Lit):
    """Two optimizers, switched as Lightning's example of a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(6, 3)

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net.parameters(), lr=0.1)
        return [first, torch.optim.Adam(self.other.parameters(), lr=0.01)], []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for name, part, optimizer in zip(("a", "b"), (self.net, self.other), self.optimizers(), strict=True):
            self.toggle_optimizer(optimizer)
            loss = F.cross_entropy(part(batch[0]), batch[1])
            self.log(f"{name}_loss", loss)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)


class Silent(Lit):
    """Validates, and neither logs nor returns anything."""

    def validation_step(self, batch: Any) -> None:
        self.net(batch[0])


class NoLoss(Lit):
    def training_step(self, batch: Any) -> None:
        return None


class SilentManual(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()[0]
        F.cross_entropy(self.net(batch[0]), batch[1]).backward()
        optimizer.step()


class WithLogger(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.logger.experiment.add_scalar("x", 1.0)


class Estimating(Lit):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)]


class MaxLogged(Lit):
    def validation_step(self, batch: Any) -> None:
        self.log("val_max", 1.0, reduce_fx="max")


class WithoutStep(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = net()


class Quiet(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        for part, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
            loss = F.cross_entropy(part(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


class TrainingOnly(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: Any) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Asking(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert self.logger is None  # as `Trainer(logger=False)`
        assert (self.dtype, self.device.type) == (torch.float64, "cpu")
        assert (self.trainer.world_size, self.trainer.is_global_zero, self.trainer.max_epochs) == (1, True, 2)
        with pytest.raises(AttributeError):
            _ = self.trainer.datamodule
        return super().training_step(batch, batch_idx)


class Printing(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.print("hello")
        return super().training_step(batch, batch_idx)


def collate(samples: Any) -> Any:
    return torch.utils.data.default_collate(samples)


class DataModule(lightning.LightningDataModule):  # type: ignore[misc]
    def __init__(self, samples: int = 96) -> None:
        super().__init__()
        self.samples, self.stages = samples, []

    def setup(self, stage: str) -> None:
        self.stages.append(stage)
        self.train_set, self.validation_set = Points(self.samples), Points(30)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_set, batch_size=4, shuffle=True, collate_fn=collate)

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.validation_set, batch_size=4)


class Weighted(DataModule):
    def train_dataloader(self) -> Any:
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * self.samples, 48)
        return torch.utils.data.DataLoader(self.train_set, sampler=sampler)

    def val_dataloader(self) -> Any:
        return [torch.utils.data.DataLoader(Points(size)) for size in (8, 12)]

    def test_dataloader(self) -> Any:
        assert self.stages == ["fit", "test"]
        return torch.utils.data.DataLoader(Points(4))


class WithForward(Lit):
    def forward(self, images: torch.Tensor) -> Any:
        return self.net(images)


class WithAccuracy(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.net = net()
        self.acc = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits = self.net(batch[0])
        self.acc(logits, batch[1])
        self.log("val_acc", self.acc)
        self.log("val_mean", (logits.argmax(1) == batch[1]).double().mean())
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
