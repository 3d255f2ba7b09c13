"""Techniques that a tune-up tries: the fields that each sets, and the reason if it cannot help here."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.batch_scaling.critical_batch import Rule
from paceline.batch_scaling.earlier_study import EarlierStudy
from paceline.config.batch_sizes import MICRO, OpenBatchSizes, accumulation, batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.ignored import ignored_settings
from paceline.config.lightning import uses_own_optimizer
from paceline.config.overrides import ConfigWarning
from paceline.config.tuneup import SKIPPED, TuneupConfig
from paceline.errors import ConfigError
from paceline.tuneups.facts import TuneupFacts

Computes = Literal["same", "differently"]

BATCH_FACTORS = (2, 4, 8, 16, 32, 64)
FEWEST_STEPS = 8
"""Fewest optimizer steps of an epoch with a larger batch."""
LOADERS = (1, 2, 4, 8, 16, 32)
"""Numbers of loader processes of a worker. A number is tried only while doubling has made training faster."""
BUCKETS_MB = (5, 100)
"""Sizes of DDP's buckets besides its default of 25 MiB: smaller ones are exchanged sooner, larger ones are fewer."""
LOADERS_ENOUGH = "more loader processes are not faster"
"""Prefix of the reason of loader techniques that are not tried."""
FIX = "fix-"
"""Prefix of the names of the fixes of a bottleneck."""
LARGER_PIECES = "the same global batch in fewer and larger pieces"
HAS_ALREADY = "the config has it already"
OWN_OPTIMIZER = "the module builds its optimizer itself, whose learning rate would have to follow the batch"
WARM_UP_FROM = 4
"""A batch at least this many times as large gets a warmup, as Goyal et al. 2017 (arXiv:1706.02677) found necessary."""


@dataclass(frozen=True)
class Technique:
    """A technique, as one change of the config."""

    name: str
    overrides: Mapping[str, Any]
    family: str
    """Techniques of one family set the same thing: only one of them can be in a config."""
    why: str
    """Effect of the technique, in one sentence for a comment beside the line that it changes."""
    computes: Computes = "same"
    """`same`: the results are the same up to rounding by design, which the project's tests prove. `differently`: the
    trained model may be worse, so that its quality is measured."""
    saves_memory: bool = False
    """True if it is tried to save memory, and is expected to cost time."""
    why_not: str = ""
    """Reason why it is not tried here; empty if it is tried."""

    def config(self, baseline: ExperimentConfig) -> ExperimentConfig:
        """Return the baseline with this technique.

        Raises:
            ConfigError: the two contradict each other.
        """
        return changed(baseline, self.overrides)


def changed(config: ExperimentConfig, overrides: Mapping[str, Any]) -> ExperimentConfig:
    """Return a config with the overrides of techniques. Config warnings are suppressed: settings that have no effect
    any more are a part of the technique.

    Raises:
        ConfigError: the overrides contradict the config.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return config.with_overrides(overrides)


def techniques_for(config: ExperimentConfig, facts: TuneupFacts) -> list[Technique]:
    """Return all techniques for a config, the user's first. Inapplicable ones have a reason. Names are unique."""
    asked = config.tuneup or TuneupConfig()
    own = list(_own(asked.techniques))
    known = [technique for technique in _known(config, facts) if not any(technique.name == each.name for each in own)]
    return [_checked(technique, config, asked) for technique in [*own, *known]]


SAME = ("data.num_workers", "data.prefetch_factor", "data.persistent_workers", "data.cache", "data.pin_memory")
"""Fields that keep the numerics, in addition to those of logging, evaluation and checkpoints."""
BOOKKEEPING = ("trainer.log_every_n_steps", "trainer.evaluate_every_n_epochs", "checkpoint.", "tracking.")


def loader_processes(technique: Technique) -> int | None:
    """Return the number of loader processes of a technique that sets nothing else; None for any other."""
    number = technique.overrides.get("data.num_workers")
    is_known = technique.name == f"loader-{number}" and technique.overrides == _loaders(number)
    return number if is_known and isinstance(number, int) else None


def _loaders(number: int | None) -> dict[str, Any]:
    return {"data.num_workers": number, "data.cache": "none"}


def fix_technique(name: str, overrides: Mapping[str, Any], why: str) -> Technique:
    """Return a fix for a bottleneck as a technique."""
    is_harmless = all(key in SAME or key.startswith(BOOKKEEPING) for key in overrides)
    family = "loading" if any(key in SAME for key in overrides) else name
    if "data.global_batch_size" in overrides:
        family = "batch"
    return Technique(name, overrides, family, why, "same" if is_harmless else "differently")


def with_fixes(
    techniques: Sequence[Technique], fixes: Sequence[Technique], config: ExperimentConfig
) -> list[Technique]:
    """Order the techniques: those that the config names, then the fixes, which are likeliest to help, then the others.

    If time is short, the last ones are not tried. Equal techniques are tried once. A technique that `tuneup.skip` names
    is not tried under another name either.
    """
    asked = config.tuneup or TuneupConfig()
    same = [technique for technique in techniques if technique.why_not in ("", SKIPPED)]
    known = {text: technique for technique in same if (text := _text_of(technique, config))}
    names = [technique.name for technique in techniques]
    new = [fix for fix in fixes if fix.name not in names and not asked.leaves_out(fix.name)]
    texts = {fix.name: _text_of(fix, config) for fix in new}
    own = [technique for technique in techniques if technique.name in asked.techniques]
    mended = [known.get(texts[fix.name], fix) for fix in fixes if texts.get(fix.name)]
    first = list({technique.name: technique for technique in [*own, *mended] if not technique.why_not}.values())
    return [*first, *(technique for technique in techniques if technique not in first)]


def untried_fixes(
    techniques: Sequence[Technique], fixes: Sequence[Technique], config: ExperimentConfig
) -> dict[str, str]:
    """Return the reason for each fix that is not among the techniques under its own name, and that no setting of the
    tune-up leaves out: another technique sets the same, or it contradicts the config."""
    asked = config.tuneup or TuneupConfig()
    names = {technique.name for technique in techniques}
    left = [fix for fix in fixes if fix.name not in names and not asked.leaves_out(fix.name)]
    known = {_text_of(technique, config): technique.name for technique in techniques} if left else {}
    texts = {fix.name: _text_of(fix, config) for fix in left}
    return {
        name: f"the same as {known[text]}" if text else "it contradicts the config"
        for name, text in texts.items()
        if text in known or not text
    }


def within_reach(techniques: Sequence[Technique], study: EarlierStudy | None) -> list[Technique]:
    """Do not try the fixes with a batch that a scale study found too large."""

    def checked(technique: Technique) -> Technique:
        size = technique.overrides.get("data.global_batch_size")
        if study is None or technique.why_not or not technique.name.startswith(FIX) or not isinstance(size, int):
            return technique
        return replace(technique, why_not=study.why_not(size))

    return list(map(checked, techniques))


def _text_of(technique: Technique, config: ExperimentConfig) -> str:
    """Return the whole config with the technique as JSON text; empty if the technique contradicts other settings."""
    try:
        return technique.config(config).model_dump_json()
    except ConfigError:
        return ""


def _checked(technique: Technique, config: ExperimentConfig, asked: TuneupConfig) -> Technique:
    if technique.why_not:
        return technique
    if why_not := asked.leaves_out(technique.name):
        return replace(technique, why_not=why_not)
    try:
        own = technique.config(config)
    except ConfigError as error:
        return replace(technique, why_not=error.problems[0].reason)
    if own == config:
        return replace(technique, why_not=HAS_ALREADY)
    before = set(ignored_settings(config))
    ignored = [text for text in ignored_settings(own) if text not in before]
    return replace(technique, why_not=ignored[0]) if ignored else technique


def _own(techniques: Mapping[str, Mapping[str, Any]]) -> Iterator[Technique]:
    for name, overrides in techniques.items():
        # one that sets the batch takes the place of the known batch sizes, which set the learning rate too
        family = "batch" if isinstance(overrides.get("data.global_batch_size"), int) else name
        yield Technique(name, overrides, family, "of the config's own section tuneup.techniques", "differently")


def _known(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    yield from _loading(config, facts)
    yield from _batch(config, facts)
    yield from _micro_batch(config, facts)
    yield from _precision(facts)
    yield from _threads(config, facts)
    yield from _kernels(config, facts)
    yield from _bookkeeping(config)
    yield from _exchange(facts)
    yield from _memory(config, facts)


def _loading(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    in_memory = "the data set is in memory already, and gives whole batches" if facts.is_sliced else ""
    for processes in LOADERS:
        if processes > max(2, facts.cores * 2):
            break
        overrides = _loaders(processes)
        why = f"{processes} loader process{'es' if processes > 1 else ''} a worker load while the model computes"
        yield Technique(f"loader-{processes}", overrides, "loading", why, why_not=in_memory)
    for batches in (4, 8):
        why = f"each loader process holds {batches} batches ready"
        yield Technique(f"prefetch-{batches}", {"data.prefetch_factor": batches}, "prefetch", why, why_not=in_memory)
    why = "each sample is loaded once, and kept in memory"
    overrides = {"data.cache": "memory", "data.num_workers": 0}
    yield Technique("cache-memory", overrides, "loading", why, why_not=in_memory)
    no_gpu = "" if facts.device_type == "cuda" else "there is no GPU to keep the samples on"
    why = "each sample is loaded once, and kept on the GPU"
    yield Technique("cache-device", {"data.cache": "device", "data.num_workers": 0}, "loading", why, why_not=no_gpu)
    why = "batches are copied to the GPU out of page-locked memory"
    yield Technique("pin-memory", {"data.pin_memory": True}, "pinning", why, why_not=_needs_cuda(facts))


def _batch(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    """Yield larger batches, with the learning rate and the warmup that they need."""
    from paceline.config.data import Sizes
    from paceline.config.derived import derive

    derived = derive(config, Sizes(facts.train_samples, facts.validation_samples))
    batch, study = derived.batch.global_batch_size, facts.scale_study
    for factor in BATCH_FACTORS:
        size = batch * factor
        name, why = f"batch-x{factor}", f"a global batch {factor} times as large, with its learning rate"
        why_not = study.why_not(size) if study is not None else ""
        if uses_own_optimizer(config):
            why_not = OWN_OPTIMIZER
        if facts.train_samples < size * FEWEST_STEPS:
            why_not = f"an epoch would have fewer than {FEWEST_STEPS} steps"
        if why_not:
            yield Technique(name, {"data.global_batch_size": size}, "batch", why, "differently", why_not=why_not)
            return
        overrides = batch_overrides(config, batch, factor, study.rule(size) if study is not None else None)
        yield Technique(name, overrides, "batch", why, "differently")


def _micro_batch(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    """Yield techniques that process the same global batch in fewer, larger pieces, up to all of it at once."""
    sizes = batch_sizes(config)
    if isinstance(sizes, OpenBatchSizes):
        return  # the config already searches for the largest that fits
    pieces = sizes.gradient_accumulation_steps
    computes = _in_other_pieces(facts)
    if pieces == 1:
        why_not, twice = "the batch goes through the model in one piece already", {MICRO: 2 * sizes.micro_batch_size}
        yield Technique("micro-batch-x2", twice, "micro-batch", LARGER_PIECES, computes, why_not=why_not)
    for factor in (factor for factor in BATCH_FACTORS if pieces % factor == 0):
        overrides = {
            MICRO: factor * sizes.micro_batch_size,
            "trainer.gradient_accumulation_steps": pieces // factor,
        }
        yield Technique(f"micro-batch-x{factor}", overrides, "micro-batch", LARGER_PIECES, computes)


def _in_other_pieces(facts: TuneupFacts) -> Computes:
    """Return `differently` if the model normalises over micro-batches, so that their size changes the numerics."""
    return "differently" if facts.normalises_batches else "same"


def batch_overrides(config: ExperimentConfig, batch: int, factor: int, rule: Rule | None = None) -> dict[str, Any]:
    """Return overrides for `factor` times the batch, with a learning-rate rule and a warmup.

    Args:
        rule: that held at this size; None for the one that fits the optimizer. A rule of the config stays.
    """
    own_rule = config.optimizer.lr_scaling
    chosen = own_rule if own_rule != "none" else rule or config.optimizer.lr_scaling_rule or "linear"
    overrides: dict[str, Any] = {"data.global_batch_size": batch * factor}
    if chosen == "adascale" and config.scaling.num_workers <= 1:  # it compares the gradients of micro-batches
        overrides["data.micro_batch_size"] = config.data.micro_batch_size or batch
        overrides["trainer.gradient_accumulation_steps"] = "auto"
    else:
        overrides["data.micro_batch_size"] = None
        if config.trainer.gradient_accumulation_steps != "auto":
            overrides["trainer.gradient_accumulation_steps"] = config.trainer.gradient_accumulation_steps
    if chosen not in ("none", own_rule):
        overrides |= {"optimizer.lr_scaling": chosen, "optimizer.base_batch_size": batch}
    schedule = config.lr_scheduler
    warms_up = schedule.warmup_epochs or schedule.warmup_steps or schedule.warmup_samples
    if factor >= WARM_UP_FROM and not warms_up and chosen != "adascale":  # whose gain follows the noise
        # at most a fifth of the training's epochs
        overrides["lr_scheduler.warmup_epochs"] = min(1.0, (config.trainer.epochs or 5) / 5)
    return overrides


def _precision(facts: TuneupFacts) -> Iterator[Technique]:
    why = "the forward pass computes in bfloat16 where that is safe"
    yield Technique("bf16", {"trainer.precision": "bf16-mixed"}, "precision", why, "differently")
    why = "the forward pass computes in float16 where that is safe, with a gradient scaler"
    needs_cuda = _needs_cuda(facts)
    yield Technique("fp16", {"trainer.precision": "16-mixed"}, "precision", why, "differently", why_not=needs_cuda)
    why = "float32 products are computed in TF32"
    overrides = {"trainer.float32_matmul_precision": "high"}
    yield Technique("tf32", overrides, "tf32", why, "differently", why_not=needs_cuda)


def _threads(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    share = max(1, facts.usable_cores // facts.world_size)  # all workers are on this machine
    why = f"a worker reserves {share} cores, and computes with as many threads"
    why_not = "" if share > facts.cores else "the workers have a thread for each core already"
    if facts.device_type == "cuda":
        why_not = "it is for CPUs"
    elif facts.shares_machines:
        why_not = "others may need the cores that the workers have not reserved"
    elif config.sweep is not None:
        why_not = "the trials of a sweep share the cores"
    yield Technique("all-cores", {"scaling.cpus_per_worker": share}, "threads", why, why_not=why_not)


def _kernels(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    flat = "" if facts.has_convolutions else "the model has no 2-d convolution"
    why = "convolutions find their channels next to each other"
    yield Technique("channels-last", {"trainer.memory_format": "channels_last"}, "layout", why, why_not=flat)
    why = "the model is compiled, and its operations are fused"
    yield Technique("compile", {"trainer.compile": "default"}, "compile", why)
    why = "cuDNN times its algorithms once, and keeps the fastest"
    overrides = {"trainer.cudnn_benchmark": True}
    yield Technique("cudnn-benchmark", overrides, "cudnn", why, why_not=_needs_cuda(facts) or flat)
    why = "biases that batch normalisation subtracts again are removed"
    none = "" if facts.redundant_biases else "the model has no bias in front of batch normalisation alone"
    yield Technique("no-redundant-bias", {"trainer.remove_redundant_bias": True}, "bias", why, why_not=none)
    if "fused" in type(config.optimizer).model_fields and not uses_own_optimizer(config):
        yield Technique("fused-optimizer", {"optimizer.fused": "auto"}, "fused", "the whole update runs in one kernel")


def _bookkeeping(config: ExperimentConfig) -> Iterator[Technique]:
    why = "gradients are released between steps rather than filled with zeros"
    yield Technique("set-to-none", {"trainer.zero_grad": "set_to_none"}, "zero-grad", why)
    often = config.trainer.log_every_n_steps
    overrides = {"trainer.log_every_n_steps": 50}
    not_often = f"it logs every {often} steps already" if often >= 50 else ""
    why = "the loss is read every 50 steps, not more often"
    yield Technique("log-every-50", overrides, "logging", why, why_not=not_often)


def _exchange(facts: TuneupFacts) -> Iterator[Technique]:
    alone = "" if facts.world_size > 1 else "one process exchanges no gradients"
    for name in ("bf16", "fp16"):
        why = f"gradients are exchanged in {'bfloat16' if name == 'bf16' else 'float16'}"
        overrides: dict[str, Any] = {"parallel.comm_hook": name}
        yield Technique(f"exchange-{name}", overrides, "exchange", why, "differently", why_not=alone)
    for size in BUCKETS_MB:
        why = f"gradients are exchanged in buckets of {size} MiB"
        yield Technique(f"buckets-{size}", {"parallel.bucket_cap_mb": size}, "buckets", why, why_not=alone)
    why = "DDP takes the set of used parameters as fixed"
    yield Technique("static-graph", {"parallel.static_graph": True}, "static-graph", why, why_not=alone)
    why = "gradients live in DDP's buckets"
    overrides = {"parallel.gradient_as_bucket_view": True}
    yield Technique("bucket-view", overrides, "bucket-view", why, why_not=alone)
    why = "weights, gradients and optimizer state are sharded over the workers"
    overrides = {"parallel.strategy": "fsdp"}
    yield Technique("fsdp", overrides, "strategy", why, saves_memory=True, why_not=alone)


def _memory(config: ExperimentConfig, facts: TuneupFacts) -> Iterator[Technique]:
    none = "" if facts.blocks else "the model has no repeated blocks"
    for kind in ("selective", "full"):
        overrides = {"trainer.activation_checkpointing": kind}
        why = "activations are computed again in backward instead of being kept"
        yield Technique(f"checkpointing-{kind}", overrides, "checkpointing", why, saves_memory=True, why_not=none)
    why = "the batch goes through the model in two halves"
    halves = {"trainer.gradient_accumulation_steps": 2, MICRO: None}
    has_halves = HAS_ALREADY if accumulation(config) == 2 else ""  # also by its micro and its global batch size
    in_pieces = _in_other_pieces(facts)
    yield Technique("accumulation-2", halves, "micro-batch", why, in_pieces, saves_memory=True, why_not=has_halves)


def _needs_cuda(facts: TuneupFacts) -> str:
    return "" if facts.device_type == "cuda" else "it is for GPUs"
