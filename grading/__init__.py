"""Grade a class: ``python -m grading NAME``.

The modules, in reading order:

- ``check_notebook``: check and repair a notebook's grading metadata; also a command for students.
- ``text_files``: read a text file in one of several encodings.
- ``draw_numbers``: draw the numbers of questions on paper at release.
- ``release``: write the assignment's name into a released notebook.
- ``bonus``: tell bonus points from regular points.
- ``rpc``: carry function calls between a check and an answer in another process.
- ``sandbox``: start a kernel in a sandbox.
- ``processes``: run each submission in its own process, with time limits.
- ``executor``: execute a notebook in the sandbox and run its checks outside.
- ``sanitize``: remove active content, such as scripts, from a graded notebook.
- ``names``: compare students' names.
- ``collect``: find the owner of each file in the course system's download.
- ``roster``: read the class list and the deadlines.
- ``report``: write the tables and the figure of the results.
- ``feedback_page``: summarise a student's points on the feedback page.
- ``formgrader``: show the model answers and usual remarks in Formgrader.
- ``groups``: combine the submissions of a group.
- ``feedback_zip``: pack the feedback for the course system.
- ``similarity``: note answers that a person should read twice.
- ``course``: the steps of grading one assignment.
- ``sharding``: divide a class into parts and join their results.
- ``merge``: merge the manual grades of several graders.
- ``audit``: run right and wrong answers to the checks under many seeds of a course; also a command.
- ``__main__``: the command.
"""
