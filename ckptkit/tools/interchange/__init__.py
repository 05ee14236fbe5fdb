"""Imports and exports weights in the files of other programs: MindSpore's ``.ckpt``, and ``.safetensors``.

`export_weights` writes one from a checkpoint, `import_weights` begins a run with one. Each serves one caller at a time
and needs no MindSpore. See ``docs/interchange.md``.
"""

from ckptkit.tools.interchange.exporting import Exported, export_weights
from ckptkit.tools.interchange.importing import Imported, import_weights
from ckptkit.tools.interchange.renames import Renames

__all__ = ["Exported", "Imported", "Renames", "export_weights", "import_weights"]
