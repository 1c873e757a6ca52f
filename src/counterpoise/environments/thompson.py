"""The action probabilities of Bernoulli Thompson sampling with fixed Beta priors, by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.environments.feedback import check_at_least, check_seed
from counterpoise.errors import Argument, ColumnError, OptionError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SlateProbabilities:
    """The probability of each action at each position, one row per action, and its Monte Carlo standard error."""

    probability: Floats
    stderr: Floats
    draws: int


def thompson_probabilities(
    alpha: ArrayLike, beta: ArrayLike, *, positions: int = 3, draws: int = 100_000, seed: int = 0
) -> SlateProbabilities:
    r"""How often Thompson sampling shows each action at each position.

    .. math:: P(a, k) = \Pr(\theta_a \text{ is } k\text{-th largest}), \quad \theta_b \sim \text{Beta}(\alpha_b,\beta_b)

    A slate shows the `positions` largest of one draw of all θ, best first. There is no closed form, but the share over
    `draws` seeded draws is unbiased, with a standard error of √(P(1−P)/draws).

    Examples
    --------
    Two equal actions share first place:

    >>> found = thompson_probabilities([1, 1], [1, 1], positions=1, draws=10_000)
    >>> bool(abs(found.probability[0, 0] - 0.5) < 4 * found.stderr[0, 0])
    True
    """
    a, b = np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not ((a > 0) & (b > 0)).all():
        raise OptionError(
            f"Beta priors need one alpha and one beta per action, all above 0; found shapes {a.shape} and {b.shape}"
            + (f", and {min(a.min(), b.min())} as the smallest number." if a.size and b.size else ".")
        )
    check_at_least("positions", positions, 1)
    if a.size < positions:
        raise OptionError(
            f"{positions} positions need at least {positions} actions, and there are {a.size}.",
            do=["Pass ", Argument("positions", a.size), " or less."],
        )
    check_at_least("draws", draws, 1)
    check_seed(seed)
    random = np.random.default_rng(seed)
    count = np.zeros((positions, a.size), dtype=np.int64)
    step = max(1, 2**20 // a.size)
    for start in range(0, draws, step):
        theta = random.beta(a, b, size=(min(step, draws - start), a.size))
        for k in range(positions):
            best = theta.argmax(axis=1)
            count[k] += np.bincount(best, minlength=a.size)
            theta[np.arange(len(theta)), best] = -1.0
    share = (count / draws).T
    return SlateProbabilities(share, np.sqrt(share * (1 - share) / draws), draws)


def from_priors_file(path: str | Path, campaign: str) -> tuple[Floats, Floats]:
    """The alpha and beta of a campaign, from a YAML file of the form ``campaign: {alpha: [...], beta: [...]}``.

    Of YAML it reads block lists of numbers, the layout that the Open Bandit Dataset's priors come in, and nothing else.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"cannot read the priors {str(file)!r}: {error}.", do="Pass the path of the YAML file."
        ) from error
    priors: dict[str, dict[str, list[float]]] = {}
    section = parameter = ""
    for number, line in enumerate(lines, start=1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        if text.endswith(":") and not line.startswith(" "):
            section, parameter = text[:-1], ""
            priors[section] = {}
        elif text.endswith(":") and section:
            parameter = text[:-1]
            priors[section][parameter] = []
        elif text.startswith("-") and parameter:
            try:
                priors[section][parameter].append(float(text[1:]))
            except ValueError:
                raise ColumnError(
                    f"{file.name} line {number}: expected a number, found {text[1:].strip()!r}."
                ) from None
        else:
            raise ColumnError(
                f"{file.name} line {number}: expected 'campaign:', 'alpha:', 'beta:' or '- number'; found {text!r}."
            )
    if campaign not in priors:
        raise OptionError(
            f"{file.name} has no priors for campaign {campaign!r}; it has those of {', '.join(map(repr, priors)) or 'none'}."
        )
    prior = priors[campaign]
    if set(prior) != {"alpha", "beta"} or len(prior["alpha"]) != len(prior["beta"]) or not prior["alpha"]:
        sizes = ", ".join(f"{len(numbers)} of {name}" for name, numbers in prior.items()) or "nothing"
        raise ColumnError(f"campaign {campaign!r} in {file.name} needs an alpha and a beta per action; found {sizes}.")
    return np.array(prior["alpha"]), np.array(prior["beta"])
