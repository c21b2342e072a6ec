"""Text into sentences, simply: no list of abbreviations, no model.

A sentence ends after . ! ? or … and any closing quotes or brackets, where a blank follows; after 。！？ whatever
follows; and at an empty line. A line end alone ends nothing: it may be there for the width of the page.
"""

import re

END = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*|\s*\n[^\S\n]*\n\s*""")


def sentences(text: str) -> list[str]:
    found, start = [], 0
    for end in END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]
