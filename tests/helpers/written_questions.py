"""Passages with written questions for tests of training rows."""

from specprefill_cli.training.corpus import ContextQuestions

PLACES = ["Oslo", "Bergen", "Kalmar", "Turku", "Visby", "Ribe", "Odense", "Lund", "Vaasa", "Molde"]
PASSAGES = [
    f"The harbour of {place} was opened by the council in {1800 + number}. It cost {number + 3} million crowns and lies "
    f"{number + 2} miles north of the old town. Ships from {PLACES[number - 1]} call there every week. " * 3
    for number, place in enumerate(PLACES)
]
GROUPS = [
    ContextQuestions(
        passage,
        (
            (f"Who opened the harbour of {place}?", "the council", passage.index("the council")),
            (f"When was the harbour of {place} opened?", str(1800 + number), passage.index(str(1800 + number))),
        ),
        "squad/train",
    )
    for number, (place, passage) in enumerate(zip(PLACES, PASSAGES, strict=True))
]
