"""shared/statistics against scipy and statsmodels, over 1,000 random cases of each method. Where
the method is the same, the numbers are equal to 1e-10 of their size. EVALQ_SEED chooses other
cases."""

from __future__ import annotations

import json
import math
import os
import subprocess
import unittest
from typing import Any, Dict, List

from peers import needs

needs("numpy", "scipy", "statsmodels")

import numpy as np
from scipy import optimize, special, stats
from statsmodels.regression.linear_model import WLS
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import normal_sample_size_one_tail
from statsmodels.stats.proportion import proportion_confint

BUILD = os.environ.get(
    "EVALQ_TEST_BUILD", os.path.join(os.path.dirname(__file__), "../../build/default")
)
CASES = 1000
SEED = int(os.environ.get("EVALQ_SEED", "20261125"))
METHODS = {"McNemar": 1, "t": 2, "bootstrap": 3}
TOLERANCE = 1e-10

Case = Dict[str, Any]


def ask(cases: List[Case]) -> List[Case]:
    text = "".join(json.dumps(case) + "\n" for case in cases)
    program = os.path.join(BUILD, "bin", "statistics_cases")
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return [
        json.loads(line.replace("nan", "NaN").replace("inf", "Infinity"))
        for line in done.stdout.splitlines()
    ]


class StatisticsTest(unittest.TestCase):
    def setUp(self) -> None:
        print(f"seed {SEED}")
        self.random = np.random.default_rng(SEED)

    def assert_close(
        self, ours: float, theirs: float, what: str, tolerance: float = TOLERANCE
    ) -> None:
        bound = tolerance * max(1e-12, abs(theirs))
        self.assertTrue(abs(ours - theirs) <= bound, f"{what}: {ours!r}, expected {theirs!r}")

    def test_distributions_equal_scipy(self) -> None:
        cases = []
        for _ in range(CASES):
            a, b = (float(10 ** self.random.uniform(-1, 4.5)) for _ in range(2))
            mean = a / (a + b)
            x = float(
                np.clip(
                    mean + self.random.normal() * 3 * math.sqrt(mean * (1 - mean) / (a + b + 1)),
                    1e-9,
                    1 - 1e-9,
                )
            )
            cases.append(
                {
                    "op": "functions",
                    "freedom": float(np.ceil(10 ** self.random.uniform(0, 6))),
                    "p": float(10 ** self.random.uniform(-12, -0.001)),
                    "t": float(self.random.normal() * 4),
                    "x": x,
                    "a": a,
                    "b": b,
                }
            )
        for case, answer in zip(cases, ask(cases)):
            self.assert_close(answer["below"], special.ndtr(case["t"]), f"P(Z <= {case['t']})")
            self.assert_close(
                answer["normal"], special.ndtri(case["p"]), f"normal quantile of {case['p']}"
            )
            self.assert_close(
                answer["beta"], special.betainc(case["a"], case["b"], case["x"]), f"beta {case}"
            )
            self.assert_close(
                answer["outside"],
                2 * special.stdtr(case["freedom"], -abs(case["t"])),
                f"Student {case}",
            )
            self.assert_close(
                answer["student"],
                float(stats.t.ppf(case["p"], case["freedom"])),
                f"quantile {case}",
            )

    def test_mcnemar_and_tango_equal_statsmodels_and_the_score_equation(self) -> None:
        cases = []
        for _ in range(CASES):
            count = int(10 ** self.random.uniform(0.3, 4))
            share = self.random.uniform(0, 1)
            base = (self.random.random(count) < share).astype(float)
            other = np.where(
                self.random.random(count) < self.random.uniform(0, 0.5),
                self.random.random(count) < share,
                base,
            )
            cases.append(
                self.paired(
                    base,
                    other.astype(float),
                    "McNemar",
                    confidence=float(self.random.uniform(0.8, 0.99)),
                )
            )
        for case, answer in zip(cases, ask(cases)):
            base, other = np.array(case["baseline"]), np.array(case["candidate"])
            table = [[int(np.sum((base == i) & (other == j))) for j in (0, 1)] for i in (0, 1)]
            self.assertEqual((answer["wins"], answer["losses"]), (table[0][1], table[1][0]))
            self.assert_close(answer["p"], mcnemar(table, exact=True).pvalue, f"McNemar {table}")
            low, high = tango(len(base), table[0][1], table[1][0], case["confidence"])
            self.assertTrue(
                abs(answer["low"] - low) <= TOLERANCE, f"{table}: {answer['low']}, expected {low}"
            )
            self.assertTrue(
                abs(answer["high"] - high) <= TOLERANCE,
                f"{table}: {answer['high']}, expected {high}",
            )

    def paired(
        self, base: Any, other: Any, method: str, confidence: float = 0.95, **more: Any
    ) -> Case:
        case = {
            "op": "paired",
            "baseline": base.tolist(),
            "candidate": other.tolist(),
            "method": METHODS[method],
        }
        return {**case, "confidence": confidence, "higher": True, "draws": 1000, "seed": 7, **more}

    def test_t_equals_scipy_without_clusters(self) -> None:
        cases = []
        for _ in range(CASES):
            count = int(10 ** self.random.uniform(0.4, 3.3))
            base = self.random.normal(size=count) * 10 ** self.random.uniform(-3, 3)
            cases.append(self.paired(base, base + self.random.normal(0.1, 1, count), "t"))
        for case, answer in zip(cases, ask(cases)):
            theirs = stats.ttest_rel(case["candidate"], case["baseline"])
            interval = theirs.confidence_interval(0.95)
            self.assert_close(
                answer["p"], theirs.pvalue, "p", 1e-9 if theirs.pvalue < 1e-9 else TOLERANCE
            )
            for name, value in (("low", interval.low), ("high", interval.high)):
                self.assertTrue(
                    abs(answer[name] - value) <= TOLERANCE * max(1, abs(answer["difference"])),
                    (name, answer, value),
                )

    def test_t_equals_statsmodels_with_clusters_and_weights(self) -> None:
        cases = []
        for _ in range(CASES):
            count = int(10 ** self.random.uniform(1, 3))
            clusters = self.random.integers(0, max(3, count // 4), count)
            effect = self.random.normal(size=int(clusters.max()) + 1)[clusters]
            base = self.random.normal(size=count)
            more = {
                "clusters": clusters.tolist(),
                "weights": self.random.uniform(0.5, 20, count).tolist(),
            }
            cases.append(
                self.paired(base, base + effect + self.random.normal(0.1, 1, count), "t", **more)
            )
        for case, answer in zip(cases, ask(cases)):
            groups = np.unique(case["clusters"], return_inverse=True)[1]
            off = np.array(case["candidate"]) - np.array(case["baseline"])
            fitted = WLS(off, np.ones(len(off)), weights=case["weights"]).fit()
            robust = fitted.get_robustcov_results(
                "cluster", groups=groups, use_t=True, df_correction=True
            )
            # statsmodels also corrects by (n - 1) / (n - k), which is 1, because k is 1.
            self.assertEqual(answer["groups"], groups.max() + 1)
            self.assert_close(answer["difference"], robust.params[0], "difference", 1e-9)
            self.assert_close(answer["standard_error"], robust.bse[0], "standard error")
            self.assert_close(answer["p"], robust.pvalues[0], "p", 1e-9)
            low, high = robust.conf_int()[0]
            self.assertTrue(
                abs(answer["low"] - low) <= TOLERANCE and abs(answer["high"] - high) <= TOLERANCE,
                answer,
            )

    def test_bca_equals_scipy_on_the_same_draws(self) -> None:
        cases = []
        for number in range(CASES):
            # With a few items, a draw can equal the estimate but for the rounding of its sum, and
            # a tie counts half.
            count = int(10 ** self.random.uniform(1.2, 2.3))
            weights = (
                self.random.integers(1, 50, count).astype(float) if number % 2 else np.ones(count)
            )
            sums = weights * self.random.exponential(1, count) - self.random.uniform(0, 2) * weights
            cases.append(
                {
                    "op": "draws",
                    "sums": sums.tolist(),
                    "weights": weights.tolist(),
                    "draws": 400,
                    "seed": number,
                    "confidence": 0.9,
                }
            )
        for case, answer in zip(cases, ask(cases)):
            drawn = stats.bootstrap(
                (case["sums"], case["weights"]),
                lambda sums, weights, axis=-1: np.sum(sums, axis=axis) / np.sum(weights, axis=axis),
                paired=True,
                n_resamples=0,
                method="BCa",
                confidence_level=0.9,
                bootstrap_result=Drawn(np.array(answer["values"])),
            )
            for name, value in (
                ("low", drawn.confidence_interval.low),
                ("high", drawn.confidence_interval.high),
            ):
                self.assertTrue(
                    abs(answer[name] - value) <= TOLERANCE,
                    f"{name}: {answer[name]}, expected {value}",
                )
            self.assert_close(answer["error"], drawn.standard_error, "standard error")

    def test_draws_are_those_of_a_bootstrap(self) -> None:
        """Other random numbers than scipy's: mean, deviation and interval agree as far as chance
        allows."""
        values = self.random.exponential(1, 60)
        case = {
            "op": "draws",
            "sums": values.tolist(),
            "weights": [1.0] * 60,
            "draws": 100000,
            "seed": 3,
            "confidence": 0.95,
        }
        (answer,) = ask([case])
        theirs = stats.bootstrap(
            (values,), np.mean, n_resamples=100000, method="BCa", rng=self.random, vectorized=True
        )
        self.assertLess(
            abs(np.mean(answer["values"]) - np.mean(values)),
            5 * theirs.standard_error / math.sqrt(1e5),
        )
        self.assertLess(abs(answer["error"] / theirs.standard_error - 1), 0.02)
        self.assertLess(
            abs(answer["low"] - theirs.confidence_interval.low), 0.05 * theirs.standard_error
        )
        self.assertLess(
            abs(answer["high"] - theirs.confidence_interval.high), 0.05 * theirs.standard_error
        )

    def test_holm_equals_statsmodels(self) -> None:
        cases = [
            {
                "op": "holm",
                "p": (self.random.random(int(self.random.integers(1, 40))) ** 3).tolist(),
            }
            for _ in range(CASES)
        ]
        for case, answer in zip(cases, ask(cases)):
            for ours, theirs in zip(answer["p"], multipletests(case["p"], method="holm")[1]):
                self.assert_close(ours, theirs, "Holm")

    def test_interval_of_a_mean_equals_theirs(self) -> None:
        cases = []
        for number in range(CASES):
            count = int(10 ** self.random.uniform(0.4, 3.3))
            share = float(self.random.random()) ** 2
            binary = (self.random.random(count) < share).astype(float)
            values = binary if number % 2 else self.random.normal(1, 3, count)
            confidence = float(self.random.uniform(0.5, 0.999))
            cases.append({"op": "mean", "values": values.tolist(), "confidence": confidence})
        for number, (case, answer) in enumerate(zip(cases, ask(cases))):
            values, confidence = np.array(case["values"]), case["confidence"]
            if number % 2:  # Right and wrong answers.
                theirs = proportion_confint(
                    values.sum(), len(values), alpha=1 - confidence, method="wilson"
                )
            else:
                theirs = stats.ttest_1samp(values, 0).confidence_interval(confidence)
            for ours, wanted in zip((answer["low"], answer["high"]), theirs):
                self.assertTrue(
                    abs(ours - wanted) <= TOLERANCE * max(1, abs(wanted)), (case, answer, theirs)
                )

    def test_items_needed_equal_statsmodels(self) -> None:
        cases = []
        for _ in range(CASES):
            base = self.random.normal(size=int(self.random.integers(20, 300)))
            margin, confidence = float(self.random.uniform(0.01, 0.5)), float(
                self.random.uniform(0.8, 0.99)
            )
            other = base + self.random.normal(0, 1, len(base))
            cases.append(self.paired(base, other, "t", confidence=confidence, margin=margin))
        for case, answer in zip(cases, ask(cases)):
            deviation = float(
                np.std(np.array(case["candidate"]) - np.array(case["baseline"]), ddof=1)
            )
            theirs = normal_sample_size_one_tail(
                case["margin"], 0.8, 1 - case["confidence"], std_null=deviation
            )
            self.assertTrue(
                abs(answer["needed"] - max(20, math.ceil(theirs))) <= 1e-6, (answer, theirs)
            )


class Drawn:
    def __init__(self, values: Any) -> None:
        self.bootstrap_distribution = values


def tango(count: int, wins: int, losses: int, confidence: float) -> Any:
    """The score interval from the likelihood itself: its maximum is found by a root search, not by
    Tango's closed form."""
    z = stats.norm.ppf(0.5 + confidence / 2)
    ties = count - wins - losses

    def likeliest(delta: float) -> float:
        """The share q of losses if those of wins and ties are q + delta and 1 - 2 q - delta."""
        least, most = max(0.0, -delta), (1 - delta) / 2

        def slope(
            rest: float,
        ) -> (
            float
        ):  # By q = most - rest; rises with rest, because the likelihood's logarithm is concave.
            terms = ((wins, most - rest + delta), (losses, most - rest), (-ties, rest))
            return sum(times / max(share, 1e-300) for times, share in terms if times)

        span = most - least
        if slope(1e-15 * span) >= 0:
            return most
        return (
            least
            if slope(span) <= 0
            else most - float(optimize.brentq(slope, 1e-15 * span, span, xtol=1e-17, rtol=1e-15))
        )

    def score(delta: float) -> float:
        above = wins - losses - count * delta
        if above == 0:
            return 0.0
        variance = count * (2 * likeliest(delta) + delta * (1 - delta))
        return above / math.sqrt(variance) if variance > 1e-12 else math.copysign(1e6, above)

    observed = (wins - losses) / count
    low = (
        -1.0
        if observed <= -1
        else optimize.brentq(lambda d: score(d) - z, -1 + 1e-12, observed, xtol=1e-14)
    )
    high = (
        1.0
        if observed >= 1
        else optimize.brentq(lambda d: score(d) + z, observed, 1 - 1e-12, xtol=1e-14)
    )
    return low, high


if __name__ == "__main__":
    unittest.main(verbosity=2)
