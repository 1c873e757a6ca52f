"""The glossary: what every number in the report means, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.errors import render
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
        "The average reward per <row> that the target policy would have earned on the visitors in this log, in the unit of the "
        "reward. With clicks as rewards, 0.28 means 28 clicks per 100 <rows>.",
    ),
    "interval": Entry(
        "Interval and level",
        "If you repeated the whole experiment many times, intervals like this one would contain the true value in the stated "
        "share of them (95 out of 100 at a level of 95 %). A wide interval means that the log holds little information, not "
        "that the policy is bad.",
    ),
    "stderr": Entry(
        "Standard error",
        "How far an estimate typically lies from the truth, provided that the propensities are right. It halves when the log "
        "grows fourfold.",
    ),
    "target": Entry(
        "Target",
        "The policy you are asking about: a rule that gives every possible action a probability. The log needs its probability "
        "of the action that was actually taken.",
    ),
    "logging": Entry(
        "Logging policy",
        "The policy that was running when the log was written. Its own value is simply the mean reward in the log.",
    ),
    "propensity": Entry(
        "Propensity",
        "The probability with which the logging policy took the action it took. Everything here rests on it: wrong "
        "propensities give wrong answers that look right.",
    ),
    "weight": Entry(
        "Weight",
        "The target's probability of the logged action, divided by the propensity. A weight of 3 means that the target would "
        "have done this three times as often, so the <row> counts three times.",
    ),
    "lift": Entry(
        "Lift",
        "The target's value minus the logging policy's, estimated directly. Whatever the two policies share cancels out, so the "
        "lift is often known better than either value. An interval that excludes 0 shows a real difference.",
    ),
    "baseline": Entry(
        "Baseline β",
        "A constant that is subtracted from every reward before weighting and added back afterwards. It changes the noise, not "
        "what is estimated; the best one is computed from the log.",
    ),
    "effective_sample_size": Entry(
        "Effective sample size",
        "How many <rows> logged by the target itself would tell us as much as this log does. Rely on 20,000 <rows> with an effective "
        "sample of 500 as you would on 500 <rows>. Below 100, even the standard errors are guesses.",
    ),
    "mean_weight": Entry(
        "Mean weight",
        "The average of all weights. It must be 1, up to noise, if the propensities and target probabilities are right and the "
        "log took every action that the target takes.",
    ),
    "mean_weight_p": Entry(
        "p-value of the mean weight",
        "How likely a mean weight this far from 1 would be if everything were right. Below 0.001, something is wrong: check how "
        "propensities are logged before you read on.",
    ),
    "max_weight": Entry(
        "Largest weight",
        "The weight of the <row> that counts most. If it is a noticeable share of the number of <rows>, a single visitor decides "
        "the answer.",
    ),
    "top_share": Entry(
        "Share of the largest weights",
        "How much of the total weight the heaviest 1 % of the <rows> (at most 1,000) carry. Above 50 %, a few <rows> decide the answer.",
    ),
    "pareto_k": Entry(
        "Pareto k",
        "How heavy the tail of the weights is. Below 0.5 is fine; above 0.7, <rows> not seen yet could move the estimate by more than "
        "its interval shows. Explore more, or evaluate a policy closer to the logging policy.",
    ),
    "zero_weight_share": Entry(
        "<Rows> with weight 0",
        "The share of <rows> whose action the target would never take. They carry no information about the target.",
    ),
    "carrying_rows": Entry(
        "<Rows> that carry the answer",
        "How many <rows> carry the answer: those with large weights whose outcome is the rarer one, such as a click. Below 7, no "
        "interval is to be relied on, however many <rows> there are. <Rows> of rewards with more than two values count half, since the "
        "largest may not have come up yet.",
    ),
    "n": Entry("<Rows>", "The number of decisions behind the estimate, in the log or in a segment of it."),
    "dropped": Entry(
        "Dropped <rows>",
        "<Rows> with impossible values (a propensity of 0, a missing reward) that were dropped on request.",
    ),
    "segment": Entry(
        "Segment",
        "A part of the log, such as a country. With many segments, some look special by chance alone: of 20 intervals at 95 %, "
        "one misses the truth on average.",
    ),
    "cluster": Entry(
        "Cluster",
        "The unit that was randomized, such as the user. <Rows> of the same user are alike, and the errors allow for that if the "
        "cluster is named.",
    ),
    "effective_clusters": Entry(
        "Effective clusters",
        "How many clusters of equal size would tell us as much. If a few of 2,000 users account for most of the log, all of "
        "them together may tell us only as much as 30 would. Below 20, even the standard errors are guesses.",
    ),
    "verdict": Entry(
        "Verdict",
        "“ok”: no problems found in the weights or rewards. “caution”: read the caveats first. “not identified”: the log cannot "
        "answer the question, whatever number an estimator prints. “model only”: the number comes from a reward model alone, "
        "and the log does not check it.",
    ),
    "convergence": Entry(
        "Convergence",
        "The estimate after the first <rows>, after more of them, and finally after all. It should settle and stay within the "
        "band. A jump points to a single heavy <row>; a drift points to a change over time, such as a new design or a new season.",
    ),
    "fingerprint": Entry(
        "Fingerprint",
        "A short code made from the number of <rows>, the names of the columns and segments, and six digits of the sums behind "
        "the estimates. The same log gives the same code, whatever the order of its <rows>; a different log almost always gives a "
        "different code.",
    ),
}

ESTIMATOR_WORDS: dict[str, str] = {
    "ips": "Inverse propensity scoring: the mean of weight × reward. Right on average, but needlessly noisy when rewards are "
    "far from 0. The textbook reference.",
    "snips": "Self-normalized IPS: the weighted mean of the rewards, which always stays within their range.",
    "beta_ips": "IPS with the best constant baseline, the one with the smallest error. The default.",
    "context_ips": "IPS with a baseline that depends on the context: what a user like this one earns anyway. The default with baseline=.",
    "cross_fit": "Like beta_ips, but each part of the log takes its baseline from the other parts: exactly right on average.",
    "dm": "The reward model alone. The log does not check it, and its interval leaves out the model's own error.",
    "dr": "Doubly robust: the model's answer, corrected by the weighted errors that it makes on the log.",
    "constant_dr": "Doubly robust with a constant as the model: the same as beta_ips.",
    "sndr": "Doubly robust with self-normalized weights.",
    "optimal_dr": "The best mix of the baseline, the model and any other control variates. The default when there is a model.",
    "auto": "The reward model where few <rows> have weight, optimal_dr where many do. Biased, but only so far, and its interval knows it.",
    "lift": "The difference from the logging policy, with its own best baseline.",
}


def term(key: str, words: str | None = None, unit: str = "row") -> Safe:
    """A link from a word to its entry in the glossary."""
    return el("a", words or render(GLOSSARY[key].term, unit=unit), href=f"#about-{key}", class_="term")


def estimator_words(name: str, unit: str) -> str | None:
    """What an estimator is, in plain words, if it has some."""
    return render(ESTIMATOR_WORDS[name], unit=unit) if name in ESTIMATOR_WORDS else None


def glossary(estimators: list[str], method: Method, unit: str = "row") -> Safe:
    """All entries, each folded up; of the estimators, only those that the report shows."""
    entries = [(key, entry.term, entry.meaning) for key, entry in GLOSSARY.items()]
    words = {name: ESTIMATOR_WORDS.get(name) or ESTIMATORS[name].about for name in estimators if name in ESTIMATORS}
    entries += [(f"estimator-{name}", name, meaning) for name, meaning in words.items() if meaning]
    entries += [(f"method-{method.name}", f"{method.name} intervals", method.about)] if method.about else []
    return el(
        "div",
        *(
            el(
                "details",
                el("summary", render(title, unit=unit)),
                el("p", render(meaning, unit=unit)),
                id=f"about-{key}",
                class_="entry",
            )
            for key, title, meaning in entries
        ),
        class_="glossary",
    )
