"""Every op of Graph IR, one declaration each, in families.  Importing this package fills the registry."""

from compiler.ir.ops.elementwise import *  # noqa: F403
