"""Writes capitalize_table.inc: the case of characters as Python has it, asked of Python itself, code point by code point.

    python3 make_case.py > capitalize_table.inc
"""

import unicodedata

CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def ranges(mapping):
    """(first, last, step, delta) for runs of code points, every step-th of which moves by delta."""
    runs = []
    for code, to in sorted(mapping.items()):
        delta = to - code
        if runs and runs[-1][3] == delta:
            first, last, step, _ = runs[-1]
            if code - last in (1, 2) and (step == 0 or code - last == step):
                runs[-1] = (first, code, code - last, delta)
                continue
        runs.append((code, code, 0, delta))
    return [(first, last, step or 1, delta) for first, last, step, delta in runs]


def spans(codes):
    runs = []
    for code in sorted(codes):
        if runs and runs[-1][1] == code - 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs


def final_after(text):
    """Whether a capital sigma behind this becomes a final one."""
    return (text + "\u03a3").lower().endswith("\u03c2")


def put(kind, name, rows):
    print(f"static const struct {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        cell = " {" + ", ".join(n if isinstance(n, str) else hex(n) if i < 2 else str(n) for i, n in enumerate(row)) + "},"
        if len(line) + len(cell) > 118:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};\n")


def main():
    long = {}
    print(f"/* Written by make_case.py: what Python makes of characters from U+0080 on, Unicode {unicodedata.unidata_version}. */\n")
    for name, of in (("title", str.title), ("lower", str.lower)):
        mapping = {}
        for code in CODES:
            to = of(chr(code))
            if to != chr(code):
                if len(to) == 1:
                    mapping[code] = ord(to)
                else:
                    long[code, name == "title"] = [ord(c) for c in to]
        put("case_range", name + "_ranges", ranges(mapping))
    rows = [(code, int(title), "{" + ", ".join(map(hex, to)) + "}") for (code, title), to in sorted(long.items())]
    put("case_long", "long_cases", rows)
    everything = range(1, 0x110000)
    codes = [c for c in everything if not 0xD800 <= c < 0xE000]
    cased = {c for c in codes if final_after(chr(c))}
    put("case_span", "cased_spans", spans(cased))
    put("case_span", "ignorable_spans", spans(c for c in codes if c not in cased and final_after("A" + chr(c))))


main()
