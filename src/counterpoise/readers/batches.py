"""A state that grows day by day: which question it answers, which files it has seen, and its batches."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from os import PathLike
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

import numpy as np

from counterpoise.errors import AlreadyAddedError, MomentsError, OptionError, StateWarning, verbatim
from counterpoise.log.kinds import kinds_of
from counterpoise.log.parts import Minimize, is_minimized
from counterpoise.log.question import Question
from counterpoise.log.targets import ActionGroup
from counterpoise.moments import state as states
from counterpoise.moments.columns import CONTEXT
from counterpoise.moments.log_moments import LogMoments
from counterpoise.moments.state import MomentsOfRewards, State, StoredBatch, Summaries
from counterpoise.moments.weighed import Weighed
from counterpoise.readers import files
from counterpoise.readers.connections import is_database
from counterpoise.readers.policies import frame_of, item_ids

# -- The identity of a policy, as a text that stays the same tomorrow and differs for another policy -------------------


def identity(policy: object) -> str | None:
    """A policy's name with a hash of its code and parameters, or None if something in it cannot be inspected.

    For code in installed packages, only the names count. Two policies made in the same way have the same identity:

    >>> def halves(share):
    ...     return lambda batch: np.full(batch.num_rows, share)
    >>> identity(halves(0.5)) == identity(halves(0.5)), identity(halves(0.5)) == identity(halves(0.4))
    (True, False)
    """
    named = policy if isinstance(policy, FunctionType) else type(policy)
    try:
        return f"{named.__module__}.{named.__qualname__} {_Hashes().of(policy).hex()}"
    except Exception:  # objects that refuse to be copied may raise anything
        return None


class _Hashes:
    """Hashes of values by what they contain, never by where they are in memory."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.kept: list[object] = []  # a deleted object's id could be reused

    def of(self, value: object) -> bytes:
        """The hash of a value, made from the hashes of its parts."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return _hash(type(value).__name__.encode(), repr(value).encode())
        if id(value) not in self.known:
            self.known[id(value)] = b"within itself"
            self.kept.append(value)
            parts = (part if isinstance(part, bytes) else self.of(part) for part in self._parts(value))
            self.known[id(value)] = _hash(type(value).__qualname__.encode(), *parts)
        return self.known[id(value)]

    def _parts(self, value: object) -> Iterator[object]:
        match value:
            case list() | tuple():
                yield from value if type(value) in (list, tuple) else (type(value), *value)
            case dict():
                yield from sorted(self.of(key) + self.of(entry) for key, entry in value.items())
            case set() | frozenset():
                yield from sorted(map(self.of, value))
            case np.ndarray() if value.dtype.kind != "O":
                yield from (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
            case ModuleType():
                yield value.__name__
            case CodeType():
                yield from (value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars)
            case FunctionType():
                yield from (value.__module__, value.__qualname__, value.__defaults__, value.__kwdefaults__)
                yield value.__dict__
                yield from (cell.cell_contents for cell in value.__closure__ or ())
                if not _is_installed(value.__module__):
                    yield value.__code__
                    for name in sorted(_names(value.__code__) & set(value.__globals__)):
                        yield from (name, value.__globals__[name])
            case MethodType():
                yield from (value.__self__, value.__func__)
            case staticmethod() | classmethod():
                yield value.__func__
            case property():
                yield value.fget
            case type():
                yield from (value.__module__, value.__qualname__)
                if not _is_installed(value.__module__):
                    yield value.__bases__
                    code = (FunctionType, staticmethod, classmethod, property)
                    for name, part in sorted(vars(value).items()):
                        if isinstance(part, code) or not name.startswith("_"):
                            yield from (name, part)
            case _ if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor, which pickles with its addresses
                tensor = value.detach()
                yield from (str(tensor.dtype), tuple(tensor.shape), tensor.cpu().double().numpy())
            case _:
                reduced = value.__reduce_ex__(4)  # what pickle would write
                if isinstance(reduced, str):  # the name of something that its module has
                    yield from (str(getattr(value, "__module__", "")), reduced)
                else:
                    yield from (list(part) if isinstance(part, Iterator) else part for part in reduced)


def _names(code: CodeType) -> set[str]:
    """The names that a function, and the functions inside it, look up."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether a module is part of Python or of a package, whose code changes with its version and would be endless to follow."""
    loaded = sys.modules.get(module or "")
    if loaded is None or module == "__main__":
        return False
    file, paths = getattr(loaded, "__file__", None), sysconfig.get_paths()
    places = (Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return file is None or any(place in Path(file).parents for place in places)


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


# -- A log's files as they were when they were read: known again by their content, and not changed in the meantime -----

_PIECE, _PIECES = 2**20, 64  # bytes and number of the pieces of a file, its ends among them, that tell it from others
# what tells whether a file is still the same; its content's hash first
Fingerprints = Mapping[Path, tuple[object, ...]]


def fingerprints_of(log: object, batch: str | None) -> Fingerprints:
    """The log's files, each with something that tells whether it is still the same; none if the log is not in files."""
    paths = files.files_of(log) if files.is_paths(log) and not is_database(log) else None
    if batch is None and paths is None:
        raise OptionError(
            "`state=` needs `batch=`, a key of this part of the log such as '2026-11-14', so that it can refuse to add it twice."
        )
    fingerprints: dict[Path, tuple[object, ...]] = {}
    by_content: dict[object, Path] = {}  # by content
    for path in paths or ():
        fingerprint = _fingerprint(path)
        if batch is None and fingerprint[0] in by_content:
            raise MomentsError(
                f"the file {str(by_content[fingerprint[0]])!r} and the file {str(path)!r} are the same: their rows would count twice.",
                do="Leave one out, or give all of them a key with `batch=`.",
            )
        fingerprints[path], by_content[fingerprint[0]] = fingerprint, path
    return fingerprints


def _fingerprint(path: Path) -> tuple[object, ...]:
    """A hash that stays the same if a file is copied or renamed (for long files, made from parts of it); then, when it was written."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.sha256(f"{status.st_size} ".encode())
        for k in range(min(_PIECES, -(-status.st_size // _PIECE))):
            is_short = status.st_size <= _PIECES * _PIECE
            file.seek(k * _PIECE if is_short else (status.st_size - _PIECE) * k // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32], status.st_size, status.st_mtime_ns, status.st_ino


def check_unchanged(before: Fingerprints, log: object, batch: str | None) -> None:
    """Check that the files that were read are still those that the state will record."""
    try:
        now = fingerprints_of(log, batch)
    except OSError as error:
        raise MomentsError(
            f"cannot look at the log again after reading it: {verbatim(error)}. Nothing was stored."
        ) from error
    changed = [path for path in {**before, **now} if before.get(path) != now.get(path)]
    if changed:
        raise MomentsError(
            f"the file {str(changed[0])!r} changed while the log was read: which of its rows were counted is unknown, and nothing was "
            "stored. Run this again once the file is complete."
        )


# -- The question that a state answers, as it is kept: what must be the same every day, policies included --------------


def check_same(path: str | PathLike[str], state: State, question: Mapping[str, object]) -> None:
    """Refuse a state that answers another question, or is about other policies."""
    if state.question.get("smoothings", []) != question.get("smoothings", []):
        has = "smoothings" in state.question
        raise MomentsError(
            f"the state {str(path)!r} {'has' if has else 'lacks'} the sums of the log_smoothing interval, and this call "
            f"{'does not make' if has else 'needs'} them: their moments do not add up.",
            do=f"{'Pass' if has else 'Leave out'} `interval='log_smoothing'`, or name another state.",
        )
    unsaid: dict[str, object] = {"baseline": []}  # in a question that has none
    for part in {**unsaid, **state.question, **question}:
        if part == "minimize":  # which changes no sum
            continue
        mine, theirs = (unsaid | dict(question)).get(part), (unsaid | state.question).get(part)
        if part == "where":  # 0.3 kept the day
            theirs = of_any_day(state.question["where"])
        if part == "version" and isinstance(mine, dict) and isinstance(theirs, dict) and theirs != mine:
            name = next(name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name))
            raise MomentsError(
                f"the state {str(path)!r} was made with another {name!r}: its version there is {theirs.get(name)!r}, here it is "
                f"{mine.get(name)!r}. Values of two policies do not add up: name another state.",
                do="If the policy is the same, and only a library or Python changed, declare that from the start with "
                f"`version={{{name!r}: '…'}}`.",
            )
        if theirs != mine:
            raise MomentsError(
                f"the state {str(path)!r} was made with `{part}={theirs!r}`, and this call has `{part}={mine!r}`: "
                "their moments do not add up.",
                do="Use the same arguments, or name another state." + (_BY_DAY if part == "where" else ""),
            )


_BY_DAY = (
    " To add a log day by day, pass `where=\"day = '2026-11-14'\"`, which may name another day each time, or choose the rows of a "
    "database with `query=`."
)
_IS_DAY = re.compile(
    r"""\s*([\w."`]+\s*=\s*)(?:(?:date|timestamp)\s*)?(?:'\d{4}-?\d\d-?\d\d'|(?:19|20)\d\d[01]\d[0-3]\d)\s*""",
    re.IGNORECASE,
)


def of_any_day(where: str | None) -> str | None:
    """A condition in which the day that a column equals may be another one each time: rows of two days are never the same.

    >>> of_any_day("day = '2026-11-14' AND country = 'DE'"), of_any_day("day >= '2026-11-14'")
    ("day = 'any day' AND country = 'DE'", "day >= '2026-11-14'")
    """
    if where is None or re.search(r"\b(or|not|case)\b", where, re.IGNORECASE):
        return where
    terms = re.split(r"(\s+and\s+)", where, flags=re.IGNORECASE)
    if any(term.count("(") != term.count(")") or term.count("'") % 2 for term in terms):
        return where
    return "".join(f"{match[1]}'any day'" if (match := _IS_DAY.fullmatch(term)) else term for term in terms)


def question_kept(question: Question, version: str | Mapping[str, str] | None) -> dict[str, object]:
    """What must be the same every day, as JSON keeps it."""
    rewards = list(question.log.reward)
    kept: dict[str, object] = {
        "reward": rewards if len(rewards) > 1 else rewards[0],
        "propensity": question.propensity_named,
        "target": list(question.target_names),
        "target columns": {
            target.name: target.described for target in question.targets if target.described != target.name
        },
        "weight": Weighed.of(question.weight).how,
        "contrasts": [list(contrast) for contrast in question.contrasts],
        "segment": list(question.segment),
        "cluster": question.log.cluster,
        "groups": question.groups,
        "key": list(question.log.key),
        "model_reward": question.log.model_reward,
        "model_value": dict(question.model_value),
        "control": dict(question.control),
        "where": of_any_day(question.log.where),
        "action": question.log.action if question.needs_python or question.choices else None,
        "context": list(question.log.context) if question.needs_python else [],
        "drop_bad_rows": question.log.drop_bad_rows,
        "version": _versions(question, version),
    } | ({"smoothings": list(question.smoothings)} if question.smoothings else {})
    if question.log.candidates is not None and question.needs_python:
        kept["candidates"] = question.log.candidates
    if question.log.items is not None:
        # the columns that the model knows about the items, and which of them the k-th probability of a list belongs to; their values may
        # change, as prices do: a model is fitted anew on every log, and the estimate is right with any of them
        frame = frame_of(question.log.items)
        ids = item_ids(frame, str(question.log.action))
        order = f", {len(ids):,} in the order {identity(ids.to_list())}" if question.tables else ""
        kept["items"] = f"the columns {', '.join(map(repr, frame.columns))}{order}"
    if question.features:
        kept["baseline"] = [feature.name.removeprefix(CONTEXT) for feature in question.features]
    for kind in kinds_of(question.log):
        kept |= kind.kept(question.log)
    if question.propensity_model is not None:
        kept["propensity_model"] = question.propensity_model.described
    if question.model is not None:
        kept["model"] = question.model.described
    if question.log.minimize is not None:
        kept["minimize"] = [reward for reward in rewards if is_minimized(question.log.minimize, reward)]
    return dict(json.loads(json.dumps(kept)))


def _versions(question: Question, version: str | Mapping[str, str] | None) -> dict[str, str]:
    """The version of every target that has one: as given, or from a policy's code and parameters."""
    named = dict.fromkeys(question.target_names, version) if isinstance(version, str) else version or {}
    if not isinstance(named, Mapping) or not all(isinstance(text, str) and text for text in named.values()):
        raise OptionError(f"`version={version!r}` must be a text such as '2', or map targets to texts.")
    for name in named:
        if name not in question.target_names:
            raise OptionError(f"version names {name!r}; the targets are {', '.join(map(repr, question.target_names))}.")
    versions = {str(name): str(text) for name, text in named.items()}
    for target in question.policies:
        name = target.name
        if name not in versions and target not in question.tables:
            policy = target.source
            if isinstance(policy, ActionGroup) and isinstance(policy.groups, Mapping):
                # the order of its groups counts, which a mapping's own identity ignores
                digest = identity((policy.target, policy.propensity, list(policy.groups.items())))
            else:
                digest = identity(policy)
            if digest is None:
                raise OptionError(
                    f"the policy {name!r} has something in it that cannot be looked at (a connection or a lock, say), so a state could "
                    "not tell it from another policy of that name.",
                    do=f"Pass `version={{{name!r}: '1'}}`, and change it with the policy.",
                )
            versions[name] = digest
    weight = question.weight
    # the name of a user's own weight says nothing about its formula
    if not type(weight).__module__.startswith("counterpoise."):
        versions[f"{type(weight).__name__} (weight)"] = identity(weight) or "unknown"
    return dict(sorted(versions.items()))


# -- What a daily job may add to its state: every row once -------------------------------------------------------------


@dataclass(frozen=True)
class Addition:
    """A batch on its way into a state: what we know about it before its log is read."""

    place: Path
    question: dict[str, object]
    batch: StoredBatch
    log: object
    fingerprints: Fingerprints
    replaces: bool


def start(
    path: str | PathLike[str],
    question: Question,
    *,
    batch: str | None = None,
    replaces: bool = False,
    version: str | Mapping[str, str] | None = None,
) -> Addition:
    """Refuse, before the log is read, a batch that has already been added or a state that answers another question."""
    if not isinstance(path, str | PathLike):
        raise OptionError(f"`state=` must be the path of a file, found {type(path).__name__}.")
    if batch is not None and (not isinstance(batch, str) or not batch):
        raise OptionError(f"`batch={batch!r}` must be a text such as '2026-11-14'.")
    if not isinstance(replaces, bool):
        raise OptionError(f"`replace={replaces!r}` must be True or False.")
    if not Path(path).parent.is_dir():
        raise MomentsError(f"cannot write the state {str(path)!r}: there is no folder {str(Path(path).parent)!r}.")
    if Path(path).is_symlink():  # replaced, there would be two states; written through, the file may be anybody's
        raise MomentsError(
            f"the state {str(path)!r} is a link, and states are never written through one.",
            do=f"Name the file itself: `state={str(Path(path).resolve())!r}`.",
        )
    log, kept = question.log.data, question_kept(question, version)
    state = states.load(path)
    if state is not None:
        check_same(path, state, kept)
    fingerprints = fingerprints_of(log, batch)
    new = StoredBatch(batch, {str(file.resolve()): str(fingerprint[0]) for file, fingerprint in fingerprints.items()})
    job = Addition(Path(path), kept, new, log, fingerprints, replaces)
    if state is not None:
        _find_outdated(job, state)
    return job


def finish(
    job: Addition, today: MomentsOfRewards, summarize: Callable[[MomentsOfRewards], Summaries]
) -> tuple[MomentsOfRewards, Minimize]:
    """The stored moments with today's, one for each reward, and what is said of them; stored before they are returned, all or nothing.

    `summarize` makes the few numbers of a batch that the state keeps for good.
    """
    check_unchanged(job.fingerprints, job.log, job.batch.key)
    new = replace(job.batch, rows=today[0].n, dropped=today[0].dropped, summaries=summarize(today))
    copied = kept = None
    with states.alone(job.place.parent):
        known = states.load(job.place)  # once more: another job may have added to it while the log was read
        if known is None:
            state = State(job.question, (), (), ()).added(new, today, set())
        else:
            check_same(job.place, known, job.question)
            outdated = _find_outdated(job, known)
            if job.batch.key is not None:
                copied = _look_alike(job, known, outdated, today)
            else:  # compressed, converted or written with other line endings, copies have other bytes but the same moments
                for k, moments in enumerate(known.recent, known.first_apart):
                    if k not in outdated and all(map(_is_copy, moments, today)):
                        raise MomentsError(
                            f"{job.batch} has the same numbers as {known.batches[k]} in the state {str(job.place)!r}: it looks like a "
                            "copy (compressed, converted, or with other line ends), whose rows would count twice.",
                            do="If these are other rows after all, give them a key with `batch=`.",
                        )
            minimize = {name: job.question[name] for name in ("minimize",) if name in job.question}  # the last word
            state = replace(known.summarized(summarize).added(new, today, outdated), question=known.question | minimize)
            kept = states.backup(job.place, known) if known.format < states.FORMAT else None
        states.store(job.place, state)
    if kept is not None:
        warnings.warn(
            f"the state {str(job.place)!r} was in an earlier format, which this version no longer writes. The old file is kept as "
            f"{str(kept)!r}.",
            StateWarning,
            stacklevel=2,
        )
    if copied is not None:
        warnings.warn(
            f"{job.batch} has the same rows as {copied}, as far as we can tell, and both count in the state {str(job.place)!r}. If they "
            "are, make a new state from the logs.",
            StateWarning,
            stacklevel=2,
        )
    return state.moments, state.question.get("minimize")


def _find_outdated(job: Addition, state: State) -> set[int]:
    """The places of the batches that the new one replaces; unless replace=True, there must be none."""
    new = job.batch
    # the places of the batches that seem to share rows with the new one, and what suggests so: kinds of `_TWICE`, with names
    overlaps: dict[int, list[tuple[str, str]]] = {}
    names, inside = {content: file for file, content in new.files.items()}, _inside(job)
    for k, batch in enumerate(state.batches):
        if new.key is not None and new.key == batch.key:
            overlaps[k] = [("key", new.key)]
        elif new.key is None or (job.replaces and batch.key is None):  # a key says that these are other rows
            for file, content in batch.files.items():
                if content in names:
                    overlaps.setdefault(k, []).append(("content", names[content]))
                elif file in new.files:
                    overlaps.setdefault(k, []).append(("path", file))
                elif inside is not None and inside.fullmatch(file):
                    overlaps.setdefault(k, []).append(("folder", file))
    if not job.replaces:
        # whether the whole log is in the state, as after a job that ran twice, and not just a part or an earlier version of it
        contents = {content for batch in state.batches for content in batch.files.values()}
        is_there = contents.issuperset(names) if names else new.key in {batch.key for batch in state.batches}
        for kind, said in _TWICE.items():
            files = [file for reasons in overlaps.values() for why, file in reasons if why == kind]
            if files:
                others = f", as are {len(files) - 1:,} others" if len(files) > 1 else ""
                what, advice = said
                refusal = AlreadyAddedError if is_there else MomentsError
                raise refusal(what.format(name=files[0], state=str(job.place), others=others), do=advice)
    for k in overlaps:
        _check_replaceable(job, state, k)
    return set(overlaps)


_REPLACE, _DAY = "`replace=True`", "`batch='2026-11-14'`"
_TWICE = {
    "key": (
        "the batch {name!r} is already in the state {state!r}: adding it again would count its rows twice.",
        f"Give only what is new, or pass {_REPLACE} to put this log in its place.",
    ),
    "content": (
        "the file {name!r} is already in the state {state!r}{others}: adding it again would count its rows twice.",
        "Give only what is new; if these are other rows, give them a key of their own with `batch=`.",
    ),
    "path": (
        "the file {name!r} is in the state {state!r} with other content{others}: rows that it had then and still has would count twice.",
        f"If all its rows are new, give them a key with {_DAY}; if the old ones are among them, pass {_REPLACE} to put it "
        "in the place of what it had added.",
    ),
    "folder": (
        "the file {name!r} is in the state {state!r}{others}, but no longer in its folder: if the folder was compacted, its rows would "
        "count twice.",
        f"If all rows in it are new, give them a key with {_DAY}; if the old ones are among them, pass {_REPLACE} to put "
        "the folder in the place of what it had added.",
    ),
}


def _inside(job: Addition) -> re.Pattern[str] | None:
    """What the path of a file looks like, gone or not, if it is in the log's folders or matches its globs."""
    if not job.fingerprints or not files.is_paths(job.log):
        return None
    patterns = []
    places = [job.log] if isinstance(job.log, str | PathLike) else job.log
    for place in (Path(path).resolve() for path in places):
        if place.is_dir():
            patterns.append(re.escape(f"{place}{os.sep}") + ".*")
        elif not place.exists():
            patterns.append(translate(str(place)))
    return re.compile("|".join(patterns), re.DOTALL) if patterns else None


def _check_replaceable(job: Addition, state: State, k: int) -> None:
    """Check that a batch can be replaced: as a whole, by a call that says which one, and while it is still kept apart."""
    new, batch, path, inside = job.batch, state.batches[k], str(job.place), _inside(job)
    if batch.key is not None and batch.key != new.key:
        raise MomentsError(
            f"the state {path!r} has files of this log as {batch}.",
            do=f"Name the batch to replace with `batch={batch.key!r}` and {_REPLACE}.",
        )
    contents = set(new.files.values())
    for file, content in batch.files.items() if batch.key is None else ():
        if not (file in new.files or content in contents or (inside is not None and inside.fullmatch(file))):
            raise MomentsError(
                f"the state {path!r} has {file!r} in one sum with files of this log, and a sum cannot be taken apart: pass all files that "
                "were added together, or make a new state from the logs."
            )
    if k < state.first_apart:
        raise MomentsError(
            f"{batch} cannot be replaced any more: the state {path!r} keeps only its last {len(state.recent)} batches apart. Make a new "
            "state from the logs."
        )


def _look_alike(job: Addition, state: State, outdated: set[int], today: MomentsOfRewards) -> StoredBatch | None:
    """Another batch that seems to have the same rows, if there is one: a key says that rows are new, and may be wrong."""
    # one file may have all days, each of them a batch
    contents = set() if "'any day'" in str(job.question["where"]) else set(job.batch.files.values())
    for k, batch in enumerate(state.batches):
        if k in outdated:
            continue
        apart = state.recent[k - state.first_apart] if k >= state.first_apart else None
        if contents & set(batch.files.values()) or (apart is not None and all(map(_is_copy, apart, today))):
            return batch
    return None


def new_files(path: str | PathLike[str], log: object) -> list[Path]:
    """The files of a log whose content a state does not have yet, in the order of their names; all, if there is no state yet."""
    paths = files.files_of(log) if files.is_paths(log) and not is_database(log) else None
    if paths is None:
        raise OptionError(
            "only files can be told apart as new or known.", do="Pass `batch=`, a key of this part of the log."
        )
    state = states.load(path)
    contents = {content for batch in state.batches for content in batch.files.values()} if state else set()
    return [file for file in sorted(paths) if str(_fingerprint(file)[0]) not in contents]


def _is_copy(first: LogMoments, second: LogMoments) -> bool:
    """Whether two logs have the same rows as far as their moments can tell, whatever their files look like."""
    if first.segments != second.segments or first.moments.keys() != second.moments.keys():
        return False
    ends = ((first.reward_min, second.reward_min), (first.reward_max, second.reward_max))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in ends):
        return False
    for key, moments in first.moments.items():
        others = second.moments[key]
        if moments.columns != others.columns or not np.array_equal(moments.n, others.n):
            return False
        others = others.recenter(moments.center)
        for a, b in ((moments.mean, others.mean), (moments.scatter, others.scatter)):
            if not np.allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(a).max(initial=0.0))):
                return False
    return True
