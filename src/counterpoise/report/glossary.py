"""The glossary: what every number of the report means, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.estimators import ESTIMATORS
from counterpoise.intervals import Method
from counterpoise.report.markup import Safe, el


@dataclass(frozen=True)
class Entry:
    """A term, what it means, and how to act on it."""

    term: str
    meaning: str


GLOSSARY: dict[str, Entry] = {
    "value": Entry(
        "Value",
        "The average reward per row that the target policy would have earned on the visitors in this log. It is in the "
        "unit of the reward: with clicks as rewards, 0.28 means 28 clicks per 100 rows.",
    ),
    "interval": Entry(
        "Interval and level",
        "A range that would contain the true value in the stated share of repetitions of the whole experiment (95 of 100 at "
        "a level of 95 %). A wide interval says that the log holds little information, not that the policy is bad.",
    ),
    "stderr": Entry(
        "Standard error",
        "How far an estimate typically lies from the truth, if propensities are right. It halves when the log grows fourfold.",
    ),
    "target": Entry(
        "Target",
        "The policy in question: a rule that gives each possible action a probability. The log needs its probability of the "
        "action that was really taken.",
    ),
    "logging": Entry(
        "Logging policy",
        "The policy that was running when the log was written. Its own value is simply the mean reward of the log.",
    ),
    "propensity": Entry(
        "Propensity",
        "The probability with which the logging policy took the action that it took. Everything here rests on it: wrong "
        "propensities make wrong answers that look right.",
    ),
    "weight": Entry(
        "Weight",
        "The target's probability of the logged action divided by the propensity. A weight of 3 says: the target would have "
        "done this three times as often, so the row counts three times.",
    ),
    "lift": Entry(
        "Lift",
        "The target's value less the value of the logging policy, estimated directly. What both policies share cancels, so "
        "the lift is often known better than either value. An interval that leaves out 0 shows a real difference.",
    ),
    "baseline": Entry(
        "Baseline β",
        "A constant taken off every reward before weighting and given back afterwards. It changes the noise, not what is "
        "estimated; the best one is computed from the log.",
    ),
    "effective_sample_size": Entry(
        "Effective sample size",
        "How many rows of the target's own log would be worth as much as this log. 20,000 rows with an effective sample of "
        "500 are to be trusted like 500 rows. Below 100, errors are themselves guesses.",
    ),
    "mean_weight": Entry(
        "Mean weight",
        "The average of all weights. It must be 1 up to noise if propensities and target probabilities are right and the log "
        "took every action that the target takes.",
    ),
    "mean_weight_p": Entry(
        "p of the mean weight",
        "How likely so odd a mean weight would be if everything were right. Below 0.001 something is wrong: look at how "
        "propensities are logged before reading on.",
    ),
    "max_weight": Entry(
        "Largest weight",
        "The weight of the row that counts most. If it is a noticeable share of the number of rows, one visitor decides.",
    ),
    "top_share": Entry(
        "Share of the largest weights",
        "How much of all weight the largest one in a hundred (at most 1,000) carry. Above 50 % a few rows make the answer.",
    ),
    "pareto_k": Entry(
        "Pareto k",
        "How heavy the tail of the weights is. Below 0.5 fine; above 0.7 rows that were not seen yet could move the estimate "
        "by more than its interval says. Explore more, or evaluate a policy closer to the one that ran.",
    ),
    "zero_weight_share": Entry(
        "Rows with weight 0",
        "The share of rows whose action the target would never take. They say nothing about the target.",
    ),
    "effective_rewards": Entry(
        "Rewarded rows",
        "How many rows' rewards the estimate rests on: of weighted clicks or non-clicks, whichever are fewer. Below 30 errors are "
        "themselves guesses, however many rows there are.",
    ),
    "n": Entry("Rows", "The number of decisions in the log, or in a segment of it, that the estimate rests on."),
    "dropped": Entry(
        "Dropped rows",
        "Rows with impossible values (a propensity of 0, a missing reward) that were left out on request.",
    ),
    "segment": Entry(
        "Segment",
        "A part of the log, such as a country. With many segments some look special by chance alone: of 20 intervals at 95 %, "
        "one misses its truth on average.",
    ),
    "cluster": Entry(
        "Cluster",
        "The unit that was randomised, such as the user. Rows of one user are alike, and errors allow for it when the cluster "
        "is named.",
    ),
    "effective_clusters": Entry(
        "Effective clusters",
        "How many clusters of equal size would say as much. 2,000 users of whom a few write most of the log may be worth 30. Below 20 "
        "errors are themselves guesses.",
    ),
    "verdict": Entry(
        "Verdict",
        "“ok”: nothing in the weights or rewards speaks against the estimates. “caution”: read the reasons first. “not identified”: the "
        "log cannot answer the question, whatever number an estimator prints. “model only”: the number comes from a reward "
        "model alone and the log does not check it.",
    ),
    "convergence": Entry(
        "Convergence",
        "The estimate after the first rows, after more, up to all. It should settle and stay within the band. A jump points to "
        "a single heavy row; a drift points to a change over time (a new design, a new season).",
    ),
    "fingerprint": Entry(
        "Fingerprint",
        "A short code made from the number of rows, the names of the columns and segments, and six digits of the sums behind the "
        "estimates. The same log gives the same code whatever the order of its rows; a changed log almost always gives another.",
    ),
}

ESTIMATOR_WORDS: dict[str, str] = {
    "ips": "Inverse propensity scoring: the mean of weight × reward. Right on average, and needlessly noisy when rewards are "
    "far from 0. A textbook reference.",
    "snips": "Self-normalised: the weighted mean of the rewards. Stays within the range of the rewards.",
    "beta_ips": "IPS with the best constant baseline: the smallest error among all constant baselines. The default.",
    "cross_fit": "As beta_ips, each part of the log with the baseline of the other parts: exactly right on average.",
    "dm": "The reward model alone. The log does not check it, and its interval leaves out the model's own error.",
    "dr": "Doubly robust: the model's answer, corrected by the weighted errors it makes on the log.",
    "constant_dr": "Doubly robust with a constant as the model. The same as beta_ips.",
    "sndr": "Doubly robust with self-normalised weights.",
    "optimal_dr": "The best mix of the baseline, the model and other control variates. The default when there is a model.",
    "lift": "The difference from the logging policy, with its own best baseline.",
}


def term(key: str, words: str | None = None) -> Safe:
    """A link from a word to its entry."""
    return el("a", words or GLOSSARY[key].term, href=f"#about-{key}", class_="term")


def glossary(estimators: list[str], method: Method) -> Safe:
    """Every entry, folded up; of the estimators those that the report shows."""
    entries = [(key, entry.term, entry.meaning) for key, entry in GLOSSARY.items()]
    words = {name: ESTIMATOR_WORDS.get(name) or ESTIMATORS[name].about for name in estimators if name in ESTIMATORS}
    entries += [(f"estimator-{name}", name, meaning) for name, meaning in words.items() if meaning]
    entries += [(f"method-{method.name}", f"{method.name} intervals", method.about)] if method.about else []
    return el(
        "div",
        *(
            el("details", el("summary", title), el("p", meaning), id=f"about-{key}", class_="entry")
            for key, title, meaning in entries
        ),
        class_="glossary",
    )
