"""Validates messages: validate.py SCHEMA_FOLDER < LINES, each {"schema": NAME, "message": ..., "good": BOOL}."""

import json
import pathlib
import sys

from jsonschema import Draft202012Validator

validators = {}
for path in pathlib.Path(sys.argv[1]).glob("*.schema.json"):
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    validators[path.name.removesuffix(".schema.json")] = Draft202012Validator(schema)

used, wrong = set(), 0
for line in sys.stdin:
    case = json.loads(line)
    used.add(case["schema"])
    errors = [error.message for error in validators[case["schema"]].iter_errors(case["message"])]
    if bool(errors) == case["good"]:
        wrong += 1
        print(case["schema"], "fits" if not errors else errors, json.dumps(case["message"]), file=sys.stderr)
unused = sorted(set(validators) - used)
if unused:
    print("no message of", unused, file=sys.stderr)
sys.exit(1 if wrong or unused else 0)
