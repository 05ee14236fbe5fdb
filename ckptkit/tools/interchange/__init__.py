"""Imports and exports weights in the files of other programs: MindSpore's ``.ckpt``, and ``.safetensors``.

Neither needs MindSpore. See ``docs/interchange.md``.
"""

from ckptkit.tools.interchange.exporting import Exported, export_weights
from ckptkit.tools.interchange.importing import Imported, import_weights
from ckptkit.tools.interchange.names import Renames

__all__ = ["Exported", "Imported", "Renames", "export_weights", "import_weights"]
