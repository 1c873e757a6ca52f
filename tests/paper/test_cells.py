"""Cells of Figures 4 and 5: the published digits, the regressions behind them, and our estimators beside them."""

import csv
import math

import numpy as np
import pytest
from messages import refuses
from paper_files import shared

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.estimators import beta_ips, dm, dr, ips, snips
from counterpoise.moments import Moments
from paper.claims import (
    cells_from,
    coverage,
    differences,
    read_cells,
    significant,
    significant_paired,
    wins,
)
from paper.figures import OURS, PAPER, draw, save
from paper.ope import RECIPE, Cell, by_cell, cells_of, ours, published, run_cell, run_cells, tasks_of
from paper.regressions import fit_reward_model, fit_target
from paper.result_file import read_rows


def test_every_published_cell_comes_out_to_eight_digits(tmp_path):
    """All 96 cells, one seed each; `make reproduce-check` runs all ten."""
    expected = read_rows(shared("paper/ope_runs_seeds_0_to_9.csv"), RECIPE)
    subset = {key: rows for k, (key, rows) in enumerate(sorted(expected.items())) if key[3] == (k // 10 + 3) % 10}
    assert len(subset) == 96
    file = run_cells([Cell(*key) for key in subset], tmp_path / "runs.csv", jobs=2)
    assert differences(file.rows, subset) == []


def test_a_difference_in_the_eighth_digit_is_found():
    key = (1.0, 25, 100, 0)
    assert differences({key: [("IPS", 0.123456789, 1.0)]}, {key: [("IPS", 0.123456789, 1.0)]}) == []
    found = differences({key: [("IPS", 0.123456789, 1.0)]}, {key: [("IPS", 0.123456799, 1.0)]})
    assert found == [
        "inverse_temperature 1, n_actions 25, n 100, seed 0: squared_error of IPS is 0.123456789, published 0.123456799"
    ]


@pytest.mark.parametrize(("n_actions", "temperature", "n"), [(2, 1, 300), (10, -1, 3000), (25, 5, 2500)])
def test_regressions_equal_those_of_scikit_learn(n_actions, temperature, n):
    from sklearn.linear_model import LogisticRegression

    world = SyntheticBandit(n_actions, inverse_temperature=temperature, seed=1)
    log, test = world.draw(n), world.draw(n)
    policy = LogisticRegression().fit(log.context, log.action, sample_weight=log.reward / log.propensity)
    target = fit_target(log)
    assert target.iterations == policy.n_iter_[0]
    assert np.array_equal(target(test.context), policy.predict(test.context))
    table = np.hstack([policy.coef_, policy.intercept_[:, None]])
    np.testing.assert_allclose(target.coefficients[-len(table) :], table, atol=1e-10)
    design = np.hstack([log.context, np.eye(n_actions)[log.action]])
    theirs = LogisticRegression().fit(design, log.reward)
    model = fit_reward_model(log)
    np.testing.assert_allclose(model(log.context, log.action), theirs.predict_proba(design)[:, 1], atol=1e-10)
    np.testing.assert_allclose(model.all_actions(log.context)[np.arange(n), log.action], model(log.context, log.action))


def test_an_action_that_never_earned_keeps_its_place_in_the_target_policy():
    from sklearn.linear_model import LogisticRegression

    log = SyntheticBandit(60, inverse_temperature=-5, seed=0).draw(150)
    earned = set(log.action[log.reward > 0])
    assert len(earned) < len(set(log.action)) < 60
    theirs = LogisticRegression().fit(log.context, log.action, sample_weight=log.reward / log.propensity)
    assert np.array_equal(fit_target(log).actions, theirs.classes_)


@pytest.mark.parametrize("seed", range(5))
def test_the_library_agrees_with_the_published_formulas(seed):
    random = np.random.default_rng(seed)
    w, r = random.exponential(size=400), random.normal(1, 2, size=400)
    q, v = r + random.normal(size=400), random.normal(size=400)
    moments = Moments.of(w, r, model_reward=q, model_value=v)
    estimates = {
        "IPS": ips(moments),
        "SNIPS": snips(moments),
        "beta-IPS": beta_ips(moments, baseline="plug-in"),
        "DM": dm(moments),
        "DR": dr(moments),
    }
    for name, (value, variance) in published(w, r, q, v).items():
        assert estimates[name].value == pytest.approx(value, rel=1e-10)
        if name != "beta-IPS":  # theirs is the variance around a β held fixed at the plug-in value, too
            assert estimates[name].stderr ** 2 == pytest.approx(variance, rel=1e-9)


def test_the_published_baseline_explodes_at_its_floor_where_weights_are_near_one():
    w, r = np.array([0.9, 1.0]), np.array([1.0, 0.0])  # mean(w² − w) = −0.045, so the floor of 1e-11 divides
    beta = -0.045 / 1e-11
    assert published(w, r, r, r)["beta-IPS"][0] == pytest.approx(beta + np.mean(w * (r - beta)), rel=1e-12)
    assert ours(np.tile(w, 20), np.tile(r, 20), np.tile(r, 20), np.tile(r, 20))["beta_ips"][0] < 2


def test_without_overlap_the_published_value_is_zero_and_ours_says_unknown():
    columns = (np.zeros(40), np.ones(40), np.full(40, 0.5), np.full(40, 0.5))
    theirs = published(*columns)
    assert theirs["IPS"] == theirs["SNIPS"] == theirs["beta-IPS"] == (0.0, 0.0)
    assert all(math.isnan(value) for value, _ in ours(*columns).values())


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (Cell(1.0, 25, 0, 0), "n of at least 1 row; found 0"),
        (Cell(1.0, 1, 100, 0), "at least 2 actions; found 1"),
        (Cell(1.0, 25, 100, -1), "seeds must lie in 0"),
        (Cell(math.inf, 25, 100, 0), "finite"),
        (Cell(1.0, 25, 1, 0), "logged 1 action and"),
    ],
)
def test_impossible_cells_are_refused(cell, words):
    with pytest.raises(OptionError, match=words):
        run_cell(cell)


def test_scales_hold_the_cells_they_promise():
    with refuses(OptionError):
        cells_of("huge")
    paper = cells_of("paper")
    assert {cell.n for cell in paper} == set(np.logspace(2, 6, 10, dtype=int).tolist())
    assert sorted(key for task in tasks_of(paper) for key in task) == sorted(paper)


def test_published_means_say_what_the_recipe_says():
    cells = read_cells(shared("paper/fig4_fig5_ope_cells.csv"))
    assert len(cells) == 160
    assert wins(cells)["beta-IPS"] == 99
    assert significant(cells)[1] == 0


def test_claims_count_wins_significance_and_coverage():
    rows = {}
    for seed in range(30):
        snips_error = 1.0 + 0.01 * seed
        rows[(1.0, 2, 10, seed)] = [
            ("IPS", 3.0, 1.0),
            ("SNIPS", snips_error, 0.1),
            ("DR", 2.0, 1.0),
            ("beta-IPS", snips_error - 0.5, 1.0),
        ]
    runs = by_cell(rows)
    assert wins(cells_from(runs)) == {"IPS": 0, "SNIPS": 0, "DR": 0, "beta-IPS": 1}
    assert significant_paired(runs) == (1, 0)
    assert significant_paired(runs, "SNIPS", "beta-IPS") == (0, 1)
    assert coverage(runs, 1.0)[10] == {"IPS": 1.0, "SNIPS": 0.0, "DR": 1.0, "beta-IPS": 1.0}


def test_figures_have_the_papers_layout(tmp_path):
    random = np.random.default_rng(0)
    runs = {
        (t, a, n): {name: random.exponential(1 / n, size=(5, 2)) for name in {**PAPER, **OURS}}
        for t in (-5.0, 5.0)
        for a in (25, 50, 75)
        for n in (100, 1000)
    }
    figure = draw(runs, "squared_error", styles=PAPER, published={((-5.0, 25, 100), "IPS"): 0.01})
    assert len(figure.axes) == 6
    assert all(axes.get_xscale() == axes.get_yscale() == "log" for axes in figure.axes)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["25 actions", "50 actions", "75 actions"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:4] == ["IPS", "SNIPS", "DR", "β-IPS"]
    bands = [c for c in figure.axes[0].collections if len(c.get_paths())]
    assert len(bands) == 4
    written = save(figure, tmp_path / "figure")
    assert [path.suffix for path in written] == [".svg", ".png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_the_same_figure_is_the_same_file(tmp_path):
    runs = {(1.0, 25, n): {name: np.full((3, 2), 1 / n) for name in PAPER} for n in (100, 1000)}
    first, second = (save(draw(runs, "variance", styles=PAPER), tmp_path / name) for name in ("a", "b"))
    assert first[0].read_bytes() == second[0].read_bytes()


def test_a_file_of_runs_has_the_published_columns(tmp_path):
    run_cells([Cell(1.0, 25, 100, 0)], tmp_path / "runs.csv", jobs=1)
    published_header = shared("paper/ope_runs_seeds_0_to_9.csv").read_text().splitlines()[0]
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert lines[0] == published_header
    row = next(csv.DictReader(lines))
    assert (row["inverse_temperature"], row["n_actions"], row["n"], row["seed"]) == ("1", "25", "100", "0")
