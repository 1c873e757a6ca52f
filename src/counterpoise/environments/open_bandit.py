"""`OpenBanditLog`: a log of the Open Bandit Dataset in its official layout, read lazily."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.environments.thompson import SlateProbabilities
from counterpoise.errors import ColumnError, LogError, OptionError, first_line

if TYPE_CHECKING:
    import polars

Floats = NDArray[np.float64]

POLICIES = ("random", "bts")
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
            raise self._damaged(error) from error
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
            raise self._damaged(error) from error
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
        table: Any = slate.probability
        return np.asarray(table[data["action"].to_numpy(), data["position"].to_numpy() - 1], dtype=np.float64)

    def _no_column(self, name: str, names: Sequence[str], do: str = "") -> ColumnError:
        known = ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "")
        what = f"{self.path.name} has no column {name!r}; it has {known}."
        return ColumnError(what, do=do, suggestion=_nearest(name, names))

    def _damaged(self, error: Exception) -> LogError:
        return LogError(f"{self.path.name} is not the CSV file it should be: {first_line(error)}.", do=AGAIN)


def _check_choice(name: str, choice: str, known: tuple[str, ...]) -> None:
    if choice not in known:
        what = f"the Open Bandit Dataset has no {name} {choice!r}; choose one of {', '.join(map(repr, known))}."
        raise OptionError(what, suggestion=_nearest(str(choice), known))


def _nearest(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, as a question."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
