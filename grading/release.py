"""Write the assignment's name into a released notebook, to recognise submissions of the wrong notebook."""

from nbgrader.preprocessors import NbGraderPreprocessor

from grading.check_notebook import ABOUT


class AddAssignmentName(NbGraderPreprocessor):
    """The last preprocessor of nbgrader's release step, listed in ``nbgrader_config.py``."""

    def preprocess(self, nb, resources):
        """Write the assignment's name into the notebook's metadata."""
        nb.metadata[ABOUT] = {"assignment": resources["nbgrader"]["assignment"]}
        return nb, resources
