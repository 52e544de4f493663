"""The page: Gradio only. `build(worker, settings)` returns what app.py launches."""

from specchat.ui.page import Page, build  # isort: skip (switches analytics off before Gradio is imported)
from specchat.ui.desk import Options

__all__ = ["Options", "Page", "build"]
