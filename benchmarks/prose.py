"""The English prose of a page: paragraphs of whole sentences, without code, tables and navigation.

Roughly what FineWeb's own extraction and filters leave of a page of the web.
"""

from __future__ import annotations

import html
import re

WITHOUT_PROSE = re.compile(
    r"<!--.*?-->|<(script|style|head|nav|pre|svg|select|textarea|button)\b.*?</\1\s*>", re.S | re.I
)
BLOCK = re.compile(
    r"</?(?:p|div|li|ul|ol|dl|dt|dd|h[1-6]|br|hr|td|th|tr|table|section|article|aside|header|footer|main"
    r"|blockquote|figure|figcaption|details|summary|body|html|form|center)\b[^>]*>", re.I,
)  # fmt: skip
TAG = re.compile(r"<[^<>]{1,2000}>")
SPACES = re.compile(r"\s+")
PARAGRAPH_END = re.compile(r"\n\s*\n")
ENTRY_END = re.compile(r"\n(?=\S)")  # of a dictionary: what belongs to an entry is indented
PROSE_CHARACTERS = re.compile(r"[A-Za-z ]+")
FEWEST_WORDS, MOST_WORDS = 6, 2000
PROSE_SHARE = 0.8
LONGEST_WORD = 60
# One word in 25 of any English text is one of these; in other languages hardly any.
ENGLISH_WORDS = {"the", "of", "and", "to", "is", "for", "with", "that"}


def paragraphs_of(name: str, page: str) -> list[str]:
    """The paragraphs of a page that are prose."""
    if name.endswith((".html", ".htm", ".xhtml")):
        page = BLOCK.sub("\n\n", SPACES.sub(" ", WITHOUT_PROSE.sub(" ", page)))
        page = html.unescape(TAG.sub("", page))
    end = ENTRY_END if name.endswith(".dict") else PARAGRAPH_END
    found = (SPACES.sub(" ", paragraph).strip() for paragraph in end.split(page))
    paragraphs = [paragraph for paragraph in found if is_prose(paragraph)]
    return paragraphs if is_english(paragraphs) else []


def is_prose(paragraph: str) -> bool:
    """Whether it has some words, and hardly anything else."""
    words = paragraph.split(" ")
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS or max(map(len, words)) > LONGEST_WORD:
        return False
    return sum(map(len, PROSE_CHARACTERS.findall(paragraph))) >= PROSE_SHARE * len(paragraph)


def is_english(paragraphs: list[str]) -> bool:
    words = [word for paragraph in paragraphs for word in paragraph.split(" ")]
    return sum(word in ENGLISH_WORDS for word in words) * 25 >= len(words)
