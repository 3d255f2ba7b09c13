"""Parameters that are not trained, by name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from torch import nn

from paceline.errors import ConfigError, Problem

KEY = "trainer.freeze"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Turn off the gradients of the parameters whose names match one of some regular expressions.

    Raises:
        ConfigError: an expression matches no parameter, or all parameters are frozen.
    """
    names = [name for name, _ in model.named_parameters()]
    problems = []
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            near = get_close_matches(re.sub(r"[^\w.]", "", pattern.replace("\\.", ".")), names, n=3, cutoff=0.0)
            reason = f"{pattern!r} matches no parameter of the model"
            problems.append(Problem("no-such-parameters", reason, KEY, hint=f"near names: {', '.join(near)}"))
    if problems:
        raise ConfigError(problems)
    for name, parameter in model.named_parameters():
        if any(re.search(pattern, name) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        reason = "freezes all parameters of the model, so that there is nothing to train"
        raise ConfigError([Problem("nothing-to-train", reason, KEY, hint="leave the head out, such as '^backbone'")])
