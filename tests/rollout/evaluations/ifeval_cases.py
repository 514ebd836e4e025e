"""Instructions with arguments, and replies that follow them or not: what ``record_harness.py`` asks the harness about. Ours."""

from __future__ import annotations

from typing import Any

ENGLISH = "The river rises in the hills and runs slowly to the sea. Few people live beside it now."
GERMAN = "Der Fluss entspringt in den Bergen und fließt langsam zum Meer. Heute wohnen dort nur wenige Menschen."
FRENCH = "La rivière prend sa source dans les collines et coule lentement vers la mer. Peu de gens y vivent encore."

REPLIES = (
    ENGLISH,
    GERMAN,
    FRENCH,
    ENGLISH.upper(),
    ENGLISH.lower(),
    f'"{ENGLISH}"',
    "Here it is:\n* one\n* two\n- three\n** four **\n*** five",
    "* first point\n* second point",
    "Dear [name],\n\nwe meet at [place] on [day].\n\nP.S. Bring a coat.\n\nP.P.S. And a hat.",
    "My answer is maybe.",
    "Sure! My answer is no. That is all.",
    "<<The River>>\n\n" + ENGLISH,
    "<< >>\n<<>>",
    '```json\n{"river": [1, 2.5, null]}\n```',
    '{"river": "long"}',
    "```JSON\n[1, 2\n```",
    "One way.\n******\nAnother way.",
    "Same.\n******\nSame.",
    "******\nOne.\n******\nTwo.\n******",
    "One.\n******\n\n******\nTwo.",
    "Section 1\nThe spring.\nSECTION 2\nThe mouth.\nSection 3 The end",
    "The spring.\n***\nThe mouth.\n***\nThe sea.",
    "***\nThe spring.\n***\n\n***\nThe sea.",
    'River one.\n\nThe second, of three.\n\n"Mouth" comes last.',
    "*bold* and **bolder** and ** ** and *a\nb* and ***all***",
    "Describe the river in one line.\nIt is long. Any other questions?",
    "describe the RIVER in one line. It is long",
    'It is long. "Any other questions?"',
    "NASA and ESA saw it. OK! U.S. and e.g. EU too: RIVER-BED, A1.",
    "What? Where! When... nobody knows. Dr. Smith paid 3.50 for 2. No. 7 is his.",
    "one two three four five six seven eight nine ten",
    "river River RIVER rivers, driver; the sea",
    "No commas here at all",
    "",
    "   \n\t",
    "\n",
    "...",
    "\0",
    "😀 🏞️",
    "12345 67890",
    'Some preface\n"Quoted whole."\nsome end',
    "Intro\n* only\nOutro: any other questions?",
    "a" * 3000,
    "*" * 500,
    "[" * 300 + "]" * 300,
)

CASES: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("keywords:existence", ({"keywords": ["river", "sea"]}, {"keywords": ["r.ver"]})),
    (
        "keywords:frequency",
        (
            {"keyword": "river", "frequency": 2, "relation": "at least"},
            {"keyword": " the ", "frequency": 3, "relation": "less than"},
        ),
    ),
    ("keywords:forbidden_words", ({"forbidden_words": ["river", "hat"]},)),
    (
        "keywords:letter_frequency",
        (
            {"letter": "E", "let_frequency": 6, "let_relation": "at least"},
            {"letter": "r", "let_frequency": 4, "let_relation": "less than"},
        ),
    ),
    ("language:response_language", ({"language": "de"}, {"language": "en"}, {"language": "fr"})),
    (
        "length_constraints:number_sentences",
        (
            {"num_sentences": 2, "relation": "at least"},
            {"num_sentences": 3, "relation": "less than"},
            {"num_sentences": 6, "relation": "at least"},
        ),
    ),
    ("length_constraints:number_paragraphs", ({"num_paragraphs": 3}, {"num_paragraphs": 2})),
    (
        "length_constraints:number_words",
        (
            {"num_words": 10, "relation": "at least"},
            {"num_words": 12, "relation": "less than"},
        ),
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        (
            {"num_paragraphs": 3, "nth_paragraph": 3, "first_word": "Mouth"},
            {"num_paragraphs": 3, "nth_paragraph": 1, "first_word": "river"},
            {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "the"},
            {"num_paragraphs": 3, "nth_paragraph": 5, "first_word": "the"},
        ),
    ),
    ("detectable_content:number_placeholders", ({"num_placeholders": 3}, {"num_placeholders": 1})),
    (
        "detectable_content:postscript",
        (
            {"postscript_marker": "P.S."},
            {"postscript_marker": "P.P.S"},
            {"postscript_marker": "PS:"},
        ),
    ),
    ("detectable_format:number_bullet_lists", ({"num_bullets": 2}, {"num_bullets": 3})),
    ("detectable_format:constrained_response", ({},)),
    (
        "detectable_format:number_highlighted_sections",
        ({"num_highlights": 2}, {"num_highlights": 5}),
    ),
    (
        "detectable_format:multiple_sections",
        (
            {"section_spliter": "Section", "num_sections": 2},
            {"section_spliter": "SECTION", "num_sections": 1},
        ),
    ),
    ("detectable_format:json_format", ({},)),
    ("detectable_format:title", ({},)),
    ("combination:two_responses", ({},)),
    ("combination:repeat_prompt", ({"prompt_to_repeat": "Describe the river in one line."},)),
    ("startend:end_checker", ({"end_phrase": "Any other questions?"},)),
    ("startend:quotation", ({},)),
    (
        "change_case:capital_word_frequency",
        (
            {"capital_frequency": 3, "capital_relation": "at least"},
            {"capital_frequency": 2, "capital_relation": "less than"},
        ),
    ),
    ("change_case:english_capital", ({},)),
    ("change_case:english_lowercase", ({},)),
    ("punctuation:no_comma", ({},)),
)
"""By the data's ids: 25 of them."""
