"""``cords-dp data``: public schemas of tables, and published sets to begin with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cords_dp.cli.arguments import add_command, add_json
from cords_dp.errors import ConfigError

FETCHED = {
    "adult": "UCI's census data, 32,561 and 16,281 people, as CSV files with a public schema (5 MB)",
    "mnist": "60,000 and 10,000 handwritten digits, 28 × 28 (55 MB)",
    "cifar10": "50,000 and 10,000 small photographs in ten classes, 32 × 32 (185 MB)",
}


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "data",
        None,
        "fetch published data; of tables of one's own, write and check a public schema",
        "data fetch adult",
        "data fetch cifar10",
        "data describe mine.csv --target income --range age=0:100 --public-schema mine.yaml",
        "data check mine.csv --schema mine.yaml",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = add_command(actions, "fetch", data_fetch, "fetch a published set once; runs then find it in the folder")
    known = "; ".join(f"{name}: {what}" for name, what in FETCHED.items())
    fetch.add_argument("name", choices=tuple(FETCHED), metavar="NAME", help=known)
    fetch.add_argument(
        "--out", type=Path, default=Path("data"), help="folder, which a config calls dataset.datadir (default: data)"
    )
    describe = add_command(actions, "describe", data_describe, "write a schema to be filled in, from the header alone")
    describe.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz file")
    describe.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    describe.add_argument("--public-schema", type=Path, metavar="OUT", help="the schema (default: printed)")
    describe.add_argument(
        "--range", action="append", default=[], metavar="age=0:100", help="a public range; repeatable"
    )
    describe.add_argument(
        "--categories", action="append", default=[], metavar="sex=Male,Female", help="public categories; repeatable"
    )
    describe.add_argument("--ignore", action="append", default=[], metavar="COLUMN", help="not used; repeatable")
    describe.add_argument("--header", metavar="a,b,c", help="the names of the columns of a file that has no header")
    check = add_command(actions, "check", data_check, "has a file the columns of a schema? No record is read")
    check.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz file")
    check.add_argument("--schema", type=Path, required=True, metavar="FILE", help="the schema, YAML")
    for action in (describe, check):
        action.add_argument("--delimiter", metavar="CHARACTER", help="of a CSV file (default: a comma)")
        add_json(action)


def data_fetch(args: argparse.Namespace) -> int:
    if args.name == "adult":
        from cords_dp.datasets.adult import SCHEMA, fetch_adult

        paths = [*fetch_adult(args.out), args.out / SCHEMA.name]
    else:
        from cords_dp.datasets.fetch import image_arrays, image_file

        image_arrays(args.name, args.out)  # a file that was there is looked at, too
        paths = [image_file(args.name, args.out)]
    for path in paths:
        print(path)
    return 0


def data_describe(args: argparse.Namespace) -> int:
    import yaml

    from cords_dp.datasets.table.source import single_column_hint, table_file
    from cords_dp.datasets.table.template import parse_categories, parse_range, schema_template
    from cords_dp.files import write_durably

    header = [name.strip() for name in args.header.split(",")] if args.header else None
    file = table_file(args.file, header=header, target=args.target, delimiter=args.delimiter, key="FILE")
    text = schema_template(
        file,
        target=args.target,
        ranges=dict(map(parse_range, args.range)),
        categories=dict(map(parse_categories, args.categories)),
        ignore=args.ignore,
        hint=single_column_hint(file),
    )
    text += "" if header is None else f"header: {json.dumps(header, ensure_ascii=False)}\n"
    to_do = text.count("TODO") - 1
    if args.public_schema is not None:
        if args.public_schema.exists():
            raise ConfigError(
                "--public-schema", args.public_schema.name, "is there already; it will not be overwritten"
            )
        write_durably(args.public_schema, text)
    if args.json:
        print(json.dumps({"schema": yaml.safe_load(text), "to_fill_in": to_do}, indent=2, ensure_ascii=False))
    elif args.public_schema is None:
        print(text, end="")
    else:
        print(f"schema: {args.public_schema} ({to_do} values to be filled in, each marked TODO)")
        print(f"then:   cords-dp data check {args.file} --schema {args.public_schema}")
    return 0


def data_check(args: argparse.Namespace) -> int:
    from cords_dp.datasets.table.schema import load_schema
    from cords_dp.datasets.table.source import check_header, table_file

    schema = load_schema(args.schema)
    name = schema.target.name
    check_header(table_file(args.file, header=schema.header, target=name, delimiter=args.delimiter, key="FILE"), schema)
    if args.json:
        facts = {"columns": len(schema.columns), "cells": schema.width, "target": name, "classes": schema.classes}
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    kind = f"{len(schema.classes)} classes" if schema.classes else "a number"
    print(f"{args.file.name} has the {len(schema.columns)} columns of the schema: {schema.width} cells, target {kind}")
    return 0
