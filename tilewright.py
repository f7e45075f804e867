"""The package `compiler` by the name of its distribution; `TORCH_LOGS="+tilewright"` asks for a module of this name."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("compiler")
