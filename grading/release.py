"""Write an assignment's name into the metadata of its released notebook, so that another one is told from it."""

from nbgrader.preprocessors import NbGraderPreprocessor

from grading.check_notebook import ABOUT


class Named(NbGraderPreprocessor):
    """The last step of releasing; nbgrader's configuration names it."""

    def preprocess(self, nb, resources):
        """Write the name."""
        nb.metadata[ABOUT] = {"assignment": resources["nbgrader"]["assignment"]}
        return nb, resources
