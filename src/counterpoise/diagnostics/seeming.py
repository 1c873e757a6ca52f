"""What the rows of a log seem to be if nobody said: the slots of lists, the steps of episodes, or rows that were logged twice."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import polars as pl

from counterpoise.diagnostics.verdict import Caveat
from counterpoise.log.expressions import column, columns
from counterpoise.log.kinds import IN_ORDER
from counterpoise.readers.files import collect

LONGEST = 1000  # slots; a column that counts further is not a position
PAIRS = 24  # of columns to look at, those with telling names first


@dataclass(frozen=True)
class SeemingLists:
    """The column of positions and, if there is one, the column that tells which rows belong to the same list."""

    position: str
    list: str | None
    lists: int = 0

    @property
    def names(self) -> tuple[str, str | None]:
        """The names of both columns, in lower case with underscores."""
        return _plain(self.position), None if self.list is None else _plain(self.list)


def find_lists(frame: pl.LazyFrame, schema: pl.Schema, taken: Collection[str | None]) -> SeemingLists | None:
    """Look for lists whose rows have positions, in all columns except those that are already `taken`.

    Names such as position and request_id help. If only one of the two columns has such a name, the positions of each list must count up
    from the first without a gap; if neither has, all lists must also be equally long.

    >>> log = pl.DataFrame({"query": [7, 7, 8, 8], "slot": [1, 2, 2, 1], "p": [0.5] * 4})
    >>> find_lists(log.lazy(), log.schema, ["p"])
    SeemingLists(position='slot', list='query', lists=2)
    """
    free = [name for name in schema.names() if name not in taken]
    numbers = [name for name in free if schema[name].is_integer() or (schema[name].is_float() and says_position(name))]
    if not numbers:
        return None
    labels = [name for name in free if schema[name].is_integer() or schema[name] in (pl.String, pl.Categorical)]
    every = list(dict.fromkeys((*numbers, *labels)))
    wanted = [pl.len().alias("rows")]
    wanted += [column(name).drop_nulls().n_unique().alias(f"count {k}") for k, name in enumerate(every)]
    wanted += [column(name).min().alias(f"low {k}") for k, name in enumerate(numbers)]
    wanted += [column(name).max().alias(f"high {k}") for k, name in enumerate(numbers)]
    sizes = collect(frame.select(wanted)).row(0, named=True)
    positions: dict[str, range] = {}  # the columns that count from 0 or 1 without a gap, and how far
    for k, name in enumerate(numbers):
        low, high = sizes[f"low {k}"], sizes[f"high {k}"]
        if low in (0, 1) and low < high <= LONGEST and sizes[f"count {k}"] == high - low + 1:
            positions[name] = range(int(low), int(high) + 1)
    # those whose values repeat, but not on more rows than a list can have
    counts = {name: sizes[f"count {k}"] for k, name in enumerate(every)}
    ids = [name for name in labels if sizes["rows"] / LONGEST <= counts[name] < sizes["rows"] / 1.2]
    pairs = [(x, y) for x, y in product(positions, ids) if x != y]
    # shorter positions first, since the lists themselves may be numbered from 0, too
    pairs.sort(key=lambda pair: (-says_position(pair[0]) - says_list(pair[1]), len(positions[pair[0]])))
    for position, of in pairs[:PAIRS]:
        lists = _lists(frame, position, of, positions[position].start)
        if lists:
            return SeemingLists(position, of, lists)
    named = [name for name in positions if says_position(name)]
    return SeemingLists(named[0], None) if named else None


def faults_of(frame: pl.LazyFrame, position: str, of: str) -> tuple[int, int]:
    """How many lists lack a position above their last, and how many have one more than once.

    >>> log = pl.DataFrame({"query": [7, 7, 8, 8, 9, 9, 9], "slot": [1, 2, 1, 3, 1, 1, 2]})
    >>> faults_of(log.lazy(), "slot", "query")
    (1, 1)
    """
    x = column(position)
    each = frame.group_by(column(of).alias("of")).agg(
        n=x.count(), distinct=x.drop_nulls().n_unique(), high=x.max(), low=x.min()
    )
    whole = pl.col("high") - pl.col("low").min() + 1
    faults = each.select((whole > pl.col("distinct")).sum(), repeated=(pl.col("n") > pl.col("distinct")).sum())
    missing, repeated = collect(faults).row(0)
    return int(missing), int(repeated)


def fall_of(frame: pl.LazyFrame, position: str, propensity: str) -> tuple[float, float, int]:
    """By how much the mean of 1/p falls from the first position to one below, the error of that, and how far below."""
    p = column(propensity).cast(pl.Float64)
    inverse = (1.0 / p.filter((p > 0) & (p <= 1))).alias("inverse")
    each = frame.group_by(column(position).alias("k")).agg(
        inverse.mean().alias("mean"), inverse.var().alias("var"), inverse.count().alias("n")
    )
    places = collect(each.filter(pl.col("n") > 1).sort("k"))
    if places.height < 2:
        return 0.0, 0.0, 0
    first = places.row(0, named=True)
    # the place that is the most errors away from the first, if the number of items falls by one each time
    falls = [
        (
            first["mean"] - place["mean"],
            (first["var"] / first["n"] + place["var"] / place["n"]) ** 0.5,
            int(place["k"] - first["k"]),
        )
        for place in places.tail(-1).iter_rows(named=True)
    ]
    return max(falls, key=lambda fall: fall[2] / max(fall[1], 1e-9))


def shows_once(frame: pl.LazyFrame, of: str, item: str) -> bool:
    """Whether no list shows an item twice.

    >>> log = pl.DataFrame({"query": [7, 7, 8, 8], "item": ["a", "b", "b", "b"]})
    >>> shows_once(log.lazy(), "query", "item"), shows_once(log.lazy().head(3), "query", "item")
    (False, True)
    """
    each = frame.group_by(column(of).alias("of")).agg(twice=column(item).count() > column(item).drop_nulls().n_unique())
    return not collect(each.select(pl.col("twice").any())).item()


def says_position(name: str) -> bool:
    """Whether a column's name says that it is a row's place among those that belong together."""
    return any(kind.places.fullmatch(_plain(name)) for kind in IN_ORDER)


def says_action(name: str) -> bool:
    """Whether a name says that a column has actions in it.

    >>> says_action("best_action"), says_action("arm"), says_action("pi_new"), says_action("p_action")
    (True, True, False, False)
    """
    return (
        re.fullmatch(r"(?!p_|pi_|prob)(\w+_)?(action|arm|choice|treatment)(_(id|new|old))?", name, re.IGNORECASE)
        is not None
    )


def says_list(name: str) -> bool:
    """Whether a column's name says that it tells which rows belong together."""
    return any(kind.ids.fullmatch(_plain(name)) for kind in IN_ORDER)


def _plain(name: str) -> str:
    """`requestId` as request_id."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _lists(frame: pl.LazyFrame, position: str, of: str, first: int) -> int:
    """How many lists of two or more rows there are; 0 if the two columns do not describe lists."""
    x, n = pl.col("x"), pl.col("n")
    groups = frame.select(x=column(position), of=column(of)).drop_nulls().group_by("of")
    each = groups.agg(n=pl.len(), distinct=x.n_unique(), low=x.min(), high=x.max())
    is_distinct = pl.col("distinct") == n
    is_whole = is_distinct & (pl.col("low") == first) & (pl.col("high") - pl.col("low") + 1 == n)
    rows, sizes = n.sum(), n.value_counts(sort=True).first().struct.field("count")
    shares = collect(
        each.select(
            lists=(n > 1).sum(),
            several=n.filter(n > 1).sum() / rows,
            distinct=n.filter(is_distinct).sum() / rows,
            whole=n.filter(is_whole).sum() / rows,
            alike=sizes / pl.len(),
        )
    ).row(0, named=True)
    if not shares["lists"] or shares["several"] < 0.5:
        return 0
    clues = says_position(position) + says_list(of)
    is_list = (
        shares["distinct"] >= 0.95 if clues == 2 else shares["whole"] >= (0.9 if clues else 0.95) and (clues or shares["alike"] >= 0.95)
    )  # fmt: skip
    return int(shares["lists"]) if is_list else 0


# -- Rows that were logged twice, where no key tells rows apart -----------------------------------------------------------


SURE = 0.001  # p: one log in a thousand may be doubted for nothing
MOST = 12  # copies of a row that are looked for
FINE = 0.1  # of the rows, at least, have a value of few rows in a column that tells rows apart


@dataclass(frozen=True)
class Repeats:
    r"""How many different rows came up once, twice, … (`times`), and whether chance alone makes them so.

    Rows with few coarse columns repeat by chance: independent ones each come up a Poisson number of times, with a mean λ of its own. But
    then an even number of times (two or more) is the rarer case, because :math:`(1 - e^{-\lambda})^2 \le 1 - e^{-2\lambda}`, and pairs need
    triples beside them, and so on: whatever the means are, their moments obey the inequality of Cauchy and Schwarz, so that

    .. math:: E[f_k]^2 \le \tfrac{k + 1}{k} \, E[f_{k-1}] \, E[f_{k+1}],

    with :math:`f_k` the number of different rows that came up k times. A file that was read twice breaks the first rule, and rows that a
    logger sent again, twice or more often, break the second.

    Examples
    --------
    >>> Repeats({1: 900, 2: 200}).is_odd, Repeats({2: 20}).is_odd, Repeats({3: 400}).is_odd
    (True, True, True)
    >>> Repeats({1: 300, 2: 75, 3: 12, 4: 2}).is_odd
    False
    """

    times: Mapping[int, int]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(k * count for k, count in self.times.items())

    @property
    def distinct(self) -> int:
        """How many different ones."""
        return sum(self.times.values())

    @property
    def repeated(self) -> int:
        """How many repeat another one."""
        return self.rows - self.distinct

    @property
    def is_odd(self) -> bool:
        """Whether so many pairs, or so many even counts, are unlikely by chance."""
        from scipy.special import bdtrc, pdtr  # which takes long to import

        even = sum(count for k, count in self.times.items() if k % 2 == 0)
        if even and bdtrc(even - 1, self.distinct, 0.5) < SURE:
            return True
        for k in range(2, MOST + 1):
            below, these, above = (self.times.get(times, 0) for times in (k - 1, k, k + 1))
            # two standard deviations of both counts to the safe side
            fewest, most = max(these - 2 * these**0.5, 0.0), below + 2 * below**0.5 + 4
            if pdtr(above, fewest**2 * k / ((k + 1) * most)) < SURE / (MOST - 1):
                return True
        return False


def repeats(frame: pl.LazyFrame | pl.DataFrame, schema: pl.Schema) -> Repeats | None:
    """How often each row comes up, by all columns that can be compared; None if there is no such column."""
    chosen = [name for name in schema.names() if not schema[name].is_nested()]
    if not chosen:
        return None
    if isinstance(frame, pl.DataFrame):  # few rows, where planning a query would take most of the time
        times = np.unique(frame.select(columns(chosen)).hash_rows().to_numpy(), return_counts=True)[1]
        return Repeats({int(k): int(count) for k, count in zip(*np.unique(times, return_counts=True), strict=True)})
    each = frame.select(row=pl.struct(columns(chosen)).hash()).group_by("row").agg(times=pl.len())
    return Repeats(dict(collect(each.group_by("times").agg(count=pl.len())).rows()))


def about_repeats(repeated: int, rows: int, *, are_first: bool, key: Sequence[str] = ()) -> Caveat:
    """What to say of rows that repeat others, or their key; `are_first` says that the log has more rows."""
    of, numbers = f"{'the first ' * are_first}{rows:,}", {"repeated": float(repeated), "rows": float(rows)}
    if key:
        text = f"{repeated:,} of {of} <rows> repeat the key {', '.join(key)} of another <row>."
        return Caveat("repeated-keys", text, numbers, "Log each decision once.")
    text = f"{repeated:,} of {of} <rows> repeat another <row>, more often than chance would."
    do = "Count each decision once. If these <rows> belong together, pass `cluster=`; if they are independent, pass `cluster=False`."
    return Caveat("repeated-rows", text, numbers, do)


def tells_apart(frame: pl.LazyFrame, schema: pl.Schema) -> bool:
    """Whether a single column tells almost all rows apart, as an id or a time does, except for the repeated ones.

    Values of many rows are left out: a score that is cut off at 1, or a usual price. Where few rows have one value, the other columns are
    alike by chance as often as in any two rows.
    """
    chosen = [name for name in schema.names() if not schema[name].is_nested()]
    sizes = collect(frame.select(column(name).n_unique() for name in chosen)).row(0)
    finest = chosen.pop(int(np.argmax(sizes)))
    if not chosen:
        return False
    rows = collect(frame.select(value=column(finest), rest=pl.struct(columns(chosen)).hash()))
    each = rows.group_by("value").agg(n=pl.len(), distinct=pl.col("rest").n_unique()).filter(pl.col("n") <= MOST)
    n, distinct = (int(each.get_column(name).sum()) for name in ("n", "distinct"))
    if n < FINE * rows.height or not (each.height > 0.9 * distinct and distinct > 0.5 * n):
        return False
    several = each.filter(pl.col("n") > 1)
    same = int((several.get_column("distinct") == 1).sum())
    by_chance = float(((rows.get_column("rest").value_counts().get_column("count") / rows.height) ** 2).sum())
    from scipy.special import bdtrc

    return bool(same and bdtrc(same - 1, several.height, by_chance) < SURE)
