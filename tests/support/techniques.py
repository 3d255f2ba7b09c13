"""The techniques that a config can switch on, and the pairs of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

WORKERS, ACCUMULATION, MICRO = "scaling.num_workers", "trainer.gradient_accumulation_steps", "data.micro_batch_size"
STRATEGY, PRECISION, COMPILE = "parallel.strategy", "trainer.precision", "trainer.compile"


@dataclass(frozen=True)
class Technique:
    """Some fields of the config."""

    name: str
    sets: Mapping[str, Any]
    neutral: bool = False
    """Whether training is to compute the same as without it, but for rounding."""
    regroups: bool = False
    """Whether the samples of a step go through the model in other groups: the same only for models without BatchNorm
    and dropout."""
    redraws: bool = False
    """Whether dropout gets other random numbers."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """Without what it has no effect, or is refused. The other one of a pair may set it to something else."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What training without it is to have too, to be compared."""
    normalizes: bool = False
    """Whether steps have a normal size even where the gradient is rounding noise alone, as that of a redundant bias is.
    The bias then wanders, and BatchNorm's running mean follows late: evaluation, though not training, depends on it."""

    @property
    def overrides(self) -> dict[str, Any]:
        return {**self.given, **self.needs, **self.sets}


def _optimizer(name: str, lr: float) -> Technique:
    return Technique(name, {"optimizer.name": name, "optimizer.lr": lr}, normalizes=True)


def _two_ranks(name: str, sets: Mapping[str, Any], neutral: bool = False) -> Technique:
    # ranks are parts of a step's gradient, so that adascale needs no others
    return Technique(name, sets, neutral, regroups=neutral, needs={WORKERS: 2, ACCUMULATION: "auto"})


LR_SCALING = "optimizer.lr_scaling"
SCALED = {"optimizer.base_batch_size": 4}
FULL_BATCHES = {"data.drop_last": True}
CHECKPOINTING = "trainer.activation_checkpointing"
IN_PROCESS = (
    Technique("loader", {"data.num_workers": 1}, neutral=True),
    Technique(
        "prefetch",
        {"data.prefetch_factor": 4, "data.persistent_workers": False},
        neutral=True,
        needs={"data.num_workers": 1},
    ),
    Technique("cache memory", {"data.cache": "memory"}, neutral=True),
    Technique("cache device", {"data.cache": "device"}, neutral=True),
    Technique("accumulation", {ACCUMULATION: 2}, neutral=True, regroups=True),
    Technique("largest batch", {MICRO: "max"}, neutral=True, regroups=True),
    Technique("linear", {LR_SCALING: "linear"}, needs=SCALED),
    Technique("sqrt", {LR_SCALING: "sqrt"}, needs=SCALED),
    # a short last batch is cut into fewer micro batches than ranks, which makes another gain
    Technique("adascale", {LR_SCALING: "adascale"}, needs={**SCALED, ACCUMULATION: 2}, given=FULL_BATCHES),
    Technique("warmup", {"lr_scheduler.warmup_steps": 3}),
    _optimizer("adamw", 0.01),
    _optimizer("lars", 5.0),
    _optimizer("lamb", 0.01),
    _optimizer("nvlamb", 0.01),
    _optimizer("novograd", 0.01),
    Technique(
        "decay exclude", {"optimizer.weight_decay_exclude": "norms_and_biases"}, needs={"optimizer.weight_decay": 0.1}
    ),
    Technique("bf16", {PRECISION: "bf16-mixed"}),
    Technique("matmul high", {"trainer.float32_matmul_precision": "high"}, needs={PRECISION: "32-true"}),
    Technique("clip", {"trainer.max_grad_norm": 0.2}),
    Technique("checkpoint full", {CHECKPOINTING: "full"}, neutral=True),
    Technique("checkpoint selective", {CHECKPOINTING: "selective"}, neutral=True),
    # inductor is made to keep dropout's masks, which tests' quicker backends are not
    Technique(
        "checkpoint budget",
        {CHECKPOINTING: "budget"},
        neutral=True,
        redraws=True,
        needs={COMPILE: "default"},
        given=FULL_BATCHES,
    ),
    # each size of batch is compiled for itself, which takes long
    Technique("compile", {COMPILE: "default", "trainer.compile_scope": "model"}, neutral=True, given=FULL_BATCHES),
    Technique(
        "compile blocks", {COMPILE: "default", "trainer.compile_scope": "blocks"}, neutral=True, given=FULL_BATCHES
    ),
    # dropout draws in the order in which the values lie in memory
    Technique("channels last", {"trainer.memory_format": "channels_last"}, neutral=True, redraws=True),
    Technique("zero grad", {"trainer.zero_grad": "zero"}, neutral=True),
    Technique("redundant bias", {"trainer.remove_redundant_bias": True}, neutral=True),
    Technique("deterministic", {"trainer.deterministic": True}, neutral=True),
    Technique("not fused", {"optimizer.fused": False}, neutral=True),
)
ON_TWO_RANKS = (
    _two_ranks("ddp", {STRATEGY: "ddp"}, neutral=True),
    _two_ranks("small buckets", {"parallel.bucket_cap_mb": 0.001}, neutral=True),
    _two_ranks("gradients beside buckets", {"parallel.gradient_as_bucket_view": False}, neutral=True),
    _two_ranks("static graph", {"parallel.static_graph": True}, neutral=True),
    _two_ranks("hook bf16", {"parallel.comm_hook": "bf16"}),
    _two_ranks("hook fp16", {"parallel.comm_hook": "fp16"}),
    _two_ranks("powersgd", {"parallel.comm_hook": "powersgd", "parallel.powersgd_start_step": 2}),
    _two_ranks("fsdp", {STRATEGY: "fsdp", "parallel.shard_size": None}, neutral=True),
    _two_ranks("pipeline", {STRATEGY: "pipeline", "parallel.pipeline_stages": None}, neutral=True),
)
ON_FOUR_RANKS = (
    Technique("hybrid shard", {STRATEGY: "fsdp", "parallel.shard_size": 2, WORKERS: 4}, neutral=True, regroups=True),
    Technique(
        "two pipelines", {STRATEGY: "pipeline", "parallel.pipeline_stages": 2, WORKERS: 4}, neutral=True, regroups=True
    ),
)
TECHNIQUES = (*IN_PROCESS, *ON_TWO_RANKS, *ON_FOUR_RANKS)
BY_NAME = {technique.name: technique for technique in TECHNIQUES}


@dataclass(frozen=True)
class Pair:
    """Two techniques at once, in the order of the catalogue."""

    first: Technique
    second: Technique

    @property
    def name(self) -> str:
        return f"{self.first.name} + {self.second.name}"

    @property
    def overrides(self) -> dict[str, Any]:
        first, second = self.first, self.second
        return {**first.given, **second.given, **first.needs, **second.needs, **first.sets, **second.sets}

    @property
    def has_batch_norm(self) -> bool:
        """Whether the model of this pair has BatchNorm: as a rule, and if one of the two is about it."""
        members = self.first, self.second
        return BY_NAME["redundant bias"] in members or not any(member.regroups for member in members)

    @property
    def has_dropout(self) -> bool:
        """Whether the model of this pair has dropout too."""
        return self.has_batch_norm and not any(member.redraws for member in (self.first, self.second))

    def without(self) -> Iterator[tuple[Technique, dict[str, Any]]]:
        """Each neutral member, with the overrides that are to give the same without it."""
        for neutral, other in ((self.first, self.second), (self.second, self.first)):
            if neutral.neutral and not (neutral.regroups and self.has_batch_norm):
                yield neutral, {**neutral.given, **other.overrides}

    @property
    def is_same_in_evaluation(self) -> bool:
        """Whether what is the same in training is the same in evaluation too."""
        return not (self.has_batch_norm and (self.first.normalizes or self.second.normalizes))

    def fields(self) -> set[str]:
        """The fields that the pair is about."""
        return {*self.first.overrides, *self.second.overrides}


def all_pairs(techniques: Iterable[Technique] = TECHNIQUES) -> list[Pair]:
    """All pairs but those of two values of one field."""
    pairs = (Pair(first, second) for first, second in combinations(techniques, 2))
    return [pair for pair in pairs if not _alternatives(pair.first, pair.second)]


def _alternatives(first: Technique, second: Technique) -> bool:
    return any(first.sets[key] != second.sets[key] for key in first.sets.keys() & second.sets.keys())
