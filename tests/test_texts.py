"""Texts: UTF-8 in buffers, told apart by nothing from a list of strings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.texts import NO_TEXTS, TextBuffer, Texts, replace_surrogates

any_text = st.text(st.characters(exclude_categories=()), max_size=20)  # with lone surrogates


@given(st.lists(st.lists(any_text, max_size=5), max_size=4))
def test_texts_are_the_strings_they_were_made_of(groups: list[list[str]]) -> None:
    """By iteration, by index, one alone and as bytes, in however many buffers; half a character is U+FFFD."""
    texts = NO_TEXTS
    for group in groups:
        texts = texts + Texts.from_strings(group)
    expected = [replace_surrogates(text) for group in groups for text in group]
    assert len(texts) == len(expected)
    assert list(texts) == expected
    assert [texts[i] for i in range(len(expected))] == expected
    assert [list(texts.only(i)) for i in range(len(expected))] == [[text] for text in expected]
    assert list(texts.iter_bytes()) == [text.encode() for text in expected]
    assert texts.size_bytes == sum(len(text.encode()) for text in expected)
    assert texts.longest_bytes == max((len(text.encode()) for text in expected), default=0)
    with pytest.raises(IndexError):
        texts[len(expected)]


def test_texts_need_not_touch() -> None:
    """A buffer may hold more than its texts, such as separators."""
    buffer = TextBuffer(memoryview("one--zwölf--".encode()), np.array([0, 5]), np.array([3, 11]))
    assert list(Texts(buffer)) == ["one", "zwölf"]
