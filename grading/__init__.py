"""Grade a class: ``python -m grading NAME``.

In the order of reading: ``check_notebook`` says what a notebook must carry and is a command for students, ``release``
writes an assignment's name into it, ``bonus`` says which points come on top, ``wire`` carries calls between a check and
an answer, ``sandbox`` starts a kernel that can do no harm, ``processes`` bounds the time of each submission,
``outside`` runs a notebook in there and its checks out here, ``clean`` takes out of it what a browser would run,
``names`` says which names are the same, ``collect`` knows whose file is which, ``roster`` who belongs to the class and
what is late, ``report`` writes what a class reached, ``groups`` knows who hands in together, ``hand_back`` packs the
feedback for the course system, ``alike`` notes what should be read twice, ``course`` holds the steps, ``parts`` divides
a class and joins it again, ``merge`` joins what several people graded by hand, ``__main__`` is the command.
"""
