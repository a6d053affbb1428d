# SPDX-License-Identifier: Apache-2.0
"""Checks a value against a JSON Schema that keeps to a few keywords. One that this file does not
know is an error, so that no rule is ever skipped."""

KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
         "number": (int, float), "null": type(None)}
PROSE = {"$comment", "$schema", "$defs", "title", "description"}
RULES = {"type", "properties", "required", "additionalProperties", "items", "enum", "minimum",
         "$ref", "anyOf"}


def is_kind(value, kind):
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return isinstance(value, KINDS[kind])


def faults(value, schema, root=None, at="$"):
    """A list of texts, empty where the value fits."""
    root = root or schema
    unknown = set(schema) - PROSE - RULES
    if unknown:
        return [f"{at}: the schema has unknown keywords {sorted(unknown)}"]
    found = []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        found += faults(value, root["$defs"][name], root, at)
    if "anyOf" in schema:
        tried = [faults(value, part, root, at) for part in schema["anyOf"]]
        if all(tried):
            found += min(tried, key=len)
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_kind(value, kind) for kind in kinds):
            return found + [f"{at}: {value!r} is no {' or '.join(kinds)}"]
    if "minimum" in schema and is_kind(value, "number") and value < schema["minimum"]:
        found.append(f"{at}: {value} is less than {schema['minimum']}")
    if isinstance(value, dict):
        found += object_faults(value, schema, root, at)
    if isinstance(value, list) and "items" in schema:
        for n, item in enumerate(value):
            found += faults(item, schema["items"], root, f"{at}[{n}]")
    return found


def object_faults(value, schema, root, at):
    known = schema.get("properties", {})
    found = [f"{at}: no {key}" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        if key in known:
            found += faults(item, known[key], root, f"{at}.{key}")
        elif schema.get("additionalProperties", True) is False:
            found.append(f"{at}: {key} is not in the schema")
    return found
