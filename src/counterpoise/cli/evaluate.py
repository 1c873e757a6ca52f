"""`counterpoise evaluate`."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli import options
from counterpoise.cli.coverage import checks_of, say_coverage
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.targets import typed_targets
from counterpoise.errors import OptionError
from counterpoise.log.addresses import without_password
from counterpoise.log.log import Log

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result


@ends_at_once
def evaluate(
    log: options.Log,
    reward: options.Rewards = None,
    propensity: options.Propensity = None,
    target: options.Target = None,
    target_action: options.TargetAction = None,
    segment: options.Segments = None,
    action: options.Action = None,
    context: options.Context = None,
    candidates: options.Candidates = None,
    propensity_model: options.PropensityModel = None,
    model: options.Model = None,
    items: options.Items = None,
    value_samples: options.ValueSamples = None,
    cluster: options.Cluster = None,
    no_cluster: options.NoCluster = False,
    baseline: options.Baseline = None,
    slate: options.Slate = None,
    position: options.Position = None,
    propensity_of: options.PropensityOf = None,
    discount: options.Discount = None,
    where: options.Where = None,
    estimator: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this estimator; may be repeated.")
    ] = None,
    weight: options.Weight = None,
    level: options.Level = 0.95,
    interval: options.Method = None,
    groups: options.Groups = None,
    max_segments: options.MaxSegments = None,
    tuned_for: options.TunedFor = 10_000,
    reward_bounds: options.RewardBounds = None,
    max_weight: options.MaxWeight = None,
    model_reward: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of a model's reward of the logged action, for dr and the other model-based estimators.",
        ),
    ] = None,
    model_value: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of the model's value of a target, in the order of the targets."),
    ] = None,
    drop_bad_rows: options.DropBadRows = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report for others to read, one HTML file.")
    ] = None,
    json: options.Json = False,
    check_coverage: options.CheckCoverage = False,
    coverage_runs: options.CoverageRuns = 1000,
    sensitivity: options.Sensitivity = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keeps the sums: this log is added to it, the answer is about all."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of this log in --state, such as its day; files may go without."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put this log in the place of what its batch or files had added to --state."),
    ] = False,
    table: options.TableName = None,
    query: options.Query = None,
    external_access: options.ExternalAccess = False,
    strict: options.Strict = False,
) -> None:
    """What target policies would have earned on a log, how sure that is, and whether to believe it.

    Exit code 0: done; 1: not identified, with --strict; 2: bad input.

    \b
    Examples:
      counterpoise evaluate log.parquet --reward click --propensity p --target pi_new
      counterpoise evaluate log.parquet --target pi_new --target pi_old --segment country --cluster user_id --html report.html
      counterpoise evaluate log.parquet --reward click --reward revenue --target pi_new
      counterpoise evaluate day1.parquet day2.parquet --target "half=pi_new / 2" --target-action greedy=item_new --action item
      counterpoise evaluate log.parquet --target policy.safetensors --context age --context income --action item
      counterpoise evaluate log.parquet --target-action item_new --action item --context age --context country --model auto
      counterpoise evaluate log.parquet --target pi_new --weight clip:slope
      counterpoise evaluate log.csv --where "country = 'DE'" --json
    """
    from counterpoise.cli.printing import answer, console, each_reward, estimates, ladder
    from counterpoise.engines.registry import columns_of
    from counterpoise.evaluation.documents import as_text, coverage, evaluation, of_rewards
    from counterpoise.evaluation.sensitivity import with_tipping_points

    if html is not None:
        _check_report(html)
    how = options.weight_of(weight)
    place = options.table_path(table)
    data = options.data_of(log)
    names = columns_of(Log(data, table=place, query=query, external_access=external_access))
    typed = typed_targets(target, target_action, names)
    parts, targets = options.guess_parts(
        names, reward[0] if reward else None, propensity, typed, quiet=json, propensity_model=propensity_model
    )
    result = cp.evaluate(
        data,
        reward=options.one_or_several(reward, parts.reward),
        propensity=options.propensity_of(parts.propensity, propensity_model),
        target=targets,
        segment=segment or None,
        action=action,
        context=context or None,
        candidates=candidates,
        model=model,
        items=options.items_of(items),
        value_samples=value_samples,
        cluster=options.cluster_of(cluster, no_cluster),
        baseline=baseline or None,
        slate=slate,
        position=position,
        propensity_of=propensity_of and propensity_of.replace("-", "_"),
        discount=discount,
        weight=how,
        estimator=estimator or None,
        interval=options.method(interval, tuned_for=tuned_for, reward_bounds=reward_bounds, max_weight=max_weight),
        level=level,
        groups=groups,
        max_segments=max_segments,
        reward_bounds=reward_bounds,
        model_reward=model_reward,
        model_value=model_value or None,
        drop_bad_rows=drop_bad_rows,
        where=where,
        table=place,
        query=query,
        external_access=external_access,
        state=state,
        batch=batch,
        replace=replace,
    )
    checks = checks_of(result, coverage_runs, wanted=check_coverage)
    result = with_tipping_points(result) if sensitivity else result
    if json:

        def document(single: Result) -> dict[str, Any]:
            return evaluation(single) | (coverage(checks[single.reward]) if checks else {})

        print(as_text(of_rewards(result, document)))
    else:
        out = console()
        for single in each_reward(out, result):
            answer(out, single)
            estimates(out, single)
            ladder(out, single)
            say_coverage(out, checks.get(single.reward))
    if html is not None:
        command = shlex.join(["counterpoise", *map(without_password, sys.argv[1:])])
        result.report(html, command=command, coverage=list(checks.values()))
        print(f"Report: {html}", file=sys.stderr if json else sys.stdout)
    if strict and options.is_unidentified(result):
        raise typer.Exit(1)


def _check_report(path: Path) -> None:
    """Before the log is read: there is a place to write a report to."""
    if path.is_dir():
        raise OptionError(f"cannot write {str(path)!r}: it is a folder. Name a file, such as report.html.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # the surest way to know whether there can be a file
    except OSError as error:
        raise OptionError(
            f"cannot write {str(path)!r}: {error.strerror}. Name a file in a folder that you may write to."
        ) from error
