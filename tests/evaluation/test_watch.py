"""`watch`: quiet months stay quiet, lasting changes are found and dated, and every way in gives the same days."""

import json
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from command_line import shop
from messages import refuses

import counterpoise as cp
from counterpoise.display import as_text
from counterpoise.evaluation.changes import (
    POOLED,
    SETTLED,
    Watched,
    alarm_limit,
    dispersion,
    quiet_errors,
    scan,
    weekday_spread,
)
from counterpoise.evaluation.watch import WatchedDay, watch_days
from counterpoise.intervals.student import heavier

COLUMNS = {"reward": "click", "propensity": "p", "target": "pi_new"}
PLENTY = np.full(30, 1e4)
WEEK = [k % 7 for k in range(30)]


def dated(day):
    return (date(2026, 6, 1) + timedelta(days=day)).isoformat()


def month(days=30, rows=400, change=None, seed=0):
    """A log with a season; `change` gets each day's frame and number."""
    parts = []
    for day in range(days):
        part = shop(rows, seed=100 * seed + day).with_columns(day=pl.lit(dated(day)))
        parts.append(part if change is None else change(part, day))
    return pl.concat(parts)


def more_clicks(part, day, first=19, share=0.25):
    extra = np.random.default_rng(day).random(len(part)) < share
    return part.with_columns(click=pl.when(pl.lit(extra)).then(1.0).otherwise("click")) if day >= first else part


# -- the detector --------------------------------------------------------------------------------------------------------


def test_the_scan_is_least_squares_with_weekdays_as_random_effects_and_limits_by_the_rows_that_carry_it():
    random = np.random.default_rng(1)
    y, errors, carrying, spread = random.normal(size=25), random.uniform(0.5, 2, 25), random.uniform(2, 60, 25), 0.7
    covariance = np.diag(errors**2) + spread * np.equal.outer(WEEK[:25], WEEK[:25])
    for shift in scan(y, errors, carrying, WEEK[:25], spread, 14, lambda day: 3.0 + 0.01 * day):
        last, best = shift.noticed, (0.0,)
        inverse = np.linalg.inv(covariance[: last + 1, : last + 1])
        for start in range(SETTLED, last + 1):
            x = np.column_stack([np.ones(last + 1), np.arange(last + 1) >= start])
            information = x.T @ inverse @ x
            of_days = np.linalg.solve(information, x.T @ inverse)
            beta = of_days @ y[: last + 1]
            z = beta[1] / np.sqrt(np.linalg.inv(information)[1, 1])
            squares = (of_days[1] * errors[: last + 1]) ** 2
            kurtosis = ((squares / squares.sum()) ** 2 / carrying[: last + 1]).sum()
            limit = heavier(3.0 + 0.01 * last, 1 / kurtosis + POOLED)
            best = max(best, (abs(z) / limit, start, z, beta[0], beta.sum(), limit))
        found = shift.first, shift.errors, shift.before, shift.after, shift.limit
        assert (abs(shift.errors) / shift.limit, *found) == pytest.approx(best)


@pytest.mark.thorough
@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
def test_a_quiet_month_of_five_series_rarely_alarms_and_a_shift_of_three_errors_is_found_in_four_days(spread):
    random, runs, watched = np.random.default_rng(2), 300, Watched(14, 5, 0.05)
    false, hits = 0, 0
    for _ in range(runs):
        y = random.normal(size=30) + spread * random.normal(size=7)[WEEK]
        false += bool(watched.changes(y, np.ones(30), PLENTY, PLENTY, WEEK)[0])
        y[19:] += 3
        shifts, _ = watched.changes(y, np.ones(30), PLENTY, PLENTY, WEEK)
        hits += any(19 <= shift.noticed <= 22 for shift in shifts)
    assert false / runs <= 0.01 + 3 * np.sqrt(0.01 * 0.99 / runs)  # of one of the five
    assert hits / runs >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / runs)


def test_four_days_with_few_clicks_each_stand_as_firmly_as_one_with_many():
    y = np.where(np.arange(30) < 19, 0.0, 2.0) + 0.1 * np.random.default_rng(3).normal(size=30)

    def limits(carrying):
        shifts = scan(y, np.ones(30), np.full(30, carrying), WEEK, 0.01, 14, lambda day: 3.8)
        return {shift.noticed: shift.limit for shift in shifts if shift.first == 19}

    few, many = limits(20.0), limits(1e6)
    assert many[19] == pytest.approx(3.8, abs=1e-3)
    assert few[19] > 1.07 * 3.8 > 1.03 * 3.8 > few[22] > few[25]


def test_the_limit_rises_with_days_and_series():
    limits = [alarm_limit(14, last, series, 0.05) for last, series in ((20, 1), (30, 1), (30, 5), (30, 50))]
    assert limits == sorted(limits)
    assert Watched(14, 5, 0.05).limit(40) == alarm_limit(30, 60, 5, 0.05)


def test_a_weekday_effect_is_shrunk_where_days_are_alike():
    random = np.random.default_rng(3)
    alike = [weekday_spread(random.normal(size=14), np.ones(14), WEEK[:14]) for _ in range(50)]
    apart = [
        weekday_spread(random.normal(size=14) + 9.0 * np.arange(7)[WEEK[:14]], np.ones(14), WEEK[:14]) for _ in range(9)
    ]
    assert np.median(alike) < 0.5
    assert min(apart) > 100


def test_a_day_has_the_error_of_its_weekday_in_the_reference_and_its_own_only_if_that_is_wild():
    errors = np.where(np.array(WEEK) == 6, 0.2, 0.1)
    errors[[17, 18, 19]] = 0.0, 0.12, 0.9  # no clicks, more clicks, an outlier
    own = quiet_errors(errors, np.full(30, 1e4), np.full(30, 50.0), WEEK, slice(0, 14))
    assert own[[16, 17, 18]] == pytest.approx(0.1, rel=0.01)
    assert own[[6, 27]] == pytest.approx(0.2, rel=0.01)
    assert own[19] == pytest.approx(0.9, rel=0.01)


def test_reference_days_that_differ_by_more_than_their_rows_explain_are_noticed():
    random = np.random.default_rng(4)
    assert dispersion(random.normal(size=14), np.ones(14), WEEK[:14]) == 1.0
    assert dispersion(4 * random.normal(size=14), np.ones(14), WEEK[:14]) > 2


def test_after_an_alarm_the_days_since_are_the_new_reference():
    random = np.random.default_rng(5)
    y = random.normal(size=60)
    y[20:] += 8
    y[45:] -= 8
    week = [k % 7 for k in range(60)]
    shifts, _ = Watched(14, 5, 0.05).changes(y, np.ones(60), np.full(60, 1e4), np.full(60, 1e4), week)
    assert [shift.first for shift in shifts] == [20, 45]
    assert [np.sign(shift.after - shift.before) for shift in shifts] == [1, -1]


# -- the verb ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log():
    return month(change=more_clicks)


@pytest.fixture(scope="module")
def answer(log):
    return cp.watch(log, **COLUMNS, day="day", alert=["changed", "lift < 0", "lift > 0"])


def test_a_change_is_found_dated_and_explained(answer):
    alarms = {alarm.series: alarm for alarm in answer.alarms}
    assert alarms["reward"].since == dated(19)
    assert alarms["reward"].after > alarms["reward"].before
    assert alarms["reward"].noticed <= dated(22)
    assert "rose from" in alarms["reward"].text
    assert "look at the log first" in alarms["reward"].text
    assert {"weight", "propensities"}.isdisjoint(alarms)


def test_the_answer_shows_itself_in_fewer_than_forty_lines_and_in_plain_values(answer):
    lines = str(answer).splitlines()
    assert lines[0].startswith(
        f"{len(answer.alarms)} alarms in the 16 days after the reference (2026-06-01 to 2026-06-14)"
    )
    assert len(lines) < 40
    document = json.loads(as_text(answer.document()))
    assert document["alarms"][0]["since"] == dated(19)
    assert [len(series["days"]) for series in document["series"]] == [30] * 6
    assert answer.table().height == 180
    assert "rose from" in answer._repr_html_()


def test_the_last_band_is_about_the_whole_log(log, answer):
    result = cp.evaluate(log, **COLUMNS)
    for kind, name in (("value", result.best), ("lift", "lift")):
        series = next(series for series in answer.series if series.kind == kind)
        whole = result["pi_new", name]
        assert series.running[-1] == pytest.approx(whole.value, abs=0.3 * whole.stderr)
        assert series.running_errors[-1] == pytest.approx(whole.stderr, rel=0.05)
        assert series.lower[-1] < whole.interval.lower < whole.interval.upper < series.upper[-1]


def test_alerts_need_the_whole_band(answer):
    assert [(alert.alert, alert.fired) for alert in answer.alerts] == [
        ("changed", True),
        ("lift < 0", False),
        ("lift > 0", True),
    ]
    assert answer.fired
    assert "lift of pi_new is +" in answer.alerts[1].text


def test_an_alert_can_leave_out_what_was_known(log):
    for day, fired in ((dated(19), True), (dated(29), False)):
        assert cp.watch(log, **COLUMNS, day="day", alert=f"changed since {day}").fired == fired


@pytest.mark.thorough
def test_a_month_without_a_change_has_no_alarm_nineteen_times_in_twenty():
    months = [cp.watch(month(rows=200, seed=seed), **COLUMNS, day="day", alert="changed") for seed in range(10)]
    quiet = [each for each in months if not each.alarms]
    assert len(quiet) >= 7  # with a chance of 1 in 1,000 for fewer
    assert [each.fired for each in months] == [bool(each.alarms) for each in months]
    assert str(quiet[0]).startswith("No alarm in the 16 days after the reference")


def test_a_strong_season_is_not_a_change():
    def weekend(part, day):
        return more_clicks(part, day, first=0, share=0.5) if day % 7 > 4 else part

    seasonal = cp.watch(month(change=weekend), **COLUMNS, day="day")
    assert seasonal.alarms == ()


def test_wrong_propensities_change_the_mean_weight():
    def halved(part, day):
        return part.with_columns(p=pl.col("p") * 0.8) if day >= 19 else part

    alarms = {alarm.series: alarm for alarm in cp.watch(month(change=halved), **COLUMNS, day="day").alarms}
    assert alarms["weight"].since == dated(19)
    assert "check the logger" in alarms["weight"].text


def test_a_policy_that_explores_less_changes_the_effective_share():
    def explored(part, day):
        p = 0.5 if day < 19 else 0.2
        random = np.random.default_rng(day)
        likes = random.random(len(part)) < p
        return part.with_columns(p=pl.Series(np.where(likes, p, 1 - p)), pi_new=pl.Series(np.where(likes, 0.9, 0.1)))

    alarms = {alarm.series: alarm for alarm in cp.watch(month(change=explored), **COLUMNS, day="day").alarms}
    assert alarms["propensities"].since == dated(19)
    assert "weight" not in alarms


def numbers(answer):
    return {
        (series.reward, series.target, series.kind, part): getattr(series, part)
        for series in answer.series
        for part in ("values", "errors", "lower", "upper")
    }


@pytest.mark.parametrize(
    "more", [{}, {"cluster": "user_id"}, {"reward": ["click", "2 * click"]}, {"target": ["pi_new", "pi_old"]}]
)
def test_a_column_of_days_files_and_a_state_give_the_same_days(tmp_path, more):
    few = month(days=10, rows=150)
    question = COLUMNS | more
    for name, part in few.group_by("day", maintain_order=True):
        part.write_parquet(tmp_path / f"{name[0]}.parquet")
    state = tmp_path / "state"
    by_column = cp.watch(few, **question, day="day")
    by_files = cp.watch(tmp_path / "*.parquet", **question)
    by_state = cp.watch(tmp_path / "*.parquet", **question, state=state)
    again = cp.watch(state)
    for other in (by_files, by_state, again):
        assert [day.name for day in other.days] == [dated(k) for k in range(10)]
        mine, theirs = numbers(by_column), numbers(other)
        assert mine.keys() == theirs.keys()
        for key, values in mine.items():
            assert theirs[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key
    assert "10 days so far: alarms begin once a reference of 14 days is complete" in str(again)


def test_bands_are_wider_where_days_share_users():
    def same_users(part, day):
        often = np.random.default_rng(9).random(len(part)) < 0.3
        return part.with_columns(click=pl.Series(often * 1.0), user_id=pl.Series(np.arange(len(part))))

    shared = month(days=10, change=same_users)
    loose, tight = (cp.watch(shared, **COLUMNS, cluster=cluster, day="day") for cluster in ("user_id", False))
    for series, other in zip(loose.series, tight.series, strict=True):
        if series.kind == "reward":
            width, other_width = (float(each.upper[-1] - each.lower[-1]) for each in (series, other))
            assert width > 2 * other_width


def test_a_state_of_compare_is_watched_by_its_differences(tmp_path):
    for day in range(9):
        question = COLUMNS | {"against": "pi_old", "segment": "country"}
        made = cp.compare(shop(300, seed=day), **question, state=tmp_path / "s", batch=dated(day))
    lift = next(each for each in cp.watch(tmp_path / "s").series if (each.kind, each.target) == ("lift", "pi_new"))
    assert lift.running[-1] == pytest.approx(made.value, abs=0.01)


def test_lists_and_weights_are_watched(tmp_path):
    lists = pl.DataFrame(
        {
            "slate": np.arange(600) // 3,
            "position": np.tile([1, 2, 3], 200),
            "click": np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 100),
        }
    ).with_columns(p=0.5, pi_new=pl.when(pl.col("position") == 1).then(0.6).otherwise(0.5))
    for day in range(9):
        slates = {"slate": "slate", "position": "position", "propensity_of": "item_given_above"}
        cp.evaluate(lists[: 300 + 30 * day], **COLUMNS, **slates, state=tmp_path / "lists", batch=dated(day))
        cp.evaluate(
            shop(300, seed=day), **COLUMNS, weight=cp.weights.Clip(2), state=tmp_path / "clip", batch=dated(day)
        )
    for name in ("lists", "clip"):
        kinds = {series.kind for series in cp.watch(tmp_path / name).series}
        assert {"value", "reward", "weight"} <= kinds


def day_of(name, value, rows=100, **more):
    numbers = {"value": value, "value error": 0.1, "value carrying rows": 50.0}
    parsed = date.fromisoformat(name) if name[:2] == "20" else None
    return WatchedDay(name, parsed, rows, {"r": {"": {"rows": rows}, "t": numbers | more}})


def test_batches_of_one_day_count_as_one_and_days_are_in_order():
    made = watch_days([day_of("2026-06-02", 3.0), day_of("2026-06-01", 1.0, rows=300), day_of("2026-06-01", 2.0)])
    series, rows = made.series
    assert rows.values.tolist() == [400, 100]
    assert series.days == ("2026-06-01", "2026-06-02")
    assert series.values.tolist() == [1.25, 3.0]
    assert series.errors[0] == pytest.approx(np.hypot(0.75, 0.25) * 0.1)
    assert [day.rows for day in made.days] == [400, 100]


def test_batches_without_dates_count_in_the_order_in_which_they_were_added():
    made = watch_days([day_of("mon", 3.0), day_of("2026-06-01", 1.0), day_of("mon", 2.0)])
    assert made.series[0].days == ("mon", "2026-06-01", "mon (2)")
    assert "Some batches have no date" in made.notes[0]


def test_rows_without_a_day_are_left_out_and_mentioned():
    part = month(days=9, rows=60).with_columns(
        day=pl.when(pl.int_range(pl.len()) % 100 == 0).then(None).otherwise("day")
    )
    made = cp.watch(part, **COLUMNS, day="day")
    assert [day.name for day in made.days] == [dated(k) for k in range(9)]
    assert made.notes == ("6 rows without a day are dropped.",)


def test_files_that_were_added_together_are_one_day_and_mentioned(tmp_path):
    for day in range(3):
        shop(60, seed=day).write_parquet(tmp_path / f"{dated(day)}.parquet")
    cp.evaluate(tmp_path / "*.parquet", **COLUMNS, state=tmp_path / "state.json")
    made = cp.watch(tmp_path / "state.json")
    assert [day.name for day in made.days] == [dated(2)]
    assert "and 2 more were added as one batch, which counts as one day" in made.notes[0]


def test_times_of_a_day_are_one_day():
    times = month(days=3, rows=40).with_columns(
        day=pl.col("day") + pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit(" 08:00")).otherwise(pl.lit(" 17:30"))
    )
    made = cp.watch(times, **COLUMNS, day="day")
    assert [(day.name, day.rows) for day in made.days] == [(dated(k), 40) for k in range(3)]


def test_several_loggers_and_a_model_are_watched():
    part = month(days=9, rows=120).with_columns(
        who=pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit("a")).otherwise(pl.lit("b"))
    )
    several = cp.watch(
        part, reward="click", propensity={"a": "p", "b": "pi_old"}, logger="who", target="pi_new", day="day"
    )
    assert [series.kind for series in several.series] == ["value", "lift", "weight", "propensities", "reward", "rows"]
    with_columns = part.with_columns(q=pl.lit(0.2), v=pl.lit(0.2))
    modelled = cp.watch(with_columns, **COLUMNS, model_reward="q", model_value="v", day="day")
    result = cp.evaluate(with_columns.filter(day=dated(0)), **COLUMNS, model_reward="q", model_value="v")
    assert modelled.series[0].values[0] == pytest.approx(result["pi_new", result.best].value)


# -- rows that are missing -----------------------------------------------------------------------------------------------


def visits(days=30, rows=1000, spread=0.15, lost=(), share=0.05, absent=(), closed=(), seed=0):
    """Days whose numbers of rows differ by far more than Poisson's, and their values by chance alone."""
    random = np.random.default_rng(seed)
    week = np.exp(random.uniform(-0.3, 0.3, 7))
    made = []
    for k in range(days):
        n = int(rows * week[k % 7] * np.exp(spread * random.normal()) * (share if k in lost else 1))
        day = day_of(dated(k), float(random.normal(1.0, 0.1)), rows=n)
        if k not in absent and day.date.weekday() not in closed:
            made.append(day)
    return made


def of_rows(answer):
    return [alarm for alarm in answer.alarms if alarm.series == "rows"]


@pytest.mark.thorough
def test_rows_of_quiet_months_raise_no_alarm_though_days_differ_by_more_than_chance():
    random, watched, months, alarmed = np.random.default_rng(0), Watched(14, 6, 0.05), 400, 0
    for month in range(months):
        spread, week = (0.05, 0.2, 0.5)[month % 3], random.uniform(-0.5, 0.5, 7)
        rows = random.poisson(2000 * np.exp(week[WEEK] + spread * random.normal(size=30))) + 1.0
        alarmed += bool(watched.count_changes(rows, WEEK)[0])
    assert alarmed <= 11  # a sixth of 5 % is 3.3


@pytest.mark.parametrize("seed", range(5))
def test_a_week_with_a_twentieth_of_its_rows_is_noticed_on_its_first_days(seed):
    found = of_rows(watch_days(visits(lost=range(19, 26), seed=seed), as_of=dated(30)))
    assert found[0].since == dated(19)
    assert found[0].noticed <= dated(20)
    assert found[0].after < 0.2 * found[0].before
    assert "rows fell from" in f"{found[0].what} {found[0].text}"


def test_rows_that_come_twice_are_noticed():
    (alarm,) = of_rows(watch_days(visits(lost=range(19, 30), share=2.5, spread=0.05), as_of=dated(30)))
    assert (alarm.since, alarm.after > 2 * alarm.before) == (dated(19), True)


def test_days_without_rows_are_alarms_of_their_own_and_days_of_the_answer():
    made = watch_days(visits(absent=(20, 21, 25)), as_of=dated(30), alert="changed")
    assert [(alarm.since, alarm.after) for alarm in of_rows(made)] == [(dated(20), 0.0), (dated(25), 0.0)]
    assert "none on 2 days, 2026-06-21 to 2026-06-22" in made.alarms[0].text
    assert made.fired
    assert [(day.name, day.rows) for day in made.days if not day.rows] == [(dated(k), 0) for k in (20, 21, 25)]
    (document,) = [each for each in made.document()["series"] if each["series"] == "rows"]
    assert [day["value"] for day in document["days"]][20] == 0
    empty = [replace(day, rows=0) if k == 22 else day for k, day in enumerate(visits())]
    assert [alarm.since for alarm in of_rows(watch_days(empty, as_of=dated(30)))] == [dated(22)]


def test_the_last_days_are_missing_two_days_later_and_nobody_waits_for_more_than_four_weeks():
    ended = visits(days=25)
    for asked, since in ((25, []), (26, []), (27, [dated(25)]), (40, [dated(25)]), (52, [dated(25)]), (53, [])):
        made = watch_days(ended, as_of=dated(asked), alert="age > 2 days")
        assert [alarm.since for alarm in of_rows(made)] == since, asked
        assert (made.age, made.fired) == (asked - 24, asked - 24 > 2)
    assert "The newest day with rows was 29 days ago." in str(made)
    assert made.document()["age"] == 29
    assert watch_days(ended, as_of=date.fromisoformat(dated(27))).age == 3
    assert watch_days(ended).age == (date.today() - date(2026, 6, 25)).days if date.today() > date(2026, 6, 25) else 0


def test_a_day_that_is_not_over_is_not_counted():
    morning = visits(lost=[29])
    assert of_rows(watch_days(morning, as_of=dated(29), alert="rows < 200")) == []
    assert not watch_days(morning, as_of=dated(29), alert="rows < 200").fired
    assert [alarm.since for alarm in of_rows(watch_days(morning, as_of=dated(30)))] == [dated(29)]
    later = watch_days(morning, as_of=dated(30), alert=["rows < 200", "rows >= 200 rows"])
    assert [alert.fired for alert in later.alerts] == [True, False]


def test_closed_weekdays_and_months_as_days_are_not_missing():
    assert of_rows(watch_days(visits(days=45, closed=(5, 6)), as_of=dated(46))) == []
    assert [a.since for a in of_rows(watch_days(visits(days=45, closed=(5, 6), absent=[37]), as_of=dated(46)))] == [
        dated(37)
    ]
    months = [day_of(f"20{20 + k // 12}-{k % 12 + 1:02}-01", 1.0) for k in range(24)]
    assert len(watch_days(months, as_of="2021-12-02").days) == 24
    held = watch_days(visits(absent=[5]), as_of=dated(30))
    assert held.notes[0] == "The reference has no rows on 2026-06-06."
    assert of_rows(held) == []


def test_days_without_dates_are_counted_and_have_no_age():
    days = [WatchedDay(f"day {k}", None, day.rows, day.summaries) for k, day in enumerate(visits(lost=[20, 21, 22]))]
    made = watch_days(days, alert=["age > 2 days", "changed"])
    assert made.age is None
    assert [alert.fired for alert in made.alerts] == [False, True]
    assert "have no dates" in made.alerts[0].text


def test_a_day_that_lacks_a_number_is_left_out_of_its_series():
    without = WatchedDay("2026-06-02", date(2026, 6, 2), 10, {"r": {"t": {}}})
    made = watch_days([day_of("2026-06-01", 1.0), without, day_of("2026-06-03", 2.0)])
    assert made.series[0].days == ("2026-06-01", "2026-06-03")


def test_reference_days_that_differ_wildly_are_mentioned():
    random = np.random.default_rng(6)
    made = watch_days([day_of(dated(k), float(random.normal())) for k in range(30)])
    assert made.alarms == ()
    assert "Reference days differ by more than their rows explain" in str(made)


@pytest.mark.parametrize("reference", [16, "16", f"{dated(0)}:{dated(15)}"])
def test_a_reference_is_a_number_of_days_or_two_days(log, reference):
    made = cp.watch(log, **COLUMNS, day="day", reference=reference)
    assert made.reference == tuple(dated(k) for k in range(16))
    assert made.watched_days == 14


def test_a_later_reference_forgets_the_change_before_it(log):
    made = cp.watch(log, **COLUMNS, day="day", reference=f"{dated(19)}:{dated(28)}")
    assert made.alarms == ()
    assert made.watched_days == 1


REFUSED = {
    "neither 'changed' nor a comparison": {"alert": "lift"},
    "Compare one of value, lift, reward, weight, propensities": {"alert": "lift < x"},
    "Compare one of value, lift, reward, weight, propensities, rows, age": {"alert": "lift < 3 days"},
    "neither 'changed' nor": {"alert": "age < 3 rows"},
    "is not a day": {"as_of": "yesterday"},
    "there is no day 'tuesday'": {"alert": "changed since tuesday"},
    "needs more than a week": {"reference": 7},
    "has 3 days": {"reference": f"{dated(0)}:{dated(2)}"},
    "neither a number of days nor two days": {"reference": "may"},
    "between 0 and 1": {"level": 2},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_makes_no_sense_is_refused(said):
    with pytest.raises(cp.OptionError, match=said):
        cp.watch(month(days=9, rows=50), **COLUMNS, day="day", **REFUSED[said])


def test_a_log_without_days_is_refused(tmp_path):
    frame = shop(100)
    frame.write_parquet(tmp_path / "log.parquet")
    cp.evaluate(frame, **COLUMNS, state=tmp_path / "state", batch="a")
    for arguments, said in (
        ((), "needs a log"),
        ((frame,), "does not come in files"),
        ((tmp_path / "log.parquet",), "there is one file"),
        ((tmp_path / "state",), "a state has its question already, and target= is part of one"),
    ):
        with pytest.raises(cp.OptionError, match=said):
            cp.watch(*arguments, target="pi_new")
    with refuses(cp.OptionError):
        cp.watch(frame, **COLUMNS, day="country", state=tmp_path / "state")
    with refuses(cp.MomentsError):
        cp.watch(state=tmp_path / "none")
