"""`--where`: what is a condition and what is refused, and that rows pass as in plain Python."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import operator
import pickle
import random
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import BadFileError, UsageError
from fineweb_shards.formats.row_filter import RowFilter
from fineweb_shards.formats.where import MOST_CHARACTERS, AllOf, AnyOf, Compare, Condition, IsNull, Not, parse_where
from tests.support import inline, reference, runs
from tests.support.promises import Tries

A, B, C = Compare("a", "=", 1), Compare("b", "=", 2), Compare("c", "=", 3)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a = 1", A),
        ("a==1", A),
        ("1 = a", A),
        ("a != 1", Not(A)),
        ("4 < a", Compare("a", ">", 4)),
        ("a >= -4", Compare("a", ">=", -4)),
        ("a<=1e6", Compare("a", "<=", 1e6)),
        ("a > .5", Compare("a", ">", 0.5)),
        ("a = 'it''s'", Compare("a", "=", "it's")),
        ('a = "x\'y"', Compare("a", "=", "x'y")),
        ("a = true", Compare("a", "=", True)),
        ("a", Compare("a", "=", True)),
        ("NOT a", Not(Compare("a", "=", True))),
        ("a is null", IsNull("a")),
        ("a IS NOT NULL", Not(IsNull("a"))),
        ("a in (1)", AnyOf((A,))),
        ("a not in ('x', 'y')", Not(AnyOf((Compare("a", "=", "x"), Compare("a", "=", "y"))))),
        ("a contains 'x'", Compare("a", "contains", "x")),
        ("a not starts with 'x'", Not(Compare("a", "starts with", "x"))),
        ("`a b``c` = 1", Compare("a b`c", "=", 1)),
        ("`and` = 1", Compare("and", "=", 1)),
        ("a.b = 1", Compare("a.b", "=", 1)),
        ("größe = 1", Compare("größe", "=", 1)),
        ("a=1 or b=2 and c=3", AnyOf((A, AllOf((B, C))))),
        ("(a=1 or b=2) and c=3", AllOf((AnyOf((A, B)), C))),
        ("not a=1 and b=2", AllOf((Not(A), B))),
    ],
)
def test_conditions(text: str, condition: Condition) -> None:
    """Every form of the grammar; `and` binds closer than `or`, `not` closer than both."""
    where = parse_where(text)
    assert where.condition == condition
    assert pickle.loads(pickle.dumps(where)) == where


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the condition is empty"),
        ("a = 1 and", "the name of a column is missing, at the end"),
        ("a >> 4", "a number, a text in quotes, true or false is missing, at character 4: > 4"),
        ("a = null", "write `is null`"),
        ("1 = 2", "the name of a column is missing, at character 5: 2"),
        ("a < b", "not with another column"),
        ("0 < a < 3", "join the two with `and`, at character 7: < 3"),
        ("a = 'x", "the quote ' is never closed, at character 5: 'x"),
        ("a = 12abc", "this is not a number, at character 5: 12abc"),
        ("a = 1e999", "this number is too large"),
        ("a ! 3", "unexpected character '!'"),
        ("a > true", "true and false are only compared with = and !="),
        ("a contains 3", "a text in quotes is missing"),
        ("a in ()", "is missing, at character 7: )"),
        ("a in (1", "`)` is missing, at the end"),
        ("a = 1 b = 2", "`and`, `or` or the end is missing, at character 7: b = 2"),
        ("a = 1 and a = 'x'", "'a' is compared with a number and with a text"),
        ("(" * 300 + "a" + ")" * 300, "are nested"),
        ("not " * 300 + "a", "are nested"),
        ("a" * (MOST_CHARACTERS + 1), "characters are too many"),
        ("a = " + "9" * 5000, "this number is too large"),
        ("__import__('os').system('x')", "at character 17: .system('x')"),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    """Each has a sentence with the place, and none is evaluated."""
    with pytest.raises(UsageError) as caught:
        parse_where(text)
    assert caught.value.message.startswith("--where: ")
    assert told in caught.value.message
    assert "\n" not in caught.value.message


def test_any_text_is_a_condition_or_refused(tries: Tries) -> None:
    """Words, signs and rubbish in any order: never another error than the sentence."""
    chooser = random.Random(5)
    words = [*string.punctuation, "a", "b.c", "`x`", "and", "or", "not", "is", "null", "in", "<=", "!=", "1",
             "-2.5", "'t'", "true", "contains", "starts", "with", "''", "1e5", "..", "\0", "é"]  # fmt: skip
    for _ in tries(3000, 300_000):
        text = " ".join(chooser.choices(words, k=chooser.randint(0, 9)))
        with contextlib.suppress(UsageError):
            parse_where(text)


NUMBERS = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -2.5, 1e300, float("nan"), float("inf")]),
)
TEXTS = st.one_of(st.none(), st.text("ab\u00e9\U0001f642", max_size=3))
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "contains": operator.contains, "starts with": str.startswith,
}  # fmt: skip
LEAVES = st.one_of(
    st.builds(
        Compare,
        st.sampled_from(["n", "i"]),
        st.sampled_from(["=", "<", "<=", ">", ">="]),
        st.one_of(st.integers(-6, 6), st.sampled_from([0.5, -0.5, 2**53 + 1, 2**64, -(2**64), 1e300])),
    ),
    st.builds(Compare, st.just("t"), st.sampled_from([*TESTS]), st.text("ab\u00e9\U0001f642", max_size=2)),
    st.builds(Compare, st.just("b"), st.just("="), st.booleans()),
    st.builds(IsNull, st.sampled_from(["n", "i", "t", "b"])),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(AllOf, st.tuples(inner, inner)),
        st.builds(AnyOf, st.tuples(inner, inner, inner)),
    ),
    max_leaves=6,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": NUMBERS,
            "i": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5)),
            "t": TEXTS,
            "b": st.one_of(st.none(), st.booleans()),
        }
    ),
    max_size=8,
)


def spell(condition: Condition) -> str:
    """A condition as somebody would type it."""
    match condition:
        case Compare(column, test, value):
            shown = f"'{value}'" if isinstance(value, str) else json.dumps(value)
            return f"{column} {test} {shown}"
        case IsNull(column):
            return f"{column} is null"
        case Not(inner):
            return f"not ({spell(inner)})"
        case AllOf(parts):
            return " and ".join(f"({spell(part)})" for part in parts)
        case AnyOf(parts):
            return " or ".join(f"({spell(part)})" for part in parts)


def holds(condition: Condition, row: dict[str, Any]) -> bool | None:
    """What the condition is for a row, by plain Python and SQL's rules for what is unknown."""
    match condition:
        case Compare(column, test, value):
            return None if row[column] is None else TESTS[test](row[column], value)
        case IsNull(column):
            return row[column] is None
        case Not(inner):
            found = holds(inner, row)
            return None if found is None else not found
        case AllOf(parts):
            every = [holds(part, row) for part in parts]
            return False if False in every else None if None in every else True
        case AnyOf(parts):
            every = [holds(part, row) for part in parts]
            return True if True in every else None if None in every else False


@given(CONDITIONS, ROWS)
def test_rows_pass_as_in_plain_python(condition: Condition, rows: list[dict[str, Any]]) -> None:
    """Arrow's columns and JSON's values: the same rows as a plain loop, the same counts, and whole numbers that no
    double can hold are told apart."""
    where = parse_where(spell(condition))
    chosen = RowFilter(where)
    answers = [holds(condition, row) for row in rows]
    passes, counts = chosen.select_values([chosen.read_values(row) for row in rows])
    assert passes == [answer is True for answer in answers]
    assert (counts.filtered_documents, counts.unknown_documents) == (answers.count(False), answers.count(None))
    doubles = [{**row, "n": None if row["n"] is None else float(row["n"])} for row in rows]
    answers = [holds(condition, row) for row in doubles]
    kinds = {"n": pa.float64(), "i": pa.int64(), "t": pa.string(), "b": pa.bool_()}
    columns = {name: pa.array([row[name] for row in doubles], kind) for name, kind in kinds.items()}
    texts = pa.array(["x" if i % 3 else None for i in range(len(rows))], pa.string())
    selection = chosen.select(pa.RecordBatch.from_pydict({"text": texts, **columns}))
    if not any(isinstance(one, int) and abs(one) > 2**53 for one in values_of(condition, "n")):
        assert selection.wanted.to_pylist() == [a is True and i % 3 > 0 for i, a in enumerate(answers)]
        assert selection.counts.skipped_documents == sum(answers[i] is True for i in range(0, len(rows), 3))
        assert selection.counts.filtered_documents == answers.count(False)
        assert selection.counts.unknown_documents == answers.count(None)


def values_of(condition: Condition, name: str) -> list[object]:
    """What a column is compared with."""
    match condition:
        case Compare(column, _, value):
            return [value] if column == name else []
        case Not(inner):
            return values_of(inner, name)
        case AllOf(parts) | AnyOf(parts):
            return [value for part in parts for value in values_of(part, name)]
    return []


@pytest.mark.parametrize(
    ("column", "where", "kept"),
    [
        (pa.array([1, 2, 3], pa.uint8()), "c >= 1.5", [1, 2]),
        (pa.array([1, 2, 3], pa.uint8()), "c < 300 and c > -1", [0, 1, 2]),
        (pa.array([0, 2**64 - 1, 1], pa.uint64()), "c = 18446744073709551615", [1]),
        (pa.array([0.5, 0.25, 1], pa.float32()), "c <= 0.5", [0, 1]),
        (pa.array([decimal.Decimal("0.8"), decimal.Decimal("0.7"), None]), "c = 0.8", [0]),
        (pa.array(["x", "y", None]).dictionary_encode(), "c in ('y', 'z')", [1]),
        (pa.array([b"x", b"\xffy", None], pa.binary()), "c contains 'y'", [1]),
        (pa.array(["x", "yy", None], pa.large_string()), "c starts with 'y' or c is null", [1, 2]),
        (pa.array([True, False, None]), "not c", [1]),
        (pa.array([datetime.date(2024, 1, 1), None, None]), "c is null", [1, 2]),
        (pa.nulls(3), "c > 3 or c is null", [0, 1, 2]),
    ],
)
def test_columns_of_every_type(tmp_path: Path, column: pa.Array, where: str, kept: list[int]) -> None:
    """Numbers of any width, decimals, dictionaries, bytes, booleans, nulls of dates, and nothing at all."""
    table = pa.table({"c": column, "text": ["zero", "one", "two"]})
    pq.write_table(table, tmp_path / "a.parquet")
    tokens, counts = runs.encode_inline(tmp_path / "a.parquet", where=where)
    texts = [["zero", "one", "two"][i] for i in kept]
    assert runs.decode(tokens) == "".join(f"<|endoftext|>{text}" for text in texts)
    assert counts.filtered_documents + counts.unknown_documents == 3 - len(kept)


@pytest.mark.parametrize(
    ("where", "told", "hint"),
    [
        ("scroe > 3", "there is no column 'scroe'; the columns are: text, score", "Did you mean score?"),
        ("score > '3'", "column 'score' holds int64; --where compares it with a text.", "numbers without quotes"),
        ("text > 3", "column 'text' holds string; --where compares it with a number.", "texts in quotes"),
        ("score", "column 'score' holds int64; --where compares it with true or false.", ""),
        ("meta is null", "column 'meta' holds struct<x: int64>, which --where can't look into.", ""),
        ("meta.y > 1", "there is no column 'meta.y'; the columns are: meta.x.", "Did you mean meta.x?"),
        ("meta.x > '1'", "column 'meta.x' holds int64; --where compares it with a text.", "numbers without quotes"),
        ("text.x > 1", "there is no column 'text.x'; the columns are: text, score, meta, day.", ""),
        ("day > '2024'", "column 'day' holds date32[day]; --where compares it with a text.", ""),
    ],
)
def test_parquet_columns_that_do_not_fit(tmp_path: Path, where: str, told: str, hint: str) -> None:
    """Before anything is read: exit code 3, a sentence with file, column and type, and the next step."""
    table = {"text": ["x"], "score": [1], "meta": [{"x": 1}], "day": [datetime.date(2024, 1, 1)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    done = inline.run_command("build", tmp_path / "a.parquet", "--out", tmp_path / "out", "--where", where)
    assert done.returncode == 3
    assert f"a.parquet: {told}" in done.stderr
    assert hint in done.stderr
    assert not runs.shards_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"score": "3"}, "has a text as 'score', which --where compares with a number"),
        ({"score": True}, "has true or false as 'score', which --where compares with a number"),
        ({"score": [3]}, "has a list as 'score', which --where compares with a number"),
    ],
)
def test_json_values_that_do_not_fit(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    """A value of another kind is a bad line: named with its place, or left out and counted."""
    path = tmp_path / "a.jsonl"
    rows = [{"text": "one", "score": 4}, {"text": "two", **row}, {"text": "three", "score": 5}, {"text": "four"}]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    words = ["build", path, "--out", tmp_path / "out", "--where", "score > 3", "--shard-tokens", "100M"]
    done = inline.run_command(*words)
    assert done.returncode == 3
    assert f"a.jsonl: the line at byte 28 {told}." in done.stderr
    assert inline.run_command(*words, "--on-bad-file", "skip").returncode == 0
    totals = json.loads((tmp_path / "out" / "manifest.json").read_text())["totals"]
    assert (totals["documents"], totals["bad_parts"], totals["unknown_documents"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("bad", "settings"),
    [
        ('"text": 5', {}),
        ('"other": "x"', {}),
        ('"tokens": [1, 99999]', {"tokens_column": "tokens"}),
        ('"tokens": "x"', {"tokens_column": "tokens"}),
    ],
)
@pytest.mark.parametrize("on_bad_file", ["stop", "skip"])
def test_a_json_line_that_is_left_out_is_not_looked_at(
    tmp_path: Path, bad: str, settings: dict[str, Any], on_bad_file: str
) -> None:
    """The condition comes first: a document that it leaves out is no damage, one that it keeps is, and the documents
    before that are kept."""
    good = '"text": "word", "tokens": [1, 2]'
    path, later = tmp_path / "a.jsonl", tmp_path / "later.jsonl"
    path.write_text(f'{{{good}, "n": 1}}\n{{{bad}, "n": 2}}\n{{{bad}, "n": null}}\n{{{good}, "n": 1}}\n')
    one = [1, 2] if settings else reference.encode("word")
    found, counts = runs.encode_inline(path, where="n = 1", on_bad_file=on_bad_file, **settings)
    assert found == [50256, *one] * 2
    assert (counts.filtered_documents, counts.unknown_documents, counts.bad_parts) == (1, 1, 0)
    later.write_text(path.read_text() + f'{{{bad}, "n": 1}}\n{{{good}, "n": 2}}\n{{{good}, "n": 1}}\n')
    if on_bad_file == "stop":
        with pytest.raises(BadFileError, match=f"the line at byte {path.stat().st_size}"):
            runs.encode_inline(later, where="n = 1", **settings)
        source = runs.job_of(tmp_path / "out", later, where="n = 1", **settings).source
        with contextlib.closing(source), contextlib.closing(source.batches(runs.START)) as batches:
            chunk = next(source.chunks(next(batches)))
        assert (len(chunk.documents), chunk.counts.filtered_documents) == (2, 1)
    else:
        found, counts = runs.encode_inline(later, where="n = 1", on_bad_file="skip", **settings)
        assert found == [50256, *one] * 3
        assert (counts.filtered_documents, counts.unknown_documents, counts.bad_parts) == (2, 1, 1)


@pytest.mark.parametrize("value", [2**64, 2**64 + 1, -(2**63) - 1, 10**300 + 1])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_whole_numbers_of_any_length_are_compared_exactly(tmp_path: Path, value: int, kind: str) -> None:
    """Above 64 bits as well: as doubles they would equal their neighbours."""
    path = tmp_path / f"a.{kind}"
    values = [value, value + 1, value + 2]
    if kind == "jsonl":
        path.write_text("\n".join(f'{{"text": "{i}", "n": {n}}}' for i, n in enumerate(values)))
    else:
        path.write_text("\n".join(["text,n", *(f"{i},{n}" for i, n in enumerate(values))]))
    for where, kept in ((f"n = {value + 1}", ["1"]), (f"n > {value}", ["1", "2"]), (f"n <= {value}", ["0"])):
        assert runs.encode_inline(path, where=where)[0] == reference.stream(kept).tolist()


@pytest.mark.parametrize("verb", ["build", "plan"])
@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--where", "score >> 3"], 2, "--where: a number, a text in quotes, true or false is missing"),
        (["--where", ""], 2, "--where: the condition is empty."),
        (["--where", "score > 3"], 2, "a.txt is plain text, which has no columns"),
        (["--min-tokens", "5", "--max-document-tokens", "4"], 2, "is below --min-tokens 5"),
        (["--max-document-tokens", "1e9"], 2, "must be at most 10,000,000"),
    ],
)
def test_flags_that_do_not_fit(tmp_path: Path, verb: str, flags: list[str], code: int, told: str) -> None:
    """Exit code 2 and one sentence, before a folder is made."""
    (tmp_path / "a.txt").write_text("text")
    done = inline.run_command(verb, tmp_path / "a.txt", "--out", tmp_path / "out", *flags)
    assert (done.returncode, told in done.stderr) == (code, True)
    assert not (tmp_path / "out").exists()


def test_reading_with_a_filter_imports_no_pandas(tmp_path: Path) -> None:
    """And without a filter not even pyarrow.compute."""
    pq.write_table(pa.table({"text": ["one", "two"], "n": [1, 2], "t": ["a", None]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": "one", "n": 1, "t": "a"}\n{"text": "two", "n": 2}\n')
    code = f"""
import sys
from fineweb_shards.sources.source import open_source
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.sources.files import find_files
from fineweb_shards.formats.where import parse_where
from fineweb_shards.types import Cursor
from fineweb_shards.vocabulary import GPT2
files = find_files(({str(tmp_path)!r},), "auto", lambda path: False, skip_bad=False, note=print)
for where in (None, parse_where("n < 2 and (t is null or t starts with 'a' or t > 'x')")):
    source = open_source(files, ReadSettings("text", "auto", 1024, False, GPT2, where=where))
    chunks = [chunk for batch in source.batches(Cursor(0, 0)) for chunk in source.chunks(batch)]
    print(*(text for chunk in chunks for text in chunk.documents), "pyarrow.compute" in sys.modules)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:3] == ["one two one two False", "one one True", "False"], done.stderr
