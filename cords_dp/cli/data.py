"""``cords-dp data``: public schemas of tables, and published sets to begin with."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cords_dp.cli.arguments import add_command, add_delimiter, add_json
from cords_dp.errors import ConfigError

if TYPE_CHECKING:
    from cords_dp.data.sources.table.files import TableFile
    from cords_dp.data.sources.table.schema import Schema

_SHOWN = 10

FETCHED = {
    "adult": "UCI's census data, 32,561 and 16,281 people, as CSV files with a public schema (5 MB)",
    "randhie": "the RAND Health Insurance Experiment, 20,190 years of 5,912 people, with a public schema (4 MB)",
    "mnist": "60,000 and 10,000 handwritten digits, 28 × 28 (55 MB)",
    "cifar10": "50,000 and 10,000 small photographs in ten classes, 32 × 32 (185 MB)",
}


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "data",
        None,
        "fetch published data; import your own tables, write and check their public schema",
        "data fetch adult",
        "data fetch cifar10",
        "data describe mine.csv --target income --range age=0:100 --public-schema mine.yaml",
        "data check mine.csv --schema mine.yaml",
        "data check mine.csv --schema mine.yaml --read",
        "data import mine.csv --out mine.parquet",
        "data digest mine.csv --statement runs/mine/privacy.json",
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
    what = "has a file the columns of a schema? No record is read, unless its owner asks for it (--read)"
    check = add_command(actions, "check", data_check, what)
    check.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz file")
    check.add_argument("--schema", type=Path, required=True, metavar="FILE", help="the schema, YAML")
    check.add_argument(
        "--read",
        action="store_true",
        help="for the data's owner: read all records, and show what a run would not understand. Not private",
    )
    what = "for the data's owner: turn a CSV file whose values may hold line breaks (RFC 4180) into Parquet"
    importing = add_command(actions, "import", data_import, what)
    importing.add_argument("file", type=Path, metavar="FILE", help="a .csv, .tsv, .txt or .data file")
    importing.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .parquet file to write")
    importing.add_argument("--header", metavar="a,b,c", help="the names of the columns of a file that has no header")
    what = "for the data's owner: is this the file that a privacy statement speaks of? The owner's key tells"
    digest = add_command(actions, "digest", data_digest, what)
    digest.add_argument("file", type=Path, metavar="FILE", help="a file or folder of records")
    digest.add_argument("--statement", type=Path, required=True, metavar="JSON", help="privacy.json of a run")
    for action in (describe, check, importing):
        add_delimiter(action, "a comma, of .tsv files a tab")
        add_json(action)


def data_fetch(args: argparse.Namespace) -> int:
    if args.name == "adult":
        from cords_dp.studies.adult import SCHEMA, fetch_adult

        paths = [*fetch_adult(args.out), args.out / SCHEMA.name]
    elif args.name == "randhie":
        from cords_dp.studies import randhie

        paths = [randhie.fetch_randhie(args.out), args.out / randhie.SCHEMA.name]
    else:
        from cords_dp.data.fetch import image_arrays, image_file

        image_arrays(args.name, args.out)  # a file that was there is looked at, too
        paths = [image_file(args.name, args.out)]
    for path in paths:
        print(path)
    return 0


def data_describe(args: argparse.Namespace) -> int:
    import yaml

    from cords_dp.data.sources.table.source import single_column_hint, table_file
    from cords_dp.data.sources.table.template import parse_categories, parse_range, schema_template
    from cords_dp.files import write_durably

    header = _names(args.header)
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
        print(
            f"then:   {shlex.join(['cords-dp', 'data', 'check', str(args.file), '--schema', str(args.public_schema)])}"
        )
    return 0


def data_check(args: argparse.Namespace) -> int:
    from cords_dp.data.sources.table.schema import load_schema
    from cords_dp.data.sources.table.source import check_header, table_file

    schema = load_schema(args.schema)
    name = schema.target.name
    file = table_file(args.file, header=schema.header, target=name, delimiter=args.delimiter, key="FILE")
    check_header(file, schema)
    if args.read:
        return _look(file, schema, as_json=args.json)
    if args.json:
        facts = {"columns": len(schema.columns), "cells": schema.width, "target": name, "classes": schema.classes}
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    kind = f"{len(schema.classes)} classes" if schema.classes else "a number"
    print(f"{args.file.name} has the {len(schema.columns)} columns of the schema: {schema.width} cells, target {kind}")
    return 0


def _look(file: TableFile, schema: Schema, *, as_json: bool) -> int:
    """Show the owner what a run would make of the records. The answer is no where it could learn from none."""
    from cords_dp.data.sources.table.owner import describe_look, look_at

    look = look_at(file, schema)
    print(json.dumps(look.facts(), indent=2, ensure_ascii=False) if as_json else describe_look(look))
    return 0 if look.labelled else 1


def data_import(args: argparse.Namespace) -> int:
    from cords_dp.data.sources.table.owner import import_csv

    found = import_csv(args.file, args.out, header=_names(args.header), delimiter=args.delimiter)
    if args.json:
        print(json.dumps(found._asdict(), indent=2, ensure_ascii=False))
        return 0
    print(f"{args.out}: {found.records:,} records, {len(found.columns)} columns, all as texts")
    if found.refused:
        lines = ", ".join(map(str, found.refused[:_SHOWN])) + (", …" if len(found.refused) > _SHOWN else "")
        print(f"{len(found.refused):,} could not be read and are left out; they begin at line {lines}")
        print("    (broken quotation marks, or another number of fields than the header has)")
    if found.foreign:
        print(f"{found.foreign:,} values hold bytes that are no UTF-8: save the file as UTF-8 and import it again")
    print(f"then: {shlex.join(['cords-dp', 'data', 'check', str(args.out), '--schema', 'SCHEMA', '--read'])}")
    return 0


def data_digest(args: argparse.Namespace) -> int:
    """Compare a file with a statement's digests; the answer is no where it is none of the run's files."""
    from cords_dp.data.digests import owner_digest, owner_key

    try:
        data = json.loads(args.statement.read_text()).get("about", {}).get("data", {})
    except (OSError, ValueError):
        raise ConfigError("--statement", args.statement.name, "cannot be read as a run's privacy.json") from None
    if not any(file.get("digest") for file in data.get("files", ())):
        raise ConfigError("--statement", args.statement.name, "holds no digest of a file")
    if not args.file.exists():
        raise ConfigError("FILE", args.file.name, "is not there")
    found = owner_digest(args.file, owner_key(create=False), data["salt"])
    same = [file["key"] for file in data["files"] if file.get("digest") == found]
    if same:
        print(f"{args.file.name} is the statement's {', '.join(same)}")
    else:
        print(f"{args.file.name} is none of the statement's files, or its digest was made with another key")
    return 0 if same else 1


def _names(header: str | None) -> list[str] | None:
    return [name.strip() for name in header.split(",")] if header else None
