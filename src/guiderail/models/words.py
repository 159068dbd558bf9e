"""The general word lists of the tiny tokenizer: user-interface words, lorem ipsum, colours, shapes, first names.

Guarantees: they come from no benchmark. Words outside these lists are spelled in bytes, which the tokenizer and the
model handle as well.
"""

from __future__ import annotations

UI = """
ok okay yes no cancel submit next previous back close open save login logout send reply search help home edit view
file buy apply reset clear delete add start stop one two three four five six seven eight nine ten more less continue
accept decline agree done finish menu options settings profile account email password username user name date time
title subject message forward archive select choose enter click press button link tab text field box textbox checkbox
radio textarea item list page section number order show hide copy paste print share like upload download register sign
in out up down left right top bottom first second third last new old big small large the and into from with then of to
on for at below above a an all
""".split()

LOREM = """
lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna
aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis aute
irure in reprehenderit voluptate velit esse cillum fugiat nulla pariatur excepteur sint occaecat cupidatat non
proident sunt culpa qui officia deserunt mollit anim id est laborum ac eget nunc vitae nibh mauris morbi quam purus
orci urna porta ligula felis viverra tellus turpis augue lacus massa metus neque odio pellentesque pharetra posuere
pretium pulvinar rhoncus risus sagittis sapien scelerisque sem semper senectus sodales sollicitudin suscipit tincidunt
tortor tristique ultrices ultricies varius vel vestibulum volutpat vulputate a ante arcu at bibendum blandit congue
cras cursus diam dictum dignissim donec dui egestas eleifend elementum erat eros et etiam eu euismod facilisi
facilisis fames faucibus fermentum feugiat fringilla fusce gravida habitant hac hendrerit iaculis imperdiet integer
interdum justo lacinia laoreet lectus leo libero lobortis luctus maecenas malesuada mattis mi molestie netus ornare
platea praesent quisque suspendisse tempus vivamus
""".split()

COLOURS = (
    "red green blue yellow magenta cyan white black grey gray orange purple pink brown aqua lime olive navy".split()
)
SHAPES = "circle square triangle rectangle cross star line letter digit shape".split()

NAMES = """
James Mary John Patricia Robert Jennifer Michael Linda William Elizabeth David Barbara Richard Susan Joseph Jessica
Thomas Sarah Charles Karen Daniel Nancy Matthew Lisa Anthony Betty Mark Margaret Donald Sandra Steven Ashley Paul
Kimberly Andrew Emily Joshua Donna Kevin Michelle Brian Carol George Amanda Edward Dorothy Ronald Melissa Timothy
Deborah
""".split()


def all_words() -> list[str]:
    """Every listed word of two letters or more, lower case and capitalised, the first 60 of UI in upper case too.

    Sorted and unique: their order is the order of token ids.
    """
    words: set[str] = set()
    for w in [*UI, *LOREM, *COLOURS, *SHAPES, *NAMES]:
        words |= {w.lower(), w.capitalize()}
    for w in UI[:60]:
        words.add(w.upper())
    return sorted(w for w in words if len(w) > 1)
