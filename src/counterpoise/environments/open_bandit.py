"""`OpenBanditLog`: a log of the Open Bandit Dataset, read lazily, and the probabilities of its Thompson sampling policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.environments.feedback import Floats, check_at_least, check_choice, check_seed
from counterpoise.errors import ColumnError, LogError, OptionError, did_you_mean, first_line, verbatim

if TYPE_CHECKING:
    import polars

POLICIES = ("random", "bts")
Campaign = Literal["all", "men", "women"]
CAMPAIGNS = {"all": 80, "men": 34, "women": 46}  # campaign → how many items it has
POSITIONS = 3
COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score")
USER_FEATURES = tuple(f"user_feature_{j}" for j in range(4))
AGAIN = "Download the file again."


class OpenBanditLog:
    """Clicks on the recommendations of a fashion shop, logged by a random and by a Thompson sampling policy.

    The official layout is ``{policy}/{campaign}/{campaign}.csv`` beside an ``item_context.csv``; the 10,000-row samples
    and the full data share it. Nothing is read until you ask for it, and `scan` is a lazy frame, so you can evaluate the
    full 26 million rows without holding them in memory.

    ``OpenBanditLog(folder, policy="random", campaign="men").scan()`` has the columns `action` (the item, from 0),
    `position` (1 to 3), `reward` (the click), `propensity`, `timestamp`, four hashed user features and the user's
    affinity to each item.

    References
    ----------
    Saito, Aihara, Matsutani & Narita, "Open Bandit Dataset and Pipeline", NeurIPS 2021 (Datasets and Benchmarks).
    """

    def __init__(self, folder: str | Path, *, policy: Literal["random", "bts"], campaign: Campaign) -> None:
        check_choice("policy", policy, POLICIES)
        check_choice("campaign", campaign, tuple(CAMPAIGNS))
        self.policy, self.campaign = policy, campaign
        self.n_actions = CAMPAIGNS[campaign]
        self.path = Path(folder) / policy / campaign / f"{campaign}.csv"
        self.items_path = self.path.with_name("item_context.csv")
        for path in (self.path, self.items_path):
            if not path.is_file():
                raise OptionError(
                    f"there is no file {str(path)!r}. The Open Bandit Dataset is laid out as "
                    "{policy}/{campaign}/{campaign}.csv, with item_context.csv beside it.",
                    do="Pass the folder that contains 'random' and 'bts'.",
                )

    def scan(self) -> polars.LazyFrame:
        """The log as a lazy polars frame, with this library's column names."""
        import polars as pl

        try:
            frame = pl.scan_csv(self.path)
            names = frame.collect_schema().names()
        except pl.exceptions.PolarsError as error:
            raise self._damage_error(error) from error
        missing = [name for name in (*COLUMNS, *USER_FEATURES) if name not in names]
        if missing:
            raise self._no_column(missing[0], names, do="Use the file as the Open Bandit Dataset publishes it.")
        affinities = [name for name in names if name.startswith("user-item_affinity_")]
        return frame.select(
            pl.col("item_id").cast(pl.Int64).alias("action"),
            pl.col("position").cast(pl.Int64),
            pl.col("click").cast(pl.Float64).alias("reward"),
            pl.col("propensity_score").cast(pl.Float64).alias("propensity"),
            "timestamp",
            *USER_FEATURES,
            *[pl.col(name).cast(pl.Float64) for name in affinities],
        )

    def read(self, *columns: str) -> polars.DataFrame:
        """Some columns of the log in memory (all of them if you name none), checked row by row."""
        import polars as pl

        needed = ("action", "position", "reward", "propensity")
        frame = self.scan()
        names = frame.collect_schema().names()
        wanted = columns or tuple(names)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise self._no_column(unknown[0], names)
        try:
            log = frame.select(*dict.fromkeys((*needed, *wanted))).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            raise self._damage_error(error) from error
        if log.is_empty():
            raise LogError(f"{self.path.name} has a header but no rows.", do=AGAIN)
        checks = {
            f"item_id must be a number from 0 to {self.n_actions - 1}": pl.col("action").is_between(
                0, self.n_actions - 1
            ),
            f"position must be a number from 1 to {POSITIONS}": pl.col("position").is_between(1, POSITIONS),
            "click must be 0 or 1": pl.col("reward").is_in([0.0, 1.0]),
            "propensity_score must be above 0 and at most 1": (pl.col("propensity") > 0) & (pl.col("propensity") <= 1),
        }
        for rule, holds in checks.items():
            wrong = log.with_row_index("row").filter(~holds.fill_null(False))
            if wrong.height:
                raise LogError(
                    f"{self.path.name} is damaged: {rule}, and in {wrong.height:,} of {log.height:,} rows it is not; the first "
                    f"is row {wrong['row'][0]}: {wrong.select(needed).row(0, named=True)}.",
                    do=AGAIN,
                )
        return log.select(wanted)

    def items(self) -> polars.DataFrame:
        """The items and their features, one row per action."""
        import polars as pl

        try:
            items = pl.read_csv(self.items_path)
        except pl.exceptions.PolarsError as error:
            raise LogError(f"cannot read {self.items_path.name}: {first_line(error)}.", do=AGAIN) from error
        if "item_id" not in items.columns or items.height != self.n_actions:
            raise LogError(
                f"{self.items_path.name} of campaign {self.campaign!r} should have {self.n_actions} rows with an "
                f"item_id; found {items.height} rows with {', '.join(map(repr, items.columns))}.",
                do=AGAIN,
            )
        return items.select(pl.col("item_id").alias("action"), pl.selectors.starts_with("item_feature_")).sort("action")

    def features(self, frame: polars.DataFrame | None = None) -> Floats:
        """The user features of the rows as 0/1 columns, leaving out the first value of each feature."""
        data = self.read(*USER_FEATURES) if frame is None else frame
        return data.select(USER_FEATURES).to_dummies(drop_first=True).to_numpy().astype(np.float64)

    def target(self, slate: SlateProbabilities, frame: polars.DataFrame | None = None) -> Floats:
        """The probability of each logged item at its position under a slate policy such as `thompson_probabilities`."""
        if len(slate.probability) < self.n_actions:
            raise OptionError(
                f"campaign {self.campaign!r} has {self.n_actions} actions, and the slate policy has probabilities for only "
                f"{len(slate.probability)}."
            )
        data = self.read("action", "position") if frame is None else frame
        return np.asarray(
            slate.probability[data["action"].to_numpy(), data["position"].to_numpy() - 1], dtype=np.float64
        )

    def _no_column(self, name: str, names: Sequence[str], do: str = "") -> ColumnError:
        columns = ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "")
        what = f"{self.path.name} has no column {name!r}; it has {columns}."
        return ColumnError(what, do=do, suggestion=did_you_mean(name, names))

    def _damage_error(self, error: Exception) -> LogError:
        return LogError(f"{self.path.name} is not the CSV file it should be: {first_line(error)}.", do=AGAIN)


# -- The action probabilities of Bernoulli Thompson sampling with fixed Beta priors, by simulation ----------------------


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

    >>> slate = thompson_probabilities([1, 1], [1, 1], positions=1, draws=10_000)
    >>> bool(abs(slate.probability[0, 0] - 0.5) < 4 * slate.stderr[0, 0])
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
            do=f"Pass `positions={a.size}` or less.",
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
            f"cannot read the priors {str(file)!r}: {verbatim(error)}.", do="Pass the path of the YAML file."
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
