"""What every policy can do: a module that returns a logit per action, learns from logs, and serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.learn.actions import among, as_ids, checked_ids, mask_of, masked, placed, places
from counterpoise.learn.items import blocks
from counterpoise.learn.items.arithmetic import log_probability
from counterpoise.learn.items.logits import LEAST_ITEMS, ItemScores, Logits, product_of, too_many
from counterpoise.learn.softmax import cooled, logged_probability

if TYPE_CHECKING:
    from counterpoise.features import Encoder
    from counterpoise.log.sketches import Lesson

# -- What a policy does when it serves: its probabilities at a temperature, among the actions that are allowed, and draws from them ---


class Choices:
    """How to choose among actions: at a temperature, and among those that a mask allows (`mask_of`), a row of it for every context.

    At temperature T, an action has a probability proportional to π(a|x)^(1/T): above 1 the policy explores more, below 1 less, and at 0
    it takes the most probable action always.

    Examples
    --------
    >>> logits = torch.tensor([[1.0, 2.0]], dtype=torch.float64).log()
    >>> Choices(temperature=0.5).probabilities(logits, slice(None)).numpy().round(3).tolist()
    [[0.2, 0.8]]
    >>> Choices(temperature=0).probabilities(torch.zeros(1, 2), slice(None)).tolist()
    [[1.0, 0.0]]
    """

    def __init__(self, temperature: Any = 1.0, mask: Tensor | None = None) -> None:
        self.temperature = _checked_temperature(temperature)
        self.mask = mask

    @property
    def is_plain(self) -> bool:
        """Whether it is the policy's softmax over all actions, and no more."""
        return self.temperature == 1 and self.mask is None

    def probabilities(self, logits: Tensor, rows: slice) -> Tensor:
        """The probabilities of all actions, in double precision; `rows` says which rows of the mask these are."""
        return torch.softmax(self._scaled(logits, rows), -1)

    def draw(self, logits: Tensor, rows: slice, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """One action per row, by its place, and its probability."""
        scaled = self._scaled(logits, rows)
        # the largest of logits plus Gumbel noise is a draw from their softmax, for any number of actions
        noise = torch.empty_like(scaled).exponential_(generator=generator)
        place = (scaled - noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_()).argmax(-1)
        return place, torch.softmax(scaled, -1).gather(-1, place[:, None])[:, 0]

    def _scaled(self, logits: Tensor, rows: slice) -> Tensor:
        allowed = None if self.mask is None else self.mask[rows].to(logits.device)
        found = masked(logits.double(), allowed)
        if self.temperature == 0:
            greedy = torch.full_like(found, -torch.inf)
            return greedy.scatter_(-1, found.argmax(-1, keepdim=True), 0.0)
        if self.temperature == 1:
            return found
        # minus the largest, because what is divided by a tiny temperature must not overflow
        return (found - found.max(-1, keepdim=True).values) / self.temperature


def generator_of(seed: int | None, generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Where random numbers come from: torch's own, a generator of yours, or one that starts from a seed."""
    if seed is None:
        return generator
    if generator is not None:
        raise OptionError(["you passed both ", Argument("seed"), " and ", Argument("generator"), "."], do="Pass one.")
    return torch.Generator(device).manual_seed(checked_seed(seed))


def checked_seed(seed: Any) -> int:
    """A seed that torch takes."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise OptionError([Argument("seed"), f" must be a whole number of at most 64 bits; found {seed!r}."])
    return int(seed)


def _checked_temperature(temperature: Any) -> float:
    if isinstance(temperature, bool) or not isinstance(temperature, Real) or not 0 <= float(temperature) < math.inf:
        raise OptionError(
            f"temperature must be a number above 0, or 0 for the most probable action; found {temperature!r}."
        )
    return float(temperature)


# -- What every policy can do: a module that returns a logit per action, learns from logs, and serves ------------------


CELLS = 2**24  # logits computed at a time outside training: 64 MB of float32
ROWS = 4096  # rows at a time, where there are so many items that their logits are never all in memory


class Policy(nn.Module):
    """A softmax policy: `body` turns a context into features, `scores` turns features into a logit per action.

    Subclasses set the two; the split is what makes the gradient norms of the last layer cheap. `ModulePolicy` turns any module that
    returns logits into a policy.

    Examples
    --------
    >>> from counterpoise.learn import LinearSoftmax
    >>> _ = torch.manual_seed(0)
    >>> policy = LinearSoftmax(context_dimension=2, n_actions=3)
    >>> action, propensity = policy.sample(torch.zeros(4, 2))
    >>> [round(p, 3) for p in propensity.tolist()]
    [0.333, 0.333, 0.333, 0.333]
    """

    body: nn.Module
    scores: nn.Module
    n_actions: int
    context_dimension: int | None = None
    """How many numbers a context has; None where only the module knows."""
    context_: tuple[str, ...] = ()
    """The columns it was learned from, in their order; empty if it was learned from arrays."""
    encoding_: Encoder | None = None
    """How those columns become numbers; None if all of them are numbers."""
    candidates_: str | None = None
    """The column of the candidates it was learned with; None if it chooses among all actions."""
    learned_from_: str | None = None
    """A digest of the log that a learner trained it on; None before that, and after it was saved and loaded."""
    lesson_: Lesson | None = None
    """What it remembers of how it was learned: a sketch of the rows, and what learning said of it; it is saved with the policy."""
    temperature: float = 1.0
    """What logits are divided by when the policy serves (`predict_proba`, `sample`, an ONNX model), but not while it trains: below 1 it
    takes fewer chances, above 1 more, and at 0 it takes the most probable action always."""
    _ids: NDArray[Any] | None = None

    def forward(self, context: Tensor) -> Tensor:
        """A logit per action."""
        logits: Tensor = self.scores(self.body(context))
        width = logits.shape[-1]
        if isinstance(width, int) and width != self.n_actions:  # for ONNX it is a tensor, and comparing it a warning
            raise self.not_fitting(width)
        return logits

    def not_fitting(self, logits: int) -> OptionError:
        """The error about so many logits where there are other actions."""
        return OptionError(
            f"the policy has {self.n_actions:,} actions, and its module returns {logits:,} logits for a context.",
            do=["Give the module one output per action, or change ", Argument("n_actions"), "."],
        )

    def config(self) -> dict[str, Any]:
        """The arguments that build this policy again, as JSON stores them."""
        raise OptionError(
            f"{type(self).__name__} has no config.",
            do="Save its state_dict yourself, or give the class a config method.",
        )

    def inputs(self, context: Any) -> Tensor:
        """Contexts as `forward` takes them: frames, mappings and rows are encoded as the log was, arrays of numbers are taken as they are.

        So are tensors, on the device and in the precision of the policy; a tensor of one context is one row.
        """
        if not isinstance(context, Tensor):
            return self._inputs(context)
        if self.context_dimension is None and not context.is_floating_point():
            return context  # a module of your own may look them up in an embedding, which takes no other numbers
        rows = context if context.ndim > 1 else context.reshape(1, -1)
        self.check_width(*rows.shape[1:])
        return rows.to(self.device, self.precision)

    def _inputs(self, context: Any) -> Tensor:
        table = table_of(context, self.context_, self.encoding_)
        self.check_width(*table.shape[1:])
        return torch.as_tensor(table, device=self.device).to(self.precision)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to a file (`save_policy`), which `load_policy` reads."""
        from counterpoise.learn.files import save_policy  # which knows all policies

        save_policy(self, path)

    def target(self, context: Tensor, action: Tensor) -> Tensor:
        """π(a|x) of the logged actions, differentiable."""
        return self.target_at(context, self._places(action))

    def log_target(self, context: Tensor, action: Tensor) -> Tensor:
        """log π(a|x), differentiable."""
        many = self._many(context)
        if many is not None:
            return log_probability(many, self._places(action))[0]
        return torch.log_softmax(self(context), dim=-1).gather(-1, self._places(action)[..., None])[..., 0]

    def target_at(
        self, context: Tensor, place: Tensor, candidates: Tensor | None = None, temperature: float = 1.0
    ) -> Tensor:
        """π of the actions with these columns in the logits, among candidates (by their columns) and at a temperature; differentiable."""
        many = self._many(context) if candidates is None else None
        if many is None:
            return logged_probability(cooled(among(self(context), candidates), temperature), place)[0]
        if temperature == 0:
            return (blocks.greedy(many) == place).to(many.contexts.dtype)
        return log_probability(many.cooled(temperature), place)[0].exp()

    @torch.no_grad()
    def greedy(self, context: Any, *, candidates: Any = None) -> Any:
        """The most probable action of every row: a tensor of ids, or an array of names."""
        parts = self._parts_with(self.inputs(context), candidates)
        with serving(self):
            found = [self._greedy(part, mask) for part, mask in parts]
        return self._named(torch.cat(found))

    def _greedy(self, context: Tensor, mask: Tensor | None = None) -> Tensor:
        many = self._many(context) if mask is None else None
        found: Tensor = masked(self(context), mask).argmax(-1) if many is None else blocks.greedy(many)
        return found

    @overload
    def sample(
        self,
        context: Tensor,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def sample(
        self,
        context: ArrayLike,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float64]]: ...

    @torch.no_grad()
    def sample(
        self,
        context: Any,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """One action per row, drawn from the policy, and its probability, which your logger must record with it.

        Contexts are an array or a frame, as `predict_proba` takes them, and arrays come back; from a tensor, tensors do. Actions are
        those of `classes_`. At a `temperature` T (by default, the policy's own), an action is drawn in proportion to π(a|x)^(1/T): above
        1 explores more, 0 takes the most probable action, with propensity 1. `mask` (contexts × actions, or one row for all) is True for
        the actions that are allowed; or it has the actions themselves, a list for every context. The probability returned is that of the
        draw as it was made, with temperature and mask.

        >>> from counterpoise.learn import LinearSoftmax
        >>> policy = LinearSoftmax(context_dimension=2, n_actions=3)
        >>> action, propensity = policy.sample([[0.0, 0.0]], mask=[True, False, True], seed=0)
        >>> bool(action[0] in (0, 2)), propensity.tolist()
        (True, [0.5])
        """
        is_tensor = isinstance(context, Tensor)
        inputs = self.inputs(context)
        choices = self._choices(temperature, mask, len(inputs))
        random = generator_of(seed, generator, inputs.device)
        with serving(self):
            drawn = [
                self._drawn(choices, rows, part, random)
                for rows, part in self._slices(inputs, dense=not choices.is_plain)
            ]
        place, propensity = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        if is_tensor:
            return self._named(place), propensity.to(self.precision)
        return self.classes_[place.cpu().numpy()], propensity.cpu().numpy()

    def _drawn(
        self, choices: Choices, rows: slice, context: Tensor, random: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Draws for some contexts; among very many actions block by block, if nothing but the policy's own softmax is asked for."""
        many = self._many(context) if choices.is_plain else None
        return choices.draw(self(context), rows, random) if many is None else blocks.draw(many, random)

    @property
    def actions_(self) -> NDArray[Any] | None:
        """The ids or names of the actions in ascending order, unless they are 0, 1, 2, …; set them to train on a log with such."""
        return self._ids

    @actions_.setter
    def actions_(self, ids: ArrayLike | None) -> None:
        self._ids = None if ids is None else checked_ids(np.asarray(ids), self.n_actions)

    @property
    def classes_(self) -> NDArray[Any]:
        """The actions, in the order of `predict_proba`'s columns (scikit-learn's name for them)."""
        return np.arange(self.n_actions) if self._ids is None else self._ids

    def _places(self, action: Tensor) -> Tensor:
        """The columns of the logits that belong to actions."""
        if self._ids is None or _are_names(self._ids):
            return action  # a tensor has no names
        found = placed(self._ids.astype(np.int64), action)
        if bool((found < 0).any()):
            raise OptionError(
                f"the policy has no action {int(action[found < 0][0]):,}; classes_ has those that it knows."
            )
        return found

    def _named(self, places: Tensor) -> Any:
        """What the log calls the actions of these columns: ids as a tensor, names as an array."""
        if self._ids is not None and _are_names(self._ids):
            return self._ids[places.cpu().numpy()]
        return places if self._ids is None else torch.as_tensor(self._ids, device=places.device)[places]

    @torch.no_grad()
    def predict_proba(
        self, context: Any, candidates: Any = None, *, temperature: float | None = None, mask: Any = None
    ) -> NDArray[np.float64]:
        """The probabilities of all actions as an array, one row per context, so you can pass a policy to `evaluate` as a `target`.

        `candidates` are the actions to choose from, a list of them for every row, or a table of truth values with a column per action; the
        probabilities of all others are 0. If the policy was learned with candidates, they must be given. `temperature` and `mask` (another
        name for candidates) are those of `sample`, which draws from just these probabilities.
        """
        inputs = self._inputs(_as_array(context))
        choices = self._choices(temperature, mask if candidates is None else candidates, len(inputs))
        with serving(self):
            parts = [choices.probabilities(self(part), rows).cpu() for rows, part in self._slices(inputs, dense=True)]
        return torch.cat(parts).numpy()

    @torch.no_grad()
    def propensity(
        self, context: Any, action: Any, candidates: Any = None, *, temperature: float | None = None, mask: Any = None
    ) -> NDArray[np.float64]:
        """The probability of one action per context as an array: what a logger records with it, and all that `evaluate` asks for.

        The options are those of `predict_proba`, whose other columns are left out: among a million items they are never all in memory. An
        action that the policy does not know has probability 0.

        >>> from counterpoise.learn import LinearSoftmax
        >>> LinearSoftmax(context_dimension=2, n_actions=4).propensity([[0.0, 0.0], [0.0, 0.0]], [3, 17]).tolist()
        [0.25, 0.0]
        """
        inputs = self._inputs(_as_array(context))
        choices = self._choices(temperature, mask if candidates is None else candidates, len(inputs))
        at = known_places(self.classes_, _as_array(action), len(inputs))
        place = torch.as_tensor(at, device=inputs.device).clamp(min=0)
        is_masked = choices.mask is not None
        found = []
        with serving(self):
            for rows, part in self._slices(inputs, dense=is_masked):
                many = None if is_masked else self._many(part)
                if many is None:
                    some = choices.probabilities(self(part), rows).gather(-1, place[rows, None])[:, 0]
                else:
                    some = self.target_at(part, place[rows], temperature=choices.temperature).double()
                found.append(some.cpu())
        return np.where(at < 0, 0.0, np.minimum(torch.cat(found).numpy(), 1.0))

    def _choices(self, temperature: float | None, mask: Any, rows: int) -> Choices:
        """How to choose for some contexts: at the policy's own temperature or another, among the actions that are allowed."""
        self._check_candidates(mask)
        served = self.temperature if temperature is None else temperature
        return Choices(served, None if mask is None else mask_of(mask, self.classes_, rows))

    def _check_candidates(self, candidates: Any) -> None:
        if candidates is None and self.candidates_ is not None:
            raise OptionError(
                f"the policy was learned to choose among candidates (those in {self.candidates_!r}).",
                do=["Pass ", Argument("candidates"), ", or a table of True for all actions."],
            )

    @property
    def _like(self) -> Tensor:
        """A tensor with the device and the precision of the policy."""
        tensors = [*self.parameters(), *self.buffers()]
        return next(one for one in tensors if one.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._like.device

    @property
    def precision(self) -> torch.dtype:
        """The type of the numbers that it computes with."""
        return self._like.dtype

    def check_width(self, *found: int) -> None:
        """Check that contexts have as many numbers as the policy takes, if it knows how many."""
        if self.context_dimension is not None and found != (self.context_dimension,):
            raise OptionError(
                f"the policy takes contexts of {self.context_dimension:,} numbers; found {' × '.join(map(str, found))}.",
                do="Pass the columns that it was made for.",
            )

    def check_context(self, names: Sequence[str]) -> None:
        """Check that a context has as many columns as the policy takes numbers; a context without names fits any policy."""
        if names and self.context_dimension is not None:
            self.check_width(len(names) if self.encoding_ is None else self.encoding_.width)

    def _slices(self, context: Tensor, *, dense: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Contexts part by part, and which rows each part has; fewer at a time if all logits must be in memory."""
        at = 0
        for part in self._parts(context, dense=dense):
            yield slice(at, at + len(part)), part
            at += len(part)

    def _parts(self, context: Tensor, *, dense: bool = False) -> Iterator[Tensor]:
        yield from torch.split(context, self.dense_rows if dense else self.rows_at_once)

    @property
    def dense_rows(self) -> int:
        """How many rows to compute at a time if all their logits must be in memory."""
        return max(1, CELLS // self.n_actions)

    @property
    def rows_at_once(self) -> int:
        """How many rows to compute at a time outside training."""
        least = ROWS if self.is_product and self.n_actions >= LEAST_ITEMS else 1
        return max(least, self.dense_rows)

    @property
    def is_product(self) -> bool:
        """Whether the logits are products of what `body` returns and of vectors of the actions."""
        return type(self).forward is Policy.forward and type(self.scores) in (nn.Linear, ItemScores)

    def _many(self, context: Tensor) -> Logits | None:
        """The logits as a product that is never written out, if there are too many of them."""
        if not self.is_product or not too_many(len(context), self.n_actions):
            return None
        return product_of(self.scores, self.body(context))

    def _parts_with(self, context: Tensor, candidates: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The same, with the part of the candidates that belongs to each as a table of truth values."""
        self._check_candidates(candidates)
        if candidates is None:
            yield from ((part, None) for part in self._parts(context))
            return
        mask = mask_of(candidates, self.classes_, len(context)).to(context.device)
        yield from zip(self._parts(context, dense=True), torch.split(mask, self.dense_rows), strict=True)


@contextmanager
def serving(module: nn.Module) -> Iterator[None]:
    """A module out of training, without dropout and the like, until we are done with it."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def _as_array(given: Any) -> Any:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else given


def _are_names(ids: NDArray[Any] | None) -> bool:
    return ids is not None and ids.dtype.kind == "O"


def known_places(classes: NDArray[Any], given: Any, rows: int) -> NDArray[np.int64]:
    """Where one action per row, or its name, stands among the classes; −1 for those that are not there."""
    action = np.asarray(given)
    if _are_names(classes):
        number = {name: k for k, name in enumerate(classes)}
        found = np.array([number.get(one, -1) for one in action.tolist()], dtype=np.int64)
    elif action.dtype.kind not in "biuf":
        raise OptionError(
            f"the policy's actions are such as {classes[0]}, those given such as {action.flat[0]}: give both the same type."
        )
    else:
        found = places(classes, as_ids(action))
    if found.shape != (rows,):
        raise OptionError(
            ["there must be one ", Argument("action"), f" per context ({rows:,}); found shape {found.shape}."]
        )
    return found


def table_of(context: Any, names: Sequence[str], encoding: Encoder | None) -> NDArray[np.float64]:
    """Contexts as a table of numbers, a row per context; what is not numbers needs the encoding of the policy.

    `names` are the columns that it was learned from, if they had names.
    """
    is_numbers = isinstance(context, np.ndarray) and context.dtype.kind in "biuf"
    # numbers may be the policy's inputs themselves, or the columns of a log some of whose numbers were missing
    is_encoded = is_numbers and (
        encoding is None or context.shape[-1:] != (len(encoding.names),) or not encoding.marks_gaps
    )
    if encoding is not None and not is_encoded:
        return encoding.table(np.atleast_2d(context) if is_numbers else context)
    if isinstance(context, Mapping) and names:
        _check_columns(names, context)
        columns = {name: np.atleast_1d(context[name]) for name in names}
        _check_lengths(columns)
        context = np.column_stack(list(columns.values()))
    if type(context).__name__ == "LazyFrame":  # polars need not be there
        context = context.collect()
    _check_names(names, context)
    try:
        # a copy: torch warns about arrays that it may not write to
        table = np.array(context, dtype=np.float64, ndmin=2)
    except (TypeError, ValueError) as error:
        raise OptionError(f"context must be numbers, a row per context: {error}.") from error
    odd = np.argwhere(~np.isfinite(table))
    if len(odd):
        raise LogError(
            f"a context must be finite numbers, and that of row {odd[0][0]:,} has {table[tuple(odd[0])]} in place {odd[0][1]:,}.",
            do="Leave the row out, or put a number there.",
        )
    return table


def _check_names(known: Sequence[str], context: Any) -> None:
    """Check that a frame has the columns that the policy was learned from, in their order."""
    # of the class, because a column of a pandas frame may have any name; the columns of pyarrow are arrays
    names = getattr(context, "column_names" if hasattr(type(context), "column_names") else "columns", ())
    if known and len(names) and all(isinstance(name, str) for name in names):
        from counterpoise.readers.policies import check_context  # whoever has no polars has no frame either

        check_context(known, names)


def _check_columns(names: Sequence[str], found: Mapping[str, Any]) -> None:
    lost = [name for name in names if name not in found]
    if lost:
        raise OptionError(
            f"the policy was learned from the columns {', '.join(map(repr, names))}; context lacks {', '.join(map(repr, lost))}."
        )


def _check_lengths(columns: Mapping[str, NDArray[Any]]) -> None:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise OptionError(
            f"all columns of a context must have the same number of rows; found {sizes}.",
            do="Pass one value per row in each of them.",
        )
