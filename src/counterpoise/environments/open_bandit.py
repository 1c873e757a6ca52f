"""This file holds `OpenBanditLog`: one log of the Open Bandit Dataset in its official layout, read lazily."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.environments.checks import check_at_least
from counterpoise.environments.thompson import SlateProbabilities
from counterpoise.errors import ColumnError, LogError, OptionError, first_line

if TYPE_CHECKING:
    import polars

Floats = NDArray[np.float64]

POLICIES = ("random", "bts")
CAMPAIGNS = {"all": 80, "men": 34, "women": 46}  # and how many items each has
POSITIONS = 3
COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score")
USER_FEATURES = tuple(f"user_feature_{j}" for j in range(4))


class OpenBanditLog:
    """Clicks on the recommendations of a fashion shop, logged by a random and by a Thompson sampling policy.

    The official layout is ``{policy}/{campaign}/{campaign}.csv`` beside an ``item_context.csv``; the 10,000-row samples
    and the full data share it. Nothing is read until asked for, and `scan` is a lazy frame, so the full 26 million
    rows go through an evaluation without being held in memory.

    ``OpenBanditLog(folder, policy="random", campaign="men").scan()`` has the columns `action` (the item, from 0),
    `position` (1 to 3), `reward` (the click), `propensity`, `timestamp`, four hashed user features and the user's
    affinity to each item.

    References
    ----------
    Saito, Aihara, Matsutani & Narita, "Open Bandit Dataset and Pipeline", NeurIPS 2021 (Datasets and Benchmarks).
    """

    def __init__(
        self, folder: str | Path, *, policy: Literal["random", "bts"], campaign: Literal["all", "men", "women"]
    ) -> None:
        _check_choice("policy", policy, POLICIES)
        _check_choice("campaign", campaign, tuple(CAMPAIGNS))
        self.policy, self.campaign = policy, campaign
        self.n_actions = CAMPAIGNS[campaign]
        self.path = Path(folder) / policy / campaign / f"{campaign}.csv"
        self.items_path = self.path.with_name("item_context.csv")
        for path in (self.path, self.items_path):
            if not path.is_file():
                raise OptionError(
                    f"no file {str(path)!r}. The Open Bandit Dataset is laid out as "
                    "{policy}/{campaign}/{campaign}.csv, item_context.csv beside it: pass the folder that holds "
                    "'random' and 'bts'."
                )

    def scan(self) -> polars.LazyFrame:
        """The log as a lazy polars frame, its columns under this library's names."""
        import polars as pl

        try:
            frame = pl.scan_csv(self.path)
            names = frame.collect_schema().names()
        except pl.exceptions.PolarsError as error:
            raise self._damaged(error) from error
        missing = [name for name in (*COLUMNS, *USER_FEATURES) if name not in names]
        if missing:
            near = difflib.get_close_matches(missing[0], names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ColumnError(
                f"{self.path.name} has no column {missing[0]!r}; it has {', '.join(map(repr, names[:8]))}"
                f"{' …' if len(names) > 8 else ''}.{hint} Take the file as the Open Bandit Dataset publishes it."
            )
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
        """Some columns of the log in memory (all when none is named), checked row by row."""
        import polars as pl

        needed = ("action", "position", "reward", "propensity")
        frame = self.scan()
        wanted = columns or tuple(frame.collect_schema().names())
        try:
            found = frame.select(*dict.fromkeys((*needed, *wanted))).collect(engine="streaming")
        except pl.exceptions.ColumnNotFoundError as error:
            raise ColumnError(f"{self.path.name} has no column {first_line(error)}.") from error
        except pl.exceptions.PolarsError as error:
            raise self._damaged(error) from error
        if found.is_empty():
            raise LogError(
                f"{self.path.name} has a header and no rows: take the file as the Open Bandit Dataset publishes it."
            )
        checks = {
            f"item_id must be one of 0 … {self.n_actions - 1}": pl.col("action").is_between(0, self.n_actions - 1),
            f"position must be one of 1 … {POSITIONS}": pl.col("position").is_between(1, POSITIONS),
            "click must be 0 or 1": pl.col("reward").is_in([0.0, 1.0]),
            "propensity_score must lie in (0, 1]": (pl.col("propensity") > 0) & (pl.col("propensity") <= 1),
        }
        for rule, holds in checks.items():
            wrong = found.with_row_index("row").filter(~holds.fill_null(False))
            if wrong.height:
                raise LogError(
                    f"{self.path.name}: {rule}; {wrong.height:,} of {found.height:,} rows do not; the first is row "
                    f"{wrong['row'][0]}: {wrong.select(needed).row(0, named=True)}. The file is damaged: fetch it anew."
                )
        return found.select(wanted)

    def items(self) -> polars.DataFrame:
        """The items and their features, a row per action."""
        import polars as pl

        try:
            found = pl.read_csv(self.items_path)
        except pl.exceptions.PolarsError as error:
            raise LogError(f"{self.items_path.name} cannot be read: {first_line(error)}. Fetch it again.") from error
        if "item_id" not in found.columns or found.height != self.n_actions:
            raise LogError(
                f"{self.items_path.name} of campaign {self.campaign!r} should have {self.n_actions} rows with an "
                f"item_id; found {found.height} rows with {', '.join(map(repr, found.columns))}. Fetch it again."
            )
        return found.select(pl.col("item_id").alias("action"), pl.selectors.starts_with("item_feature_")).sort("action")

    def features(self, frame: polars.DataFrame | None = None) -> Floats:
        """User features of the rows as 0/1 columns, the first value of each feature left out."""
        data = self.read(*USER_FEATURES) if frame is None else frame
        return data.select(USER_FEATURES).to_dummies(drop_first=True).to_numpy().astype(np.float64)

    def target(self, slate: SlateProbabilities, frame: polars.DataFrame | None = None) -> Floats:
        """Probability of each logged item at its position under a slate policy such as `thompson_probabilities`."""
        check_at_least("actions of the slate policy", len(slate.probability), self.n_actions)
        data = self.read("action", "position") if frame is None else frame
        table: Any = slate.probability
        return np.asarray(table[data["action"].to_numpy(), data["position"].to_numpy() - 1], dtype=np.float64)

    def _damaged(self, error: Exception) -> LogError:
        return LogError(f"{self.path.name} is not the CSV file it should be: {first_line(error)}. Fetch it again.")


def _check_choice(name: str, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        near = difflib.get_close_matches(str(found), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no {name} {found!r}; the Open Bandit Dataset has {', '.join(map(repr, known))}.{hint}")
