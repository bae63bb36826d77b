"""Writes unicode_table.inc: what characters are to Hugging Face `tokenizers`, asked of the library itself.

Its regular expressions (Oniguruma), its \\w (Rust's regex crate) and its NFC follow different versions of Unicode, so the
properties are probed, code point by code point; Python's unicodedata only proposes the canonical combining classes and
decompositions, and each is checked.   python3 make_unicode.py > unicode_table.inc
"""

import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, MARK, WORD, NFC = 1, 2, 3, 4, 8, 16  # LETTER, NUMBER and SPACE share two bits.
UPPER, LOWER, SYMBOL, DIGIT, PUNCTUATION, CONTROL, NONSPACING, ACCENT, CJK, NFD, CASED = (32 << i for i in range(11))
BLOCK, PART = 128, 64
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matched_by(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    return {c for c in CODES if not split.pre_tokenize_str(chr(c))}


def word_codes():
    """A token that must stand alone is not found behind a character of a word."""
    tokenizer = Tokenizer(models.BPE({"@": 0}, [], unk_token="@"))
    tokenizer.add_tokens([AddedToken("XYZ", single_word=True, normalized=False)])
    return {c for c in CODES if tokenizer.encode(chr(c) + "XYZ").tokens[-1] != "XYZ"}


def apart(step):
    """Characters that the pre-tokenizer separates from the letters on both sides."""
    return {c for c in CODES if len(step.pre_tokenize_str(f"a{chr(c)}a")) == 3}


def becomes(step, text):
    """Characters that the normalizer replaces by this text, in which {} stands for the character."""
    return {c for c in CODES if step.normalize_str(chr(c)) == text.format(chr(c))}


def bert(**settings):
    return normalizers.BertNormalizer(**{"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False,
                                         **settings})


def lower_case():
    """Ranges of characters whose small letter is as far away: first, last, step from one to the next, distance."""
    small = normalizers.Lowercase().normalize_str
    ranges = []
    for c in CODES:
        if small(chr(c)) == chr(c) or c == 0x130:  # U+0130 alone becomes two characters.
            continue
        distance = ord(small(chr(c))) - c
        last = ranges[-1] if ranges else None
        if last and last[3] == distance and (c - last[1] == last[2] or (last[0] == last[1] and c - last[1] <= 2)):
            last[1:3] = c, c - last[1]
        else:
            ranges.append([c, c, 1, distance])
    return ranges


class Canonical:
    """Combining classes, decompositions and compositions as normalizers.NFC has them."""

    def __init__(self):
        self.nfd = normalizers.NFD().normalize_str
        self.nfc = normalizers.NFC().normalize_str
        self.classes = {c: k for c in CODES if (k := self.class_of(c))}
        self.decompositions = {}
        self.composes = set()
        for c in CODES:
            if 0xAC00 <= c < 0xD7A4 or self.nfd(chr(c)) == chr(c):
                continue
            parts = [int(p, 16) for p in unicodedata.decomposition(chr(c)).split()]
            assert len(parts) in (1, 2)
            assert self.nfd("".join(map(chr, parts))) == self.nfd(chr(c))
            self.decompositions[c] = parts
            if len(parts) == 2 and self.nfc("".join(map(chr, parts))) == chr(c):
                self.composes.add(c)

    def class_of(self, c):
        proposed = unicodedata.combining(chr(c))
        if proposed == 0:
            return 0
        above, below = "\u0345", "\u0334"  # Classes 240 and 1.
        moves = self.nfd(above + chr(c)) != above + chr(c) if proposed < 240 else self.nfd(chr(c) + below) != chr(c) + below
        return proposed if moves else 0

    def concerned(self):
        """Characters that may change, or change their neighbours, when a text is brought to NFC."""
        seconds = {self.decompositions[c][1] for c in self.composes} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
        changing = {c for c in CODES if self.nfc(chr(c)) != chr(c)}
        return seconds | changing | set(self.classes)


def two_stages(values, size):
    """The values as an index of blocks, and the blocks, each different one once."""
    blocks = {}
    index = [blocks.setdefault(tuple(values[start : start + size]), len(blocks)) for start in range(0, len(values), size)]
    return index, [value for block in blocks for value in block]


def array(storage, declaration, values):
    print("\n" + f"{storage} const {declaration} = {{".lstrip())
    line = ""
    for value in values:
        text = f"{value},"
        if len(line) + len(text) > 130:
            print(line)
            line = ""
        line += text
    print(line)
    print("};")


def main():
    flags = [0] * 0x110000
    for codes, flag in ((matched_by(r"\p{L}"), LETTER), (matched_by(r"\p{N}"), NUMBER), (matched_by(r"\s"), SPACE),
                        (matched_by(r"\p{M}"), MARK), (word_codes(), WORD), (matched_by(r"[\p{Lu}\p{Lt}]"), UPPER),
                        (matched_by(r"\p{Ll}"), LOWER), (matched_by(r"[\p{P}\p{S}]"), SYMBOL),
                        (apart(pre_tokenizers.Digits(individual_digits=True)), DIGIT),
                        (apart(pre_tokenizers.BertPreTokenizer()) - matched_by(r"\s"), PUNCTUATION),
                        (becomes(bert(clean_text=True), ""), CONTROL), (becomes(bert(strip_accents=True), ""), NONSPACING),
                        (becomes(normalizers.StripAccents(), ""), ACCENT),
                        (becomes(bert(handle_chinese_chars=True), " {} "), CJK),
                        (set(CODES) - becomes(normalizers.Lowercase(), "{}"), CASED)):
        for c in codes:
            flags[c] |= flag
    canonical = Canonical()
    for c in canonical.concerned():
        flags[c] |= NFC
    for c in CODES:
        if c in canonical.classes or canonical.nfd(chr(c)) != chr(c):
            flags[c] |= NFD
    assert all(flags[c] & SPACE == SPACE or flags[c] & CONTROL for c in becomes(bert(clean_text=True), " "))
    groups = sorted(set(flags))
    assert len(groups) <= 256
    number = {flag: i for i, flag in enumerate(groups)}
    index, blocks = two_stages([number[flag] for flag in flags], BLOCK)
    parts, index = two_stages(index, PART)
    assert len(blocks) // BLOCK <= 65536 and len(index) // PART <= 256
    pairs = sorted(canonical.decompositions)
    joined = sorted(canonical.composes, key=canonical.decompositions.get)
    print(f"/* Written by make_unicode.py from tokenizers {tokenizers.__version__}: letters, numbers, marks and white space as its")
    print(" * regular expressions have them (Oniguruma, Unicode 16.0), words as Rust's regex crate, NFC as its normalizer;")
    print(f" * combining classes and decompositions proposed by Unicode {unicodedata.unidata_version}. */")
    array("", "uint8_t evq_unicode_parts[0x110000 / EVQ_UNICODE_BLOCK / EVQ_UNICODE_PART]", parts)
    array("", "uint16_t evq_unicode_index[]", index)
    array("", "uint8_t evq_unicode_groups[]", blocks)
    array("", "uint16_t evq_unicode_flags[]", groups)
    array("static", "struct evq_unicode_pair decompositions[]",
          [f"{{{c},{canonical.decompositions[c][0]},{(canonical.decompositions[c] + [0])[1]}}}" for c in pairs])
    array("static", "uint16_t compositions[]", [pairs.index(c) for c in joined])
    array("static", "struct evq_unicode_class classes[]",
          [f"{{{c},{k}}}" for c, k in sorted(canonical.classes.items())])
    array("static", "struct evq_unicode_range lower_case[]", [f"{{{','.join(map(str, r))}}}" for r in lower_case()])
    print(f"groups {len(groups)}, blocks {len(blocks) // BLOCK}, decompositions {len(pairs)}, compositions {len(joined)}, classes {len(canonical.classes)}", file=sys.stderr)


main()
