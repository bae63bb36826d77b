"""Runs Transformers' own tests of trainer callbacks: python own_tests.py SOURCE [with]. One JSON object, {test: outcome}.

SOURCE holds tests/trainer/test_trainer_callback.py. "with": every Trainer gets an EvalqCallback, as one of those that it
has by default, which the tests expect in its list.
"""

import io
import json
import sys
import unittest

MODULE = "tests.trainer.test_trainer_callback"


class Outcomes(unittest.TestResult):
    """What became of each test, with the last line of what it said."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def note(self, test, outcome, error=None):
        name = test.id().removeprefix(MODULE + ".")
        self.found[name] = outcome if error is None else f"{outcome}: {error[0].__name__}: {str(error[1]).splitlines()[0]}"

    def addSuccess(self, test):
        self.note(test, "passed")

    def addFailure(self, test, err):
        self.note(test, "failed", err)

    def addError(self, test, err):
        self.note(test, "failed", err)

    def addSkip(self, test, reason):
        self.note(test, "skipped")


def main(source, installed):
    sys.path.insert(0, source)
    if installed:
        import transformers.trainer

        from evalq.integrations.transformers import EvalqCallback

        transformers.trainer.DEFAULT_CALLBACKS.append(EvalqCallback)
    out, sys.stdout = sys.stdout, io.StringIO()  # Trainers print.
    outcomes = Outcomes()
    unittest.defaultTestLoader.loadTestsFromName(MODULE).run(outcomes)
    json.dump(outcomes.found, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["with"])
