"""`torch.compile` for the layers below the last one, for as long as a policy trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.gradients.last_layer import is_split
from counterpoise.learn.gradients.steps import Norms
from counterpoise.learn.policies.policy import Policy


@contextmanager
def compiled(policy: Policy, options: Mapping[str, Any] | None, norms: Norms) -> Iterator[None]:
    """Run a policy's body compiled, with these options of `torch.compile`; afterwards it is as it was.

    The last layer's gradient is written out by hand (see `steps`), so that the body is all there is to compile. Where we must watch
    single layers as they run, there is nothing that could be compiled around them.
    """
    if options is None:
        yield
        return
    if norms != "last_layer" or not is_split(policy):
        raise OptionError(
            [
                Argument("compile"),
                f" needs a policy with a body and a linear last layer, and {Argument('norms', 'last_layer')}; this is a "
                f"{type(policy).__name__} with {Argument('norms', norms)}.",
            ],
            do="Make yours a subclass of Policy that has body and scores, or compile parts of your module yourself.",
        )
    try:
        faster: Any = torch.compile(policy.body.forward, **options)
    except TypeError as error:
        raise OptionError(f"torch.compile does not take these options: {error}.") from error
    policy.body.forward = faster  # not body.compile(), which leaves an nn.Sequential as it is
    try:
        yield
    finally:
        del policy.body.forward


def checked_compile(given: Any) -> Mapping[str, Any] | None:
    """The options of `torch.compile`: none for True, None if nothing is to be compiled."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, bool):
        raise OptionError(
            f"compile must be True, False or a mapping of torch.compile's options; found {type(given).__name__}.",
            do=["Pass one such as ", Argument("compile", {"mode": "max-autotune"}), "."],
        )
    return {} if given else None
