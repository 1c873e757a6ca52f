"""Addresses of databases: what looks like one, and how to show it without its password."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

_ENGINES = (
    "postgres|postgresql|mysql|mariadb|sqlite|duckdb|snowflake|bigquery|trino|clickhouse|mssql|oracle|redshift|jdbc"
)
_SETTING = r"(?i)(?:password|passwd|pwd)\s*=\s*"
_VALUE = r"('(?:[^'\\]|\\.)*'?|[^\s&]+)"
_SETTING_AND_VALUE = rf"(?i:password|passwd|pwd)\s*=\s*{_VALUE}"
_SCHEME = re.compile(r"[\w+.:-]*[:;]?/+")


def looks_like_address(text: str) -> bool:
    """Whether a text looks like the address of a database, mistyped or not: a scheme, a user with a password, or settings.

    >>> [looks_like_address(text) for text in ("postgresql:/me:pw@db", "host=db password=pw", "logs/10:30.parquet")]
    [True, True, False]
    """
    return (
        "://" in text
        or re.match(rf"(?i)(?:{_ENGINES})(?:[:;]|//)", text) is not None
        or re.search(rf"{_SETTING}|(?i:\bdbname\s*=)", text) is not None
        or re.search(r":[^\\].*@", text, re.DOTALL) is not None
    )


def without_password(address: str) -> str:
    """An address as it may be shown to others.

    >>> without_password("postgresql://me:hunter2@db/logs?password=hunter3")
    'postgresql://me:…@db/logs?password=…'
    >>> without_password("host=db password='hunter 2' dbname=logs")
    'host=db password=… dbname=logs'
    """
    return without(secrets_of(address), address)


def forgetting_password(address: str) -> str:
    """An address without its password, which the reader supplies instead (PostgreSQL: PGPASSWORD, ~/.pgpass).

    >>> forgetting_password("postgresql://me:hunter2@db/logs?password=hunter3&sslmode=require")
    'postgresql://me@db/logs?sslmode=require'
    >>> forgetting_password("host=db password='hunter 2' dbname=logs")
    'host=db dbname=logs'
    """
    if not secrets_of(address):
        return address
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    user, at, place = address[start:].rpartition("@")
    bare = address[:start] + user.partition(":")[0] + at + place
    bare = re.sub(rf"(?<=[?&]){_SETTING_AND_VALUE}&?|\s*{_SETTING_AND_VALUE}", "", bare).rstrip("?&").lstrip()
    return without_password(bare)


def without(secrets: Sequence[str], text: str) -> str:
    """A text with dots in place of the secrets."""
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


def secrets_of(address: str) -> list[str]:
    """The parts of an address that nobody may see, longest first."""
    if not looks_like_address(address):
        return []
    scheme = _SCHEME.match(address)
    rest = address[scheme.end() :] if scheme else address
    secrets = [
        rest.rpartition("@")[0].partition(":")[2],
        *re.findall(rf"{_SETTING}{_VALUE}", address),
    ]
    # pieces too: a driver that misreads an address may quote a part of the password as a port or a path
    secrets += [piece for secret in secrets for piece in re.split(r"[@:/?#]", secret) if len(piece) > 2]
    return sorted({text for secret in secrets for text in (secret, unquote(secret)) if text}, key=len, reverse=True)
