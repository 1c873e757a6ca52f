"""What every policy can do: a module that returns a logit per action, learns from logs, and serves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import LogError, OptionError, verbatim
from counterpoise.features import Encoder
from counterpoise.features.encoder import Numeric, with_names
from counterpoise.learn import blocks
from counterpoise.learn.actions import Candidates, Classes, among, checked_ids, ids_in, mask_of, placed, places_of_rows
from counterpoise.learn.blocks import ItemScores, Logits, product_of
from counterpoise.learn.softmax import LEAST_ITEMS, log_probability, too_many
from counterpoise.learn.tensor_files import write_tensors
from counterpoise.log.parts import FrameLike
from counterpoise.log.sketches import Lesson
from counterpoise.moments import Floats

CELLS = 2**24  # logits computed at a time outside training: 64 MB of float32
ROWS = 4096  # rows at a time, where there are so many items that their logits are never all in memory
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
# as users have them: tensors, arrays, frames, columns by name, or rows
Contexts = Tensor | ArrayLike | FrameLike | Mapping[str, object] | Sequence[object]


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
    is_foreign = False
    """Whether it is around a model of another library, which no file of ours has room for."""
    n_actions: int
    context_dimension: int | None = None
    """How many numbers a context has; None where only the module knows."""
    context_: tuple[str, ...] = ()
    """The columns it was learned from, in their order; empty if it was learned from arrays."""
    action_: str | None = None
    """The column of the actions it was learned from; None if that was an array, or in a file of an older version."""
    encoding_: Encoder | None = None
    """How those columns become numbers; None if all of them are numbers."""
    candidates_: str | None = None
    """The column of the candidates it was learned with; None if it chooses among all actions."""
    learned_from_: str | None = None
    """A digest of the log that a learner trained it on; None before that, and after it was saved and loaded."""
    lesson_: Lesson | None = None
    """What it remembers of its training: a sketch of the rows, and what learning estimated; it is saved with the policy."""
    temperature: float = 1.0
    """What logits are divided by when the policy serves (`predict_proba`, `sample`, an ONNX model), but not while it trains:
    below 1 it explores less, above 1 more, and at 0 it always takes the most probable action."""
    _ids: Classes | None = None
    _config: dict[str, object] | None = None

    # -- logits and gradients ------------------------------------------------------------------------------------------

    def forward(self, context: Tensor) -> Tensor:
        """The logits, one per action."""
        logits: Tensor = self.scores(self.body(context))
        width = logits.shape[-1]
        if isinstance(width, int) and width != self.n_actions:  # for ONNX it is a tensor, and comparing it a warning
            raise self.not_fitting(width)
        return logits

    def logits_among(self, context: Tensor, candidates: Tensor | None) -> Tensor:
        """The logits, with −∞ for what is not a candidate: see `actions.among`."""
        return among(self(context), candidates)

    def not_fitting(self, logits: int) -> OptionError:
        """The error for a number of logits that does not match the actions."""
        return OptionError(
            f"the policy has {self.n_actions:,} actions, and its module returns {logits:,} logits for a context.",
            do="Give the module one output per action, or change `n_actions=`.",
        )

    def target(self, context: Tensor, action: Tensor) -> Tensor:
        """π(a|x) of the logged actions, differentiable."""
        return self._probability(context, self._places(action), None, (1.0,))[..., 0]

    def log_target(self, context: Tensor, action: Tensor) -> Tensor:
        """log π(a|x), differentiable."""
        many = self._many(context)
        if many is not None:
            return log_probability(many, self._places(action))[0]
        return torch.log_softmax(self(context), dim=-1).gather(-1, self._places(action)[..., None])[..., 0]

    def logged_probabilities(
        self,
        context: Tensor,
        place: Tensor,
        candidates: Tensor | None = None,
        *,
        temperatures: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Floats:
        """π of one action per row, rows × temperatures: actions by their places, among candidates by theirs or in a boolean table.

        It is computed in the policy's precision, or in another, some rows at a time, and at the policy's own temperature unless you name
        others.
        """
        served = (self.temperature,) if temperatures is None else tuple(temperatures)
        size = self.rows_at_once if candidates is None else self.dense_rows
        table = np.empty((len(place), len(served)))
        with serving(self):
            for at in range(0, len(place), size):
                rows = slice(at, at + size)
                allowed = None if candidates is None else candidates[rows].to(self.device)
                part = context[rows].to(self.device), place[rows].to(self.device), allowed
                table[rows] = self._probability(*part, served, dtype).double().cpu().numpy()
        return table

    def _probability(
        self,
        context: Tensor,
        place: Tensor,
        candidates: Tensor | None,
        temperatures: Sequence[float],
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The same for rows that fit into memory, differentiable; among very many actions block by block."""
        many = self._many(context) if candidates is None else None
        if many is None:
            logits = self.logits_among(context, candidates)
            logits = logits if dtype is None else logits.to(dtype)
            return torch.stack([probability_of(logits, place, temperature) for temperature in temperatures], -1)
        return torch.stack(
            [
                log_probability(many.cooled(temperature), place)[0].exp()
                if temperature
                else (blocks.greedy(many) == place).to(many.contexts.dtype)
                for temperature in temperatures
            ],
            -1,
        )

    # -- serving -------------------------------------------------------------------------------------------------------

    def predict_proba(
        self,
        context: Contexts,
        candidates: Candidates = None,
        *,
        temperature: float | None = None,
        mask: Candidates = None,
    ) -> Floats:
        """The probabilities of all actions as an array, one row per context, so you can pass a policy to `evaluate` as a `target`.

        `candidates` are the actions to choose from, a list of them for every row, or a boolean table with a column per action;
        the probabilities of all others are 0. A policy that was learned with candidates requires them. `temperature` and `mask`
        (another name for candidates) are those of `sample`, which draws from just these probabilities.
        """
        inputs, served, allowed = self._served(_as_array(context), candidates, mask, temperature)
        with serving(self):
            parts = [
                torch.softmax(self._served_logits(part, some, served), -1).cpu()
                for part, some in self._parts(inputs, allowed, dense=True)
            ]
        return torch.cat(parts).numpy()

    def propensity(
        self,
        context: Contexts,
        action: ArrayLike | Tensor,
        candidates: Candidates = None,
        *,
        temperature: float | None = None,
        mask: Candidates = None,
    ) -> Floats:
        """The probability of one action per context as an array: what a logger records with it, and all that `evaluate` asks for.

        The options are those of `predict_proba`, whose other columns are left out: among a million items they are never all in memory. An
        action that the policy does not know has probability 0.

        >>> from counterpoise.learn import LinearSoftmax
        >>> LinearSoftmax(context_dimension=2, n_actions=4).propensity([[0.0, 0.0], [0.0, 0.0]], [3, 17]).tolist()
        [0.25, 0.0]
        """
        inputs, served, allowed = self._served(_as_array(context), candidates, mask, temperature)
        at = places_of_rows(self.classes_, _as_array(action), len(inputs))
        place = torch.as_tensor(np.maximum(at, 0))
        table = self.logged_probabilities(inputs, place, allowed, temperatures=(served,), dtype=torch.float64)
        return np.where(at < 0, 0.0, np.minimum(table[:, 0], 1.0))

    def greedy(self, context: Contexts, candidates: Candidates = None, *, mask: Candidates = None) -> Tensor | Classes:
        """The most probable action of every row: a tensor of ids, or an array of names."""
        inputs, _, allowed = self._served(context, candidates, mask)
        with serving(self):
            return self._named(torch.cat([self._best(*part) for part in self._parts(inputs, allowed)]))

    def _best(self, context: Tensor, candidates: Tensor | None) -> Tensor:
        many = self._many(context) if candidates is None else None
        return self.logits_among(context, candidates).argmax(-1) if many is None else blocks.greedy(many)

    def sample(
        self,
        context: Contexts,
        candidates: Candidates = None,
        *,
        temperature: float | None = None,
        mask: Candidates = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor | Classes, Tensor | Floats]:
        """One action per row, drawn from the policy, and its probability, which your logger must record with it.

        Contexts are an array or a frame, as `predict_proba` takes them, and arrays come back; from a tensor, tensors do. Actions
        are those of `classes_`. At a `temperature` T (by default, the policy's own), an action is drawn in proportion to
        π(a|x)^(1/T): above 1 it explores more, and 0 takes the most probable action with propensity 1. `mask` (contexts ×
        actions, or one row for all) is True for the actions that are allowed; or it lists the actions themselves for every
        context (`candidates` is another name for it). The probability returned is that of the draw as it was made, with
        temperature and mask.

        >>> from counterpoise.learn import LinearSoftmax
        >>> policy = LinearSoftmax(context_dimension=2, n_actions=3)
        >>> action, propensity = policy.sample([[0.0, 0.0]], mask=[True, False, True], seed=0)
        >>> bool(action[0] in (0, 2)), propensity.tolist()
        (True, [0.5])
        """
        inputs, served, allowed = self._served(context, candidates, mask, temperature)
        random = generator_of(seed, generator, inputs.device)
        is_plain = served == 1 and allowed is None
        with serving(self):
            drawn = [
                self._draw(part, some, served, random)
                for part, some in self._parts(inputs, allowed, dense=not is_plain)
            ]
        place, propensity = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        if isinstance(context, Tensor):
            return self._named(place), propensity.to(self.precision)
        return self.classes_[place.cpu().numpy()], propensity.cpu().numpy()

    def _draw(
        self, context: Tensor, candidates: Tensor | None, temperature: float, random: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """An action per row, by its place, and its probability; among very many actions block by block, if nothing is asked of them."""
        many = self._many(context) if temperature == 1 and candidates is None else None
        if many is not None:
            return blocks.draw(many, random)
        logits = self._served_logits(context, candidates, temperature)
        place = noisy(logits, random).argmax(-1)
        return place, torch.softmax(logits, -1).gather(-1, place[:, None])[:, 0]

    def _served_logits(self, context: Tensor, candidates: Tensor | None, temperature: float) -> Tensor:
        """The logits whose softmax is served, in double precision."""
        return cooled(self.logits_among(context, candidates).double(), temperature)

    def _served(
        self, context: Contexts, candidates: Candidates, mask: Candidates, temperature: float | None = None
    ) -> tuple[Tensor, float, Tensor | None]:
        """What is served, and how: inputs, at the policy's own temperature or another, among the actions that are allowed."""
        inputs = self.inputs(context)
        if candidates is not None and mask is not None:
            raise OptionError("you passed both `candidates=` and `mask=`, which mean the same thing.", do="Pass one.")
        allowed = mask if candidates is None else candidates
        if allowed is None and self.candidates_ is not None:
            raise OptionError(
                f"the policy was learned to choose among candidates (those in {self.candidates_!r}).",
                do="Pass `candidates=`, or a table of True for all actions.",
            )
        served = self.temperature if temperature is None else temperature
        if isinstance(served, bool) or not isinstance(served, Real) or not 0 <= float(served) < math.inf:
            raise OptionError(
                f"temperature must be a number above 0, or 0 for the most probable action; found {served!r}."
            )
        return inputs, float(served), None if allowed is None else mask_of(allowed, self.classes_, len(inputs))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to a file (`save_policy`), which `load_policy` reads."""
        save_policy(self, path)

    def config(self) -> dict[str, object]:
        """The arguments that build this policy again, as JSON stores them."""
        if self._config is None:
            raise OptionError(
                f"{type(self).__name__} has no config.",
                do="Save its state_dict yourself, or give the class a config method.",
            )
        return dict(self._config)

    def description(self) -> dict[str, object]:
        """What a file says about this policy, whether it is the file's own or a part of another."""
        return {"kind": type(self).__name__, "arguments": self.config(), "temperature": self.temperature}

    def _made_for(self, context_dimension: int, n_actions: int, **options: object) -> None:
        """Remember the arguments that the policy was made with."""
        check_sizes(context_dimension=context_dimension, n_actions=n_actions)
        self.context_dimension, self.n_actions = context_dimension, n_actions
        self._config = {"context_dimension": context_dimension, "n_actions": n_actions} | options

    # -- actions -------------------------------------------------------------------------------------------------------

    @property
    def actions_(self) -> Classes | None:
        """The ids or names of the actions in ascending order, unless they are 0, 1, 2, …; set them to train on a log that has ids."""
        return self._ids

    @actions_.setter
    def actions_(self, ids: ArrayLike | None) -> None:
        self._ids = None if ids is None else checked_ids(ids, self.n_actions)

    @property
    def classes_(self) -> Classes:
        """The actions, in the order of `predict_proba`'s columns (scikit-learn's name for them)."""
        return np.arange(self.n_actions) if self._ids is None else self._ids

    def _places(self, action: Tensor) -> Tensor:
        """The columns of the logits that belong to actions; a tensor has no names, and is taken as it is."""
        place = placed(ids_in(self._ids), action)
        if self._ids is not None and bool((place < 0).any()):
            raise OptionError(
                f"the policy has no action {int(action[place < 0][0]):,}; classes_ has those that it knows."
            )
        return place

    def _named(self, places: Tensor) -> Tensor | Classes:
        """What the log calls the actions of these columns: ids as a tensor, names as an array."""
        ids = ids_in(self._ids)
        if ids is not None:
            return torch.as_tensor(ids, device=places.device)[places]
        return places if self._ids is None else self._ids[places.cpu().numpy()]

    # -- contexts ------------------------------------------------------------------------------------------------------

    def inputs(self, context: Contexts) -> Tensor:
        """Contexts as `forward` takes them, on the device and in the precision of the policy; one context is a row.

        Frames, mappings and rows are encoded as the log was, and frames and mappings are read by the names of their columns. Arrays and
        tensors of numbers are taken as they are.
        """
        if self.context_dimension is None and isinstance(context, Tensor) and not context.is_floating_point():
            return context  # a module of your own may look them up in an embedding, which takes no other numbers
        if not (isinstance(context, Tensor) and self._are_inputs(context)):
            context = torch.as_tensor(self._table(_as_array(context)), device=self.device)
        rows: Tensor = context if context.ndim > 1 else context.reshape(1, -1)
        self.check_width(*rows.shape[1:])
        good = torch.isfinite(rows)
        if not bool(good.all()):
            at = torch.nonzero(~good)[0].tolist()
            raise LogError(
                f"a context must be finite numbers, and that of row {at[0]:,} has {rows[tuple(at)]} in place {at[1]:,}.",
                do="Drop the row, or put a number there.",
            )
        return rows.to(self.device, self.precision)

    def _are_inputs(self, numbers: Tensor | NDArray[np.generic]) -> bool:
        """Whether numbers are already inputs, rather than columns of a log with missing numbers."""
        encoding = self.encoding_
        return encoding is None or not encoding.marks_gaps or numbers.shape[-1:] != (len(encoding.names),)

    def _table(self, values: Contexts) -> Floats:
        """Contexts as a table of numbers, a row per context."""
        numbers = values if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" else None
        context, names = with_names(values) if numbers is None else (numbers, [])
        if self.encoding_ is not None and not (numbers is not None and self._are_inputs(numbers)):
            return self.encoding_.table(context if numbers is None else np.atleast_2d(numbers))
        if self.context_ and names and all(isinstance(name, str) for name in names):
            plain = Encoder(tuple(Numeric(name, mean=0.0, scale=1.0, has_gaps=False) for name in self.context_))
            # column by column in memory, as frames have it, because products of rows are rounded otherwise
            return np.asfortranarray(plain.table(context))
        try:
            # a copy: torch warns about arrays that it may not write to
            return np.array(context, dtype=np.float64, ndmin=2)
        except (TypeError, ValueError) as error:
            raise OptionError(f"context must be numbers, a row per context: {verbatim(error)}.") from error

    def check_width(self, *width: int) -> None:
        """Check that contexts have as many numbers as the policy takes, if it knows how many."""
        if self.context_dimension is not None and width != (self.context_dimension,):
            raise OptionError(
                f"the policy takes contexts of {self.context_dimension:,} numbers; found {' × '.join(map(str, width))}.",
                do="Pass the columns that it was made for.",
            )

    def check_context(self, names: Sequence[str]) -> None:
        """Check that a context has as many columns as the policy takes numbers; a context without names fits any policy."""
        if names and self.context_dimension is not None:
            self.check_width(len(names) if self.encoding_ is None else self.encoding_.width)

    # -- how it computes -----------------------------------------------------------------------------------------------

    @property
    def _like(self) -> Tensor:
        """A tensor with the device and the precision of the policy; that of a policy without any is single, and on the CPU."""
        tensors = (tensor for part in (self.parameters(), self.buffers()) for tensor in part)
        return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0, device="cpu"))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._like.device

    @property
    def precision(self) -> torch.dtype:
        """The type of the numbers that it computes with."""
        return self._like.dtype

    def _parts(
        self, context: Tensor, beside: Tensor | None = None, *, dense: bool = False
    ) -> Iterator[tuple[Tensor, Any]]:
        """Contexts some rows at a time, with the rows beside them, as those of a mask; fewer if all logits must be in memory."""
        size = self.dense_rows if dense or beside is not None else self.rows_at_once
        for at in range(0, max(len(context), 1), size):
            rows = slice(at, at + size)
            yield context[rows], None if beside is None else beside[rows].to(context.device)

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


def delegated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[Serves, P], R]:
    """A method that passes the call on to the policy."""

    @wraps(method)
    def call(self: Serves, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = getattr(self.served_policy, method.__name__)(*args, **kwargs)
        return answer

    return call


class Serves:
    """Anything that has a policy, such as a fitted learner, serves as the policy does."""

    @property
    def served_policy(self) -> Policy:
        """The policy that serves."""
        raise NotImplementedError

    predict_proba = delegated(Policy.predict_proba)
    propensity = delegated(Policy.propensity)
    greedy = delegated(Policy.greedy)
    sample = delegated(Policy.sample)
    save = delegated(Policy.save)

    @property
    def classes_(self) -> Classes:
        """The actions, in the order of `predict_proba`'s columns."""
        return self.served_policy.classes_

    @property
    def lesson_(self) -> Lesson | None:
        """What the policy remembers of its training, so that `evaluate` can recognize its rows."""
        return self.served_policy.lesson_

    @property
    def encoding_(self) -> Encoder | None:
        """How contexts become numbers; None if all of them are numbers."""
        return self.served_policy.encoding_

    @property
    def candidates_(self) -> str | None:
        """The column of the candidates that it learned to choose among; None if it chooses among all actions."""
        return self.served_policy.candidates_


@contextmanager
def serving(module: nn.Module) -> Iterator[None]:
    """The module without gradients, dropout and the like while this lasts."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


def noisy(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logits with Gumbel noise: the largest of a row is a draw from their softmax, and the next ones draws from what is left."""
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return logits - noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_()


def generator_of(seed: int | None, generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Where random numbers come from: torch's own, a generator of yours, or one that starts from a seed."""
    if seed is None:
        return generator
    if generator is not None:
        raise OptionError("you passed both `seed=` and `generator=`.", do="Pass one.")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise OptionError(f"`seed=` must be a whole number of at most 64 bits; found {seed!r}.")
    return torch.Generator(device).manual_seed(int(seed))


def check_sizes(**sizes: int) -> None:
    """Check that sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"{name} must be a whole number of at least 1; found {size!r}.")


def _as_array(values: Tensor | S) -> NDArray[np.generic] | S:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def cooled(logits: Tensor, temperature: float) -> Tensor:
    """Logits at a temperature: divided by it; at 0, all but the largest (the first, if several tie) are ruled out.

    >>> torch.softmax(cooled(torch.tensor([1.0, 3.0]).log().double(), 0.5), -1).numpy().round(3).tolist()
    [0.1, 0.9]
    >>> torch.softmax(cooled(torch.tensor([1.0, 4.0]), 0), -1).tolist()
    [0.0, 1.0]
    """
    if temperature == 1:
        return logits
    if temperature == 0:
        return torch.full_like(logits, -torch.inf).scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    # minus the largest, because what is divided by a tiny temperature must not overflow
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def probability_of(logits: Tensor, action: Tensor, temperature: float = 1.0) -> Tensor:
    """π(a|x) of one action per row at a temperature, differentiable above 0, for when Σπ² is not needed."""
    if temperature == 0:
        return (logits.argmax(-1) == action).to(logits.dtype)
    return torch.softmax(cooled(logits, temperature), -1).gather(-1, action[..., None])[..., 0]


# -- Policies on disk, which `load_policy` reads ---------------------------------------------------------------------------

FORMAT = "counterpoise policy 2"

WIDER = "counterpoise policy 3"  # has an encoding of contexts, names of actions or candidates, which older versions would overlook

IDS = "action ids"  # the tensor of the actions' ids, where these are not 0, 1, 2, …

NAMES = "action names"  # the tensor of their names as JSON, in bytes of UTF-8: a description has no room for a catalog


def save_policy(policy: Policy, path: str | PathLike[str], *, context: tuple[str, ...] = ()) -> None:
    """Write a policy, completely or not at all; `context` names the columns it looks at, by default those it was learned from.

    `load_policy` returns them as `context_`, and `evaluate` reads them, or refuses others in their place. For a `ModulePolicy`, only the
    weights are saved; bring the module yourself when you load it: `load_policy(path, module=…)`. If you wrote the policy's class
    yourself, it needs a `config` method that returns its arguments, and you load it with `load_policy(path, make=…)`.
    """
    check_ours(policy, "saved")
    names = list(context or policy.context_)
    policy.check_context(names)
    config = policy.description() | {"context": names}
    tensors = dict(policy.state_dict())
    if policy.encoding_ is not None:
        config["encoding"] = policy.encoding_.described()
    if policy.candidates_ is not None:
        config["candidates"] = policy.candidates_
    if policy.action_ is not None:
        config["action"] = policy.action_  # which older versions overlook
    if policy.lesson_ is not None:
        config["lesson"] = policy.lesson_.to_plain()  # which older versions may overlook
    if policy.actions_ is not None and policy.actions_.dtype == object:
        tensors[NAMES] = bytes_of(list(policy.actions_))
    elif policy.actions_ is not None:
        tensors[IDS] = torch.as_tensor(policy.actions_)
    is_wider = NAMES in tensors or config.keys() & {"encoding", "candidates"}
    write_tensors(path, tensors, {"format": WIDER if is_wider else FORMAT, "config": config})


def bytes_of(names: list[str]) -> Tensor:
    """Names as a tensor of bytes.

    >>> bytes_of(["jam", "tea"]).numpy().tobytes()
    b'["jam", "tea"]'
    """
    return torch.as_tensor(np.frombuffer(json.dumps(names).encode(), dtype=np.uint8).copy())


def check_ours(policy: Any, done: str) -> None:
    """Check that this is a policy all of whose tensors we can write."""
    if isinstance(getattr(policy, "policy_", None), Policy):
        raise OptionError(f"this is a {type(policy).__name__}, which has a policy.", do="Pass its policy_.")
    is_ours = isinstance(policy, Policy)
    if (
        any(getattr(part, "is_foreign", False) for part in policy.modules())
        if is_ours
        else hasattr(policy, "predict_proba")
    ):
        raise OptionError(
            f"a policy around a model of another library cannot be {done} here.",
            do="Save it the way that library does, or learn a network or a forest, which can be saved.",
        )
    if not is_ours:
        raise OptionError(f"only a Policy can be {done} here; found {type(policy).__name__}.")
