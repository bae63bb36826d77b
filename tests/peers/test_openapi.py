"""The gateway's OpenAPI document is one, by the validator that others use."""

import json
import os
import sys
import unittest

try:
    from openapi_spec_validator import OpenAPIV31SpecValidator
except ImportError:
    print("NOT RUN: openapi-spec-validator is not installed")
    sys.exit(77)

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Document(unittest.TestCase):
    def read(self):
        with open(os.path.join(SOURCE, "producer", "gateway", "openapi.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_document_is_valid(self):
        faults = [fault.message for fault in OpenAPIV31SpecValidator(self.read()).iter_errors()]
        self.assertEqual(faults, [])

    def test_operations_are_told_apart(self):
        names = [operation["operationId"] for item in self.read()["paths"].values() for operation in item.values()]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
