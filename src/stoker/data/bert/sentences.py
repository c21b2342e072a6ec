"""Splits text into sentences by simple rules: no list of abbreviations, no model.

A sentence ends after . ! ? or … and any closing quotes or brackets, where a blank follows; after 。！？ whatever
follows; and at an empty line. A line end alone ends nothing: it may only wrap the text.
"""

import re

END = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*|\s*\n[^\S\n]*\n\s*""")


def sentences(text: str) -> list[str]:
    parts, start = [], 0
    for end in END.finditer(text):
        parts.append(text[start : end.end()].strip())
        start = end.end()
    parts.append(text[start:].strip())
    return [sentence for sentence in parts if sentence]
