"""The colours of plots, explorers and drawings: one for each of four roles, and a sequence for other series.

They are the colours of Okabe and Ito [1]_, which readers with any common colour blindness can distinguish. The scripts
and style sheets of the explorers repeat them, and the tests compare the copies.

.. [1] Okabe & Ito, *Color Universal Design*, 2008. https://jfly.uni-koeln.de/color/.
"""

QUERY = "#0072b2"
KEY = "#d55e00"
VALUE = "#009e73"
OUTPUT = "#cc79a7"
COLOURS = (QUERY, KEY, VALUE, OUTPUT, "#56b4e9", "#e69f00", "#000000")

# Query and key on a dark background, where the colours above would be too dark.
DARK_QUERY = "#56b4e9"
DARK_KEY = "#e69f00"
